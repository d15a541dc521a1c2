"""Pictures and sounds as values of a record: files, bytes, base64 texts and arrays, and their form in JSON."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from seqpipe.errors import DataError

MOST_BYTES = 50_000_000  # of an encoded picture or sound


def is_encoded(value: Any) -> bool:
    """Return whether a value is a file or its content, and not an array."""
    return isinstance(value, str | bytes | Path)


def is_media_value(value: Any) -> bool:
    """Return whether a value is a file, its content, or an array of NumPy or Pillow."""
    return is_encoded(value) or hasattr(value, "__array__") or is_pillow(value)


def read_bytes(value: Any, place: str, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file, of bytes, or of a base64 text, which may be a data URL.

    A text is never a path: only a `Path`, which JSON cannot express, opens a file. So no request to a server and no
    line of JSON can.

    Raises:
        DataError: if there are more than `most` bytes, which is checked before anything is decoded, or if the value
            cannot be read. `place` is the location and the field; the rest of the message follows.
    """
    if isinstance(value, Path):
        if not value.is_file():
            state = "this is not a file" if value.exists() else "there is no such file"
            raise DataError(f"{place} is {value}: {state}; correct the path")
        try:
            size = value.stat().st_size
            data = value.read_bytes() if size <= most else b""
        except OSError as error:
            raise DataError(f"{place} is {value}, which cannot be read ({error.strerror})") from error
    elif isinstance(value, bytes):
        size, data = len(value), value
    elif isinstance(value, str):
        text = value.partition("base64,")[2] if value.startswith("data:") else value
        size, data = len(text) * 3 // 4 - text.count("=", -2), b""
        if size <= most:
            try:
                data = base64.b64decode(text, validate=True)
            except (ValueError, binascii.Error) as error:
                fix = "give the bytes in base64, not a path or a URL; in Python a pathlib.Path"
                raise DataError(f"{place} is a text that is not base64 ({error}); {fix}") from error
    else:
        raise DataError(f"{place} is {type(value).__name__}; give a file as base64, bytes or pathlib.Path")
    if size > most:
        raise DataError(f"{place} has {size:,} bytes, and at most {most:,} are read; make it smaller")
    return data


def with_paths(record: Mapping[str, Any], fields: Iterable[str], where: str) -> dict[str, Any]:
    """Return a record whose `fields` name files, relative to the folder of its data file, with paths in them.

    An array and a data URL (`data:image/png;base64,…`) name no file, and stay.

    Raises:
        DataError: if there is no such file. `where` is the data file and the line of the record.
    """
    with_files = dict(record)
    for field in fields:
        name = record.get(field)
        if isinstance(name, list) or (isinstance(name, str) and name.startswith("data:")):
            continue
        if not isinstance(name, str) or not name:
            raise DataError(f"{where}: {field!r} names no file; correct the record, or the reader's option `files`")
        with_files[field] = Path(where.rpartition(":")[0]).parent / name
        if not with_files[field].is_file():
            problem = f"there is no file {with_files[field]}, which {field!r} names"
            raise DataError(f"{where}: {problem}; names are relative to the folder of the data file")
    return with_files


def json_value(value: Any) -> Any:
    """Return a picture or a sound in its form for JSON: base64 text of a file or of bytes, lists of an array.

    Any other value is returned as it is.
    """
    if isinstance(value, Path | bytes):
        return base64.b64encode(read_bytes(value, str(value) if isinstance(value, Path) else "the value")).decode()
    if is_pillow(value):
        file = io.BytesIO()
        value.convert("RGB").save(file, "PNG")
        return base64.b64encode(file.getvalue()).decode()
    return np.asarray(value).tolist() if hasattr(value, "__array__") else value


def is_pillow(value: Any) -> bool:
    """Return whether a value is a picture of Pillow; does not import it."""
    return hasattr(value, "convert") and type(value).__module__.partition(".")[0] == "PIL"
