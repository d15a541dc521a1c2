"""Reader of Universal Dependencies (CoNLL-U), one sentence a record."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from seqpipe.plugin import DataError

from . import FileReader, Record, free, numbered

COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
LONGEST_SENTENCE = 100_000  # words; more means that the empty lines are missing
ALWAYS = ("upos", "deprel")  # every annotated word has these; _ is a value of the others
_WORD, _RANGE, _EMPTY = re.compile(r"[1-9]\d*"), re.compile(r"([1-9]\d*)-([1-9]\d*)"), re.compile(r"\d+\.[1-9]\d*")

TagColumn = Literal["lemma", "upos", "xpos", "feats", "deprel"]


@dataclass
class Sentence:
    """The lines read since the last empty line."""

    line: int = 0
    comments: Record = field(default_factory=dict)
    text: tuple[int, str] | None = None  # the line and what stands behind `# text = `
    words: list[list[str]] = field(default_factory=list)  # the cells of each
    surface: list[tuple[str, bool]] = field(default_factory=list)  # as written, and whether a blank follows
    covered: int = 0  # the last word of a range such as 1-2: it is written with the range


class Conllu(FileReader):
    """Reads CoNLL-U (Universal Dependencies): ten tab-separated columns, an empty line after each sentence.

    Lines of multiword tokens (1-2) and of empty nodes (1.1) are skipped. The text is that of the comment `# text = …`,
    otherwise the words joined by spaces, except after `SpaceAfter=No`. If the words are not substrings of the text
    (French du = de le), the text is the joined words. Each other column becomes a field with one value per word, and
    each comment `# key = value` a field.

    Args:
        tags: Column of the tags; null for a file without annotation.
    """

    fields = ("text", "words", "tags", "lemma", "upos", "xpos", "feats", "head", "deprel", "where")

    def __init__(self, *, tags: TagColumn | None = "upos", encoding: str = "utf-8"):
        super().__init__(encoding=encoding)
        self.tags = tags

    def records(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        sentence, is_bad = Sentence(), False
        for number, line in chain(numbered(lines, name), [(0, "")]):
            if not line.strip():
                if sentence.words and not is_bad:
                    try:
                        record = self._record(sentence, name)
                    except DataError as error:
                        self.leave_out(error)
                    else:
                        yield record
                sentence, is_bad = Sentence(), False
            elif is_bad:
                continue
            elif line.startswith("#"):
                key, equals, value = (part.strip() for part in line[1:].partition("="))
                if key == "text" and equals:
                    sentence.text = number, value
                elif key and equals:
                    sentence.comments[free(key)] = value
            else:
                try:
                    self._line(sentence, line.split("\t"), number, f"{name}:{number}")
                except DataError as error:
                    self.leave_out(error)
                    is_bad = True

    def _line(self, sentence: Sentence, cells: list[str], number: int, where: str) -> None:
        """Adds a line of ten columns to the sentence."""
        if len(cells) != len(COLUMNS):
            fix = f"CoNLL-U has {len(COLUMNS)} parted by tabs; use the reader conll for files with others"
            raise DataError(f"{where}: {len(cells)} columns in this line; {fix}")
        place, form, misc = cells[0], cells[1], cells[-1]
        expected = len(sentence.words) + 1
        written = (form, "SpaceAfter=No" not in misc.split("|"))
        if not form.strip():
            raise DataError(f"{where}: the word is empty; write a form, or _ if it is not known")
        if range_match := _RANGE.fullmatch(place):
            if int(range_match[1]) != expected or int(range_match[2]) < expected or sentence.covered >= expected:
                raise DataError(f"{where}: the range {place} stands before word {expected}; correct the numbers")
            sentence.covered = int(range_match[2])
            sentence.surface.append(written)
        elif _WORD.fullmatch(place):
            self._check(cells, expected, where)
            sentence.line = sentence.line or number
            sentence.words.append(cells)
            if expected > sentence.covered:
                sentence.surface.append(written)
        elif not _EMPTY.fullmatch(place):
            raise DataError(f"{where}: {place!r} is no number of a word; write {expected}, or a range such as 1-2")

    def _check(self, cells: list[str], expected: int, where: str) -> None:
        if int(cells[0]) != expected:
            fix = "number the words from 1, and end each sentence by an empty line"
            raise DataError(f"{where}: word {cells[0]} stands where word {expected} should; {fix}")
        if expected > LONGEST_SENTENCE:
            fix = "put an empty line after each sentence"
            raise DataError(f"{where}: a sentence of over {LONGEST_SENTENCE} words; {fix}")
        for column in (self.tags,) if self.tags else ():
            tag = cells[COLUMNS.index(column)]
            if tag != tag.strip() or not tag or (tag == "_" and column in ALWAYS):
                fix = "annotate it, choose another column, or set `tags: null` for a file without tags"
                raise DataError(f"{where}: the word {cells[1]!r} has {tag!r} as {column}; {fix}")

    def _record(self, sentence: Sentence, name: str) -> Record:
        if sentence.covered > len(sentence.words):
            fix = "correct the range's line"
            raise DataError(f"{name}:{sentence.line}: a range ends at word {sentence.covered}, behind the last; {fix}")
        words = [cells[1] for cells in sentence.words]
        record: Record = {"text": _text(sentence, words, name), "words": words}
        columns = {COLUMNS[i]: [cells[i] for cells in sentence.words] for i in range(2, 8)}
        if self.tags:
            record["tags"] = columns[self.tags]
        return {**sentence.comments, **record, **columns, "where": f"{name}:{sentence.line}"}


def _text(sentence: Sentence, words: list[str], name: str) -> str:
    """The text as written if it holds all words in order, otherwise the words."""
    written = "".join(form + " " * blank for form, blank in sentence.surface).rstrip()
    if sentence.text is not None:
        number, text = sentence.text
        if "".join(text.split()) != "".join(written.split()):
            fix = "correct one of them, or delete the comment"
            raise DataError(f"{name}:{number}: `# text` is {text!r}, but the words spell {written!r}; {fix}")
        written = text
    position = 0
    for word in words:
        start = written.find(word, position)
        if start < 0:
            return " ".join(words)
        position = start + len(word)
    return written
