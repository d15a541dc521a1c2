"""Shared code of the readers: numbered lines, conversion of tags to IOB2, errors with file and line."""

from __future__ import annotations

import contextlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from seqpipe.plugin import UNPACK_ERRORS, DataError, UsageError, did_you_mean, unpacked
from seqpipe.plugin import tagging_schemes as schemes

Record = dict[str, Any]
SchemeOption = Literal["IOB1", "IOB2", "IOE1", "IOE2", "BIOES", "BILOU", "BMES", "IO", "none"]
IllFormed = Literal["error", "repair"]

LONGEST_LINE = 10_000_000  # bytes of a file, characters of a text stream
RESERVED = ("text", "words", "tags", "spans", "where")  # names in a record with a meaning of their own
_REPAIR = "`ill_formed: repair` reads it as conlleval does"
_UTF8 = (
    "convert the file, for instance with `iconv -f ENCODING -t UTF-8`, or name its `encoding` in the reader's options"
)
_SIGNATURES = {
    b"\x1f\x8b": "it is compressed with gzip: unpack it, or give it a name that ends in .gz",
    b"\xff\xfe": "it looks like UTF-16: set the reader's option `encoding: utf-16`",
    b"\xfe\xff": "it looks like UTF-16: set the reader's option `encoding: utf-16`",
}


def check_encoding(encoding: str) -> str:
    """Return the name of an encoding; UsageError if Python knows none of that name."""
    try:
        "".encode(encoding)
    except (LookupError, ValueError) as error:
        names = "utf-8, utf-16, cp1252, latin-1, cp1251, shift_jis or gb18030"
        raise UsageError(f"encoding: {encoding!r} is no encoding; write one such as {names}") from error
    return encoding


class Lenient:
    """A reader that can leave records out.

    Attributes:
        left_out: The errors of the records that were left out; None where the first such error ends the reading.
    """

    left_out: list[str] | None = None

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
            yield {**record, "where": where}


