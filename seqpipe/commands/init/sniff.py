"""Recognise a file's format by its first lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SQUAD = re.compile(r'\{\s*("[^"\\]*"\s*:\s*("[^"\\]*"|[-+.\w]+)\s*,\s*)*"data"\s*:\s*\[\s*\{')


def is_conllu(lines: Sequence[str]) -> bool:
    """Return whether the first line that is no comment has ten columns, and a number first."""
    first = next((line.split("\t") for line in lines if line.strip() and not line.startswith("#")), [])
    return len(first) == 10 and first[0].partition("-")[0].isdigit()


def is_squad(lines: Sequence[str]) -> bool:
    """Return whether the lines begin an object whose first list is `data`, of articles with paragraphs."""
    return bool(_SQUAD.match("\n".join(lines))) and any('"paragraphs"' in line for line in lines)
