"""CoNLL and CoNLL-U files: the columns of words and tags, the comments, and the tagging scheme."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqpipe.errors import DataError, OpenChoiceError
from seqpipe.init.summary import (
    MOST_LEFT_OUT,
    DataSummary,
    FilePieces,
    count,
    reader_of,
    size_of,
    spread_records,
    tag_sentences,
)
from seqpipe.init.tags import TagStyle, choose_scheme, find_tagging

MAX_COUNTED_BYTES = 10_000_000  # bytes; of a larger file, lines are counted in pieces, together a quarter of this size
USUAL_TAGS = 50  # different tags; more must be fewer than half of the words
_BLANKS = re.compile("[ \t]+")
_NUMBERS = re.compile(r"\d+([-.:]\d+)?")
_RANGE = re.compile(r"\d+[-.]\d+")
_GLUED = re.compile(r"\D\d{1,2}")  # a character and its position in the word, as in 科0 技1
_LANGUAGE = re.compile(r"([A-Za-z]{2,3}(?:[-_][A-Za-z]{2,4})?[:/|#]).")  # prefix of a word, as in de:Haus
_NAMES = {"id", "word", "token", "form", "lemma", "pos", "upos", "xpos", "chunk"}
_NAMES |= {"tag", "tags", "ner", "label", "entity"}
_DOCUMENT = "-DOCSTART-"
_MARKS = ("##", "%%", "//", ";;", "#")  # of comments


@dataclass
class ConllLayout:
    """Layout of a CoNLL file."""

    separator: str | None  # a tab, or None for any sequence of blanks and tabs
    mark: str  # the beginning of comments
    is_marked: bool  # lines as wide as the others that begin so are comments too, unless they have a known tag
    is_whole: bool  # all lines were counted, not those of pieces of a large file
    width: int = 0
    columns: list[Counter[str]] = field(default_factory=list)  # counts of the values of each column
    comments: list[str] = field(default_factory=list)  # lines before sentences such as `# text = …`
    uneven: bool = False  # some lines have another number of columns
    ranges: bool = False  # some lines are for several words, such as 1-2, or for none
    header: list[str] = field(default_factory=list)  # names of the columns in the first line, if it has them
    word: int = 0  # index of a column
    tag: int = -1
    others: list[int] = field(default_factory=list)  # indices of further columns that may be the tags
    taggings: dict[int, TagStyle] = field(default_factory=dict)  # by the indices of the columns with tags of entities

    def cells(self, line: str) -> list[str]:
        """Return the cells of a line."""
        return line.split(self.separator) if self.separator else _BLANKS.split(line.strip(" \t"))

    def is_comment(self, line: str) -> bool:
        """Return whether a line is a comment, and not the word # with its tag."""
        if not line.startswith(self.mark):
            return False
        cells = self.cells(line)
        if " = " in line or len(cells) != self.width:
            return True
        tags = zip(cells[1:], self.columns[1:], strict=True)
        return self.is_marked and not any(cell in column for cell, column in tags)

    def locate(self, data: Path, tag: str) -> str:
        """Return the file and the first line of a tag."""
        for number, line in enumerate(_lines(FilePieces(data, whole=size_of(data))), 1):
            if tag in line and self.cells(line)[self.tag : self.tag + 1] == [tag]:
                return f"{data}:{number}"
        return str(data)

    def summary(self) -> DataSummary:
        """Return the reader's options, the columns of words and tags, and the columns that may be tags too."""
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
        if prefixes.total() > 0.99 * words.total() and len(prefixes) <= 20:
            prefix = next(iter(prefixes)).replace("|", r"\|") if len(prefixes) == 1 else "[A-Za-z_-]+[:/|#]"
            is_optional = prefixes.total() < words.total()
            options["pattern"] = f"^(?:{prefix})?(.+)" if is_optional else f"^{prefix}(.+)"
        if any(not word.strip() for word in words):
            options["joiner"] = ""  # a blank is a word
        sign = "tabs" if self.separator else "blanks or tabs"
        saw = f"CoNLL, a word a line, {self.width} columns separated by {sign}"
        if self.comments:
            saw += f", with comments that begin with {self.mark!r}"
        if self.header:
            saw += f", named {', '.join(self.header)}"
        why = f"column {self.word + 1} has the words, column {self.tag + 1} has the tags, {len(tags):,} different ones"
        if self.tag in self.taggings and self.taggings[self.tag].tag_format:
            bound = "" if self.is_whole else "at least "
            why += f", of {bound}{self.taggings[self.tag].entities:,} entities"
        if self.word == 1 and all(map(_NUMBERS.fullmatch, self.columns[0])):
            why += "; column 1 numbers the words"
        for i in self.others:
            size = f"{len(self.columns[i]):,} values"
            if i in self.taggings:
                size = f"{self.taggings[i].entities:,} entities"
            why += f"; `--target {i + 1}` would learn column {i + 1} ({size})"
        return DataSummary("conll", options, saw=saw, why=why)


