"""Find out the reader of a table and its options by looking at the first lines."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

SIGNS = {",": "csv", "\t": "tsv", ";": "csv"}
USUAL = ("label", "intent", "class", "category", "sentiment", "topic", "target")
MEASURED = ("score", "rating", "stars", "grade", "price", "similarity", "value")
MANY = 20  # different whole numbers; no more may be classes, and so may a few with a fraction
FEW = 5
SOURCES = {"text", "source", "src", "input", "question", "document", "article"}
TARGETS = {"target", "tgt", "output", "answer", "response", "summary", "translation"}
LANGUAGES = {"en", "de", "fr", "es", "it", "pt", "nl", "ru", "zh", "ja"}
_NAME = re.compile(r"[A-Za-z_][\w-]*")  # of a column
_KEY = re.compile(r"[A-Za-z]*[-_]?\d+|[0-9a-fA-F-]{16,}")  # what a row is called by, as in u-17
_SQUAD = re.compile(r'\{\s*("[^"\\]*"\s*:\s*("[^"\\]*"|[-+.\w]+)\s*,\s*)*"data"\s*:\s*\[\s*\{')
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@dataclass(frozen=True)
class Table:
    """A table's reader, its options and what is learned from it: `column` is its name in the first line."""

    use: str
    options: dict[str, Any]
    learns: Literal["Labels", "Numbers", "Texts"]
    column: str


def table_of(lines: Sequence[str], ending: str) -> Table | None:
    """Return the table of texts with a label, a number or a text to write each; None if the lines are no such table."""
    for sign in sorted(SIGNS, key=lambda sign: (SIGNS[sign] != ending, -lines[0].count(sign))):
        rows = _rows(lines, sign)
        if rows and (found := _roles(rows, SIGNS[sign]) or _pairs(rows, SIGNS[sign])):
            return replace(found, options=({"delimiter": sign} if sign == ";" else {}) | found.options)
    return None


def is_conllu(lines: Sequence[str]) -> bool:
    """Return whether the first line that is no comment has ten columns, and a number first."""
    first = next((line.split("\t") for line in lines if line.strip() and not line.startswith("#")), [])
    return len(first) == 10 and first[0].partition("-")[0].isdigit()


def is_squad(lines: Sequence[str]) -> bool:
    """Return whether the lines begin an object whose first key but for texts and numbers is a list `data`."""
    return bool(_SQUAD.match("\n".join(lines)))


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


def _roles(rows: list[list[str]], use: str) -> Table | None:
    """Return the table with the options that say which column is the text and which the label or number, if any is."""
    head, cells = rows[0], list(zip(*rows[1:], strict=True))
    text = max(range(len(head)), key=lambda i: sum(map(len, cells[i])))
    if not any(" " in cell or not cell.isascii() for cell in cells[text]):
        return None
    measured = {i for i in range(len(head)) if i != text and _is_measured(cells[i])}
    labels = [i for i in range(len(head)) if i != text and (i in measured or _is_label(cells[i]))]
    labels.sort(key=lambda i: (head[i].lower() not in USUAL + MEASURED, i in measured, len({*cells[i]})))
    if not labels:
        return None
    label = labels[0]
    is_number = label in measured
    if (
        head[label] in cells[label] or (is_number and _NUMBER.fullmatch(head[label])) or len(head[text].split()) > 3
    ):  # the first row is data
        names = {text: "text", label: "label"}
        options: dict[str, Any] = {"columns": [names.get(i, "_") for i in range(len(head))]}
        numbers = {"numbers": ["label"]} if is_number else {}
        return Table(use, options | numbers, "Numbers" if is_number else "Labels", "label")
    if is_number:
        named = {} if head[text] == "text" else {"text": head[text]}
        return Table(use, {**named, "numbers": [head[label]]}, "Numbers", head[label])
    options = {key: head[i] for key, i in (("text", text), ("label", label)) if head[i] != key}
    return Table(use, options, "Labels", head[label])


def _pairs(rows: list[list[str]], use: str) -> Table | None:
    """Return the table of a text and the text to write in each row; None if its two columns are no such texts."""
    if len(rows[0]) != 2:
        return None
    head = [cell.strip().lower() for cell in rows[0]]
    named = _names_columns(rows)
    cells = list(zip(*rows[named:], strict=True))
    spaced = any(" " in cell or not cell.isascii() for column in cells for cell in column)
    if not spaced or not all(map(_is_text, cells)) or (named and not {"id", "uid", "guid"}.isdisjoint(head)):
        return None
    target = 0 if named and (head[0] in TARGETS or (head[1] in SOURCES and head[0] not in SOURCES)) else 1
    if not named:
        return Table(use, {"columns": ["text", "target"]}, "Texts", "target")
    text = rows[0][1 - target]
    return Table(use, {} if text == "text" else {"text": text}, "Texts", rows[0][target])


def _names_columns(rows: list[list[str]]) -> bool:
    """Return whether the first of the rows of two texts names the columns."""
    head = [cell.strip().lower() for cell in rows[0]]
    if {*head} <= SOURCES | TARGETS or {*head} <= LANGUAGES:
        return head[0] != head[1]
    others = [cell for row in rows[1:] for cell in row]
    return all(map(_NAME.fullmatch, rows[0])) and head[0] != head[1] and not any(map(_NAME.fullmatch, others))


def _is_text(cells: Sequence[str]) -> bool:
    """Return whether most cells differ, none is empty, and they are neither numbers nor what rows are called by."""
    values = {*cells}
    plain = sum(bool(_NUMBER.fullmatch(cell) or _KEY.fullmatch(cell)) for cell in values)
    return all(cell.strip() for cell in values) and len(values) > len(cells) / 2 > 0 and plain < len(values) / 2


def are_measured(values: Collection[float]) -> bool:
    """Return whether numbers are measured, and no classes: many different ones, or several with a fraction."""
    different = {*values}
    has_fraction = any(value % 1 != 0 for value in different)
    return len(different) > (FEW if has_fraction else MANY)


def _is_measured(cells: Sequence[str]) -> bool:
    """Return whether a column holds measured numbers, and does not count the rows."""
    if not all(map(_NUMBER.fullmatch, cells)):
        return False
    numbers = [float(cell) for cell in cells]
    counts = all(after - before == 1 for before, after in pairwise(numbers))
    return not counts and are_measured(numbers)


def _is_label(cells: Sequence[str]) -> bool:
    """Return whether few values repeat."""
    values = {*cells}
    return "" not in values and 1 < len(values) <= max(2, len(cells) / 2)
