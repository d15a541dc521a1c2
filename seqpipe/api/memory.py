"""Data in memory: lists of records, data frames and data sets, written to files so that a run can be resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from seqpipe.errors import UsageError
from seqpipe.files import json_bytes, make_folder, write

DATA_FOLDER = ".data"  # in the folder of all runs: files named by their content
SETS = ("train", "dev", "test", "unlabelled")


def is_in_memory(data: Any) -> bool:
    """Return whether these are records or a data frame, not a path, a list of paths, a share or nothing."""
    if data is None or isinstance(data, (str, Path, float, int)):
        return False
    if isinstance(data, Mapping):  # named test sets
        return any(map(is_in_memory, data.values()))
    return not (isinstance(data, (list, tuple)) and all(isinstance(item, (str, Path)) for item in data))


def records_of(data: Any) -> list[dict[str, Any]]:
    """Return the records of a list of dicts, a data frame of pandas or polars, an Arrow table or a `datasets.Dataset`.

    Raises:
        UsageError: for a row that is no dict.
    """
    if hasattr(data, "to_pylist"):  # Arrow
        rows: Iterable[Any] = data.to_pylist()
    elif hasattr(data, "to_dicts"):  # polars
        rows = data.to_dicts()
    elif hasattr(data, "to_dict") and hasattr(data, "columns"):  # pandas
        rows = data.astype(object).where(data.notna(), None).to_dict("records")
    else:
        rows = data
    records = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            fix = "give dicts, such as {'text': …, 'label': …}, or a data frame"
            raise UsageError(f"row {number}: is {type(row).__name__}, not a record; {fix}")
        records.append({str(key): value.item() if hasattr(value, "item") else value for key, value in row.items()})
    return records


def write_records(data: Any, runs: Path) -> Path:
    """Write records as JSON Lines to a file in the folder of all runs, named by the hash of its content."""
    content = b"".join(json_bytes(record, default=str) + b"\n" for record in records_of(data))
    if not content:
        raise UsageError("no records: the data in memory are empty")
    path = runs / DATA_FOLDER / f"{hashlib.sha256(content).hexdigest()[:16]}.jsonl"
    if not path.exists():
        make_folder(path.parent)
        write(path, content)
    return path


def with_files(source: Mapping[str, Any], runs: Path) -> dict[str, Any]:
    """Return the content of a YAML in which files have the data in memory of its key `data`."""
    data = source.get("data")
    if not (isinstance(data, Mapping) and any(is_in_memory(data.get(name)) for name in SETS)):
        return dict(source)
    files = {name: file_of(data[name], runs) if is_in_memory(data.get(name)) else data[name] for name in data}
    return {**source, "data": {"reader": {"use": "jsonl"}, **files}}


def file_of(data: Any, runs: Path) -> Any:
    """Return the absolute path of a file with these records, or those of named sets."""
    if isinstance(data, Mapping):
        return {name: file_of(part, runs) if is_in_memory(part) else str(part) for name, part in data.items()}
    return str(write_records(data, runs).absolute())
