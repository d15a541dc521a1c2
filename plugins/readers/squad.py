"""Reader of SQuAD's JSON, one question a record."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from seqpipe import gold_answers, locate_answer
from seqpipe.errors import DataError

from . import Record, opened

_FIRST = 1 << 16  # bytes that are read at once, the first time
_FORM = 'write {"data": [{"paragraphs": [{"context": "…", "qas": [{"id", "question", "answers"}]}]}]}'


class Squad:
    """Reads SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018), one article of `data` at a time.

    A record has `question`, `context`, `answers` ({"text": […], "answer_start": […]}, both empty if the question
    `is_impossible`) and `id`.
    """

    fields = ("question", "context", "answers", "id", "where")

    def read(self, path: Path) -> Iterator[Record]:
        """The records of a UTF-8 file; DataError names file, line, question and cure."""
        empty = True
        with opened(path) as file:
            for article, where in _articles(_Json(file, str(path))):
                for record in _questions(article, where):
                    empty = False
                    yield record
        if empty:
            raise DataError(f"{path}: there is no question in this file; {_FORM}")


def _questions(article: Any, where: str) -> Iterator[Record]:
    for paragraph in _list(article, "paragraphs", where):
        context = _text(paragraph, "context", where)
        for item in _list(paragraph, "qas", where):
            question = _text(item, "question", where)
            at = f"{where} (question {item.get('id', question)!r})"
            record: Record = {"question": question, "context": context}
            gold = [] if item.get("is_impossible") is True else gold_answers({**item, "where": at}, "answers")
            for answer in gold:
                locate_answer(answer, context, at)
            answers = {"text": [text for text, _ in gold], "answer_start": [start for _, start in gold]}
            yield {**record, "answers": answers, "id": str(item.get("id", "")), "where": at}


def _list(item: Any, key: str, where: str) -> list[Any]:
    if not isinstance(item, dict) or not isinstance(item.get(key), list):
        raise DataError(f"{where}: there is no list `{key}` where one belongs; {_FORM}")
    items: list[Any] = item[key]
    return items


def _text(item: Any, key: str, where: str) -> str:
    if not isinstance(item, dict) or not isinstance(item.get(key), str):
        raise DataError(f"{where}: there is no text `{key}` where one belongs; {_FORM}")
    return str(item[key])


def _articles(text: _Json) -> Iterator[tuple[Any, str]]:
    """The members of `data`, each with file and line."""
    text.take("{", "an object")
    has_data = False
    while text.next() != "}":
        key = text.value()
        text.take(":", "a colon")
        if key == "data":
            has_data = True
            text.take("[", "a list of articles as `data`")
            while text.next() != "]":
                where = text.where
                yield text.value(), where
                text.part("]")
            text.take("]", "the end of the list")
        else:
            text.value()
        text.part("}")
    text.take("}", "the end of the object")
    if text.next():
        raise text.fault("something stands behind the end of the object; give one object a file")
    if not has_data:
        raise text.fault(f"the object has no key `data`; {_FORM}")


class _Json:
    """The parts of a JSON text, of which no more is held than the part that is read."""

    def __init__(self, file: IO[bytes] | Any, name: str):
        self.file, self.name = file, name
        self.text, self.at, self.line, self.ended, self.size = "", 0, 1, False, _FIRST
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")()

    @property
    def where(self) -> str:
        return f"{self.name}:{self.line}"

    def fault(self, message: str) -> DataError:
        return DataError(f"{self.where}: {message}")

    def next(self) -> str:
        """The first character that is no white space, "" at the end."""
        while True:
            rest = self.text[self.at :]
            blank = len(rest) - len(rest.lstrip(" \t\r\n"))
            self.line += rest.count("\n", 0, blank)
            self.at += blank
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            self.more()

    def take(self, sign: str, what: str) -> None:
        if self.next() != sign:
            raise self.fault(f"this is not JSON of SQuAD: {what} belongs here; {_FORM}")
        self.at += 1

    def part(self, end: str) -> None:
        """A comma, unless the end follows."""
        if self.next() != end:
            self.take(",", f"a comma or {end}")
            if self.next() == end:
                raise self.fault(f"this is not JSON: nothing stands between the comma and {end}; leave the comma out")

    def value(self) -> Any:
        self.next()
        while True:
            try:
                value, end = json.JSONDecoder().raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                if self.ended:
                    self.line += self.text.count("\n", self.at, error.pos)
                    raise self.fault(f"this is not JSON ({error.msg}); is the file whole?") from error
            except RecursionError as error:
                raise self.fault("objects and lists are nested too deep; write them as SQuAD has them") from error
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
        except UnicodeDecodeError as error:
            self.line += self.text.count("\n") + error.object[: error.start].count(b"\n")
            raise self.fault(
                "this is not UTF-8; convert the file, for instance with `iconv -f ENCODING -t UTF-8`"
            ) from error
