"""Answer kind score: a number for each text."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from seqpipe.answers.base import Answer, float32_number, required_field
from seqpipe.errors import DataError
from seqpipe.features.document import Arrays, Doc, Record

_LARGEST = float(np.finfo(np.float32).max)


class Score:
    """A number for each text: `{"score"}`, None for a text of no tokens.

    Records of a self-supervised head have no target: `gold` is nothing, and its mean is what is measured.
    """

    kind = "score"
    outputs: tuple[str, ...] = ("score",)

    def __init__(self, target: str | None = None, self_supervised: bool = False):
        self.target, self.self_supervised = target, self_supervised

    @property
    def judged_as(self) -> str:
        return "number" if self.self_supervised else self.kind

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        return [{"score": float32_number(value)} for value in decision["score"].tolist()]

    def empty(self, several: bool) -> Answer:
        nothing = {"score": None}
        return [nothing] if several else nothing

    def gold(self, record: Record) -> float | None:
        return None if self.self_supervised else number_of(record, self.target or "score")

    def predicted(self, answer: Answer) -> float | None:
        score: float | None = answer["score"]
        return score

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "target": self.target} | ({"self_taught": True} if self.self_supervised else {})


def number_of(record: Record, field: str) -> float:
    """The number of a record; DataError if there is none, or if float32 cannot hold it."""
    given = number = required_field(record, field)
    if isinstance(given, str):  # columns of a table are texts
        with contextlib.suppress(ValueError):
            number = float(given)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not abs(number) <= _LARGEST:
        raise DataError(f"{record.get('where', 'record')}: field {field!r} is {given!r}; a finite number is needed")
    return float(number)
