"""CoNLL and CoNLL-U files: the columns of words and tags, the comments, and the tagging scheme."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from seqpipe.errors import DataError
from seqpipe.init.columns import summary_of_roles
from seqpipe.init.datafile import DOCUMENT, DataFile
from seqpipe.init.evidence import CAP, Fact, Facts, Frame, Reading, fact, repeats
from seqpipe.init.fields import NUMBER, Field
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
MAX_PLAIN_TAGS = 120  # different tags that are not those of entities
_BLANKS = re.compile("[ \t]+")
_NUMBERS = re.compile(r"\d+([-.:]\d+)?")
_RANGE = re.compile(r"\d+[-.]\d+")
_GLUED = re.compile(r"\D\d{1,2}")  # a character and its position in the word, as in 科0 技1
_LANGUAGE = re.compile(r"([A-Za-z]{2,3}(?:[-_][A-Za-z]{2,4})?[:/|#]).")  # prefix of a word, as in de:Haus
_SENTENCE = re.compile("sent|doc|segment")  # names of columns of sentences
_CHUNKS = {"B-NP", "B-VP", "B-PP"}
_NO_WORDS = "add the column of words"
_NO_SENTENCES = "add a column `sentence` with the number of each sentence, or write a word, a tab and a tag on a line"
_ONE_RECORD = "an empty line, or a column `sentence`, must end each sentence"
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
        prefixes = {match[1] if match else "" for match in map(_LANGUAGE.match, words)}
        if "" not in prefixes and len(prefixes) <= 20:
            prefix = prefixes.pop().replace("|", r"\|") if len(prefixes) == 1 else "[A-Za-z_-]+[:/|#]"
            options["pattern"] = f"^{prefix}(.+)"
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
            style = self.taggings.get(i)
            size = f"{style.entities:,} entities" if style else f"{len(self.columns[i]):,} values"
            why += f"; `--target {i + 1}` would learn column {i + 1} ({size})"
        return DataSummary("conll", options, saw=saw, why=why)


def summarise_conll(file: DataFile, reading: Reading) -> DataSummary:
    """Summarise a file of a word and its tag on each line, in the columns of the reading."""
    data, layout = file.path, layout_of(file, reading)
    summary, tags = layout.summary(), layout.columns[layout.tag]
    # Without comments, a sentence may begin with the word #.
    as_word = {"comment": None} if not layout.comments and layout.mark in layout.columns[layout.word] else {}
    sentences = tag_sentences(DataSummary("conll", summary.options | as_word), data)
    head = file.request.task.head if file.request.task else None
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


def summarise_conllu(file: DataFile, reading: Reading) -> DataSummary:
    """Summarise CoNLL-U by the first column of tags in which every word has one."""
    data, names = file.path, ("upos", "xpos", "deprel")
    records = [*spread_records(DataSummary("conllu", {"tags": None}), data)]
    tags = next((name for name in names if not any("_" in record[name] for record in records)), None)
    if tags is None:
        raise DataError(f"{data}: words without tags: no column of {', '.join(names)} is filled for every word")
    summary = DataSummary("conllu", {} if tags == "upos" else {"tags": tags}, label_kind="Tags", saw="CoNLL-U")
    summary.why = f"the column {tags} is filled for every word"
    return count(summary, data)


def layout_of(file: DataFile, reading: Reading) -> ConllLayout:
    """Return the layout of a CoNLL file, by all of its lines; of a large one, by those of pieces all over it."""
    assert reading.frame is not None
    data, separator = file.path, reading.frame.options.get("separator")
    # Equal lines are counted, and split into cells once: a large file has few different ones.
    lines: Counter[str] = Counter()
    later: set[str] = set()  # lines within a sentence that begin with a mark
    is_between = True
    pieces = FilePieces(data, whole=MAX_COUNTED_BYTES)
    for line in _lines(pieces):
        lines[line] += 1
        is_marked = line.startswith(_MARKS)
        if is_marked and not is_between:
            later.add(line)
        is_between = (is_marked and is_between) or not line.strip()
    marks = [mark for mark in _MARKS if _begins_comments(mark, lines, later)]
    mark = marks[0] if marks else "#"
    words = {line: number for line, number in lines.items() if line.strip() and not line.startswith(DOCUMENT)}
    plain = {line: number for line, number in words.items() if not line.startswith(mark)}
    layout = ConllLayout("\t" if separator else None, mark, bool(marks), pieces.is_whole)
    widths = Counter[int]()
    for line, number in plain.items():
        widths[len(layout.cells(line))] += number
    layout.width = widths.most_common(1)[0][0]
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
    if reading.frame.header:
        layout.header = layout.cells(next(line for line in lines if line.strip() and not layout.is_comment(line)))
        layout.columns = [column - Counter([cell]) for column, cell in zip(layout.columns, layout.header, strict=True)]
    (word,), (tag,) = reading.of("words"), reading.of("tags")
    layout.word, layout.tag = word.number - 1, tag.number - 1
    for i, column in enumerate(layout.columns):
        style = find_tagging(column)
        if style and style.fits:
            layout.taggings[i] = style
        is_plain = 1 < len(column) <= len(layout.columns[layout.word]) / 2
        if i not in (layout.word, layout.tag) and (i in layout.taggings or (is_plain and i > layout.word)):
            layout.others.append(i)
    return layout


def _begins_comments(mark: str, lines: Counter[str], later: set[str]) -> bool:
    """Return whether several lines begin with a mark, and none of them is in `later`, within a sentence.

    Lines that begin with one character, which may be a word, must also differ, as addresses do.
    """
    marked = {line: number for line, number in lines.items() if line.startswith(mark)}
    total = sum(marked.values())
    return total > 1 and (len(mark) > 1 or len(marked) > total / 2) and later.isdisjoint(marked)


def _lines(pieces: FilePieces) -> Iterator[str]:
    """Yield the lines without their ends."""
    return (line.removeprefix("\ufeff").rstrip("\r\n") for line in pieces.lines())


def read_tagged(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """Words in rows or columns with a tag each: CoNLL of all widths, and tables of a word a row."""
    if frame.is_json or (frame.use == "tsv" and not any(_SENTENCE.match(field.key) for field in frame.fields)):
        return  # the frame of words in columns has it
    sentence = None if frame.groups is not None else _sentence_of(frame)
    numbered = [field for field in frame.fields if _counts_words(field)]
    if frame.groups is not None and len(frame.fields) == 10 and frame.fields[0] in numbered:
        yield _conllu(file, frame)
    if not sentence and frame.groups is None and not any(field.tagging for field in frame.fields):
        return
    words = [field for field in frame.fields if field not in numbered and _has_words(field)]
    is_pair = frame.groups is not None and len(frame.fields) == 2
    if not words and numbered and is_pair:
        facts = frame.facts | {Fact("numbers count the words"): CAP}
        facts[fact("few values", frame.fields[1])] = repeats(frame.fields[1].size, frame.fields[1].different)
        yield Reading("tags without their words", None, {}, facts, frame, _NO_WORDS)
    for word, tag in itertools.product(words, frame.fields):
        if tag in (word, sentence, *numbered) or (file.request.target and not file.request.names(tag)):
            continue
        if file.request.names(tag) or _may_be_tag(frame, word, tag, sentence):
            reading = _tagged(file, frame, words, word, tag, sentence, numbered)
            if reading.learns or tag.tagging or tag.counts["O"] or is_pair:
                yield reading


def _sentence_of(frame: Frame) -> Field | None:
    """Return the column that says where a sentence begins, or which one a word is in."""
    for item in frame.fields:
        runs = sum(a != b for a, b in itertools.pairwise(item.cells)) + 1
        is_named = _SENTENCE.match(item.key) and item.words < 2.5
        if is_named and (item.size < 0.5 * frame.size or item.different <= runs < 0.5 * frame.size):
            return item
    return None


def _counts_words(field: Field) -> bool:
    """Return whether a column numbers the words of each sentence."""
    if field.share(_NUMBERS) <= 0.99:
        return False
    numbers = [int(match[0]) for match in map(re.compile(r"\d+").match, field.cells) if match]
    steps = sum(after in (0, 1) or 0 <= after - before <= 1 for before, after in itertools.pairwise(numbers))
    return numbers.count(1) > 1 and steps > 0.9 * (len(numbers) - 1)


def _has_words(field: Field) -> bool:
    """Return whether a column may have the words."""
    kinds = ("words", "few values", "names", "texts", "repeated texts", "identifiers", "separated labels")
    is_text = field.is_a(*kinds, "addresses or licences")  # type: ignore[arg-type]
    return is_text and field.words < 1.6 and field.different > 1 and not field.tagging


def _may_be_tag(frame: Frame, word: Field, tag: Field, sentence: Field | None) -> bool:
    """Return whether a column may have the tags of the words in another one."""
    tagging = tag.tagging
    if tag.different < 2 and not tag.counts["O"]:
        return len(frame.fields) == 2 and frame.groups is not None and len(frame.groups) > 1
    if tag.different > max(0.5 * word.different, min(word.different, 10)) or tag.share(NUMBER) > 0.9:
        return False
    pairs = [*zip(word.cells[:500], tag.cells, strict=False)]
    if sum(a.lower() == b.lower() for a, b in pairs) > 0.4 * len(pairs):  # lemmas, or the words again
        return False
    if tagging:
        return True
    is_list = word.different > 0.9 * word.size > 9 and not tag.counts["O"]
    is_whole = frame.groups is not None and len(frame.groups) < 2 and not sentence
    return tag.different <= MAX_PLAIN_TAGS and not (is_whole and is_list)


def _tagged(
    file: DataFile,
    frame: Frame,
    words: list[Field],
    word: Field,
    tag: Field,
    sentence: Field | None,
    numbered: list[Field],
) -> Reading:
    """Return the reading of these words and tags."""
    tagging, outside = tag.tagging, tag.counts["O"] / max(1, tag.size)
    facts: Facts = frame.facts | {
        fact("few values", tag): repeats(tag.size, tag.different) if tag.different > 1 else 0.0,
        fact("words", word): min(4.0, 2 * math.log2(word.different / tag.different)),
        Fact("the first of words"): -9.0 * words.index(word),
        fact("name of tags", tag): tag.named("tags"),
        fact("name of words", word): word.named("words"),
    }
    if tagging:
        share, entities, sign = tagging
        outside = tag.counts[sign] / max(1, tag.size)
        facts[fact("tags of entities", tag)] = min(CAP, tag.size * share / 4)
        facts[fact("entities", tag)] = min(36.0, 4 * math.log2(entities + 1)) * (1.0 if outside > 0.45 else 0.5)
        facts[Fact("most words are outside")] = 12 * min(0.6, outside)
        if not _CHUNKS.isdisjoint(tag.counts):
            facts[Fact("chunks, not entities")] = -25.0
    elif outside > 0.3 and tag.different > 1:
        facts[fact("tags of entities", tag)] = CAP
    if tag is frame.fields[-1]:
        facts[Fact("the last column")] = 3.0
    rank = math.log2(max(field.different for field in words) / word.different)
    facts[Fact("another column has more words")] = min(0.0, 6 - 12 * rank)
    is_before = not tagging and tag.number < word.number and tag.named("tags") < 10
    if is_before:
        facts[Fact("tags before the words")] = -15.0
    roles = {word.name: "words", tag.name: "tags"}
    if sentence:
        facts[Fact("a column of sentences")] = 30.0
        roles[sentence.name] = "sentence"
    unused = {
        field.name: "numbers of words" if field in numbered else "a further column of words or tags"
        for field in frame.fields
        if field.name not in roles and (field in numbered or field.words < 1.6)
    }
    if not sentence and frame.groups is None:
        return Reading("a table with a word and its tag in each row", None, roles, facts, frame, _NO_SENTENCES)
    if not sentence and frame.groups is not None and len(frame.groups) < 2 and (not tagging or word.size < 60):
        return Reading("one record of words with tags", None, roles, facts, frame, _ONE_RECORD, unused=unused)
    reading = Reading("words with tags", "Tags", roles, facts, frame, unused=unused)
    if tagging or outside > 0.3:
        reading.name, reading.learns = "words with tags of entities", "Entities"
    if is_before and not frame.header:
        reading.doubt = f"{tag.title} is before the words"
    reading.complete = partial(summarise_rows if frame.groups is None else summarise_conll, file)
    return reading


def _conllu(file: DataFile, frame: Frame) -> Reading:
    """Return the reading of CoNLL-U."""
    facts = frame.facts | {Fact("numbers count the words"): CAP, Fact("ten columns"): 20.0}
    facts[fact("few values", frame.fields[3])] = CAP
    unused = {field.name: "a column of CoNLL-U" for field in frame.fields}
    roles = {frame.fields[1].name: "words", frame.fields[3].name: "tags"}
    return Reading("CoNLL-U", "Tags", roles, facts, frame, unused=unused, complete=partial(summarise_conllu, file))


def summarise_rows(file: DataFile, reading: Reading) -> DataSummary:
    """Summarise a table of a word and its tag in each row, with a column of sentences."""
    summary, (words,), (tags,) = summary_of_roles(reading), reading.of("words"), reading.of("tags")
    summary.saw = "a table with a word and its tag in each row"
    choose_scheme(summary, tag_sentences(summary, file.path, most=10_000), tags.counts)
    summary.why = f"column {words.name!r} has the words, {tags.name!r} the tags"
    return count(summary, file.path)
