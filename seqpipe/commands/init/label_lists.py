"""Find out whether the cells of a column hold several labels each, and what separates them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from seqpipe.commands.init.profile import Column

SEPARATORS = ("|", ";", ",")
SEVERAL = 1 / 20  # of the cells hold several labels at least
WORDS = 3  # of a label on average, at most
_PLURAL = {"labels", "tags", "topics", "categories", "genres", "classes", "intents"}
_LIST = re.compile(r"\[.*\]|\{.*\}", re.DOTALL)


def are_lists(column: Column) -> bool:
    """Return whether most cells are written as lists, such as `["a", "b"]`."""
    return column.share(lambda cell: _LIST.fullmatch(cell.strip())) > 0.5


def separator_of(column: Column, name: str) -> str | None:
    """Return the separator of the labels in a cell; None if each cell is one label."""
    cells = Counter(column.sample)
    for separator in SEPARATORS:
        lists = {cell: [part.strip() for part in cell.split(separator)] for cell in cells}
        several = {cell: parts for cell, parts in lists.items() if len(parts) > 1}
        enough = sum(cells[cell] for cell in several) >= max(1, SEVERAL * cells.total())
        if enough and _are_labels(lists, several, name):
            return separator
    return None


def _are_labels(lists: Mapping[str, list[str]], several: Mapping[str, list[str]], name: str) -> bool:
    """Return whether the parts of cells are labels: short, and most of them in other cells too, unless named so."""
    counts = Counter(part for parts in lists.values() for part in {*parts})
    if "" in counts or sum(part.count(" ") + 1 for part in counts) > WORDS * len(counts):
        return False
    again = sum(all(counts[part] > 1 for part in parts) for parts in several.values())
    return name in _PLURAL or again > len(several) / 2
