"""Reader of text files, one line a record."""

from __future__ import annotations

from . import LineReader, Record


class Lines(LineReader):
    """Reads plain text, one record a line; blank lines are skipped."""

    fields = ("text", "where")

    def parse(self, line: str, where: str) -> Record:
        return {"text": line}
