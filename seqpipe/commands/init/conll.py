"""Find out how a CoNLL file is written: which column holds the words, which the tags, and what is a comment."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqpipe.commands.init.files import Pieces
from seqpipe.errors import DataError

LINES = 10_000_000  # bytes: lines of a larger file are counted in pieces of a quarter of this size together
FEW = 50  # different tags; no more may be as many as half of the words
_BLANKS = re.compile("[ \t]+")
_NUMBERS = re.compile(r"\d+([-.:]\d+)?")
_RANGE = re.compile(r"\d+[-.]\d+")
_SHAPE = re.compile(r"O|[BIESLU](-.+)?")
_GLUED = re.compile(r"\D\d{1,2}")  # a character and its position in the word, as in 科0 技1
_DOCUMENT = "-DOCSTART-"


@dataclass
class Layout:
    """How a CoNLL file is written.

    Attributes:
        separator: What parts columns: a tab, or None for any sequence of blanks and tabs.
        width: Number of columns.
        columns: How often each value occurs in each column.
        comments: Lines before sentences that are no words, such as `# text = …`.
        sentences: Number of empty lines.
        uneven: Whether lines have other columns.
        ranges: Whether there are lines for several words, such as 1-2, or for none.
        word, tag: Indices of the columns of words and tags.
        others: Indices of further columns that might be the tags.
    """

    separator: str | None
    width: int
    columns: list[Counter[str]]
    comments: list[str] = field(default_factory=list)
    sentences: int = 0
    uneven: bool = False
    ranges: bool = False
    word: int = 0
    tag: int = -1
    others: list[int] = field(default_factory=list)

    def cells(self, line: str) -> list[str]:
        """Return the cells of a line."""
        return line.split(self.separator) if self.separator else _BLANKS.split(line.strip(" \t"))

    def is_comment(self, line: str) -> bool:
        """Return whether a line is a comment, and no word # with its tag."""
        return line.startswith("#") and (" = " in line or len(self.cells(line)) != self.width)

    @property
    def tags(self) -> Counter[str]:
        """How often each tag occurs."""
        return self.columns[self.tag]

    def options(self) -> dict[str, Any]:
        """Return the reader's options."""
        options: dict[str, Any] = {}
        if self.word:
            options["words"] = self.word
        if self.tag != self.width - 1:
            options["tags"] = self.tag
        if self.separator:
            options["separator"] = "tab"
        if any(not line.startswith("# ") for line in self.comments):
            options["comment"] = "#"
        if self.ranges and self.word:
            options["skip"] = "[0-9]+[-.]"
        words = self.columns[self.word]
        if sum(count for word, count in words.items() if _GLUED.fullmatch(word)) > 0.9 * words.total():
            options |= {"pattern": "^(.)", "joiner": ""}
        return options

    def saw(self) -> str:
        """Return what the file looks like, for people."""
        by = "tabs" if self.separator else "blanks or tabs"
        comments = ", with comments" if self.comments else ""
        return f"CoNLL, a word a line, {self.width} columns parted by {by}{comments}"

    def why(self) -> str:
        """Return which columns are words and tags, and which others might be."""
        numbers = "; column 1 numbers the words" if self.word == 1 and _all(_NUMBERS, self.columns[0]) else ""
        others = " or ".join(f"`tags: {i}` ({len(self.columns[i]):,} values)" for i in self.others)
        instead = f"; {others} would take another column" if others else ""
        tags = f"column {self.tag + 1} has the tags, {len(self.tags):,} different ones"
        return f"column {self.word + 1} has the words, {tags}{numbers}{instead}"


def has_columns(lines: Sequence[str]) -> bool:
    """Return whether lines that are no comments have one number of columns, and empty lines part them."""
    widths = Counter(len(line.split()) for line in lines if line.strip() and not line.startswith(("#", _DOCUMENT)))
    width, count = widths.most_common(1)[0] if widths else (0, 0)
    return width > 1 and count > max(3, 0.95 * widths.total()) and any(not line.strip() for line in lines)


def layout_of(data: Path) -> Layout:
    """Return how a CoNLL file is written, by all of its lines, or by those of pieces all over a large one.

    Raises:
        DataError: if the file has no columns, or none of words and tags.
    """
    lines, head = _count_lines(data)
    layout = _columns_of(data, lines)
    first = next((line for line in head if line.strip() and not layout.is_comment(line)), "")
    _choose_columns(layout, data, layout.cells(first))
    return layout


