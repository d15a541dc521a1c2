"""Answer kind vector: an embedding of each text, judged by retrieval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from seqpipe.answers.answer_types import VectorAnswer
from seqpipe.answers.base import NOTHING, HeadAnswer, best_of, float32_number
from seqpipe.answers.classification import counted_labels, label_of, label_target
from seqpipe.answers.metrics.numbers import LengthCounter, VectorCounter
from seqpipe.answers.task import HeadInfo, HeadTask, no_targets
from seqpipe.answers.types import Array, Counts, MakeTargets, Metric, SpanRules
from seqpipe.features.document import Arrays, Doc, Record
from seqpipe.features.vocabulary import Vocabulary

VectorAnswers = VectorAnswer | list[VectorAnswer]


class Vector(HeadAnswer[VectorAnswers]):
    """An embedding of a text, near those of texts with the same label: `{"vector": […]}`, None without a token.

    Records of a self-supervised head have no target: `gold` is None.
    """

    kind = "vector"
    answer_type = VectorAnswer
    decided = {"vector": Array("(B, D)", "float32")}
    is_numeric = True
    is_embedding = True

    def __init__(self, labels: Sequence[str], target: str | None = None, self_supervised: bool = False):
        self.labels, self.target, self.self_supervised = tuple(labels), target, self_supervised

    @property
    def drawing(self) -> dict[str, Any]:
        return {"as": "vector"}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> Vector:
        if manifest.get("self_supervised") is True:
            return cls((), manifest["target"], True)
        return cls(manifest["labels"], manifest["target"])

    def manifest(self) -> dict[str, Any]:
        if self.self_supervised:
            return {"kind": self.kind, "target": self.target, "self_supervised": True}
        return {"kind": self.kind, "labels": list(self.labels), "target": self.target}

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[VectorAnswers]:
        return [{"vector": [float32_number(value) for value in row]} for row in decision["vector"].tolist()]

    def part_lines(self, part: Any) -> list[str]:
        return [NOTHING if part["vector"] is None else f"a vector of {len(part['vector'])} numbers"]

    def empty(self, several: bool) -> VectorAnswers:
        answer: VectorAnswer = {"vector": None}
        return [answer] if several else answer


class VectorTask(HeadTask[VectorAnswers, Vector]):
    """Vectors that are near each other where the labels of the texts are equal."""

    kind_type = Vector
    targets = {"label": Array("(B,)", "int64", "label")}
    metrics = {
        "precision_at_1": Metric(),
        "mean_length": Metric(percent=False),
        "unanswered": Metric(percent=False, more_is_better=False),
    }
    has_labels = True
    may_self_supervise = True

    @classmethod
    def create(cls, head: HeadInfo, labels: Sequence[str], tokenizer: Tokenizer | None) -> Vector:
        return Vector(labels, head.target, head.self_supervised)

    @classmethod
    def collect_labels(cls, head: HeadInfo, records: Sequence[Record]) -> Vocabulary:
        return counted_labels(head, (label_of(record, head.target or "label") for record in records))

    @property
    def is_comparable(self) -> bool:
        return False

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        if self.kind.self_supervised:
            return no_targets
        return label_target(self.kind.labels, self.kind.target)

    def gold(self, record: Record) -> str | None:
        """The label whose texts are to be near each other."""
        return None if self.kind.self_supervised else label_of(record, self.kind.target or "label")

    def predicted(self, answer: VectorAnswers) -> list[float] | None:
        return best_of(answer)["vector"]

    def counter(self) -> Counts:
        return LengthCounter() if self.kind.self_supervised else VectorCounter()
