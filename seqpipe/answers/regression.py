"""Answer kind score: a number for each text."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from seqpipe.answers.answer_types import ScoreAnswer
from seqpipe.answers.base import NOTHING, HeadAnswer, best_of, float32_number
from seqpipe.answers.metrics.numbers import NumberCounter, ScoreCounter
from seqpipe.answers.task import HeadInfo, HeadTask, no_targets, required_field
from seqpipe.answers.types import Array, Counts, MakeTargets, Metric, SpanRules
from seqpipe.errors import DataError
from seqpipe.features.document import Arrays, Doc, Record

_LARGEST = float(np.finfo(np.float32).max)
_ERROR = Metric(percent=False, more_is_better=False)


ScoreAnswers = ScoreAnswer | list[ScoreAnswer]


class Score(HeadAnswer[ScoreAnswers]):
    """A number for each text: `{"score"}`, None for a text of no tokens.

    Records of a self-supervised head have no target: `gold` is None, and the mean is what is measured.
    """

    kind = "score"
    answer_type = ScoreAnswer
    decided = {"score": Array("(B,)", "float32")}
    is_numeric = True

    def __init__(self, target: str | None = None, self_supervised: bool = False):
        self.target, self.self_supervised = target, self_supervised

    @property
    def drawing(self) -> dict[str, Any]:
        return {"as": "number"}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> Score:
        return cls(manifest["target"], manifest.get("self_supervised") is True)

    def manifest(self) -> dict[str, Any]:
        stated = {"kind": self.kind, "target": self.target}
        return {**stated, "self_supervised": True} if self.self_supervised else stated

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[ScoreAnswers]:
        return [{"score": float32_number(value)} for value in decision["score"].tolist()]

    def part_lines(self, part: Any) -> list[str]:
        return [NOTHING if part["score"] is None else f"{part['score']:.4f}"]

    def empty(self, several: bool) -> ScoreAnswers:
        answer: ScoreAnswer = {"score": None}
        return [answer] if several else answer


class ScoreTask(HeadTask[ScoreAnswers, Score]):
    """The number of each text, of a self-supervised head one that it makes itself."""

    kind_type = Score
    targets = {"score": Array("(B,)", "float32")}
    metrics = {
        "r2": Metric(percent=False),
        "pearson": Metric(percent=False),
        "mean_score": Metric(percent=False),
        "mae": _ERROR,
        "rmse": _ERROR,
        "unanswered": _ERROR,
    }
    may_self_supervise = True

    @classmethod
    def create(cls, head: HeadInfo, labels: Sequence[str], tokenizer: Tokenizer | None) -> Score:
        return Score(head.target, head.self_supervised)

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        if self.kind.self_supervised:
            return no_targets
        return lambda record, doc: {"score": number_of(record, self.kind.target or "score")}

    def gold(self, record: Record) -> float | None:
        return None if self.kind.self_supervised else number_of(record, self.kind.target or "score")

    def predicted(self, answer: ScoreAnswers) -> float | None:
        return best_of(answer)["score"]

    def counter(self) -> Counts:
        return NumberCounter() if self.kind.self_supervised else ScoreCounter()


def number_of(record: Record, field: str) -> float:
    """The number of a record; DataError if there is none, or if float32 cannot hold it."""
    value = number = required_field(record, field)
    if isinstance(value, str):  # columns of a table are texts
        with contextlib.suppress(ValueError):
            number = float(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not abs(number) <= _LARGEST:
        raise DataError.at(record, f"field {field!r} is {value!r}; a finite number is needed")
    return float(number)