class FileReader(Lenient, ABC):
    """A reader of text files, one record at a time.

    Args:
        encoding: Encoding of the file, such as cp1252 or utf-16.
    """

    encoding = "utf-8"

    def __init__(self, *, encoding: str = "utf-8"):
        self.encoding = check_encoding(encoding)

    def read(self, path: Path) -> Iterator[Record]:
        """The records of a UTF-8 file, one at a time; DataError names file, line and fix."""
        empty = True
        for record in self.records(file_lines(path, self.encoding), str(path)):
            empty = False
            yield record
        if empty:
            raise DataError(f"{path}: there is nothing in this file; give one with at least one example")

    @abstractmethod
    def records(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        """The records of lines from anywhere; `name` stands for the file in messages and in `where`."""


class LineReader(FileReader):
    """A reader of text files with one record for each line that is not blank."""

    def records(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        for number, line in numbered(lines, name):
            if line.strip():
                where = f"{name}:{number}"
                yield from self.read_item(self.parse, line, where)

    @abstractmethod
    def parse(self, line: str, where: str) -> Record:
        """The record of one line, without `where`, which messages begin with."""


def file_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The lines of a file with their ends, unpacked on the way if its name ends in .gz, .zst or .zip."""
    with opened(path) as file:
        yield from decoded(file, str(path), encoding)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file to read from, unpacked on the way by its name; DataError if it cannot be read."""
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(unpacked(Path(path)))
        except FileNotFoundError as error:
            raise DataError(f"{path}: there is no such file{_similar(Path(path))}") from error
        except IsADirectoryError as error:
            raise DataError(f"{path}: this is a folder; name a file in it") from error
        except UNPACK_ERRORS as error:
            fix = "`gzip -t`, `zstd -t` or `unzip -t` tells whether the file is whole"
            raise DataError(f"{path}: cannot be unpacked ({error}); {fix}") from error
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def decoded(file: IO[bytes], name: str, encoding: str = "utf-8") -> Iterator[str]:
    """The lines of an open file, with their ends."""
    number, head = 0, b""
    if encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
        try:
            with io.TextIOWrapper(file, encoding, newline="\n") as text:
                while part := text.readline(LONGEST_LINE + 1):
                    number += 1
                    yield part
        except UnicodeError as error:
            problem = f"the file is not {encoding} here or behind ({error})"
            raise DataError(f"{name}:{number + 1}: {problem}; correct the reader's option `encoding`") from error
        return
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        head = head or line[:2]
        if len(line) > LONGEST_LINE:
            raise _too_long(name, number)
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            fix = _SIGNATURES.get(head, _UTF8)
            byte = f"byte {line[error.start]:#04x} at place {error.start + 1}"
            raise DataError(f"{name}:{number}: this line is not UTF-8 ({byte}); {fix}") from error


def numbered(lines: Iterable[str], name: str, within: bool = False) -> Iterator[tuple[int, str]]:
    """Lines counted from 1, without line ends and byte order mark; DataError for lines that no text file has.

    A carriage return within a line may stand `within` a quoted cell, of which the reader of the cells knows.
    """
    for number, line in enumerate(lines, 1):
        line = (line.removeprefix("\ufeff") if number == 1 else line).rstrip("\r\n")
        if len(line) > LONGEST_LINE:
            raise _too_long(name, number)
        if "\0" in line:
            raise DataError(f"{name}:{number}: a NUL character stands in this line; is it a UTF-8 text file? {_UTF8}")
        if "\r" in line and not within:
            fix = "remove it; if all lines of the file end with one, write LF with `tr '\\r' '\\n'`"
            raise DataError(f"{name}:{number}: a carriage return stands within this line; {fix}")
        yield number, line


@dataclass(frozen=True)
class Tagging:
    """The tags of a file: their scheme, their spelling, and what happens to ill-formed ones."""

    scheme: SchemeOption
    ill_formed: IllFormed
    tag_format: str
    outside: str

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
        """The tags as IOB2 (as they stand with `scheme: none`); TagError says which tag is wrong, and the fix."""
        for i, tag in enumerate(tags):
            if not tag or tag != tag.strip():
                problem = f"the tag {tag!r} is empty or has blanks around it"
                raise TagError(i, f"{problem}; clean the file or set `separator`")
        if self.scheme == "none":
            return list(tags)
        for i, tag in enumerate(tags):
            if not self.is_tag(tag):
                fix = "`scheme: none` takes plain tags, and `bad_rows: skip` under `data:` leaves such records out"
                raise TagError(i, f"{tag!r} is not a tag of {self.scheme}; {_other_scheme(tags)}{fix}")
        if self.scheme == "IO":
            inside = ["O" if tag == self.outside else f"I-{tag}" for tag in tags]
            return schemes.to_tags(schemes.from_scheme(inside, "IOB1"), len(tags), "IOB2")
        tags = [schemes.canonical(tag, self.tag_format, self.outside) for tag in tags]
        scheme = self.scheme
        if scheme == "IOE1" or scheme == "IOE2":  # read from behind, E begins a span
            return self._ends_to_iob2(tags)
        broken = schemes.strict_problem(tags, scheme) if self.ill_formed == "error" else None
        if broken:
            raise TagError(broken[0], f"{broken[1]}; {_other_scheme(tags)}{_REPAIR}")
        return schemes.to_tags(schemes.from_scheme(tags, scheme), len(tags), "IOB2")

    def _ends_to_iob2(self, tags: Sequence[str]) -> list[str]:
        size, mirrored = len(tags), ["B" + tag[1:] if tag[0] == "E" else tag for tag in reversed(tags)]
        scheme: schemes.Scheme = "IOB1" if self.scheme == "IOE1" else "IOB2"
        problem = schemes.strict_problem(mirrored, scheme) if self.ill_formed == "error" else None
        if problem:
            i = size - 1 - problem[0]
            place = "end a sentence" if i == size - 1 else f"be followed by {tags[i + 1]!r}"
            raise TagError(i, f"{tags[i]!r} cannot {place} in {self.scheme}; {_REPAIR}")
        spans = schemes.from_scheme(mirrored, scheme)
        return schemes.to_tags([(label, size - end, size - start) for label, start, end in spans], size, "IOB2")


class TagError(ValueError):
    """The tag at `position` breaks the scheme."""

    def __init__(self, position: int, message: str):
        self.position = position
        super().__init__(message)


def free(key: str) -> str:
    """The name of a source's own field in a record: unchanged, but `source_text` where the record has a `text`."""
    return f"source_{key}" if key in RESERVED else key


def _other_scheme(tags: Sequence[str]) -> str:
    fitting = [scheme for scheme in schemes.SCHEMES if schemes.strict_problem(tags, scheme) is None]
    return f"the sentence is well-formed {fitting[0]}: set `scheme: {fitting[0]}`; or " if fitting else ""


def _similar(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (nor a folder {path.parent})"
    return did_you_mean(path.name, (entry.name for entry in path.parent.iterdir()))


def _too_long(name: str, number: int) -> DataError:
    limit = f"{LONGEST_LINE // 1_000_000} MB"
    return DataError(f"{name}:{number}: this line is longer than {limit}; is it a text file with an example a line?")
