"""Recognise a file's format by its first lines."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from seqpipe.commands.init.profile import FEW, SEVERAL

_SQUAD = re.compile(r'\{\s*("[^"\\]*"\s*:\s*("[^"\\]*"|[-+.\w]+)\s*,\s*)*"data"\s*:\s*\[\s*\{')


def is_conllu(lines: Sequence[str]) -> bool:
    """Return whether the first line that is no comment has ten columns, and a number first."""
    first = next((line.split("\t") for line in lines if line.strip() and not line.startswith("#")), [])
    return len(first) == 10 and first[0].partition("-")[0].isdigit()


def is_squad(lines: Sequence[str]) -> bool:
    """Return whether the lines begin an object whose first key but for texts and numbers is a list `data`."""
    return bool(_SQUAD.match("\n".join(lines)))


def are_measured(values: Collection[float]) -> bool:
    """Return whether numbers are measured, and no classes: many different ones, or several with a fraction."""
    different = {*values}
    has_fraction = any(value % 1 != 0 for value in different)
    return len(different) > (FEW if has_fraction else SEVERAL)
