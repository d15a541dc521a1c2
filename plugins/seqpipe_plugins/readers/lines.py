"""Reader of text files, one line a record."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from seqpipe.plugin import DataError, UsageError

from . import LineReader, Record, number_lines
from .parallel import files_beside

_VARIANT = re.compile(r"\(\d+\)$")


class Lines(LineReader):
    """Reads plain text, one record a line; blank lines are skipped.

    With `parts` a line is a word and a text, separated by the first blank: `[label, text]` reads `DESC How do …`, and
    `[text, target]` a pronouncing dictionary.

    Args:
        parts: Names of the fields of a line's first word and of the rest; null: the line is the text.
        word: Position of the word: the first or the last of the line.
        variants: Whether to remove a number in brackets after the word, as in read(2).
        comment: Beginning of the lines that are left out; null: none.
        labels: The file of each label, such as {pos: "*.pos", neg: "*.neg"}, where each label has a file of its own;
            `data.train` names one of them.
        encoding: Encoding of the file, such as cp1252 or utf-16.
    """

    fields = ("text", "label", "target", "where")

    def __init__(
        self,
        *,
        parts: tuple[str, str] | None = None,
        word: Literal["first", "last"] = "first",
        variants: bool = False,
        comment: str | None = None,
        labels: Annotated[dict[str, str], Field(min_length=2)] | None = None,
        encoding: str = "utf-8",
    ):
        super().__init__(encoding=encoding)
        if parts is not None and (parts[0] == parts[1] or "where" in parts or "text" not in parts):
            raise UsageError(f"lines.parts: {list(parts)} must be two names, one of them text, such as [label, text]")
        if comment == "":
            raise UsageError("lines.comment: an empty string is not a comment; write null")
        self.parts, self.word, self.variants, self.comment, self.labels = parts, word, variants, comment, labels

    def files(self, path: Path) -> list[Path]:
        """Every file that is read."""
        return files_beside(path, self.labels, "labels") if self.labels else [Path(path)]

    def read(self, path: Path) -> Iterator[Record]:
        """The records of the file, or of the file of each label in turn; DataError names file, line and fix."""
        if not self.labels:
            yield from super().read(path)
            return
        for label, file in zip(self.labels, self.files(path), strict=True):
            for record in super().read(file):
                yield {**record, "label": label}

    def texts(self, path: Path) -> Iterator[str]:
        """The lines of a file, also the empty ones."""
        return (line for _, line in number_lines(self.lines(path), str(path)))

    def records(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        comment = self.comment
        used = ("\n" if comment is not None and line.startswith(comment) else line for line in lines)
        return super().records(used, name)

    def parse(self, line: str, where: str) -> Record:
        if self.parts is None:
            return {"text": line}
        parts = line.strip().split(None, 1) if self.word == "first" else line.strip().rsplit(None, 1)[::-1]
        if len(parts) != 2:
            raise DataError(f"{where}: there is one word in this line; write {' and '.join(self.parts)}, or remove it")
        word, text = parts
        return {self.parts[0]: _VARIANT.sub("", word) if self.variants else word, self.parts[1]: text}
