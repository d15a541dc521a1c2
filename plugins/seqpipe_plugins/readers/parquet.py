"""Reader of Parquet tables, one row a record as in JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seqpipe.plugin import DataError, EnvError, install_command

from . import Record
from .objects import Objects

_ARROW = (".arrow", ".feather")
_ROWS = 256  # read at once


class Parquet(Objects):
    """Reads Parquet and Arrow tables, one record a row: texts with spans or labels, words with tags, or either alone.

    The options have the same meaning as those of the reader `jsonl`. Numbers of a column whose names the file states,
    as files of the library `datasets` do, become these names. `where` counts rows. It needs pyarrow: the extra
    `parquet`.

    Args:
        text: Column of the text; null if there is none, for example with two texts.
        label: Column that becomes the field `label`; null if the columns already have the right names.
        labels: Column that becomes the field `labels`: a list of labels.
        words: Column of the words of a pre-split text.
        tags: Column of the tags.
        spans: Column of the spans; a span may also be a list [start, end, label].
    """

    empty_message = "there is no row in this file; give one with at least one example"

    def items(self, path: Path) -> Iterator[Record]:
        try:
            import pyarrow as pa
        except ImportError as error:
            raise EnvError(f"{path}: Parquet needs pyarrow: {install_command('parquet')}") from error
        row = 0
        try:
            for row, item in enumerate(self.rows(Path(path)), 1):
                yield from self.read_item(self.record, item, f"{path}:{row}")
        except (OSError, pa.ArrowException) as error:
            problem = f"cannot be read after row {row} ({' '.join(str(error).split())})"
            raise DataError(f"{path}: {problem}; is it a Parquet file, and whole?") from error

    def rows(self, path: Path) -> Iterator[dict[str, Any]]:
        """The rows of a Parquet or Arrow file, or of the Arrow files of a folder, with names in place of numbers."""
        from pyarrow import ArrowInvalid, ipc, memory_map, parquet

        for part in sorted(path.glob("*.arrow")) if path.is_dir() else [path]:
            with memory_map(str(part)) as source:
                if part.suffix not in _ARROW:
                    file = parquet.ParquetFile(source)
                    schema, batches = file.schema_arrow, file.iter_batches(_ROWS)
                else:
                    try:
                        table = ipc.open_stream(source).read_all()
                    except ArrowInvalid:  # with a footer, as Feather
                        table = ipc.open_file(source).read_all()
                    schema, batches = table.schema, table.to_batches(_ROWS)
                names = _names((schema.metadata or {}).get(b"huggingface"))
                for batch in batches:
                    for item in batch.to_pylist():
                        yield {key: _name(value, names[key]) if key in names else value for key, value in item.items()}


class Datasets(Parquet):
    """Reads a folder that the library `datasets` wrote with `save_to_disk`, of one split; as the reader `parquet`."""

    folder = True

    def files(self, path: Path) -> list[Path]:
        """Every file that is read."""
        return [*sorted(Path(path).glob("*.arrow")), *super().files(path)[1:]]


def _names(stated: bytes | None) -> dict[str, list[str]]:
    """Return the names of the numbers of each column for which the library `datasets` states them."""
    try:
        features = json.loads(stated or b"{}").get("info", {}).get("features", {})
    except ValueError:
        return {}
    columns = {}
    for column, feature in features.items():
        part = feature[0] if isinstance(feature, list) and feature else feature
        if isinstance(part, Mapping):
            names = part.get("names") or (part.get("feature") or {}).get("names")
            if isinstance(names, list):
                columns[column] = names
    return columns


def _name(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return [_name(item, names) for item in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value
