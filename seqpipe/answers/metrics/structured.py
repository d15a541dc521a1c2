"""Scores of structured answers, field by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from seqpipe.answers.metrics.numbers import ScoreCounter, ratio
from seqpipe.answers.types import Metric, Scores

_F1 = ("f1", "precision", "recall")
_ERRORS = ("pearson", "mae", "rmse")


class Described(Protocol):
    """What a counter knows of a field."""

    @property
    def name(self) -> str: ...
    @property
    def per(self) -> str: ...
    @property
    def type(self) -> str: ...


class FieldCounter:
    """Of labels, positions and spans the accuracy, of labels of pairs F1, of numbers the correlation and errors."""

    def __init__(self, field: Described):
        self.field = field
        self.is_number, self.is_pair = field.type == "number", field.per == "pair"
        self.gold = self.predicted = self.correct = 0
        self.numbers = ScoreCounter()

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Its scores by name, which the field's own name begins."""
        if self.is_number:
            named = {name: Metric(percent=False, more_is_better=name == "pearson") for name in _ERRORS}
        else:
            named = dict.fromkeys(_F1 if self.is_pair else ("accuracy",), Metric())
        return {f"{self.field.name}_{name}": metric for name, metric in named.items()}

    def add(self, gold: Any, predicted: Any) -> None:
        """One record's values: one, or those of words or pairs by their places."""
        if self.field.per == "text":
            gold, predicted = {(): gold}, {(): predicted}
        if self.is_number:
            for key in gold if not self.is_pair else {**gold, **predicted}:
                self.numbers.add(gold.get(key, 0.0), predicted.get(key, 0.0 if self.is_pair else None))
            return
        self.gold += len(gold)
        self.predicted += len(predicted)
        self.correct += sum(key in predicted and predicted[key] == value for key, value in gold.items())

    def result(self) -> Scores:
        name = self.field.name
        if self.is_number:
            scores = self.numbers.result()
            return {f"{name}_{metric}": scores[metric] for metric in _ERRORS}
        if not self.is_pair:
            return {f"{name}_accuracy": ratio(self.correct, self.gold)}
        return {
            f"{name}_f1": ratio(2 * self.correct, self.gold + self.predicted),
            f"{name}_precision": ratio(self.correct, self.predicted),
            f"{name}_recall": ratio(self.correct, self.gold),
        }


class StructureCounter:
    """The scores of every field, and the share of records in which every field is right."""

    def __init__(self, fields: Sequence[Described]):
        self.fields = [FieldCounter(field) for field in fields]
        self.records = self.exact = 0

    def add(self, gold: Mapping[str, Any], predicted: Mapping[str, Any]) -> None:
        self.records += 1
        self.exact += gold == predicted
        for counter in self.fields:
            counter.add(gold[counter.field.name], predicted[counter.field.name])

    def result(self) -> Scores:
        scores = {name: score for counter in self.fields for name, score in counter.result().items()}
        return {**scores, "exact_match": ratio(self.exact, self.records)}
