"""Reader of column files, one sentence a record: one line a word, an empty line between sentences (CoNLL)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import regex

from seqpipe.plugin import DataError, UsageError

from . import (
    DEFAULT_TAGS,
    FileReader,
    Record,
    TagError,
    TagSpec,
    check_names,
    count_columns,
    field_name,
    no_column,
    sentence_lines,
)

MATCH_SECONDS = 1.0  # for a pattern and a line; a pattern that backtracks exponentially would take years
_HEADER = re.compile(r"(?:columns\s*:|global\.columns\s*=)(.*)")
_BLANKS = re.compile(r"[ \t]+")  # other white space, such as U+3000, may be a word or stand in one


@dataclass(frozen=True)
class ColumnRoles:
    """The columns of a file and their roles."""

    word: int
    tag: int | None
    fields: dict[str, int]
    width: int
    line: int  # the first line of words, which decided all this


class Conll(FileReader):
    """Reads CoNLL: one word and its tag a line, an empty line between sentences.

    Comments `# key = value` before a sentence, and further named columns, become fields of the record. Columns are
    named by `columns`, or by a first line `# columns: word pos ner` (or `# global.columns = …` of CoNLL-U Plus).

    Args:
        words: Column of the words, by index (0 is the first, -1 the last) or by name.
        tags: Column of the tags, by index or by name; null for a file without tags.
        columns: Names of all columns, in order; a column named _ is skipped.
        separator: Separator of columns; "tab" for exactly one tab, null for any sequence of spaces and tabs.
        comment: Beginning of comment lines before a sentence, and of lines `# key = value` anywhere; null: no comments.
        document: First column of a line that begins a document; records get the document's number as the field
            `document`.
        skip: Regular expression of the beginning of lines to skip, such as [0-9]+[-.] in CoNLL-U.
        pattern: Regular expression that extracts the word from its column (its group, if it has one), such as ^(.)
        joiner: Text between two words; "" for Chinese characters.
    """

    fields = ("text", "words", "tags", "where")

    def __init__(
        self,
        *,
        words: int | str = 0,
        tags: int | str | None = -1,
        columns: list[str] | None = None,
        separator: str | None = None,
        tagging: TagSpec = DEFAULT_TAGS,
        comment: str | None = "# ",
        document: str | None = "-DOCSTART-",
        skip: str | None = None,
        pattern: str | None = None,
        joiner: str = " ",
        encoding: str = "utf-8",
    ):
        super().__init__(encoding=encoding)
        for option, value in (("separator", separator), ("comment", comment), ("document", document)):
            if value == "":
                raise UsageError(f"conll.{option}: an empty string is none; write null")
        self.words, self.tags, self.columns = words, tags, columns
        self.separator = "\t" if separator == "tab" else separator
        self.tagging, self.joiner = tagging, joiner
        self.comment, self.document = comment, document
        self.skip, self.pattern = _compile("skip", skip), _compile("pattern", pattern)
        if self.pattern and self.pattern.groups > 1:
            raise UsageError(f"conll.pattern: {pattern!r} has {self.pattern.groups} groups; one at most, write (?:…)")
        for option, column in (("words", words), ("tags", tags)):
            if columns is not None and isinstance(column, str) and column not in columns:
                raise UsageError(f"conll.{option}: {no_column(column, columns)}")
        check_names(columns or [], UsageError, "conll.columns")

    def records(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        names, layout, document = self.columns, None, 0
        comments: Record = {}  # of the next sentence
        split, skip = self._split, self.skip
        for sentence in sentence_lines(lines, name, self._begins_document if self.document else None):
            rows: list[tuple[int, list[str]]] = []  # the line and the cells of each word
            if self.document and self._begins_document(sentence[0][1]):
                document += 1
                del sentence[0]
            for number, line in sentence:
                # Among the words of a sentence, as where a newspaper's line ends, `# key = value` is a comment too.
                if (not rows or " = " in line) and self._is_comment(line, layout, name, number):
                    text = line[len(self.comment or "") :]
                    key, equals, value = text.partition(" = ")
                    if number == 1 and (header := _HEADER.match(text.strip())):
                        check_names(header[1].split(), DataError, f"{name}:{number}")
                        names = names or header[1].split()
                    elif equals and key.strip():
                        comments[field_name(key.strip())] = value.strip()
                elif not (skip and _match("skip", skip, line, f"{name}:{number}")):
                    rows.append((number, split(line)))
            if rows and layout is None:
                layout = self._layout(rows[0][1], names, rows[0][0], f"{name}:{rows[0][0]}")
            if layout and rows:
                fields = {"document": document, **comments} if document else comments
                yield from self.read_item(partial(self._record, layout, fields, name), rows, f"{name}:{rows[0][0]}")
                comments = {}

    def _record(
        self, layout: ColumnRoles, fields: Record, name: str, rows: list[tuple[int, list[str]]], where: str
    ) -> Record:
        cells = [row for _, row in rows]
        if {*map(len, cells)} != {layout.width} or "" in (words := [row[layout.word] for row in cells]):
            raise self._fault(layout, name, rows)
        if self.pattern:
            words = [self._word(word, f"{name}:{number}") for word, (number, _) in zip(words, rows, strict=True)]
        record: Record = {"text": self.joiner.join(words), "words": words}
        if layout.tag is not None:
            try:
                record["tags"] = self.tagging.to_iob2([row[layout.tag] for row in cells])
            except TagError as error:
                raise DataError(f"{name}:{rows[error.position][0]}: {error}") from error
        columns = {field: [row[i] for row in cells] for field, i in layout.fields.items()}
        return {**record, **fields, **columns}

    def _fault(self, layout: ColumnRoles, name: str, rows: list[tuple[int, list[str]]]) -> DataError:
        """Return the error about the first line with another number of columns, or without a word."""
        number, cells = next(row for row in rows if len(row[1]) != layout.width or not row[1][layout.word])
        if len(cells) == layout.width:
            return DataError(f"{name}:{number}: the word is empty; correct the line or look at `separator`")
        fix = "`separator: tab` if words contain blanks; comments stand before a sentence only"
        width = f"{count_columns(len(cells))} in this line, but {layout.width} in line {layout.line}"
        return DataError(f"{name}:{number}: {width}; {fix}")

    def _word(self, cell: str, where: str) -> str:
        assert self.pattern
        match = _match("pattern", self.pattern, cell, where)
        word = match[self.pattern.groups] if match else None
        if not word:
            problem = f"the pattern {self.pattern.pattern!r} finds no word in {cell!r}"
            raise DataError(f"{where}: {problem}; correct `pattern`")
        return word

    def _split(self, line: str) -> list[str]:
        if self.separator:
            return line.split(self.separator)
        line = line.strip(" \t")
        # The usual separators, one tab or one space, need no regular expression.
        if " " not in line and "\t\t" not in line:
            return line.split("\t")
        return line.split(" ") if "\t" not in line and "  " not in line else _BLANKS.split(line)

    def _begins_document(self, line: str) -> bool:
        return self.document is not None and line.startswith(self.document) and self._split(line)[0] == self.document

    def _is_comment(self, line: str, layout: ColumnRoles | None, name: str, number: int) -> bool:
        """Return whether a line is a comment; `# O` in a file split at blanks is the word # with its tag."""
        if self.comment is None or not line.startswith(self.comment):
            return False
        # In many files the character of comments is a word too. These rules decide, in this order: `key = value`, a
        # single column or another number of columns are comments, and so is what begins with several signs; among lines
        # as wide as the others, what has a tag of the scheme is a word.
        cells = self._split(line)
        is_wide = len(cells) > 1 and (not layout or len(cells) == layout.width)
        if " = " in line or not is_wide or len(self.comment.strip()) > 1:
            return True
        if self.tags is None or self.tagging.scheme in ("IO", "none"):
            if layout:
                fix = "set `comment: null` if it is a word, or write it as `key = value`"
                raise DataError(f"{name}:{number}: this line can be a comment or a word; {fix}")
            return True
        column = layout.tag if layout else self.tags
        known = isinstance(column, int) and -len(cells) <= column < len(cells)
        return not (isinstance(column, int) and known and self.tagging.is_tag(cells[column]))

    def _layout(self, cells: list[str], names: list[str] | None, number: int, where: str) -> ColumnRoles:
        width = len(cells)
        if names and len(names) != width:
            problem = f"{count_columns(width)} in this line, but {len(names)} have names: {', '.join(names)}"
            raise DataError(f"{where}: {problem}")
        word = _index("words", self.words, names, width, where)
        tag = None if self.tags is None else _index("tags", self.tags, names, width, where)
        if word == tag:
            fix = "`tags: null` reads a file without tags; otherwise look at `separator`"
            problem = f"words and tags are the same column ({count_columns(width)} in this line)"
            raise DataError(f"{where}: {problem}; {fix}")
        fields = {field_name(name): i for i, name in enumerate(names or []) if i not in (word, tag) and name != "_"}
        return ColumnRoles(word, tag, fields, width, number)


