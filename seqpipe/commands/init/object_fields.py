"""Statistics of the keys of objects, from a JSON or Parquet file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from seqpipe.commands.init.profile import Column
from seqpipe.commands.init.summary import DataSummary, records

FORMS = {"jsonl": "JSON Lines", "json": "a JSON list of objects", "parquet": "a Parquet table"}
MOST = 8  # keys that are listed
BLOCK = 1_000  # objects taken account of at once
_SCALARS = {"text", "number", "truth"}


@dataclass
class Field:
    """What the values of one key are like.

    Attributes:
        column: Statistics of the values, if they are scalar.
        kinds: How often each kind of value occurs.
        missing_at: File and line of the first object without a value.
        example: The first value that is no empty list.
        listed: Number of characters of the texts in lists.
    """

    column: Column
    kinds: Counter[str] = field(default_factory=Counter)
    missing_at: str = ""
    example: Any = None
    listed: int = 0

    def add(self, values: Sequence[Any], every: int) -> None:
        """Take account of further values; a missing one is None."""
        self.kinds.update(map(_kind, values))
        if self.example is None or self.example == []:
            self.example = next((value for value in values if value not in (None, [])), self.example)
        self.listed += sum(len("".join(value)) for value in values if _kind(value) == "texts")
        if self.is_scalar:
            self.column.add([_cell(value) for value in values], every)

    @property
    def is_scalar(self) -> bool:
        """Whether all values are texts, numbers or truth values, or missing."""
        return self.kinds.keys() <= _SCALARS | {"missing"}

    def is_list_of(self, kind: str) -> bool:
        """Whether all values are lists of this kind, or empty."""
        return self.kinds[kind] > 0 and self.kinds.keys() <= {kind, "empty", "missing"}


def _kind(value: Any) -> str:
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, dict):
        return "object"
    return "list" if not isinstance(value, list) else _kind_of_list(value)


def _kind_of_list(values: list[Any]) -> str:
    if not values:
        return "empty"
    kinds = {_kind(value) for value in values}
    return f"{kinds.pop()}s" if len(kinds) == 1 else "mixed list"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def profile_objects(summary: DataSummary, data: Path) -> dict[str, Field]:
    """Return the statistics of each key of the objects, dotted within objects."""
    raw = DataSummary(summary.use, {**summary.options, "text": None})
    every = 1 + data.stat().st_size // 20_000_000
    fields: dict[str, Field] = {}
    rows = records(raw, data)
    seen, first = 0, ""
    while block := list(islice(rows, BLOCK)):
        first = first or block[0]["where"]
        for key in dict.fromkeys(key for row in block for key in row):
            if key not in fields and key != "where":
                fields[key] = Field(Column("where" if key == "source_where" else key))
                if seen:
                    fields[key].add([None] * seen, every)
                    fields[key].missing_at = first
        for key, values in fields.items():
            cells = [row.get(key) for row in block]
            if not values.missing_at and None in cells:
                values.missing_at = block[cells.index(None)]["where"]
            values.add(cells, every)
        seen += len(block)
    summary.sampled = raw.sampled
    return {stats.column.first: stats for stats in fields.values()}


def keys_of(fields: Mapping[str, Field]) -> str:
    """Return the keys of the objects, for people."""
    keys = [key for key, stats in fields.items() if {*stats.kinds} != {"object"}]
    listed, rest = keys[:MOST], len(keys) - MOST
    if rest > 0 or len(listed) < 2:
        return f"the keys {', '.join(listed)} and {rest} more" if rest > 0 else f"the key {''.join(listed)}"
    return f"the keys {', '.join(listed[:-1])} and {listed[-1]}"
