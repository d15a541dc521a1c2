"""Shared code of the readers: lines with their numbers, tags as IOB2, and records that are left out."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from seqpipe.plugin import DataError, UsageError, did_you_mean, file_lines
from seqpipe.plugin import tagging_schemes as schemes

Record = dict[str, Any]
SchemeOption = Literal["IOB1", "IOB2", "IOE1", "IOE2", "BIOES", "BILOU", "BMES", "IO", "none"]
IllFormed = Literal["error", "repair"]

MOST_PAIRS = 10_000  # of tags that are remembered
LONGEST_SENTENCE = 100_000  # lines; more means that the empty lines are missing
RESERVED_FIELDS = ("text", "words", "tags", "spans", "where")  # names in a record with a meaning of their own
_REPAIR = "`ill_formed: repair` reads it as conlleval does"
_READ_AS = {"IO": "IOB1", "IOE1": "IOB1", "IOE2": "IOB2"}  # IOE is read backwards


def check_encoding(encoding: str) -> str:
    """Return the name of an encoding; UsageError if Python knows none of that name."""
    try:
        "".encode(encoding)
    except (LookupError, ValueError) as error:
        names = "utf-8, utf-16, cp1252, latin-1, cp1251, shift_jis or gb18030"
        raise UsageError(f"encoding: {encoding!r} is not an encoding; write one such as {names}") from error
    return encoding


class Lenient:
    """A reader that can leave records out.

    Attributes:
        left_out: The errors of the records that were left out; None where the first such error ends the reading.
        empty_message: What is wrong with a file without records, and the fix.
    """

    left_out: list[str] | None = None
    empty_message: str

    def leave_out(self, error: DataError) -> None:
        """Raise the error of a record, or note it where such records are left out (`data.bad_rows: skip`)."""
        if self.left_out is None:
            raise error
        self.left_out.append(str(error))

    def read_item(self, parse: Callable[[Any, str], Record], item: Any, where: str) -> Iterator[Record]:
        """Yield the record of an item with its place, unless it is left out."""
        try:
            record = parse(item, where)
        except DataError as error:
            self.leave_out(error)
        else:
            yield {"where": where, **record}

    def not_empty(self, records: Iterable[Record], path: Path) -> Iterator[Record]:
        """Yield the records of a file; DataError if there is none, unless some were left out."""
        is_empty = True
        for record in records:
            is_empty = False
            yield record
        if is_empty and not self.left_out:
            raise DataError(f"{path}: {self.empty_message}")


class FileFields(Lenient):
    """A reader of records whose fields may name files, such as pictures or sounds.

    Attributes:
        file_fields: The columns or keys that name files, relative to the folder of the data file.
    """

    file_fields: Sequence[str] = ()

    def files(self, path: Path) -> list[Path]:
        """The data file and every file that it names."""
        if not self.file_fields:
            return [Path(path)]
        reader = copy.copy(self)
        reader.left_out = []  # a record that cannot be read is an error when it is read
        values = (value for record in reader.read(path) for value in record.values())
        return [Path(path), *dict.fromkeys(value for value in values if isinstance(value, Path))]

    @abstractmethod
    def read(self, path: Path) -> Iterator[Record]:
        """The records of a data file."""


class FileReader(Lenient, ABC):
    """A reader of text files, one record at a time.

    Args:
        encoding: Encoding of the file, such as cp1252 or utf-16.
    """

    empty_message = "there is nothing in this file; give one with at least one example"

    def __init__(self, *, encoding: str = "utf-8"):
        self.encoding = check_encoding(encoding)

    def read(self, path: Path) -> Iterator[Record]:
        """The records of a file, one at a time; DataError names file, line and fix."""
        return self.not_empty(self.records(self.lines(path), str(path)), path)

    def lines(self, path: Path) -> Iterator[str]:
        return file_lines(path, self.encoding)

    @abstractmethod
    def records(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        """The records of lines from anywhere; `name` is that of the file in messages and in `where`."""


class LineReader(FileReader):
    """A reader of text files with one record for each line that is not blank."""

    def records(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        for number, line in number_lines(lines, name):
            if line.strip():
                yield from self.read_item(self.parse, line, f"{name}:{number}")

    @abstractmethod
    def parse(self, line: str, where: str) -> Record:
        """The record of one line, without `where`, which messages begin with."""


def number_lines(
    lines: Iterable[str], name: str, in_quotes: bool = False, keep_ends: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, without ends and byte order mark; DataError for lines that no text file has.

    `in_quotes`: a line may contain a carriage return, as part of a quoted cell. `keep_ends`: line ends stay, as LF.
    """
    for number, raw in enumerate(lines, 1):
        line = raw.rstrip("\r\n") if number > 1 else raw.removeprefix("\ufeff").rstrip("\r\n")
        if "\0" in line or ("\r" in line and not in_quotes):
            raise _control_character(line, f"{name}:{number}")
        yield number, f"{line}\n" if keep_ends and raw.endswith("\n") else line


