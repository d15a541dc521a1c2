"""Answer kind vector: an embedding of each text, judged by retrieval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seqpipe.answers.base import Answer, float32_number
from seqpipe.answers.classification import label_of
from seqpipe.features.document import Arrays, Doc, Record


class Vector:
    """A text as numbers, near those of texts that mean the like: `{"vector": […]}`, None for a text of no tokens.

    Records of a self-supervised head have no target: `gold` is nothing.
    """

    kind = "vector"
    outputs: tuple[str, ...] = ("vector",)

    def __init__(self, labels: Sequence[str], target: str | None = None, self_supervised: bool = False):
        self.labels, self.target, self.self_supervised = tuple(labels), target, self_supervised

    @property
    def judged_as(self) -> str:
        return "length" if self.self_supervised else self.kind

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        return [{"vector": [float32_number(value) for value in row]} for row in decision["vector"].tolist()]

    def empty(self, several: bool) -> Answer:
        nothing = {"vector": None}
        return [nothing] if several else nothing

    def gold(self, record: Record) -> str | None:
        """The label whose texts are to be near each other."""
        return None if self.self_supervised else label_of(record, self.target or "label")

    def predicted(self, answer: Answer) -> list[float] | None:
        vector: list[float] | None = answer["vector"]
        return vector

    def manifest(self) -> dict[str, Any]:
        if self.self_supervised:
            return {"kind": self.kind, "target": self.target, "self_taught": True}
        return {"kind": self.kind, "labels": list(self.labels), "target": self.target}
