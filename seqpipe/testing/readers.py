"""The checks of readers: the records of a file, their positions, bad lines, and streaming."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqpipe.config.signature import construct
from seqpipe.errors import DataError
from seqpipe.testing.isolation import ACCESS, import_check, watched_call
from seqpipe.testing.report import (
    ROUND_TRIP,
    Check,
    FaultError,
    NotApplicableError,
    Subject,
    member_check,
    option_checks,
)

EXPECTED_RECORDS, FILE_AND_LINE = "expected records", "where is file:line"
BAD_LINE_ERROR, STREAMS_FILE = "a bad line is a DataError", "streams"
LARGE_BYTES = 4_000_000  # bytes of a file that no reader should hold in memory
_BAD_LINE = b"\xff\xfe\xfa no text \xff"

_RECORDS = "Compare the fields one by one; text, words, tags, spans and label are the names that seqpipe knows"
_WHERE = "Give every record a `where`: the path as passed to `read`, a colon, and its first line, counted from 1"
_BAD = (
    "Open the file in binary, decode line by line, and raise seqpipe.errors.DataError(f'{path}:{number}: what is "
    "wrong; the fix') for anything that cannot be read; other exceptions leave the user without file and line"
)
_STREAMS = (
    "Write `read` as a generator over the open file: no .read(), .readlines(), json.load(file) or list of all records"
)
_READ_FIX = "`read(self, path)` yields records, which are dicts"
_GIVE = "Call seqpipe.testing.check_reader(YourReader, content, expected) in a test of the package"


def reader_checks(
    subject: Subject, content: str | bytes | None, expected: Sequence[Mapping[str, Any]], folder: Path
) -> list[Check]:
    checks = _ReaderChecks(subject, content, expected, folder)
    return [
        *option_checks(subject),
        member_check(subject),
        import_check(subject),
        Check(EXPECTED_RECORDS, checks.records, _READ_FIX, (ROUND_TRIP,)),
        Check(FILE_AND_LINE, checks.where, _WHERE, (EXPECTED_RECORDS,)),
        Check(BAD_LINE_ERROR, checks.bad_line, _BAD, (EXPECTED_RECORDS, FILE_AND_LINE)),
        Check(STREAMS_FILE, checks.streams, _STREAMS, (EXPECTED_RECORDS,)),
        Check(ACCESS, checks.access, "", (EXPECTED_RECORDS,)),
    ]


class _ReaderChecks:
    """The checks of one reader."""

    def __init__(
        self, subject: Subject, content: str | bytes | None, expected: Sequence[Mapping[str, Any]], folder: Path
    ):
        self.subject, self.expected, self.folder = subject, expected, folder
        self.content = content.encode() if isinstance(content, str) else content

    def file(self, name: str, content: bytes | None = None) -> Path:
        data = self.content if content is None else content
        if data is None:
            raise NotApplicableError("no content to read was given", _GIVE)
        path = self.folder / name
        path.write_bytes(data)
        return path

    def read(self, path: Path) -> Any:
        return iter(construct(self.subject.cls, **self.subject.chosen).read(path))

    def records(self) -> None:
        records = list(self.read(self.file("data.txt")))
        for number, (got, wanted) in enumerate(zip(records, self.expected, strict=False), 1):
            kept = {key: value for key, value in got.items() if key != "where"}
            if kept != wanted:
                raise FaultError(f"record {number} is {kept}, not {dict(wanted)}", _RECORDS)
        if len(records) != len(self.expected):
            raise FaultError(f"{len(records)} records were read, not {len(self.expected)}", _RECORDS)

    def where(self) -> None:
        path = self.file("data.txt")
        lines, before = (self.content or b"").count(b"\n") + 1, 0
        for number, record in enumerate(self.read(path), 1):
            line = _line(str(record.get("where")), path)
            if line is None or not before < line <= lines:
                after = f", after line {before}" if before else ""
                raise FaultError(f"`where` of record {number} is {record.get('where')!r}{after}")
            before = line

    def bad_line(self) -> None:
        """Check a last line that is not text."""
        content = self.file("data.txt").read_bytes()
        try:
            content.decode()
        except UnicodeDecodeError:
            raise NotApplicableError("the content is not UTF-8 text, so no bad line is known") from None
        content += b"" if content.endswith(b"\n") else b"\n"
        path = self.file("bad.txt", content + _BAD_LINE + b"\n")
        bad, last = content.count(b"\n") + 1, 0
        try:
            for record in self.read(path):
                last = _line(str(record.get("where")), path) or 0
        except DataError as error:
            line = _line(str(error), path)
            if line is None or not (last < line <= bad):
                raise FaultError(
                    f"line {bad} is bad, but the message does not contain {path.name}:{bad}: {error}"
                ) from error
        except Exception as error:  # a reader may raise any exception
            raise FaultError(f"line {bad} is bad, which raises {type(error).__name__}: {error}") from error
        else:
            raise FaultError(f"line {bad} is not UTF-8, and is read without an error")

    def streams(self) -> None:
        """Check that the first record of a large file is yielded before the file is read."""
        content = self.file("data.txt").read_bytes()
        if len(self.expected) < 2:
            raise NotApplicableError("the content has one record only", "Give a content with two records or more")
        content += b"" if content.endswith(b"\n") else b"\n"
        path = self.file("large.txt", content * (LARGE_BYTES // len(content) + 1))
        tracemalloc.start()
        try:
            records = self.read(path)
            next(records)
            _, most = tracemalloc.get_traced_memory()
        except DataError as error:
            raise FaultError(f"a large file raises before the first record: {error}") from error
        finally:
            tracemalloc.stop()
        if most > LARGE_BYTES / 4:
            raise FaultError(
                f"{most / 1e6:.1f} MB are in use at the first record of a file of {LARGE_BYTES / 1e6:.0f} MB"
            )

    def access(self) -> None:
        path = self.file("data.txt")
        watched_call(self.subject, lambda: list(self.read(path)), path)


def _line(text: str, path: Path) -> int | None:
    """Return the line number that follows the file's path in a text."""
    match = re.search(rf"{re.escape(str(path))}:(\d+)", text)
    return int(match[1]) if match else None
