"""Reader of plain text: chunks of the whole text, its paragraphs, or its lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Literal

from . import FileReader, Record, number_lines

CHUNK_CHARACTERS = 65_536  # characters of a chunk, about


class TextReader(FileReader):
    """Reads plain text for language models, one record at a time; a file may be larger than memory.

    A whole text comes in chunks that end with a line. In each, `record_continues` says whether the text continues in
    the next record: a head that learns of packed texts puts no end between them.

    Args:
        unit: What one text is: the whole file, each paragraph (separated by empty lines), or each line.
    """

    fields = ("text", "record_continues", "where")

    def __init__(self, *, unit: Literal["file", "paragraph", "line"] = "file", encoding: str = "utf-8"):
        super().__init__(encoding=encoding)
        self.unit = unit

    def records(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        is_whole = self.unit == "file"
        chunk, first = "", 1
        for number, line in chain(number_lines(lines, name, keep_ends=True), [(0, "")]):
            is_end = len(chunk) >= CHUNK_CHARACTERS if is_whole else self.unit == "line" or not line.strip()
            if chunk and (is_end or number == 0):
                text = chunk if is_whole else chunk.removesuffix("\n")
                yield {"text": text, "record_continues": is_whole and number > 0, "where": f"{name}:{first}"}
                chunk = ""
            if is_whole or line.strip():
                first = first if chunk else number
                chunk += line
