"""Objects from all over a large JSON list, as lines of JSON."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from seqpipe.commands.init.files import open_bytes

OBJECTS = 10_000  # taken of a list that has more


def load_json(data: Path) -> Any:
    """Return the value that a file holds; None if it is not JSON."""
    try:
        with open_bytes(data) as file:
            return json.loads(file.read().decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None


def sample_lines(data: Path, key: str | None) -> tuple[list[str], float]:
    """Return objects of the list below a dotted key as lines, and how many times as many there are.

    There are no lines if the file is not JSON, or holds no such list.
    """
    return _sample(data, key, data.stat().st_mtime_ns, data.stat().st_size)


@functools.lru_cache(maxsize=1)
def _sample(data: Path, key: str | None, changed: int, size: int) -> tuple[list[str], float]:
    value = load_json(data)
    for part in key.split(".") if key else []:
        value = value.get(part) if isinstance(value, dict) else None
    if not isinstance(value, list):
        return [], 1.0
    items = value[:: 1 + len(value) // OBJECTS]
    return [json.dumps(item) for item in items], len(value) / max(1, len(items))