def _index(option: str, column: int | str, names: list[str] | None, width: int, where: str) -> int:
    if isinstance(column, str):
        if not names:
            fix = "name them in `columns`, or give a number"
            raise DataError(f"{where}: `{option}: {column}`, but the columns of this file have no names; {fix}")
        if column not in names:
            raise DataError(f"{where}: {no_column(column, names)}")
        return names.index(column)
    if not -width <= column < width:
        fix = f"set `{option}` to 0 … {width - 1} (-1 is the last), or look at `separator`"
        problem = f"there is no column {column} for `{option}` ({count_columns(width)} in this line)"
        raise DataError(f"{where}: {problem}; {fix}")
    return column % width


def _compile(option: str, pattern: str | None) -> regex.Pattern[str] | None:
    try:
        return None if pattern is None else regex.compile(pattern)
    except regex.error as error:
        raise UsageError(f"conll.{option}: {pattern!r} is not a regular expression: {error}") from error


def _match(option: str, pattern: regex.Pattern[str], text: str, where: str) -> regex.Match[str] | None:
    """Return the match of `skip` at the beginning of a line, or of `pattern` anywhere in a cell.

    Patterns come from a YAML or from a bundle of a stranger, and Python's `re` has no limit of steps or time.
    """
    find = pattern.match if option == "skip" else pattern.search
    try:
        return find(text, timeout=MATCH_SECONDS)
    except TimeoutError as error:
        excerpt = text if len(text) <= 40 else f"{text[:40]}…"
        problem = f"the pattern {pattern.pattern!r} of `{option}` takes over {MATCH_SECONDS:g} s for {excerpt!r}"
        fix = "write a repeat within a repeat as x++ or (?>…), and alternatives that begin with different characters"
        raise DataError(f"{where}: {problem}; {fix}") from error
