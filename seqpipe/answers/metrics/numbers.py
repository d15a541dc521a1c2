"""Metrics of numbers, rankings, retrieval and structured answers, and their tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from seqpipe.answers.types import Metric, Scores, Statistics
from seqpipe.console import text_table

# Scores of numbers: correlation, explained variance and errors, counted record by record in constant memory.


class ScoreCounter:
    """Explained variance (R²), Pearson's correlation, and errors in the target's unit.

    Sums are about the first record's numbers, so that numbers far from 0 lose no precision (Chan et al. 1983).
    """

    def __init__(self) -> None:
        self.numbers = self.unanswered = 0
        self.origin: tuple[float, float] | None = None
        self.gold = self.predicted = 0.0
        self.gold_squares = self.predicted_squares = self.products = 0.0
        self.errors = self.squares = 0.0

    def add(self, gold: float, predicted: float | None) -> None:
        """Add one record's number; None for a text without tokens, which is counted without an error."""
        if predicted is None:
            self.unanswered += 1
            return
        self.origin = self.origin or (gold, predicted)
        self.numbers += 1
        gold_off, predicted_off = gold - self.origin[0], predicted - self.origin[1]
        self.gold += gold_off
        self.predicted += predicted_off
        self.gold_squares += gold_off**2
        self.predicted_squares += predicted_off**2
        self.products += gold_off * predicted_off
        self.errors += abs(gold - predicted)
        self.squares += (gold - predicted) ** 2

    def result(self) -> Scores:
        gold = self.gold_squares - ratio(self.gold**2, self.numbers)
        predicted = self.predicted_squares - ratio(self.predicted**2, self.numbers)
        products = self.products - ratio(self.gold * self.predicted, self.numbers)
        return {
            "r2": ratio(gold - self.squares, gold),
            "pearson": ratio(products, root(gold) * root(predicted)),
            "mae": ratio(self.errors, self.numbers),
            "rmse": root(ratio(self.squares, self.numbers)),
            **({"unanswered": self.unanswered} if np.any(self.unanswered) else {}),
        }


class NumberCounter:
    """Mean of numbers without a reference, and the number of texts without one."""

    def __init__(self) -> None:
        self.total = 0.0
        self.numbers = self.unanswered = 0

    def add(self, gold: None, predicted: float | None) -> None:
        if predicted is None:
            self.unanswered += 1
        else:
            self.total += predicted
            self.numbers += 1

    def result(self) -> Scores:
        return {
            "mean_score": ratio(self.total, self.numbers),
            **({"unanswered": self.unanswered} if np.any(self.unanswered) else {}),
        }


def mean_of(name: str, values: Sequence[float] | np.ndarray) -> Statistics:
    """Return the statistics of a score that is the mean over the records."""
    rows = np.stack([values, np.ones(len(values))], 1)
    return rows, lambda sums: {name: ratio(sums[:, 0], sums[:, 1])}


def whole_scores(statistics: Iterable[Statistics]) -> Scores:
    """Return the scores of all records by their statistics."""
    return {name: float(score[0]) for rows, of in statistics for name, score in of(rows.sum(0, keepdims=True)).items()}


def ratio(part: Any, whole: Any) -> Any:
    """Return part / whole, 0 if the whole is 0; of arrays, each the sums of many samples, an array."""
    if isinstance(whole, np.ndarray):
        return np.divide(part, whole, out=np.zeros(whole.shape), where=whole != 0)
    return part / whole if whole else 0.0


def root(number: Any) -> Any:
    """Return the square root of a number or an array, 0 for what rounding made negative."""
    return np.sqrt(np.maximum(number, 0.0)) if isinstance(number, np.ndarray) else math.sqrt(max(number, 0.0))


# Scores of ranked lists: accuracy of the first, mean reciprocal rank, and recall.


class RankCounter:
    """Rank of the first right entry in a list of k: first (accuracy), at all (recall), 1 / rank (MRR).

    The mean reciprocal rank (Voorhees 1999) counts 0 if none of the k is right.
    """

    def __init__(self) -> None:
        self.records = self.first = self.found = 0
        self.reciprocal = 0.0

    def add(self, gold: str, predicted: Sequence[str]) -> None:
        """Add one record's label, and the list of predicted ones, best first; an empty list is wrong."""
        self.records += 1
        if gold in predicted:
            rank = 1 + [*predicted].index(gold)
            self.first += rank == 1
            self.found += 1
            self.reciprocal += 1 / rank

    def result(self) -> Scores:
        counts = {"accuracy": self.first, "mrr": self.reciprocal, "recall_at_k": self.found}
        return {name: ratio(count, self.records) for name, count in counts.items()}


# Scores of embeddings: retrieval of texts with the same label, and the length of vectors.

BLOCK = 512  # vectors compared with all others at a time


class LengthCounter:
    """Mean length of vectors without a reference, and the number of texts without one."""

    def __init__(self) -> None:
        self.lengths = NumberCounter()

    def add(self, gold: None, predicted: Sequence[float] | None) -> None:
        self.lengths.add(gold, None if predicted is None else float(np.linalg.norm(predicted)))

    def result(self) -> Scores:
        scores = self.lengths.result()
        return {"mean_length": scores.pop("mean_score"), **scores}


