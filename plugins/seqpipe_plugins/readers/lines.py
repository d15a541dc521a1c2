"""Reader of text files, one line a record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from . import Record, numbered, read_file


class Lines:
    """Reads plain text, one record a line; blank lines are skipped."""

    fields = ("text", "where")

    def read(self, path: Path) -> Iterator[Record]:
        """The records of a UTF-8 file, one at a time; DataError names file, line and cure."""
        return read_file(path, self.records)

    def records(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        """The records of lines from anywhere; `name` stands for the file in messages and in `where`."""
        for number, line in numbered(lines, name):
            if line.strip():
                yield {"text": line, "where": f"{name}:{number}"}
