"""CoNLL and CoNLL-U files: the columns of words and tags, the comments, and the tagging scheme."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqpipe.answers.tagging_schemes import SCHEMES, belongs, strict_problem
from seqpipe.errors import DataError
from seqpipe.init.summary import DataSummary, Pieces, count, reader_of, records

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
    """Layout of a CoNLL file.

    Attributes:
        separator: What parts columns: a tab, or None for any sequence of blanks and tabs.
        width: Number of columns.
        columns: How often each value occurs in each column.
        comments: Lines before sentences that are no words, such as `# text = …`.
        uneven: Whether lines have other columns.
        ranges: Whether there are lines for several words, such as 1-2, or for none.
        word, tag: Indices of the columns of words and tags.
        others: Indices of further columns that might be the tags.
    """

    separator: str | None
    width: int = 0
    columns: list[Counter[str]] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
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

    def tag_sentences(self, data: Path) -> Iterator[list[str]]:
        """Yield the tags of each sentence as they stand in the file; of a large one, those of pieces of it."""
        tags: list[str] = []
        for line in _lines(Pieces(data)):
            if not line.strip() or line.startswith(_DOCUMENT):
                if tags:
                    yield tags
                tags = []
            elif not self.is_comment(line):
                cells = self.cells(line)
                if len(cells) == self.width and not (self.ranges and _RANGE.fullmatch(cells[0])):
                    tags.append(cells[self.tag])
        if tags:
            yield tags

    def summary(self) -> DataSummary:
        """Return the reader's options, and for people the columns of words and tags, and others that might be."""
        words, tags = self.columns[self.word], self.columns[self.tag]
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
        if sum(number for word, number in words.items() if _GLUED.fullmatch(word)) > 0.9 * words.total():
            options |= {"pattern": "^(.)", "joiner": ""}
        by = f"{'tabs' if self.separator else 'blanks or tabs'}{', with comments' if self.comments else ''}"
        why = f"column {self.word + 1} has the words, column {self.tag + 1} has the tags, {len(tags):,} different ones"
        if self.word == 1 and _all(_NUMBERS, self.columns[0]):
            why += "; column 1 numbers the words"
        if self.others:
            others = " or ".join(f"`tags: {i}` ({len(self.columns[i]):,} values)" for i in self.others)
            why += f"; {others} would take another column"
        return DataSummary("conll", options, saw=f"CoNLL, a word a line, {self.width} columns parted by {by}", why=why)


def has_columns(lines: Sequence[str]) -> bool:
    """Return whether lines that are no comments have one number of columns, and empty lines part them."""
    widths = Counter(len(line.split()) for line in lines if line.strip() and not line.startswith(("#", _DOCUMENT)))
    width, count = widths.most_common(1)[0] if widths else (0, 0)
    return width > 1 and count > max(3, 0.95 * widths.total()) and any(not line.strip() for line in lines)


def summarise_conll(data: Path) -> DataSummary:
    """Summarise a file of a word and its tag a line.

    Raises:
        DataError: if the file has no columns, or none of words and tags, or a line has other columns.
    """
    layout = layout_of(data)
    summary = layout.summary()
    choose_scheme(summary, list(layout.tag_sentences(data)), {*layout.columns[layout.tag]})
    if summary.label_kind == "Tags" and not layout.comments and "#" in layout.columns[layout.word]:
        summary.options["comment"] = None  # a sentence that begins with the word #
    if layout.uneven:
        for _ in reader_of("conll", summary.options).read(data):
            pass  # until the DataError of the first such line
    return count(summary, data)


def summarise_conllu(data: Path) -> DataSummary:
    """Summarise CoNLL-U by the first column of tags in which every word has one."""
    columns = dict.fromkeys(("upos", "xpos", "deprel"), True)
    for record in records(DataSummary("conllu", {"tags": None}), data):
        columns = {name: full and "_" not in record[name] for name, full in columns.items()}
    tags = next((name for name, full in columns.items() if full), None)
    if tags is None:
        raise DataError(f"{data}: words without tags: no column of {', '.join(columns)} is filled for every word")
    summary = DataSummary("conllu", {} if tags == "upos" else {"tags": tags}, label_kind="Tags", saw="CoNLL-U")
    summary.why = f"the column {tags} is filled for every word"
    return count(summary, data)


def choose_scheme(summary: DataSummary, tags: Sequence[Sequence[str]], distinct: set[str]) -> None:
    """Set the tagging scheme that the tags keep, or break least; `distinct` are those of all of the file."""
    schemes = [*SCHEMES[1:], SCHEMES[0]]  # IOB2 first: most files are
    fitting = [s for s in schemes if all(belongs(tag, s) for tag in distinct)] if "O" in distinct else []
    if not fitting:
        summary.options["scheme"], summary.label_kind = "none", "Tags"
        return
    faults = {s: sum(strict_problem(sentence, s) is not None for sentence in tags) for s in fitting}
    best = min(fitting, key=lambda s: faults[s])
    if best != "IOB2":
        summary.options["scheme"] = best
    if faults[best]:
        summary.options["ill_formed"] = "repair"
        summary.notes.append(
            f"{faults[best]} sentences break {best}'s rules; they are repaired as conlleval reads them"
        )