def has_columns(lines: Sequence[str]) -> bool:
    """Return whether the lines except comments have one number of columns, and some lines are empty."""
    widths = Counter(len(line.split()) for line in lines if line.strip() and not line.startswith(("#", _DOCUMENT)))
    width, count = widths.most_common(1)[0] if widths else (0, 0)
    return width > 1 and count > max(3, 0.95 * widths.total()) and any(not line.strip() for line in lines)


def summarise_conll(data: Path, head: str | None = None, target: str | None = None) -> DataSummary:
    """Summarise a file of a word and its tag on each line, with the values of `--task` and `--target`."""
    layout = layout_of(data, target)
    summary = layout.summary()
    tags = layout.columns[layout.tag]
    # Without comments, a sentence may begin with the word #.
    as_word = {"comment": None} if not layout.comments and layout.mark in layout.columns[layout.word] else {}
    sentences = tag_sentences(DataSummary("conll", summary.options | as_word), data)
    faults = choose_scheme(summary, sentences, tags, head, lambda tag: layout.locate(data, tag))
    if summary.label_kind == "Tags":
        summary.options |= as_word
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
    for record in spread_records(DataSummary("conllu", {"tags": None}), data):
        columns = {name: full and "_" not in record[name] for name, full in columns.items()}
    tags = next((name for name, full in columns.items() if full), None)
    if tags is None:
        raise DataError(f"{data}: words without tags: no column of {', '.join(columns)} is filled for every word")
    summary = DataSummary("conllu", {} if tags == "upos" else {"tags": tags}, label_kind="Tags", saw="CoNLL-U")
    summary.why = f"the column {tags} is filled for every word"
    return count(summary, data)


def layout_of(data: Path, target: str | None = None) -> ConllLayout:
    """Return the layout of a CoNLL file, by all of its lines; of a large one, by those of pieces all over it.

    `target` is the value of `--target`. DataError if the file has no columns, or none of words and tags.
    """
    # Equal lines are counted, and split into cells once: a large file has few different ones.
    lines: Counter[str] = Counter()
    head: list[str] = []
    initial: Counter[str] = Counter()  # lines before a sentence that begin with a mark
    is_between = True
    pieces = FilePieces(data, whole=MAX_COUNTED_BYTES)
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
    plain = {line: number for line, number in words.items() if not line.startswith(mark)}
    total = sum(plain.values())
    tabbed = sum(number for line, number in plain.items() if "\t" in line)
    layout = ConllLayout("\t" if tabbed > 0.9 * total else None, mark, is_marked, pieces.is_whole)
    widths: Counter[int] = Counter()
    for line, number in plain.items():
        widths[len(layout.cells(line))] += number
    layout.width, most = widths.most_common(1)[0] if widths else (0, 0)
    if layout.width < 2 or most < 0.9 * total:
        lines_have = f"most lines have {layout.width} column{'s' if layout.width > 1 else ''} ({most} of {total})"
        fix = "CoNLL has a word and its tag on a line, and a blank line after each sentence"
        raise DataError(f"{data}: neither JSONL nor CoNLL: {lines_have}; {fix}")
    layout.columns = [Counter() for _ in range(layout.width)]
    blank = layout.separator is not None
    for line, number in {**plain, **words}.items():  # the tags of plain lines distinguish words from comments
        cells = layout.cells(line)
        if layout.is_comment(line):
            layout.comments.append(line)
        elif layout.width > 2 and _RANGE.fullmatch(cells[0]):
            layout.ranges = True
        elif len(cells) == layout.width:
            for column, cell in zip(layout.columns, cells, strict=True):
                column[cell] += number
            blank = blank and len(_BLANKS.split(line.strip(" \t"))) == layout.width
        else:
            layout.uneven = True
    if blank:
        layout.separator = None  # the reader's default gives the same cells
    first = next((line for line in head if line.strip() and not layout.is_comment(line)), "")
    _choose_columns(layout, data, layout.cells(first), target)
    return layout


