"""Metrics of numbers, rankings, retrieval and structured answers, and their tables."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np

from seqpipe.answers.types import Metric, Pair, Scores, Statistics
from seqpipe.console import text_table


class SumCounter(ABC):
    """Counts scores that are functions of sums over the records, in constant memory."""

    def __init__(self) -> None:
        self.sums: Counter[Any] = Counter()

    @abstractmethod
    def terms(self, gold: Any, predicted: Any) -> Mapping[Any, Any]:
        """Return the terms of one record in the sums, by the names of the sums."""

    @abstractmethod
    def scores(self, sums: Counter[Any]) -> Scores:
        """Return the scores of sums: numbers, or arrays (N,) with the sums of many samples."""

    def add(self, gold: Any, predicted: Any) -> None:
        """Add one record, as `terms` describes it."""
        for name, term in self.terms(gold, predicted).items():
            self.sums[name] += term

    def result(self) -> Scores:
        return self.scores(self.sums)

    def statistics(self, sides: Sequence[Sequence[Pair]], at: Sequence[int]) -> Iterator[Statistics]:
        terms = [self.terms(*side[i]) for side in sides for i in at]
        columns = {name: i for i, name in enumerate(dict.fromkeys(chain.from_iterable(terms)))}
        rows = np.zeros((len(terms), len(columns)))
        for row, of_record in zip(rows, terms, strict=True):
            row[[columns[name] for name in of_record]] = [*of_record.values()]
        yield rows, lambda sums: self.scores(Counter(dict(zip(columns, sums.T, strict=True))))


# Scores of numbers: correlation, explained variance and errors, counted record by record in constant memory.


class ScoreCounter(SumCounter):
    """Explained variance (R²), Pearson's correlation, and errors in the target's unit.

    Sums are about the first record's numbers, so that numbers far from 0 lose no precision (Chan et al. 1983).
    """

    origin: tuple[float, float] | None = None

    def terms(self, gold: float, predicted: float | None) -> dict[str, float]:
        """Return the terms of a record's number; None for a text without tokens, which is counted without an error."""
        if predicted is None:
            return {"unanswered": 1}
        self.origin = self.origin or (gold, predicted)
        gold_off, predicted_off = gold - self.origin[0], predicted - self.origin[1]
        return {
            "numbers": 1,
            "gold": gold_off,
            "predicted": predicted_off,
            "gold_squares": gold_off**2,
            "predicted_squares": predicted_off**2,
            "products": gold_off * predicted_off,
            "errors": abs(gold - predicted),
            "squares": (gold - predicted) ** 2,
        }

    def scores(self, sums: Counter[Any]) -> Scores:
        n = sums["numbers"]
        gold = sums["gold_squares"] - ratio(sums["gold"] ** 2, n)
        predicted = sums["predicted_squares"] - ratio(sums["predicted"] ** 2, n)
        products = sums["products"] - ratio(sums["gold"] * sums["predicted"], n)
        return {
            "r2": ratio(gold - sums["squares"], gold),
            "pearson": ratio(products, root(gold) * root(predicted)),
            "mae": ratio(sums["errors"], n),
            "rmse": root(ratio(sums["squares"], n)),
            **_unanswered(sums),
        }


class NumberCounter(SumCounter):
    """Mean of numbers without a reference, and the number of texts without one."""

    def terms(self, gold: None, predicted: float | None) -> dict[str, float]:
        return {"unanswered": 1} if predicted is None else {"total": predicted, "numbers": 1}

    def scores(self, sums: Counter[Any]) -> Scores:
        return {"mean_score": ratio(sums["total"], sums["numbers"]), **_unanswered(sums)}


def _unanswered(sums: Counter[Any]) -> Scores:
    return {"unanswered": sums["unanswered"]} if np.any(sums["unanswered"]) else {}


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