def tag_sentences(data: Path, layout: Layout) -> Iterator[list[str]]:
    """Yield the tags of each sentence as they stand in the file; of a large one, those of pieces of it."""
    pieces = Pieces(data, "sentence")
    tags: list[str] = []
    for line in pieces.lines():
        line = line.removeprefix("\ufeff").rstrip("\r\n")
        if not line.strip() or line.startswith(_DOCUMENT):
            if tags:
                yield tags
            tags = []
        elif not layout.is_comment(line):
            cells = layout.cells(line)
            if len(cells) == layout.width and not (layout.ranges and _RANGE.fullmatch(cells[0])):
                tags.append(cells[layout.tag])
    if tags:
        yield tags


def _count_lines(data: Path) -> tuple[Counter[str], list[str]]:
    """Return how often each line occurs, in a large file in pieces of it, and the first lines."""
    counts: Counter[str] = Counter()
    head: list[str] = []
    for line in Pieces(data, "sentence", LINES).lines():
        line = line.removeprefix("\ufeff").rstrip("\r\n")
        counts[line] += 1
        if len(head) < 1000:
            head.append(line)
    return counts, head


def _columns_of(data: Path, lines: Counter[str]) -> Layout:
    """Return the layout with its columns, of which those of words and tags are not chosen yet."""
    words = {line: count for line, count in lines.items() if line.strip() and not line.startswith(_DOCUMENT)}
    rows = {line: count for line, count in words.items() if not (line.startswith("#") and " = " in line)}
    plain = {line: count for line, count in rows.items() if not line.startswith("#")}
    total = sum(plain.values())
    tabbed = sum(count for line, count in plain.items() if "\t" in line)
    layout = Layout("\t" if tabbed > 0.9 * total else None, 0, [])
    widths: Counter[int] = Counter()
    for line, count in plain.items():
        widths[len(layout.cells(line))] += count
    width, count = widths.most_common(1)[0] if widths else (0, 0)
    if width < 2 or count < 0.9 * total:
        raise DataError(
            f"{data}: neither JSONL nor CoNLL: most lines have {width} column{'s' if width > 1 else ''} "
            f"({count} of {total}); CoNLL has a word and its tag on a line, and a blank line after each sentence"
        )
    layout.width, layout.sentences = width, sum(count for line, count in lines.items() if not line.strip())
    layout.comments = [line for line in words if layout.is_comment(line)]
    layout.columns = [Counter() for _ in range(width)]
    blank = layout.separator is not None
    for line, count in rows.items():
        cells = layout.cells(line)
        if width > 2 and _RANGE.fullmatch(cells[0]):
            layout.ranges = True
        elif len(cells) == width:
            for column, cell in zip(layout.columns, cells, strict=True):
                column[cell] += count
            blank = blank and len(_BLANKS.split(line.strip(" \t"))) == width
        else:
            layout.uneven = layout.uneven or not layout.is_comment(line)
    if blank:
        layout.separator = None  # the reader's own way does it too
    return layout


def _choose_columns(layout: Layout, data: Path, first: Sequence[str]) -> None:
    columns, width = layout.columns, layout.width
    numeric = [_all(_NUMBERS, column) for column in columns]
    most = max(len(column) for column, is_number in zip(columns, numeric, strict=True) if not is_number or width == 2)
    layout.word = 0
    if width > 2 and (numeric[0] or len(columns[0]) == 1 < most or len(columns[0]) < most / 20):
        layout.word = next(i for i, column in enumerate(columns) if not numeric[i] and len(column) >= most / 2)
    behind = range(layout.word + 1, width)
    shaped = [i for i in behind if _all(_SHAPE, columns[i])]
    if not shaped:
        _refuse_names(data, columns, behind, first)
    plain = [i for i in behind if not numeric[i] and 1 < len(columns[i]) <= len(columns[layout.word]) / 2]
    candidates = shaped or plain or [i for i in behind if not numeric[i] and len(columns[i]) > 1] or [width - 1]
    layout.tag = candidates[-1] if shaped else candidates[0]
    layout.others = [i for i in candidates if i != layout.tag]
    tags, words = len(layout.tags), len(columns[layout.word])
    if not shaped and tags > max(FEW, words / 2):
        cure = (
            "name the column of the tags with the reader's option `tags`, or give two texts a line for a text to write"
        )
        raise DataError(
            f"{data}: no column of tags: column {layout.tag + 1} has {tags:,} values for {words:,} words; {cure}"
        )


def _refuse_names(data: Path, columns: Sequence[Counter[str]], behind: range, first: Sequence[str]) -> None:
    """DataError if a column would hold tags such as B-city but for the first line."""
    for i in behind:
        tags = [tag for tag in columns[i] if i >= len(first) or tag != first[i]]
        if "O" in tags and _all(_SHAPE, tags):
            cure = "remove it, or write it as `# columns: word tag`"
            raise DataError(f"{data}: the first line seems to name the columns: {' '.join(first)}; {cure}")


def _all(pattern: re.Pattern[str], values: Counter[str] | Sequence[str]) -> bool:
    return bool(values) and all(map(pattern.fullmatch, values))
