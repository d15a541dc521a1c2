"""CoNLL and CoNLL-U files: the columns of words and tags, the comments, and the tagging scheme."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqpipe.errors import DataError, OpenChoiceError
from seqpipe.init.summary import MOST_LEFT_OUT, DataSummary, Pieces, count, reader_of, records, size_of
from seqpipe.init.tags import Tagging, choose_scheme, find_tagging

LINES = 10_000_000  # bytes: lines of a larger file are counted in pieces of a quarter of this size together
FEW = 50  # different tags; no more may be as many as half of the words
_BLANKS = re.compile("[ \t]+")
_NUMBERS = re.compile(r"\d+([-.:]\d+)?")
_RANGE = re.compile(r"\d+[-.]\d+")
_GLUED = re.compile(r"\D\d{1,2}")  # a character and its position in the word, as in 科0 技1
_LANGUAGE = re.compile(r"([A-Za-z]{2,3}(?:[-_][A-Za-z]{2,4})?[:/|#]).")  # of a word, as in de:Haus
_NAMES = {
    "id",
    "word",
    "token",
    "form",
    "lemma",
    "pos",
    "upos",
    "xpos",
    "chunk",
    "tag",
    "tags",
    "ner",
    "label",
    "entity",
}
_DOCUMENT = "-DOCSTART-"
_MARKS = ("##", "%%", "//", ";;", "#")  # of comments
TIMES = 4  # as many different values as tags have words in front of which those stand
LANGUAGES = 20  # whose prefixes words have, at most
ALIKE = 0.9  # of the entities of a column are in another, which is as good


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
        header: The names of the columns in the first line, if it has some.
        mark: The beginning of comments.
        is_marked: Whether lines as wide as the others that begin so are comments too, if their tags are no others'.
        is_whole: Whether all lines were counted, and not those of pieces of a large file.
        word, tag: Indices of the columns of words and tags.
        others: Indices of further columns that might be the tags.
        taggings: The tags of entities of columns that have some.
    """

    separator: str | None
    width: int = 0
    columns: list[Counter[str]] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    uneven: bool = False
    ranges: bool = False
    header: list[str] = field(default_factory=list)
    mark: str = "#"
    is_marked: bool = False
    is_whole: bool = True
    word: int = 0
    tag: int = -1
    others: list[int] = field(default_factory=list)
    taggings: dict[int, Tagging] = field(default_factory=dict)

    def cells(self, line: str) -> list[str]:
        """Return the cells of a line."""
        return line.split(self.separator) if self.separator else _BLANKS.split(line.strip(" \t"))

    def is_comment(self, line: str) -> bool:
        """Return whether a line is a comment, and no word # with its tag."""
        if not line.startswith(self.mark):
            return False
        cells = self.cells(line)
        return " = " in line or len(cells) != self.width or (self.is_marked and not self.has_known_tag(cells))

    def has_known_tag(self, cells: Sequence[str]) -> bool:
        """Return whether a cell behind the first is one of its column."""
        return any(cell in column for cell, column in zip(cells[1:], self.columns[1:], strict=False))

    def locate(self, data: Path, tag: str) -> str:
        """Return the file and the line in which a tag stands first."""
        for number, line in enumerate(_lines(Pieces(data, whole=size_of(data))), 1):
            if tag in line and self.cells(line)[self.tag : self.tag + 1] == [tag]:
                return f"{data}:{number}"
        return str(data)

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
        if self.mark != "#" or any(not line.startswith("# ") for line in self.comments):
            options["comment"] = self.mark
        if self.header:
            options["skip"] = r"\s+".join(map(re.escape, self.header)) + "$"
        elif self.ranges and self.word:
            options["skip"] = "[0-9]+[-.]"
        if sum(number for word, number in words.items() if _GLUED.fullmatch(word)) > 0.9 * words.total():
            options |= {"pattern": "^(.)", "joiner": ""}
        prefixes = Counter[str]()
        for word, number in words.items():
            if match := _LANGUAGE.match(word):
                prefixes[match[1]] += number
        if prefixes.total() > 0.99 * words.total() and len(prefixes) <= LANGUAGES:
            prefix = next(iter(prefixes)).replace("|", r"\|") if len(prefixes) == 1 else "[A-Za-z_-]+[:/|#]"
            is_optional = prefixes.total() < words.total()
            options["pattern"] = f"^(?:{prefix})?(.+)" if is_optional else f"^{prefix}(.+)"
        if any(not word.strip() for word in words):
            options["joiner"] = ""  # blanks are words of their own
        comments = f", with comments that begin with {self.mark!r}" if self.comments else ""
        by = f"{'tabs' if self.separator else 'blanks or tabs'}{comments}"
        if self.header:
            by += f", of the names {', '.join(self.header)}"
        why = f"column {self.word + 1} has the words, column {self.tag + 1} has the tags, {len(tags):,} different ones"
        if self.tag in self.taggings and self.taggings[self.tag].tag_format:
            about = "" if self.is_whole else "at least "
            why += f", of {about}{self.taggings[self.tag].entities:,} entities"
        if self.word == 1 and _all(_NUMBERS, self.columns[0]):
            why += "; column 1 numbers the words"
        for i in self.others:
            size = (
                f"{self.taggings[i].entities:,} entities" if i in self.taggings else f"{len(self.columns[i]):,} values"
            )
            why += f"; `--target {i + 1}` would take column {i + 1} ({size})"
        return DataSummary("conll", options, saw=f"CoNLL, a word a line, {self.width} columns parted by {by}", why=why)