class PlaceCounter(SumCounter):
    """Share of the items of references that answers have in the same place, and of answers equal to their references.

    Args:
        names: The names of the scores, in their order; `exact_match` is that of equal answers.
    """

    def __init__(self, names: Sequence[str]):
        super().__init__()
        self.names = names

    def terms(self, gold: Any, predicted: Sequence[Any]) -> dict[str, float]:
        right = sum(a == b for a, b in zip(gold, predicted, strict=False))
        return {"items": len(gold), "right": right, "records": 1, "equal": [*gold] == [*predicted]}

    def scores(self, sums: Counter[Any]) -> Scores:
        right, equal = ratio(sums["right"], sums["items"]), ratio(sums["equal"], sums["records"])
        return {name: equal if name == "exact_match" else right for name in self.names}


# Scores of ranked lists: accuracy of the first, mean reciprocal rank, and recall.


class RankCounter(SumCounter):
    """Rank of the first right entry in a list of k: first (accuracy), at all (recall), 1 / rank (MRR).

    The mean reciprocal rank (Voorhees 1999) counts 0 if none of the k is right.
    """

    def terms(self, gold: str, predicted: Sequence[str]) -> dict[str, float]:
        """Return the terms of one record's label and the predicted ones, best first; an empty list is wrong."""
        if gold not in predicted:
            return {"records": 1}
        rank = 1 + [*predicted].index(gold)
        return {"records": 1, "accuracy": rank == 1, "mrr": 1 / rank, "recall_at_k": 1}

    def scores(self, sums: Counter[Any]) -> Scores:
        return {name: ratio(sums[name], sums["records"]) for name in ("accuracy", "mrr", "recall_at_k")}


# Scores of embeddings: retrieval of texts with the same label, and the length of vectors.

VECTORS_PER_BLOCK = 512  # vectors compared with all others at a time


class LengthCounter(NumberCounter):
    """Mean length of vectors without a reference, and the number of texts without one."""

    def terms(self, gold: None, predicted: Any) -> dict[str, float]:
        return super().terms(gold, None if predicted is None else float(np.linalg.norm(predicted)))

    def scores(self, sums: Counter[Any]) -> Scores:
        scores = super().scores(sums)
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
        right = self.nearest_right()
        return {"precision_at_1": ratio(float(right.sum()), len(right))}

    def statistics(self, sides: Sequence[Sequence[Pair]], at: Sequence[int]) -> Iterator[Statistics]:
        """Yield whether the text nearest to each text has its label: samples of texts are not searched again."""
        right = []
        for side in sides:
            counter = VectorCounter()
            for pair in side:
                counter.add(*pair)
            right.append(counter.nearest_right()[at])
        yield mean_of("precision_at_1", np.concatenate(right))

    def nearest_right(self) -> np.ndarray:
        """Return 1 for each text whose nearest text has its label, else 0."""
        right = np.zeros(len(self.labels))
        if len(self.vectors) > 1:
            vectors, labels = np.stack(self.vectors), np.unique(self.labels, return_inverse=True)[1][self.answered]
            for first in range(0, len(vectors), VECTORS_PER_BLOCK):
                near = vectors[first : first + VECTORS_PER_BLOCK] @ vectors.T  # (R, N)
                rows = np.arange(len(near))
                near[rows, first + rows] = -np.inf
                right[self.answered[first : first + VECTORS_PER_BLOCK]] = (
                    labels[near.argmax(1)] == labels[first : first + VECTORS_PER_BLOCK]
                )
        return right


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


