"""Parts of one large JSON text, of which no more is held than the part that is read."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import IO, Any

from seqpipe.plugin import JSON_DECODER, DataError

_FIRST = 1 << 16  # bytes that are read at once, the first time
_BLANK = re.compile(r"[ \t\r\n]*")


class JsonStream:
    """The parts of a JSON text; `form` ends the messages about a text of another form."""

    def __init__(self, file: IO[bytes] | Any, name: str, kind: str, form: str, encoding: str = "utf-8"):
        self.file, self.name, self.kind, self.form = file, name, kind, form
        self.text, self.at, self.line, self.ended, self.size = "", 0, 1, False, _FIRST
        self.encoding = encoding
        self.decoder = codecs.getincrementaldecoder("utf-8-sig" if encoding == "utf-8" else encoding)()

    @property
    def where(self) -> str:
        return f"{self.name}:{self.line}"

    def fault(self, message: str) -> DataError:
        return DataError(f"{self.where}: {message}")

    def next(self) -> str:
        """The first character that is no white space, "" at the end."""
        while True:
            blank = _BLANK.match(self.text, self.at)
            end = blank.end() if blank else self.at
            self.line += self.text.count("\n", self.at, end)
            self.at = end
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            self.more()

    def take(self, sign: str, what: str) -> None:
        if self.next() != sign:
            raise self.fault(f"this is not {self.kind}: {what} belongs here; {self.form}")
        self.at += 1

    def part(self, end: str) -> None:
        """A comma, unless the end follows."""
        if self.next() != end:
            self.take(",", f"a comma or {end}")
            if self.next() == end:
                raise self.fault(f"this is not JSON: nothing stands between the comma and {end}; leave the comma out")

    def keys(self) -> Iterator[str]:
        """The keys of an object; whoever iterates reads the value of each."""
        self.take("{", "an object")
        while self.next() != "}":
            key = self.value()
            self.take(":", "a colon")
            yield key
            self.part("}")
        self.take("}", "the end of the object")

    def items(self, what: str = "a list") -> Iterator[tuple[Any, int]]:
        """The values in a list, each with its line."""
        self.take("[", what)
        while self.next() != "]":
            line = self.line
            yield self.value(), line
            self.part("]")
        self.take("]", "the end of the list")

    def end(self, what: str) -> None:
        """Raise DataError unless the text ends here."""
        if self.next():
            raise self.fault(f"something stands behind the end of {what}; give one a file")

    def value(self) -> Any:
        self.next()
        while True:
            try:
                value, end = JSON_DECODER.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                if self.ended:
                    self.line += self.text.count("\n", self.at, error.pos)
                    raise self.fault(f"this is not JSON ({error.msg}); is the file whole?") from error
            except ValueError as error:
                raise self.fault(str(error)) from error
            except RecursionError as error:
                raise self.fault(f"objects and lists are nested too deep; {self.form}") from error
            else:
                if end < len(self.text) or self.ended:
                    self.line += self.text.count("\n", self.at, end)
                    self.at = end
                    return value
            self.more()

    def more(self) -> None:
        """Reads on, twice as much as the time before if all of that was not enough."""
        self.text, self.at = self.text[self.at :], 0
        self.size = max(_FIRST, 2 * len(self.text))
        data = self.file.read(self.size)
        self.ended = not data
        try:
            self.text += self.decoder.decode(data, self.ended)
        except UnicodeError as error:
            lines = error.object[: error.start].count(b"\n") if isinstance(error, UnicodeDecodeError) else 0
            self.line += self.text.count("\n") + lines
            name = "UTF-8" if self.encoding == "utf-8" else self.encoding
            raise self.fault(
                f"this is not {name}; convert the file, or name its encoding with the reader's option `encoding`"
            ) from error
