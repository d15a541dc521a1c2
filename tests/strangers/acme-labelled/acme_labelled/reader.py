"""Lines such as `__label__good a lovely soup` in, records with a text and its label out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from seqpipe.plugin import DataError, file_lines


class FastText:
    """Reads fastText's labelled lines: one label, then the text. Blank lines are left out.

    Args:
        prefix: Beginning of a label.
    """

    fields = ("text", "label", "where")

    def __init__(self, *, prefix: Annotated[str, Field(min_length=1)] = "__label__"):
        self.prefix = prefix

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """The records of a UTF-8 file, one at a time."""
        for number, line in enumerate(file_lines(path), 1):
            if content := line.removeprefix("\ufeff").strip():
                where = f"{path}:{number}"
                yield {**self.record(content, where), "where": where}

    def record(self, line: str, where: str) -> dict[str, str]:
        """The text and the label of one line."""
        first, _, text = line.partition(" ")
        label, text = first.removeprefix(self.prefix), text.strip()
        if label in ("", first):
            raise DataError(f"{where}: no label; begin the line with {self.prefix} and a label")
        if not text:
            raise DataError(f"{where}: no text after the label {label!r}; write some or delete the line")
        if text.startswith(self.prefix):
            raise DataError(f"{where}: a second label; keep one a line")
        return {"text": text, "label": label}
