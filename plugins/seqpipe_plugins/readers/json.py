"""Readers of objects in a JSON list, which may be larger than memory, and in JSON Lines."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from seqpipe.plugin import JSON_DECODER, DataError, UsageError, open_file

from . import DEFAULT_TAGS, LineReader, Record, TagSpec, check_encoding
from .objects import ObjectOptions, Objects, describe_value

_SYNTAX = 'write a list of objects, such as [{"text": …, "label": …}, …]'
_LIST = f"{_SYNTAX}; for a list below a key, set the reader's option `list` in the YAML; `jsonl` reads an object a line"
_FIRST_READ_BYTES = 1 << 16  # bytes that are read at once, the first time
_BLANK = re.compile(r"[ \t\r\n]*")
Item = tuple[Any, tuple[str, ...], str]  # a value, the keys that a `*` stood for on the way to it, and its place


class Json(Objects):
    """Reads one list of objects, such as `[{"text": …, "label": …}, …]`, or the list below a key of an object.

    An object is a record as in the reader `jsonl`, and the options have the same meaning. The list is read object by
    object, in constant memory; a value beside it in the file, such as another list, is in memory while it is skipped.

    Args:
        list: Key of the list in the object in the file, dotted within objects (`data.examples`); null: the file is the
            list.
        encoding: Encoding of the file, such as cp1252 or utf-16.
    """

    def __init__(
        self,
        *,
        list: str | None = None,
        encoding: str = "utf-8",
        objects: ObjectOptions,
        tagging: TagSpec = DEFAULT_TAGS,
    ):
        super().__init__(objects=objects, tagging=tagging)
        self.encoding = check_encoding(encoding)
        self.keys = list.split(".") if list is not None else []
        if "" in self.keys:
            raise UsageError(f"json.list: {list!r} is not a key; write one such as data, or data.examples")

    def items(self, path: Path) -> Iterator[Record]:
        for item, _, where in json_items(path, [self.keys], self.encoding, "a JSON list", _LIST):
            if not isinstance(item, dict):
                raise DataError(f"{where}: this item of the list is not an object; {_SYNTAX}")
            yield from self.read_item(self.record, item, where)


class Jsonl(Objects, LineReader):
    """Reads JSON lines such as `{"text": …, "spans": [{"start", "end", "label"}]}` or `{"words": […], "tags": […]}`.

    With `text: null` lines may have any keys, such as two texts: `{"question": …, "context": …, …}`.

    Offsets count code points, and `end` is exclusive. All other keys become fields of the record; a list of `labels`
    (for several labels) has no duplicates. What is within an object has a dotted name: of `{"user": {"says": "hi"}}`
    the text is `user.says`, in the reader's options and as a field.
    """

    def __init__(self, *, encoding: str = "utf-8", objects: ObjectOptions, tagging: TagSpec = DEFAULT_TAGS):
        super().__init__(objects=objects, tagging=tagging)
        self.encoding = check_encoding(encoding)

    def items(self, path: Path) -> Iterator[Record]:
        return self.records(self.lines(path), str(path))

    def parse(self, line: str, where: str) -> Record:
        item = parse_json(line, where)
        if not isinstance(item, dict):
            fix = "; the reader `json` reads a list" if isinstance(item, list) else ""
            raise DataError(f"{where}: this line is {describe_value(item)}; write one object a line{fix}")
        return self.record(item, where)


def json_items(path: Path, paths: list[list[str]], encoding: str, kind: str, form: str) -> Iterator[Item]:
    """Yield the items of the lists at these paths in a JSON file.

    A path is the keys from the object in the file to a list, none if the file is the list; `*` is every key that no
    other path names, and lists below it are optional. Raises DataError, with `kind` and `form` in the message, for
    other JSON.
    """
    with open_file(path) as file:
        stream = _JsonStream(file, str(path), kind, form, encoding)
        yield from stream.items(paths)
        if stream.next():
            raise stream.fault("there is text after the end of the JSON; write one list or object a file")


def parse_json(line: str, where: str) -> Any:
    """Return the value of a line of JSON."""
    try:
        return JSON_DECODER.decode(line)
    except json.JSONDecodeError as error:
        fix = "write one object a line" + ("; the reader `json` reads a list" if line.strip() in "[{" else "")
        raise DataError(f"{where}:{error.colno}: this is not JSON ({error.msg}); {fix}") from error
    except ValueError as error:
        raise DataError(f"{where}: {error}") from error
    except RecursionError as error:
        raise DataError(f"{where}: objects and lists are nested too deep; write flat objects") from error


class _JsonStream:
    """A JSON text from its next value on."""

    def __init__(self, file: IO[bytes], name: str, kind: str, form: str, encoding: str):
        self.file, self.name, self.kind, self.form, self.encoding = file, name, kind, form, encoding
        self.text, self.at, self.line, self.ended = "", 0, 1, False
        self.decoder = codecs.getincrementaldecoder("utf-8-sig" if encoding == "utf-8" else encoding)()

    def fault(self, message: str) -> DataError:
        return DataError(f"{self.name}:{self.line}: {message}")

    def next(self) -> str:
        """Return the first character that is not white space, "" at the end."""
        while True:
            blank = _BLANK.match(self.text, self.at)
            self._move(blank.end() if blank else self.at)
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            self._read_more()

    def items(self, paths: list[list[str]], keys: tuple[str, ...] = ()) -> Iterator[Item]:
        """Yield the items of the lists at these paths from here; values elsewhere are skipped."""
        sign = self.next()
        if sign == "[" and [] in paths:
            self.at += 1
            number = line = 0
            while self.next() != "]":
                number += 1
                where = f"{self.name}:{self.line}" + (f" (item {number})" if self.line == line else "")
                line = self.line
                yield self.value(), keys, where
                self._take_comma("]")
            self.at += 1
        elif sign == "{" and any(paths):
            self.at += 1
            is_there = False
            while self.next() != "}":
                key = self.value()
                self._take(":", "a colon")
                if named := [path[1:] for path in paths if path[:1] == [key]]:
                    yield from self.items(named, keys)
                elif others := [path[1:] for path in paths if path[:1] == ["*"]]:
                    yield from self.items(others, (*keys, str(key)))
                else:
                    self.value()
                is_there = is_there or bool(named or others)
                self._take_comma("}")
            self.at += 1
            if not is_there and not keys:
                names = " or ".join(repr(path[0]) for path in paths if path)
                raise self.fault(f"there is no key {names} in this object; {self.form}")
        elif keys:
            self.value()
        else:
            name = "a list" if [] in paths else "an object"
            raise self.fault(f"this is not {self.kind}: {name} belongs here; {self.form}")

    def value(self) -> Any:
        self.next()
        while True:
            try:
                value, end = JSON_DECODER.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                if self.ended:
                    self._move(error.pos)
                    raise self.fault(f"this is not JSON ({error.msg}); is the file whole?") from error
            except ValueError as error:
                raise self.fault(str(error)) from error
            except RecursionError as error:
                raise self.fault(f"objects and lists are nested too deep; {self.form}") from error
            else:
                if end < len(self.text) or self.ended:
                    self._move(end)
                    return value
            self._read_more()

    def _move(self, end: int) -> None:
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def _take(self, sign: str, name: str) -> None:
        if self.next() != sign:
            raise self.fault(f"this is not {self.kind}: {name} belongs here; {self.form}")
        self.at += 1

    def _take_comma(self, end: str) -> None:
        """Take a comma, unless the end follows."""
        if self.next() != end:
            self._take(",", f"a comma or {end}")
            if self.next() == end:
                raise self.fault(f"this is not JSON: there is nothing between the comma and {end}; leave the comma out")

    def _read_more(self) -> None:
        """Read on, twice as much as the time before if all of that was not enough."""
        self.text, self.at = self.text[self.at :], 0
        data = self.file.read(max(_FIRST_READ_BYTES, 2 * len(self.text)))
        self.ended = not data
        try:
            self.text += self.decoder.decode(data, self.ended)
        except UnicodeError as error:
            lines = error.object[: error.start].count(b"\n") if isinstance(error, UnicodeDecodeError) else 0
            self.line += self.text.count("\n") + lines
            name = "UTF-8" if self.encoding == "utf-8" else self.encoding
            fix = "convert the file, or name its encoding with the reader's option `encoding`"
            raise self.fault(f"this is not {name}; {fix}") from error
