"""Reader of SQuAD's JSON, one question a record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from seqpipe.plugin import DataError, gold_answers

from . import Record, check_encoding
from .json import json_items
from .objects import SpansReader

_SQUAD_FORM = 'write {"data": [{"paragraphs": [{"context": "…", "qas": [{"id", "question", "answers"}]}]}]}'


class Squad(SpansReader):
    """Reads SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018), one article of `data` at a time.

    A record has `question`, `context`, `answers` ({"text": […], "answer_start": […]}, both empty if the question
    `is_impossible`) and `id`.

    Args:
        encoding: Encoding of the file.
        offsets: What starts count: characters, UTF-16 units, bytes, or characters from 1. `data.offsets` sets it.
    """

    fields = ("question", "context", "answers", "id", "where")
    empty_message = f"there is no question in this file; {_SQUAD_FORM}"

    def __init__(
        self,
        *,
        encoding: str = "utf-8",
        offsets: Literal["characters", "utf-16", "bytes", "one-based"] = "characters",
    ):
        self.encoding, self.offsets = check_encoding(encoding), offsets

    def items(self, path: Path) -> Iterator[Record]:
        for article, _, where in json_items(path, [["data"]], self.encoding, "JSON of SQuAD", _SQUAD_FORM):
            for paragraph in _part(article, "paragraphs", list, where):
                context = _part(paragraph, "context", str, where)
                for item in _part(paragraph, "qas", list, where):
                    question = _part(item, "question", str, where)
                    place = f"{where} (question {item.get('id', question)!r})"
                    yield from self.read_item(self._record, {**item, "context": context}, place)

    def _record(self, item: dict[str, Any], where: str) -> Record:
        gold = [] if item.get("is_impossible") is True else gold_answers({**item, "where": where}, "answers")
        answers = self.answers_of(gold, item["context"], where)
        record = {"question": item["question"], "context": item["context"], "answers": answers}
        return {**record, "id": str(item.get("id", ""))}


def _part(item: Any, key: str, kind: type, where: str) -> Any:
    """Return the list or text below a key of an object; DataError if there is none."""
    if not isinstance(item, dict) or not isinstance(item.get(key), kind):
        name = "list" if kind is list else "text"
        raise DataError(f"{where}: there is no {name} `{key}` where one belongs; {_SQUAD_FORM}")
    return item[key]