def layout_of(data: Path) -> Layout:
    """Return how a CoNLL file is written, by all of its lines, or by those of pieces all over a large one.

    Raises:
        DataError: if the file has no columns, or none of words and tags.
    """
    # Equal lines are counted first and cut into cells once: a large file has few different ones.
    lines: Counter[str] = Counter()
    head: list[str] = []
    for line in _lines(Pieces(data, whole=LINES)):
        lines[line] += 1
        if len(head) < 1000:
            head.append(line)
    words = {line: number for line, number in lines.items() if line.strip() and not line.startswith(_DOCUMENT)}
    rows = {line: number for line, number in words.items() if not (line.startswith("#") and " = " in line)}
    plain = {line: number for line, number in rows.items() if not line.startswith("#")}
    total = sum(plain.values())
    tabbed = sum(number for line, number in plain.items() if "\t" in line)
    layout = Layout("\t" if tabbed > 0.9 * total else None)
    widths: Counter[int] = Counter()
    for line, number in plain.items():
        widths[len(layout.cells(line))] += number
    layout.width, most = widths.most_common(1)[0] if widths else (0, 0)
    if layout.width < 2 or most < 0.9 * total:
        raise DataError(
            f"{data}: neither JSONL nor CoNLL: most lines have {layout.width} column{'s' if layout.width > 1 else ''} "
            f"({most} of {total}); CoNLL has a word and its tag on a line, and a blank line after each sentence"
        )
    layout.comments = [line for line in words if layout.is_comment(line)]
    layout.columns = [Counter() for _ in range(layout.width)]
    blank = layout.separator is not None
    for line, number in rows.items():
        cells = layout.cells(line)
        if layout.width > 2 and _RANGE.fullmatch(cells[0]):
            layout.ranges = True
        elif len(cells) == layout.width:
            for column, cell in zip(layout.columns, cells, strict=True):
                column[cell] += number
            blank = blank and len(_BLANKS.split(line.strip(" \t"))) == layout.width
        else:
            layout.uneven = layout.uneven or not layout.is_comment(line)
    if blank:
        layout.separator = None  # the reader's own way does it too
    first = next((line for line in head if line.strip() and not layout.is_comment(line)), "")
    _choose_columns(layout, data, layout.cells(first))
    return layout


def _choose_columns(layout: Layout, data: Path, first: Sequence[str]) -> None:
    """Choose the columns of words and tags; `first` are the cells of the first line, which may name them."""
    columns, width = layout.columns, layout.width
    numeric = [_all(_NUMBERS, column) for column in columns]
    most = max(len(column) for column, is_number in zip(columns, numeric, strict=True) if not is_number or width == 2)
    # In front of the words may stand their numbers, one name of all documents, or few names of documents.
    layout.word = 0
    if width > 2 and (numeric[0] or len(columns[0]) == 1 < most or len(columns[0]) < most / 20):
        layout.word = next(i for i, column in enumerate(columns) if not numeric[i] and len(column) >= most / 2)
    behind = range(layout.word + 1, width)
    shaped = [i for i in behind if _all(_SHAPE, columns[i])]
    for i in behind:
        tags = [tag for tag in columns[i] if i >= len(first) or tag != first[i]]
        if not shaped and "O" in tags and _all(_SHAPE, tags):
            fix = "remove it, or write it as `# columns: word tag`"
            raise DataError(f"{data}: the first line seems to name the columns: {' '.join(first)}; {fix}")
    # Of several columns of tags such as B-city the last is taken, as in CoNLL 2003; of plain tags the first, as the
    # part of speech in front of the syntax.
    plain = [i for i in behind if not numeric[i] and 1 < len(columns[i]) <= len(columns[layout.word]) / 2]
    candidates = shaped or plain or [i for i in behind if not numeric[i] and len(columns[i]) > 1] or [width - 1]
    layout.tag = candidates[-1] if shaped else candidates[0]
    layout.others = [i for i in candidates if i != layout.tag]
    values, words = len(columns[layout.tag]), len(columns[layout.word])
    if not shaped and values > max(FEW, words / 2):
        fix = (
            "name the column of the tags with the reader's option `tags`, or give two texts a line for a text to write"
        )
        raise DataError(
            f"{data}: no column of tags: column {layout.tag + 1} has {values:,} values for {words:,} words; {fix}"
        )


def _lines(pieces: Pieces) -> Iterator[str]:
    """Yield the lines without their ends."""
    return (line.removeprefix("\ufeff").rstrip("\r\n") for line in pieces.lines())


def _all(pattern: re.Pattern[str], values: Counter[str] | Sequence[str]) -> bool:
    return bool(values) and all(map(pattern.fullmatch, values))
