"""Find out how a JSON file holds its objects: one a line, in a list, or in a list below a key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from seqpipe.commands.init.json_sample import load_json
from seqpipe.errors import DataError

_FORMS = 'write an object a line, or a list of objects, such as [{"text": …, "label": …}, …]'
_DEEP = 4  # keys above a list
_MOST = 5  # times as many objects as in the next list: the list that is meant
_SPLITS = {"train", "training", "dev", "valid", "validation", "val", "test"}


def find_json(data: Path, lines: Sequence[str]) -> tuple[str, dict[str, Any]] | None:
    """Return the reader of a JSON file and its options; None if the file is no JSON.

    Raises:
        DataError: if it holds no list of objects, or several.
    """
    start = "".join("".join(lines[:100]).split())[:2]
    if start.startswith("{"):
        if _is_object(lines[0]) and any(line.strip() for line in lines[1:]):
            return "jsonl", {}
        return _below_keys(data, lines)
    if start in ('["', "[[", "[]"):
        cure = (
            "make objects of its items, for instance with `jq -c '.[] | {text: .[0], label: .[1]}' FILE > FILE.jsonl`"
        )
        if load_json(data) is None:
            return None
        raise DataError(f"{data}: a JSON list, but not of objects; {_FORMS}{f'; {cure}' * (start == '[[')}")
    return ("json", {}) if start == "[{" else None


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _below_keys(data: Path, lines: Sequence[str]) -> tuple[str, dict[str, Any]]:
    value = load_json(data)
    if value is None:
        return "jsonl", {}  # which says what is wrong, and where
    lists = sorted(_lists(value), key=lambda found: -found[1])
    if not lists:
        if len(lines) == 1 and not any(isinstance(part, (dict, list)) for part in value.values()):
            return "jsonl", {}
        raise DataError(f"{data}: one JSON object without a list of objects; {_FORMS}{_conversion(value)}")
    names = {key.rpartition(".")[2].lower() for key, _ in lists}
    if len(lists) > 1 and (names & _SPLITS or lists[0][1] < _MOST * lists[1][1]):
        listed = ", ".join(f"{key!r} ({count:,})" for key, count in lists[:5])
        cure = f"make a file of each that is meant, for instance with `jq '.{lists[0][0]}' FILE > train.json`"
        raise DataError(f"{data}: several lists of objects: {listed}; {cure}")
    return "json", {"list": lists[0][0]}


def _lists(value: dict[str, Any], before: str = "", depth: int = 1) -> Iterator[tuple[str, int]]:
    """Yield the dotted key of each list of objects, and how many it has."""
    for key, part in value.items():
        if isinstance(part, dict) and depth < _DEEP:
            yield from _lists(part, f"{before}{key}.", depth + 1)
        elif isinstance(part, list) and part and all(isinstance(item, dict) for item in part):
            yield f"{before}{key}", len(part)


def _conversion(value: dict[str, Any]) -> str:
    """What to do about an object of columns, or of objects by their names."""
    parts = list(value.values())
    objects = all(isinstance(part, dict) for part in parts)
    flat = objects and not any(isinstance(item, dict) for part in parts for item in part.values())
    rows = [key for key, part in value.items() if isinstance(part, list) and part and isinstance(part[0], list)]
    if rows:
        way = f"jq -c '.{rows[0]}[] | {{text: .[0], label: .[1]}}' FILE > {rows[0]}.jsonl"
        return f"; it holds lists of lists: make objects of each, for instance with `{way}`"
    if len(parts) < 2:
        return ""
    if (flat or all(isinstance(part, list) for part in parts)) and len({*map(len, parts)}) == 1:
        way = 'pandas.read_json("FILE").to_json("FILE.jsonl", orient="records", lines=True)'
        return f"; if it holds columns, turn them into records, for instance with `{way}`"
    return "; `jq -c '.[]' FILE > FILE.jsonl` writes the objects that it holds one a line" if objects else ""