def _control_character(line: str, where: str) -> DataError:
    """Return the error about a line with a NUL character or a carriage return."""
    if "\0" in line:
        fix = "convert the file to UTF-8, or set the reader's option `encoding`"
        return DataError(f"{where}: this line contains a NUL character; is it a UTF-8 text file? {fix}")
    fix = "remove it; if all lines of the file end with one, write LF with `tr '\\r' '\\n'`"
    return DataError(f"{where}: this line contains a carriage return; {fix}")


def sentence_lines(
    lines: Iterable[str], name: str, begins_document: Callable[[str], bool] | None = None
) -> Iterator[list[tuple[int, str]]]:
    """Yield the lines of each sentence with their numbers; it ends before an empty line or the next document."""
    sentence: list[tuple[int, str]] = []
    for number, raw in enumerate(lines, 1):  # as number_lines, without a generator for each line
        line = raw.rstrip("\r\n") if number > 1 else raw.removeprefix("\ufeff").rstrip("\r\n")
        if "\0" in line or "\r" in line:
            raise _control_character(line, f"{name}:{number}")
        is_empty = not line or line.isspace()
        if sentence and (is_empty or (begins_document and begins_document(line))):
            yield sentence
            sentence = []
        if not is_empty:
            sentence.append((number, line))
            if len(sentence) > LONGEST_SENTENCE:
                problem = f"a sentence of over {LONGEST_SENTENCE} lines"
                raise DataError(f"{name}:{number}: {problem}; put an empty line after each sentence")
    if sentence:
        yield sentence


