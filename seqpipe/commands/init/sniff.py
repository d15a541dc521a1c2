"""Find out the reader of a table and its options by looking at the first lines."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import Any, Literal

SIGNS = {",": "csv", "\t": "tsv", ";": "csv"}
USUAL = ("label", "intent", "class", "category", "sentiment", "topic", "target")


def table_options(lines: Sequence[str], ending: str) -> tuple[str, dict[str, Any]] | None:
    """Return the reader and its options for a table of texts with a label each; None if the lines are no such table."""
    for sign in sorted(SIGNS, key=lambda sign: (SIGNS[sign] != ending, -lines[0].count(sign))):
        rows = _rows(lines, sign)
        if rows and (roles := _roles(rows)) is not None:
            return SIGNS[sign], ({"delimiter": sign} if sign == ";" else {}) | roles
    return None


def is_conllu(lines: Sequence[str]) -> bool:
    """Return whether the first line that is no comment has ten columns, and a number first."""
    first = next((line.split("\t") for line in lines if line.strip() and not line.startswith("#")), [])
    return len(first) == 10 and first[0].partition("-")[0].isdigit()


def _rows(lines: Sequence[str], sign: str) -> list[list[str]]:
    """Return the cells of at least two rows of one width, at least two columns; no rows if the lines are no table."""
    quoting: Literal[0, 3] = csv.QUOTE_NONE if sign == "\t" else csv.QUOTE_MINIMAL
    ended = [line + "\n" for line in lines]
    try:
        rows = list(csv.reader(ended, delimiter=sign, quoting=quoting))
    except csv.Error:
        return []
    if sign == "\t" and [] in rows:
        return []  # empty lines part sentences: a file of a word and its tag a line
    rows = [row for row in rows if row]
    widths = {len(row) for row in rows[: -1 if len(rows) > 2 else None]}  # the last may be cut within a quoted cell
    return [row for row in rows if {len(row)} == widths] if len(rows) > 1 and len(widths) == 1 != min(widths) else []


def _roles(rows: list[list[str]]) -> dict[str, Any] | None:
    """Return the options that say which column is the text and which the label; None if none can be."""
    head, cells = rows[0], list(zip(*rows[1:], strict=True))
    text = max(range(len(head)), key=lambda i: sum(map(len, cells[i])))
    if not any(" " in cell or not cell.isascii() for cell in cells[text]):
        return None
    labels = [i for i in range(len(head)) if i != text and _is_label(cells[i])]
    labels.sort(key=lambda i: (head[i].lower() not in USUAL, len({*cells[i]})))
    if not labels:
        return None
    label = labels[0]
    if head[label] in cells[label] or len(head[text].split()) > 3:  # the first row is data
        names = {text: "text", label: "label"}
        return {"columns": [names.get(i, "_") for i in range(len(head))]}
    return {key: head[i] for key, i in (("text", text), ("label", label)) if head[i] != key}


def _is_label(cells: Sequence[str]) -> bool:
    """Return whether few values repeat."""
    values = {*cells}
    return "" not in values and 1 < len(values) <= max(2, len(cells) / 2)
