"""Reader of a JSON file that holds one list of objects, each a record as in JSON Lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seqpipe.plugin import DataError, UsageError, open_file

from . import Record, check_encoding
from .json_stream import JsonStream
from .objects import ObjectOptions, Objects

_FORM = 'write a list of objects, such as [{"text": …, "label": …}, …]'


class Json(Objects):
    """Reads one list of objects, such as `[{"text": …, "label": …}, …]`, or the list below a key of an object.

    An object is a record as in the reader `jsonl`, and the options have the same meaning. The list is read object by
    object, in constant memory; what stands beside it in the file, such as another list, is held while it is skipped.

    Args:
        list: Key of the list in the object that the file holds, dotted within objects (`data.examples`); null: the file
            is the list.
        encoding: Encoding of the file, such as cp1252 or utf-16.
    """

    def __init__(self, *, list: str | None = None, encoding: str = "utf-8", objects: ObjectOptions):
        super().__init__(objects=objects)
        self.encoding = check_encoding(encoding)
        if list is not None and "" in list.split("."):
            raise UsageError(f"json.list: {list!r} is no key; write one such as data, or data.examples")
        self.list = list

    def items(self, path: Path) -> Iterator[Record]:
        count, before = 0, ""
        with open_file(path) as file:
            stream = JsonStream(file, str(path), "a JSON list", _FORM, self.encoding)
            for count, (item, line) in enumerate(self._items(stream, self.list.split(".") if self.list else []), 1):
                where = f"{path}:{line}"
                where, before = f"{where} (item {count})" if where == before else where, where
                if not isinstance(item, dict):
                    raise DataError(f"{where}: this item of the list is no object; {_FORM}")
                yield from self.read_item(self.record, item, where)
            stream.end("the list")
        if not count:
            raise DataError(f"{path}: there is no object in the list; give a file with at least one example")

    def _items(self, stream: JsonStream, keys: list[str]) -> Iterator[tuple[Any, int]]:
        """The items of the list below these keys; DataError if there is none."""
        if not keys:
            if stream.next() == "{":
                fix = "name the key of the list in it with the reader's option `list`; `jsonl` reads an object a line"
                raise stream.fault(f"here is an object, not a list; {fix}")
            yield from stream.items()
            return
        is_there = False
        for key in stream.keys():  # noqa: SIM118 (not a dict)
            if key == keys[0]:
                is_there = True
                yield from self._items(stream, keys[1:])
            else:
                stream.value()
        if not is_there:
            raise stream.fault(f"there is no key {keys[0]!r} in this object; correct the reader's option `list`")
