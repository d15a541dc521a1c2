"""Answer kinds label and labels: one label of a text, or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from seqpipe.answers.base import Answer, probability, required_field
from seqpipe.errors import DataError
from seqpipe.features.document import Arrays, Doc, Record


class Label:
    """One label a text: `{"label", "score"}`; score: its probability. One label may mean that no other fits."""

    kind = "label"
    outputs: tuple[str, ...] = ("label", "scores")

    def __init__(self, labels: Sequence[str], target: str | None = None, out_of_scope: str | None = None):
        self.labels, self.target, self.out_of_scope = tuple(labels), target, out_of_scope

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        scored = zip(decision["label"].tolist(), decision["scores"], strict=True)
        return [{"label": self.labels[label], "score": probability(scores[label])} for label, scores in scored]

    def empty(self, several: bool) -> Answer:
        """The answer to a text of no tokens: no label."""
        nothing = {"label": None, "score": 0.0}
        return [nothing] if several else nothing

    def gold(self, record: Record) -> str:
        return label_of(record, self.target or "label")

    def predicted(self, answer: Answer) -> str | None:
        label: str | None = answer["label"]
        return label

    def manifest(self) -> dict[str, Any]:
        outside = {} if self.out_of_scope is None else {"out_of_scope": self.out_of_scope}
        return {"kind": self.kind, "labels": list(self.labels), "target": self.target, **outside}


class Labels:
    """Any number of labels a text, the likeliest first: `[{"label", "score"}, …]`; score: each label's probability."""

    kind = "labels"
    outputs: tuple[str, ...] = ("labels", "scores")

    def __init__(self, labels: Sequence[str], target: str | None = None):
        self.labels, self.target = tuple(labels), target

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        scores, found = decision["scores"], decision["labels"] != 0
        return [self._chosen(np.flatnonzero(row), scores[i]) for i, row in enumerate(found)]

    def _chosen(self, chosen: np.ndarray, scores: np.ndarray) -> list[dict[str, Any]]:
        best_first = chosen[np.argsort(-scores[chosen], kind="stable")]
        return [{"label": self.labels[i], "score": probability(scores[i])} for i in best_first.tolist()]

    def empty(self, several: bool) -> Answer:
        """The answer to a text of no tokens: no label."""
        return [{"labels": [], "score": 1.0}] if several else []

    def gold(self, record: Record) -> list[str]:
        return sorted(label_set_of(record, self.target or "labels"))

    def predicted(self, answer: Answer) -> list[str]:
        return sorted(one["label"] for one in answer)

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "labels": list(self.labels), "target": self.target}


def label_of(record: Record, field: str) -> str:
    """The label of a record, a text or a whole number, as text; DataError if there is none."""
    label = required_field(record, field)
    if not _is_label(label):
        raise DataError(
            f"{record.get('where', 'record')}: field {field!r} is {label!r}; a label is a text or a whole number"
        )
    return str(label)


def label_set_of(record: Record, field: str) -> set[str]:
    """The labels of a record, texts or whole numbers in a list that may be empty; DataError if it is no such list."""
    labels = required_field(record, field)
    if not isinstance(labels, list) or not all(map(_is_label, labels)):
        told = f"field {field!r} is {labels!r}; several labels are a list of texts or whole numbers"
        raise DataError(f'{record.get("where", "record")}: {told}, such as ["a", "b"] or []')
    return set(map(str, labels))


def _is_label(value: Any) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool) and bool(str(value).strip())
