"""Reader of Universal Dependencies (CoNLL-U), one sentence a record."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Literal

from seqpipe.plugin import DataError

from . import FileReader, Record, field_name, sentence_lines

CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
ALWAYS = ("upos", "deprel")  # every annotated word has these; _ is a value of the others
_WORD, _RANGE, _EMPTY = re.compile(r"[1-9]\d*"), re.compile(r"([1-9]\d*)-([1-9]\d*)"), re.compile(r"\d+\.[1-9]\d*")

TagColumn = Literal["lemma", "upos", "xpos", "feats", "deprel"]


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
        for sentence in sentence_lines(lines, name):
            if any(not line.startswith("#") for _, line in sentence):
                yield from self.read_item(partial(self._record, sentence), name, f"{name}:{sentence[0][0]}")

    def _record(self, sentence: list[tuple[int, str]], name: str, where: str) -> Record:
        comments: Record = {}
        stated: tuple[str, str] | None = None  # the place and the text of `# text = `
        rows: list[list[str]] = []  # the cells of each word
        first = surface = ""  # the place of the first word; the text as written
        covered = 0  # the last word of a range such as 1-2, which is written with the range
        for number, line in sentence:
            where, expected = f"{name}:{number}", len(rows) + 1
            if line.startswith("#"):
                key, equals, value = (part.strip() for part in line[1:].partition("="))
                if key == "text" and equals:
                    stated = where, value
                elif key and equals:
                    comments[field_name(key)] = value
                continue
            cells = line.split("\t")
            if len(cells) != len(CONLLU_COLUMNS):
                fix = f"CoNLL-U has {len(CONLLU_COLUMNS)} separated by tabs; use the reader conll for files with others"
                raise DataError(f"{where}: {len(cells)} columns in this line; {fix}")
            place, form, misc = cells[0], cells[1], cells[-1]
            if not form.strip():
                raise DataError(f"{where}: the word is empty; write a form, or _ if it is not known")
            is_written = expected > covered
            if span := _RANGE.fullmatch(place):
                if int(span[1]) != expected or int(span[2]) < expected or not is_written:
                    raise DataError(f"{where}: the range {place} is before word {expected}; correct the numbers")
                covered = int(span[2])
            elif _WORD.fullmatch(place):
                self._check(cells, expected, where)
                first = first or where
                rows.append(cells)
            elif not _EMPTY.fullmatch(place):
                fix = f"write {expected}, or a range such as 1-2"
                raise DataError(f"{where}: {place!r} is not the number of a word; {fix}")
            else:
                is_written = False
            if is_written:
                surface += form if "SpaceAfter=No" in misc.split("|") else f"{form} "
        if covered > len(rows):
            problem = f"a range ends at word {covered}, after the last"
            raise DataError(f"{first or where}: {problem}; correct the range's line")
        words = [cells[1] for cells in rows]
        record: Record = {"text": _text(surface.rstrip(), stated, words), "words": words}
        columns = {CONLLU_COLUMNS[i]: [cells[i] for cells in rows] for i in range(2, 8)}
        if self.tags:
            record["tags"] = columns[self.tags]
        return {**comments, **record, **columns, "where": first or where}

    def _check(self, cells: list[str], expected: int, where: str) -> None:
        if int(cells[0]) != expected:
            fix = "number the words from 1, and end each sentence by an empty line"
            raise DataError(f"{where}: word {cells[0]} is where word {expected} should be; {fix}")
        if self.tags:
            tag = cells[CONLLU_COLUMNS.index(self.tags)]
            if tag != tag.strip() or not tag or (tag == "_" and self.tags in ALWAYS):
                fix = "annotate it, choose another column, or set `tags: null` for a file without tags"
                raise DataError(f"{where}: the word {cells[1]!r} has {tag!r} as {self.tags}; {fix}")


def _text(surface: str, stated: tuple[str, str] | None, words: list[str]) -> str:
    """Return the text as written if it contains all words in order, otherwise the words."""
    if stated is not None:
        where, text = stated
        if "".join(text.split()) != "".join(surface.split()):
            fix = "correct one of them, or delete the comment"
            raise DataError(f"{where}: `# text` is {text!r}, but the words spell {surface!r}; {fix}")
        surface = text
    position = 0
    for word in words:
        start = surface.find(word, position)
        if start < 0:
            return " ".join(words)
        position = start + len(word)
    return surface