def has_columns(lines: Sequence[str]) -> bool:
    """Return whether lines that are no comments have one number of columns, and empty lines part them."""
    widths = Counter(len(line.split()) for line in lines if line.strip() and not line.startswith(("#", _DOCUMENT)))
    width, count = widths.most_common(1)[0] if widths else (0, 0)
    return width > 1 and count > max(3, 0.95 * widths.total()) and any(not line.strip() for line in lines)


def summarise_conll(data: Path, head: str | None = None, target: str | None = None) -> DataSummary:
    """Summarise a file of a word and its tag a line; `head` and `target` are the task and the column asked for.

    Raises:
        DataError: if the file has no columns, or none of words and tags.
    """
    layout = layout_of(data, target)
    summary = layout.summary()
    tags = layout.columns[layout.tag]
    sentences = list(layout.tag_sentences(data))
    faults = choose_scheme(summary, sentences, tags, head, lambda tag: layout.locate(data, tag))
    plain = summary.label_kind == "Tags"
    if plain and not layout.comments and layout.mark in layout.columns[layout.word]:
        summary.options["comment"] = None  # a sentence that begins with the word #
    if summary.options.get("ill_formed"):
        strict = reader_of("conll", {**summary.options, "ill_formed": "error"})
        strict.left_out = []
        broken = (strict.left_out[0] for _ in strict.read(data) if strict.left_out)
        first = next(broken, "").partition("; ")[0]
        note = f"{summary.notes.pop()}; the first: {first}"
        summary.doubt(note) if faults <= MOST_LEFT_OUT * len(sentences) else summary.notes.append(note)
    summary.bad_rows, summary.left_out = "skip" if layout.uneven else "error", []
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


def layout_of(data: Path, target: str | None = None) -> Layout:
    """Return how a CoNLL file is written, by all of its lines, or by those of pieces all over a large one.

    `target` is the number of the column of the tags, from 1, where it is asked for.

    Raises:
        DataError: if the file has no columns, or none of words and tags.
    """
    # Equal lines are counted first and cut into cells once: a large file has few different ones.
    lines: Counter[str] = Counter()
    head: list[str] = []
    initial: Counter[str] = Counter()  # lines that begin with a mark and stand before a sentence
    is_between = True
    pieces = Pieces(data, whole=LINES)
    for line in _lines(pieces):
        lines[line] += 1
        if len(head) < 1000:
            head.append(line)
        is_marked = is_between and line.startswith(_MARKS)
        if is_marked:
            initial[line] += 1
        is_between = is_marked or not line.strip()
    mark, is_marked = next(((mark, True) for mark in _MARKS if _are_initial(mark, lines, initial)), ("#", False))
    words = {line: number for line, number in lines.items() if line.strip() and not line.startswith(_DOCUMENT)}
    rows = {line: number for line, number in words.items() if not (line.startswith(mark) and " = " in line)}
    plain = {line: number for line, number in rows.items() if not line.startswith(mark)}
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
    layout.columns = [Counter() for _ in range(layout.width)]
    for line in plain:
        for column, cell in zip(layout.columns, layout.cells(line), strict=False):
            column[cell] = 1
    layout.mark, layout.is_marked, layout.is_whole = mark, is_marked, pieces.is_whole
    layout.comments = [line for line in words if layout.is_comment(line)]
    comments = {*layout.comments}
    layout.columns = [Counter() for _ in range(layout.width)]
    blank = layout.separator is not None
    for line, number in rows.items():
        cells = layout.cells(line)
        if line in comments:
            continue
        if layout.width > 2 and _RANGE.fullmatch(cells[0]):
            layout.ranges = True
        elif len(cells) == layout.width:
            for column, cell in zip(layout.columns, cells, strict=True):
                column[cell] += number
            blank = blank and len(_BLANKS.split(line.strip(" \t"))) == layout.width
        else:
            layout.uneven = True
    if blank:
        layout.separator = None  # the reader's own way does it too
    first = next((line for line in head if line.strip() and not layout.is_comment(line)), "")
    _choose_columns(layout, data, layout.cells(first), target)
    return layout


def _are_initial(mark: str, lines: Counter[str], initial: Counter[str]) -> bool:
    """Return whether several lines begin with a mark, and all of them stand before a sentence.

    Lines that begin with a single sign, which may be a word, must differ, as addresses do.
    """
    marked = {line: number for line, number in lines.items() if line.startswith(mark)}
    total = sum(marked.values())
    is_differing = len(mark) > 1 or len(marked) > total / 2
    return total > 1 and is_differing and all(initial[line] == number for line, number in marked.items())