def _are_initial(mark: str, lines: Counter[str], initial: Counter[str]) -> bool:
    """Return whether several lines begin with a mark, all of them before a sentence.

    Lines that begin with one character, which may be a word, must also differ, as addresses do.
    """
    marked = {line: number for line, number in lines.items() if line.startswith(mark)}
    total = sum(marked.values())
    is_differing = len(mark) > 1 or len(marked) > total / 2
    return total > 1 and is_differing and all(initial[line] == number for line, number in marked.items())


def _choose_columns(layout: ConllLayout, data: Path, first: Sequence[str], target: str | None) -> None:
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
    numeric = [bool(column) and all(map(_NUMBERS.fullmatch, column)) for column in columns]
    most = max(len(column) for column, is_number in zip(columns, numeric, strict=True) if not is_number or width == 2)
    # The columns before the words may be their numbers, names of few documents, or tags.
    layout.word = 0
    is_tagged = 0 in fitting and fitting[0].tag_format and fitting[0].entities and len(columns[0]) < most / 2
    # Of tags before the words there are at most a quarter as many different ones.
    is_plain = len(columns[0]) <= min(USUAL_TAGS, most / 4) and all(tag == tag.upper() for tag in columns[0])
    is_before = numeric[0] or len(columns[0]) == 1 < most or len(columns[0]) < most / 20
    if is_tagged or (is_plain and not numeric[0]) or (width > 2 and is_before):
        layout.word = next(i for i, column in enumerate(columns) if not numeric[i] and len(column) >= most / 2)
    after = [i for i in range(width) if i > layout.word or (i < layout.word and (is_tagged or width == 2))]
    layout.taggings = {i: tagging for i, tagging in fitting.items() if i in after}
    # In the columns of chunks, as of CoNLL 2003, most words are in one: a column of names has others. Of several of
    # those the one with most entities is chosen; of plain tags the first, such as parts of speech before the syntax.
    shaped = [i for i in layout.taggings if layout.taggings[i].tag_format] or [*layout.taggings]
    sparse = [i for i in shaped if 2 * columns[i][layout.taggings[i].outside] >= columns[i].total()]
    shaped.sort(key=lambda i: (i in sparse, layout.taggings[i].entities, i))
    plain = [i for i in after if not numeric[i] and 1 < len(columns[i]) <= len(columns[layout.word]) / 2]
    candidates = plain or [i for i in after if not numeric[i] and len(columns[i]) > 1] or [width - 1]
    if target is not None:
        if not (target.isdigit() and 0 < int(target) <= width and int(target) != layout.word + 1):
            fix = f"give a number from 1 to {width} except {layout.word + 1}, the column of the words"
            raise DataError(f"{data}: --target {target} is not a column of tags; {fix}")
        shaped, candidates = [], [int(target) - 1]
    elif len(shaped) > 1 and (shaped[-1] in sparse) == (shaped[-2] in sparse):
        fewer, most = (layout.taggings[i].entities for i in shaped[-2:])
        if fewer > 0.9 * most:  # neither column is better
            question = f"columns {shaped[-2] + 1} and {shaped[-1] + 1} have the tags of {fewer:,} and {most:,} entities"
            readings = [("--task", "crf", "--target", str(i + 1)) for i in sorted(shaped[-2:])]
            raise OpenChoiceError(data, question, readings)
    layout.tag = shaped[-1] if shaped else candidates[0]
    layout.others = [i for i in shaped or candidates if i != layout.tag]
    values, words = len(columns[layout.tag]), len(columns[layout.word])
    if target is None and not shaped and values > max(USUAL_TAGS, words / 2):
        fix = "name another with the reader's option `tags`; for texts to write, give two texts on each line"
        problem = f"no column of tags: column {layout.tag + 1} has {values:,} values for {words:,} words"
        raise DataError(f"{data}: {problem}; {fix}")


def _is_tag(tag: str, tagging: TagStyle) -> bool:
    """Return whether a tag has this spelling, or may have: a short one, or one with a sign."""
    alone = find_tagging(Counter([tag, tagging.outside]))
    return len(tag) < 3 or not tag.isalnum() or bool(alone and alone.tag_format)


def _lines(pieces: FilePieces) -> Iterator[str]:
    """Yield the lines without their ends."""
    return (line.removeprefix("\ufeff").rstrip("\r\n") for line in pieces.lines())