class FieldCounter(SumCounter):
    """Accuracy of labels, positions and spans, F1 of labels of pairs, correlation and errors of numbers."""

    def __init__(self, field: FieldDescription):
        super().__init__()
        self.field = field
        self.is_number, self.is_pair = field.type == "number", field.per == "pair"
        self.numbers = ScoreCounter()

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Return its metrics by name; the names begin with that of the field."""
        if self.is_number:
            named = {name: Metric(percent=False, more_is_better=name == "pearson") for name in _ERRORS}
        else:
            named = dict.fromkeys(_F1 if self.is_pair else ("accuracy",), Metric())
        return {f"{self.field.name}_{name}": metric for name, metric in named.items()}

    def terms(self, gold: Any, predicted: Any) -> Mapping[str, float]:
        """Return the terms of one record's values: one, or those of words or pairs by their places."""
        if self.field.per == "text":
            gold, predicted = {(): gold}, {(): predicted}
        if self.is_number:
            terms: Counter[str] = Counter()
            for key in gold if not self.is_pair else {**gold, **predicted}:
                number = predicted.get(key, 0.0 if self.is_pair else None)
                terms.update(self.numbers.terms(gold.get(key, 0.0), number))
            return terms
        correct = sum(key in predicted and predicted[key] == value for key, value in gold.items())
        return {"gold": len(gold), "predicted": len(predicted), "correct": correct}

    def scores(self, sums: Counter[Any]) -> Scores:
        name = self.field.name
        if self.is_number:
            scores = self.numbers.scores(sums)
            return {f"{name}_{metric}": scores[metric] for metric in _ERRORS}
        if not self.is_pair:
            return {f"{name}_accuracy": ratio(sums["correct"], sums["gold"])}
        return {
            f"{name}_f1": ratio(2 * sums["correct"], sums["gold"] + sums["predicted"]),
            f"{name}_precision": ratio(sums["correct"], sums["predicted"]),
            f"{name}_recall": ratio(sums["correct"], sums["gold"]),
        }


class StructureCounter(SumCounter):
    """Scores of every field, and the share of records in which all fields are correct."""

    def __init__(self, fields: Sequence[FieldDescription]):
        super().__init__()
        self.fields = {field.name: FieldCounter(field) for field in fields}

    def terms(self, gold: Mapping[str, Any], predicted: Mapping[str, Any]) -> dict[tuple[str, str], float]:
        of_fields = {name: counter.terms(gold[name], predicted[name]) for name, counter in self.fields.items()}
        terms = {(name, key): term for name, terms in of_fields.items() for key, term in terms.items()}
        return {**terms, ("", "records"): 1, ("", "exact"): gold == predicted}

    def scores(self, sums: Counter[Any]) -> Scores:
        scores: Scores = {}
        for name, counter in self.fields.items():
            scores |= counter.scores(Counter({key: total for (field, key), total in sums.items() if field == name}))
        return {**scores, "exact_match": ratio(sums["", "exact"], sums["", "records"])}


# Formatting of scores: one number, and an aligned table.


def scores_table(scores: Mapping[str, Any], metrics: Mapping[str, Metric]) -> str:
    """Format scores as aligned plain text: a row for each label, then the overall one; fractions in per cent.

    Each of several heads has a table under its name; joint scores come last.

    Args:
        scores: The result of `seqpipe.evaluation.scores`.
        metrics: The metrics by name.
    """
    heads = {name: part for name, part in scores.items() if isinstance(part, Mapping) and name != "labels"}
    if heads:
        over_all = {name: value for name, value in scores.items() if name not in heads}
        tables = [f"{name}\n{scores_table(part, metrics)}" for name, part in heads.items()]
        return "\n\n".join([*tables, scores_table(over_all, metrics)])
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
    """Return the metric of a score, whose name may have a head's name as a prefix; a number if unknown."""
    return metrics.get(name.rpartition(".")[2], Metric(percent=False))


def format_score(name: str, value: float, metrics: Mapping[str, Metric]) -> str:
    """Format a score for people."""
    return f"{100 * value:.2f}" if metric_of(name, metrics).percent else f"{value:.4g}"


def _cell(column: str, value: object, metrics: Mapping[str, Metric]) -> str:
    if isinstance(value, float):
        return format_score(column, value, metrics)
    return "" if value is None else str(value)
