"""Pictures and sounds as values of a record: files, bytes, base64 texts and arrays, and their form in JSON."""

from __future__ import annotations

import base64
import binascii
import io
from pathlib import Path
from typing import Any

import numpy as np

from seqpipe.errors import DataError

MOST_BYTES = 50_000_000  # of an encoded picture or sound


def is_encoded(value: Any) -> bool:
    """Return whether a value is a file or its content, and not an array."""
    return isinstance(value, str | bytes | Path)


def read_bytes(value: Any, place: str, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file, of bytes, or of a base64 text, which may be a data URL.

    A text is never a path: only a `Path`, which JSON cannot express, opens a file. So no request to a server and no
    line of JSON can.

    Raises:
        DataError: if there are more than `most` bytes, which is checked before anything is decoded, or if the value
            cannot be read. `place` is the location and the field; the message goes on after it.
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
