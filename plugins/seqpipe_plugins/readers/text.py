"""Reader of plain text: windows of the whole text, its paragraphs, or its lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from . import FileReader, Record, numbered

PIECE = 65_536  # characters of a piece, about


class Text(FileReader):
    """Reads plain text for language models, one record at a time; a file may be larger than memory.

    A whole text comes in pieces that end with a line. In each, `record_continues` says whether the text continues in
    the next record: a head that learns of packed texts puts no end between them.

    Args:
        unit: What one text is: the whole file, each paragraph (separated by empty lines), or each line.
    """

    fields = ("text", "record_continues", "where")

    def __init__(self, *, unit: Literal["file", "paragraph", "line"] = "file", encoding: str = "utf-8"):
        super().__init__(encoding=encoding)
        self.unit = unit

    def records(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        if self.unit == "file":
            yield from self._chunks(lines, name)
            return
        held: list[str] = []
        first = 0
        for number, line in numbered(lines, name):
            if line.strip() and self.unit == "paragraph":
                first = first if held else number
                held.append(line)
            elif held:
                yield {"text": "\n".join(held), "record_continues": False, "where": f"{name}:{first}"}
                held = []
            elif line.strip():
                yield {"text": line, "record_continues": False, "where": f"{name}:{number}"}
        if held:
            yield {"text": "\n".join(held), "record_continues": False, "where": f"{name}:{first}"}

    def _chunks(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        """A file as records of about PIECE characters, each but the last of which continues in the next."""
        held: list[str] = []
        size, first, ended = 0, 1, True

        def noted() -> Iterator[str]:
            nonlocal ended
            for line in lines:
                ended = line.endswith("\n")
                yield line

        for number, line in numbered(noted(), name):
            if size >= PIECE:
                yield {"text": "".join(held), "record_continues": True, "where": f"{name}:{first}"}
                held, size, first = [], 0, number
            held.append(f"{line}\n" if ended else line)
            size += len(held[-1])
        if held:
            yield {"text": "".join(held), "record_continues": False, "where": f"{name}:{first}"}
