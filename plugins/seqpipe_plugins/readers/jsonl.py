"""Reader of JSON Lines, one object a record: texts with spans, words with tags, or either alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from seqpipe.plugin import JSON_DECODER, DataError

from . import LineReader, Record, check_encoding
from .objects import ObjectOptions, Objects, kind_of


class Jsonl(Objects, LineReader):
    """Reads JSON lines such as `{"text": …, "spans": [{"start", "end", "label"}]}` or `{"words": […], "tags": […]}`.

    With `text: null` lines may have any keys, such as two texts: `{"question": …, "context": …, …}`.

    Offsets count code points, and `end` is exclusive. All other keys become fields of the record; a list of `labels`
    (for several labels) has no duplicates. What is within an object has a dotted name: of `{"user": {"says": "hi"}}`
    the text is `user.says`, in the reader's options and as a field.
    """

    def __init__(self, *, encoding: str = "utf-8", objects: ObjectOptions):
        super().__init__(objects=objects)
        self.encoding = check_encoding(encoding)

    def items(self, path: Path) -> Iterator[Record]:
        return LineReader.read(self, path)

    def parse(self, line: str, where: str) -> Record:
        try:
            item = JSON_DECODER.decode(line)
        except json.JSONDecodeError as error:
            fix = "write one object a line" + ("; the reader `json` reads a list" if line.strip() in "[{" else "")
            raise DataError(f"{where}:{error.colno}: this is not JSON ({error.msg}); {fix}") from error
        except ValueError as error:
            raise DataError(f"{where}: {error}") from error
        except RecursionError as error:
            raise DataError(f"{where}: objects and lists are nested too deep; write flat objects") from error
        if not isinstance(item, dict):
            fix = "; the reader `json` reads a list" if isinstance(item, list) else ""
            raise DataError(f"{where}: this line is {kind_of(item)}; write one object a line{fix}")
        return self.record(item, where)
