"""Reader of SQuAD's JSON, one question a record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from seqpipe.plugin import DataError, gold_answers, locate_answer, open_file, to_characters

from . import Lenient, Record, check_encoding
from .json_stream import JsonStream

StartOffsets = Literal["characters", "utf-16", "bytes", "one-based"]
_FORM = 'write {"data": [{"paragraphs": [{"context": "…", "qas": [{"id", "question", "answers"}]}]}]}'


class AnswerError(DataError):
    """An answer does not stand where its start says."""


class Squad(Lenient):
    """Reads SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018), one article of `data` at a time.

    A record has `question`, `context`, `answers` ({"text": […], "answer_start": […]}, both empty if the question
    `is_impossible`) and `id`.

    Args:
        encoding: Encoding of the file.
        offsets: What starts count: characters, UTF-16 units, bytes, or characters from 1. `data.offsets` sets it.
    """

    fields = ("question", "context", "answers", "id", "where")

    def __init__(self, *, encoding: str = "utf-8", offsets: StartOffsets = "characters"):
        self.encoding, self.offsets = check_encoding(encoding), offsets

    def read(self, path: Path) -> Iterator[Record]:
        """The records of a UTF-8 file; DataError names file, line, question and fix."""
        try:
            yield from self.questions(path)
        except AnswerError as error:
            rest = Squad(encoding=self.encoding, offsets=self.offsets)
            rest.left_out = []
            right = sum(1 for _ in rest.questions(path))
            count = f"{len(rest.left_out):,} of {right + len(rest.left_out):,} questions have such a fault"
            for offsets in get_args(StartOffsets):
                shifted = Squad(encoding=self.encoding, offsets=offsets)
                shifted.left_out = []
                fitting = sum(1 for _ in shifted.questions(path))
                if len(shifted.left_out) < len(rest.left_out) / 10:
                    fix = f"{fitting:,} questions fit with data.offsets: {offsets}; set it"
                    raise DataError(f"{path}: {count}; {fix} (the first: {error})") from error
            raise DataError(f"{error} ({count}; `bad_rows: skip` under `data:` leaves them out)") from error

    def questions(self, path: Path) -> Iterator[Record]:
        """The records of a file; AnswerError for the first answer that does not stand where its start says."""
        empty = True
        with open_file(path) as file:
            text = JsonStream(file, str(path), "JSON of SQuAD", _FORM, self.encoding)
            has_data = False
            for key in text.keys():  # noqa: SIM118 (not a dict)
                if key != "data":
                    text.value()
                    continue
                has_data = True
                for article, line in text.items("a list of articles as `data`"):
                    for record in self._article(article, f"{text.name}:{line}"):
                        empty = False
                        yield record
            text.end("the object")
            if not has_data:
                raise text.fault(f"the object has no key `data`; {_FORM}")
        if empty and not self.left_out:
            raise DataError(f"{path}: there is no question in this file; {_FORM}")

    def _article(self, article: Any, where: str) -> Iterator[Record]:
        for paragraph in _list(article, "paragraphs", where):
            context = _text(paragraph, "context", where)
            for item in _list(paragraph, "qas", where):
                question = _text(item, "question", where)
                at = f"{where} (question {item.get('id', question)!r})"
                record: Record = {"question": question, "context": context}
                try:
                    gold = [] if item.get("is_impossible") is True else gold_answers({**item, "where": at}, "answers")
                    gold = [(text, to_characters(context, start, start, self.offsets)[0]) for text, start in gold]
                    for answer in gold:
                        locate_answer(answer, context, at)
                except DataError as error:
                    self.leave_out(AnswerError(str(error)))
                    continue
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