def _choose_columns(layout: Layout, data: Path, first: Sequence[str], target: str | None) -> None:
    """Choose the columns of words and tags; `first` are the cells of the first line, which may name them."""
    columns, width = layout.columns, layout.width
    once = len(first) == width and all(column[cell] == 1 for column, cell in zip(columns, first, strict=True))
    fitting = {i: tagging for i, column in enumerate(columns) if (tagging := find_tagging(column)) and tagging.fits}
    tagged = [i for i, tagging in fitting.items() if tagging.tag_format]
    if once and ({cell.lower() for cell in first} <= _NAMES or any(not _is_tag(first[i], fitting[i]) for i in tagged)):
        layout.header = list(first)
        for column, cell in zip(columns, first, strict=True):
            del column[cell]
        fitting = {i: tagging for i, column in enumerate(columns) if (tagging := find_tagging(column)) and tagging.fits}
    numeric = [_all(_NUMBERS, column) for column in columns]
    most = max(len(column) for column, is_number in zip(columns, numeric, strict=True) if not is_number or width == 2)
    # In front of the words may stand their numbers, one name of all documents, few names of documents, or tags.
    layout.word = 0
    is_tagged = 0 in fitting and fitting[0].tag_format and fitting[0].entities and len(columns[0]) < most / 2
    is_plain = len(columns[0]) <= min(FEW, most / TIMES) and all(tag == tag.upper() for tag in columns[0])
    is_before = numeric[0] or len(columns[0]) == 1 < most or len(columns[0]) < most / 20
    if is_tagged or (is_plain and not numeric[0]) or (width > 2 and is_before):
        layout.word = next(i for i, column in enumerate(columns) if not numeric[i] and len(column) >= most / 2)
    behind = [i for i in range(width) if i > layout.word or (i < layout.word and (is_tagged or width == 2))]
    layout.taggings = {i: tagging for i, tagging in fitting.items() if i in behind}
    # In the columns of chunks, as of CoNLL 2003, most words are in one: a column of names has others. Of several of
    # those that with most entities is taken; of plain tags the first, as the part of speech in front of the syntax.
    shaped = [i for i in layout.taggings if layout.taggings[i].tag_format] or [*layout.taggings]
    sparse = [i for i in shaped if 2 * columns[i][layout.taggings[i].outside] >= columns[i].total()]
    shaped.sort(key=lambda i: (i in sparse, layout.taggings[i].entities, i))
    plain = [i for i in behind if not numeric[i] and 1 < len(columns[i]) <= len(columns[layout.word]) / 2]
    candidates = plain or [i for i in behind if not numeric[i] and len(columns[i]) > 1] or [width - 1]
    if target is not None:
        if not (target.isdigit() and 0 < int(target) <= width and int(target) != layout.word + 1):
            fix = f"give a number from 1 to {width}, but {layout.word + 1}, the column of the words"
            raise DataError(f"{data}: --target {target} is no column of tags; {fix}")
        shaped, candidates = [], [int(target) - 1]
    elif len(shaped) > 1:
        last, previous = shaped[-1], shaped[-2]
        if (last in sparse) == (previous in sparse):
            most, next_most = layout.taggings[last].entities, layout.taggings[previous].entities
            if next_most > ALIKE * most:
                question = f"columns {previous + 1} and {last + 1} have the tags of {next_most:,} and {most:,} entities"
                readings = [("--task", "crf", "--target", str(i + 1)) for i in sorted((previous, last))]
                raise OpenChoiceError(data, question, readings)
    layout.tag = shaped[-1] if shaped else candidates[0]
    layout.others = [i for i in shaped or candidates if i != layout.tag]
    if target is not None:
        return
    values, words = len(columns[layout.tag]), len(columns[layout.word])
    if not shaped and values > max(FEW, words / 2):
        fix = (
            "name the column of the tags with the reader's option `tags`, or give two texts a line for a text to write"
        )
        raise DataError(
            f"{data}: no column of tags: column {layout.tag + 1} has {values:,} values for {words:,} words; {fix}"
        )


def _is_tag(tag: str, tagging: Tagging) -> bool:
    """Return whether a tag is one of this spelling, or nearly so: a short one, or one that has a sign."""
    alone = find_tagging(Counter([tag, tagging.outside]))
    return len(tag) < 3 or not tag.isalnum() or bool(alone and alone.tag_format)


def _lines(pieces: Pieces) -> Iterator[str]:
    """Yield the lines without their ends."""
    return (line.removeprefix("\ufeff").rstrip("\r\n") for line in pieces.lines())


def _all(pattern: re.Pattern[str], values: Counter[str] | Sequence[str]) -> bool:
    return bool(values) and all(map(pattern.fullmatch, values))