class VectorCounter:
    """Share of texts whose nearest other text by cosine has the same label.

    It stores every vector, 4 bytes per number (100,000 texts of 256 numbers: 100 MB), and compares them block by block.
    """

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.vectors: list[np.ndarray] = []
        self.answered: list[int] = []  # numbers of the texts with a vector

    def add(self, gold: str, predicted: Sequence[float] | None) -> None:
        """Add one record's label and vector; None for a text without tokens, which is wrong."""
        self.labels.append(gold)
        if predicted is not None:
            vector = np.asarray(predicted, np.float64)
            self.vectors.append((vector / (np.linalg.norm(vector) or 1.0)).astype(np.float32))
            self.answered.append(len(self.labels) - 1)

    def result(self) -> Scores:
        return {"precision_at_1": 0.0} | whole_scores(self.statistics())

    def statistics(self) -> Iterator[Statistics]:
        """Yield whether the text nearest to each text has its label: samples of texts are not searched again."""
        right = np.zeros(len(self.labels))
        if len(self.vectors) > 1:
            vectors, labels = np.stack(self.vectors), np.unique(self.labels, return_inverse=True)[1][self.answered]
            for first in range(0, len(vectors), BLOCK):
                near = vectors[first : first + BLOCK] @ vectors.T  # (R, N)
                rows = np.arange(len(near))
                near[rows, first + rows] = -np.inf
                right[self.answered[first : first + BLOCK]] = labels[near.argmax(1)] == labels[first : first + BLOCK]
        yield mean_of("precision_at_1", right)


# Scores of structured answers, field by field.

_F1 = ("f1", "precision", "recall")
_ERRORS = ("pearson", "mae", "rmse")


class FieldDescription(Protocol):
    """Description of a field for a counter."""

    @property
    def name(self) -> str: ...
    @property
    def per(self) -> str: ...
    @property
    def type(self) -> str: ...


class FieldCounter:
    """Accuracy of labels, positions and spans, F1 of labels of pairs, correlation and errors of numbers."""

    def __init__(self, field: FieldDescription):
        self.field = field
        self.is_number, self.is_pair = field.type == "number", field.per == "pair"
        self.gold = self.predicted = self.correct = 0
        self.numbers = ScoreCounter()

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Return its metrics by name; the names begin with that of the field."""
        if self.is_number:
            named = {name: Metric(percent=False, more_is_better=name == "pearson") for name in _ERRORS}
        else:
            named = dict.fromkeys(_F1 if self.is_pair else ("accuracy",), Metric())
        return {f"{self.field.name}_{name}": metric for name, metric in named.items()}

    def add(self, gold: Any, predicted: Any) -> None:
        """Add one record's values: one, or those of words or pairs by their places."""
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
    """Scores of every field, and the share of records in which all fields are correct."""

    def __init__(self, fields: Sequence[FieldDescription]):
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


# Formatting of scores: one number, and an aligned table.

PLAIN = Metric(percent=False)  # of an unknown score


def table(scores: Mapping[str, Any], metrics: Mapping[str, Metric]) -> str:
    """Format scores as aligned plain text: a row for each label, then the overall one; fractions in per cent.

    Each of several heads has a table under its name; joint scores come last.

    Args:
        scores: The result of `seqpipe.evaluation.scores`.
        metrics: The metrics by name.
    """
    heads = {name: part for name, part in scores.items() if isinstance(part, Mapping) and name != "labels"}
    if heads:
        over_all = {name: value for name, value in scores.items() if name not in heads}
        tables = [f"{name}\n{table(part, metrics)}" for name, part in heads.items()]
        return "\n\n".join([*tables, table(over_all, metrics)])
    return "\n".join(text_table(score_rows(scores, metrics), numbers=True))


def score_rows(scores: Mapping[str, Any], metrics: Mapping[str, Metric]) -> list[list[str]]:
    """Return the rows of the table of one head's scores as formatted cells: names, each label, the overall scores."""
    rows = [
        (label, {name: value for name, value in row.items() if not isinstance(value, Mapping)})
        for label, row in (*scores.get("labels", {}).items(), ("overall", scores))
    ]
    columns = list(dict.fromkeys(column for _, row in reversed(rows) for column in row))
    lines = [["", *(column.replace("_", " ") for column in columns)]]
    return lines + [[label, *(_cell(column, row.get(column), metrics) for column in columns)] for label, row in rows]


def metric_of(name: str, metrics: Mapping[str, Metric]) -> Metric:
    """Return the metric of a score, whose name may have a head's name as a prefix."""
    return metrics.get(name.rpartition(".")[2], PLAIN)


def format_score(name: str, value: float, metrics: Mapping[str, Metric]) -> str:
    """Format a score for people."""
    return f"{100 * value:.2f}" if metric_of(name, metrics).percent else f"{value:.4g}"


def _cell(column: str, value: object, metrics: Mapping[str, Metric]) -> str:
    if isinstance(value, float):
        return format_score(column, value, metrics)
    return "" if value is None else str(value)