@dataclass(frozen=True)
class TagSpec:
    """The tags of a file: their scheme, their spelling, and what happens to ill-formed ones.

    Args:
        scheme: Tagging scheme; IO for entities without B- and I-, none for plain tags, such as parts of speech.
        ill_formed: Whether ill-formed tags are an error, or repaired like in conlleval.
        tag_format: Spelling of the tag that begins an entity PER, such as B_PER, PER-B or b-PER.
        outside: Tag of words outside of entities.
    """

    scheme: SchemeOption = "IOB2"
    ill_formed: IllFormed = "error"
    tag_format: str = "B-PER"
    outside: str = "O"

    def __post_init__(self) -> None:
        if schemes.tag_pattern(self.tag_format) is None:
            forms = "'B-PER', 'b_PER' or 'PER-B', the tag of the first word of an entity PER"
            raise UsageError(f"tag_format: {self.tag_format!r} must be like {forms}")

    def is_tag(self, tag: str) -> bool:
        """Return whether a tag is one of the scheme, in its spelling."""
        if self.scheme in ("IO", "none"):
            return True
        tag = schemes.canonical(tag, self.tag_format, self.outside)
        if self.scheme in ("IOE1", "IOE2"):
            return tag == "O" or (schemes.parts(tag)[0] in ("I", "E") and tag[1:] != "-")
        return schemes.belongs(tag, self.scheme)

    def to_iob2(self, tags: Sequence[str]) -> list[str]:
        """Return the tags as IOB2, or as they are with `scheme: none`; TagError names the wrong tag, and the fix."""
        pairs = {*zip(["O", *tags], tags, strict=False)}
        if pairs <= (known := _known_pairs(self)):
            return list(tags)
        iob2 = self._convert(tags)
        # Pairs of neighbours decide whether tags are well-formed IOB2; few differ, so that most sentences need no more.
        if self.scheme == "IOB2" and iob2 == list(tags) and len(known) < MOST_PAIRS:
            known |= pairs
        return iob2

    def _convert(self, tags: Sequence[str]) -> list[str]:
        for i, tag in enumerate(tags):
            if not tag or tag != tag.strip():
                problem = f"the tag {tag!r} is empty or has blanks around it"
                raise TagError(i, f"{problem}; clean the file or set `separator`")
        if self.scheme == "none":
            return list(tags)
        for i, tag in enumerate(tags):
            if not self.is_tag(tag):
                fix = "`scheme: none` reads plain tags, and `bad_rows: skip` under `data:` leaves such records out"
                raise TagError(i, f"{tag!r} is not a tag of {self.scheme}; {_other_scheme(tags)}{fix}")
        if self.scheme == "IO":
            tags = ["O" if tag == self.outside else f"I-{tag}" for tag in tags]
        else:
            tags = [schemes.canonical(tag, self.tag_format, self.outside) for tag in tags]
        size, is_reversed = len(tags), self.scheme in ("IOE1", "IOE2")
        scheme: Any = _READ_AS.get(self.scheme, self.scheme)
        ordered = [f"B{tag[1:]}" if tag[0] == "E" else tag for tag in reversed(tags)] if is_reversed else tags
        fault = schemes.strict_problem(ordered, scheme) if self.ill_formed == "error" else None
        if fault and is_reversed:
            i = size - 1 - fault[0]
            place = "end a sentence" if i == size - 1 else f"be followed by {tags[i + 1]!r}"
            raise TagError(i, f"{tags[i]!r} cannot {place} in {self.scheme}; {_REPAIR}")
        if fault:
            raise TagError(fault[0], f"{fault[1]}; {_other_scheme(tags)}{_REPAIR}")
        spans = schemes.from_scheme(ordered, scheme)
        if is_reversed:
            spans = [(label, size - end, size - start) for label, start, end in spans]
        return schemes.to_tags(spans, size, "IOB2")

    def of_words(self, words: Sequence[str], tags: Sequence[str], where: str, hint: str = "") -> list[str]:
        """Return the tags of words as IOB2; DataError for another number of tags, or one that breaks the scheme."""
        if len(tags) != len(words):
            raise DataError(f"{where}: {len(tags)} tags for {len(words)} words; give one tag a word{hint}")
        try:
            return self.to_iob2(tags)
        except TagError as error:
            raise DataError(f"{where}: tag {error.position + 1}: {error}") from error


DEFAULT_TAGS = TagSpec()


@lru_cache(maxsize=100)
def _known_pairs(tagging: TagSpec) -> set[tuple[str, str]]:
    """Return the pairs of a tag and the next one that are IOB2 as they are: those seen so far."""
    return set()


class TagError(ValueError):
    """The tag at `position` breaks the scheme."""

    def __init__(self, position: int, message: str):
        self.position = position
        super().__init__(message)


def field_name(key: str) -> str:
    """Return the name of a source's own field in a record: `source_text` for `text`, others unchanged."""
    return f"source_{key}" if key in RESERVED_FIELDS else key


def parse_number(text: str, place: str, fix: str) -> float:
    """Return the number that a text is; DataError if it is not a finite one."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{place} is not a number; correct it, or {fix}")
    return number


def check_names(names: Sequence[str], error: type[UsageError | DataError], where: str) -> None:
    """Raise the error if two columns have the same name."""
    twice = sorted({name for name in names if name not in ("", "_") and names.count(name) > 1})
    if twice:
        raise error(f"{where}: two columns are named {twice[0]!r}; names must differ (_ leaves a column out)")


def no_column(column: str, names: Sequence[str]) -> str:
    """Return the message that no column has a name, with those that there are."""
    return f"no column is named {column!r}{did_you_mean(column, names)} (there is: {', '.join(names)})"


def count_columns(number: int) -> str:
    return "one column" if number == 1 else f"{number} columns"


def _other_scheme(tags: Sequence[str]) -> str:
    fitting = [scheme for scheme in schemes.SCHEMES if schemes.strict_problem(tags, scheme) is None]
    return f"the sentence is well-formed {fitting[0]}: set `scheme: {fitting[0]}`; or " if fitting else ""
