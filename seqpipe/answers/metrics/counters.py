"""Gold and predicted answers in, scores out, counted record by record, and but for vectors in constant memory.

Scores are fractions (0 to 1) and a division by zero gives 0; only `table` speaks of per cent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from seqpipe.answers.metrics.pointers import PointerCounter
from seqpipe.answers.metrics.squad import ReadingCounter
from seqpipe.answers.metrics.text import FillingCounter, TextCounter
from seqpipe.answers.tagging_schemes import Span
from seqpipe.console import text_table
from seqpipe.errors import UsageError, nearest

Scores = dict[str, Any]
BLOCK = 512  # vectors compared with all others at a time


class Counts(Protocol):
    """What every counter here does: take record after record, and say the scores at any time."""

    def add(self, gold: Any, predicted: Any, /) -> None: ...

    def result(self) -> Scores: ...


class SpanCounter:
    """Precision, recall and F1 of spans whose label and both ends are right (micro average, as conlleval has it)."""

    def __init__(self) -> None:
        self.gold: Counter[str] = Counter()
        self.predicted: Counter[str] = Counter()
        self.correct: Counter[str] = Counter()

    def add(self, gold: Iterable[Span], predicted: Iterable[Span]) -> None:
        """One record's spans; a span given twice counts once."""
        right, given = set(gold), set(predicted)
        self.gold.update(label for label, _, _ in right)
        self.predicted.update(label for label, _, _ in given)
        self.correct.update(label for label, _, _ in right & given)

    def result(self) -> Scores:
        totals = self.gold.total(), self.predicted.total(), self.correct.total()
        return {**_f1(*totals), "labels": _each(self.gold, self.predicted, self.correct)}


class TagCounter:
    """Accuracy over all tags, and precision, recall and F1 of each."""

    def __init__(self) -> None:
        self.gold: Counter[str] = Counter()
        self.predicted: Counter[str] = Counter()
        self.correct: Counter[str] = Counter()

    def add(self, gold: Sequence[str], predicted: Sequence[str]) -> None:
        """One record's tags; ValueError unless there are as many on both sides."""
        if len(gold) != len(predicted):
            raise ValueError(
                f"{len(gold)} gold tags but {len(predicted)} predicted: one a word is needed on both sides"
            )
        self.gold.update(gold)
        self.predicted.update(predicted)
        self.correct.update(right for right, given in zip(gold, predicted, strict=True) if right == given)

    def result(self) -> Scores:
        accuracy = _ratio(self.correct.total(), self.gold.total())
        return {"accuracy": accuracy, "labels": _each(self.gold, self.predicted, self.correct)}


class LabelCounter:
    """Accuracy, the mean of the labels' F1, and precision, recall and F1 of each label.

    Where one label is out of scope: also the accuracy on all other texts, and the share of its own that are found
    (Larson et al. 2019).
    """

    def __init__(self, out_of_scope: str | None = None) -> None:
        self.out_of_scope = out_of_scope
        self.gold: Counter[str] = Counter()
        self.predicted: Counter[str] = Counter()
        self.correct: Counter[str] = Counter()

    def add(self, gold: str, predicted: str | None) -> None:
        """One record's label; None for a text that has none, since it has no token."""
        self.gold[gold] += 1
        self.predicted.update([] if predicted is None else [predicted])
        self.correct[gold] += gold == predicted

    def result(self) -> Scores:
        each = _each(self.gold, self.predicted, self.correct)
        return {
            "accuracy": _ratio(self.correct.total(), self.gold.total()),
            "macro_f1": sum(scores["f1"] for scores in each.values()) / max(1, len(each)),
            **({} if self.out_of_scope is None else self._scopes(self.out_of_scope)),
            "labels": each,
        }

    def _scopes(self, outside: str) -> Scores:
        found, all_found = self.correct[outside], self.correct.total()
        return {
            "in_scope_accuracy": _ratio(all_found - found, self.gold.total() - self.gold[outside]),
            "out_of_scope_recall": _ratio(found, self.gold[outside]),
        }


class LabelsCounter:
    """F1 over all labels of all texts (micro average), the mean of the labels' F1, and the share of equal sets."""

    def __init__(self) -> None:
        self.gold: Counter[str] = Counter()
        self.predicted: Counter[str] = Counter()
        self.correct: Counter[str] = Counter()
        self.texts = self.equal = 0

    def add(self, gold: Iterable[str], predicted: Iterable[str]) -> None:
        """One record's labels; one given twice counts once."""
        right, given = set(gold), set(predicted)
        self.gold.update(right)
        self.predicted.update(given)
        self.correct.update(right & given)
        self.texts += 1
        self.equal += right == given

    def result(self) -> Scores:
        each = _each(self.gold, self.predicted, self.correct)
        all_labels = _f1(self.gold.total(), self.predicted.total(), self.correct.total())
        return {
            "micro_f1": all_labels.pop("f1"),
            "macro_f1": sum(scores["f1"] for scores in each.values()) / max(1, len(each)),
            "exact_match": _ratio(self.equal, self.texts),
            **all_labels,
            "labels": each,
        }


class ScoreCounter:
    """The share of the variance that is explained, Pearson's correlation, and errors in the target's own unit.

    Sums of squares are kept about the running means (Welford 1962), so that numbers far from 0 lose nothing.
    """

    def __init__(self) -> None:
        self.numbers = self.unanswered = 0
        self.gold = self.predicted = 0.0  # means
        self.gold_squares = self.predicted_squares = self.products = 0.0  # about the means
        self.errors = self.squares = 0.0

    def add(self, gold: float, predicted: float | None) -> None:
        """One record's number; None for a text that has none, since it has no token: it is counted, no error is."""
        if predicted is None:
            self.unanswered += 1
            return
        self.numbers += 1
        before, other = gold - self.gold, predicted - self.predicted
        self.gold += before / self.numbers
        self.predicted += other / self.numbers
        self.gold_squares += before * (gold - self.gold)
        self.predicted_squares += other * (predicted - self.predicted)
        self.products += before * (predicted - self.predicted)
        self.errors += abs(gold - predicted)
        self.squares += (gold - predicted) ** 2

    def result(self) -> Scores:
        return {
            "r2": 1 - self.squares / self.gold_squares if self.gold_squares else 0.0,
            "pearson": _ratio(self.products, math.sqrt(self.gold_squares) * math.sqrt(self.predicted_squares)),
            "mae": _ratio(self.errors, self.numbers),
            "rmse": math.sqrt(_ratio(self.squares, self.numbers)),
            **({"unanswered": self.unanswered} if self.unanswered else {}),
        }


class NumberCounter:
    """The mean of numbers that nothing is known to compare with, and how many texts have none."""

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
            "mean_score": _ratio(self.total, self.numbers),
            **({"unanswered": self.unanswered} if self.unanswered else {}),
        }


class LengthCounter:
    """The mean length of vectors that nothing is known to compare with, and how many texts have none."""

    def __init__(self) -> None:
        self.lengths = NumberCounter()

    def add(self, gold: None, predicted: Sequence[float] | None) -> None:
        self.lengths.add(gold, None if predicted is None else float(np.linalg.norm(predicted)))

    def result(self) -> Scores:
        found = self.lengths.result()
        return {"mean_length": found.pop("mean_score"), **found}


class VectorCounter:
    """How often the nearest other text by cosine has the same label.

    It keeps every vector, 4 bytes a number (100,000 texts of 256 numbers: 100 MB), and compares them block by block.
    """

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.vectors: list[np.ndarray] = []
        self.texts = 0

    def add(self, gold: str, predicted: Sequence[float] | None) -> None:
        """One record's label and vector; None for a text that has none, since it has no token: it finds none."""
        self.texts += 1
        if predicted is not None:
            vector = np.asarray(predicted, np.float64)
            self.vectors.append((vector / (np.linalg.norm(vector) or 1.0)).astype(np.float32))
            self.labels.append(gold)

    def result(self) -> Scores:
        right = 0
        if len(self.vectors) > 1:
            vectors, labels = np.stack(self.vectors), np.unique(self.labels, return_inverse=True)[1]
            for first in range(0, len(vectors), BLOCK):
                near = vectors[first : first + BLOCK] @ vectors.T  # (R, N)
                rows = np.arange(len(near))
                near[rows, first + rows] = -np.inf
                right += int((labels[near.argmax(1)] == labels[first : first + BLOCK]).sum())
        return {"precision_at_1": _ratio(right, self.texts)}


FRACTIONS = (
    *("f1", "precision", "recall", "accuracy", "micro_f1", "macro_f1", "exact_match", "character_error_rate"),
    *("precision_at_1", "in_scope_accuracy", "out_of_scope_recall", "mean", "exact"),
    *("has_answer_f1", "no_answer_accuracy", "token_accuracy", "bleu", "chrf"),
    *("rouge_1", "rouge_2", "rouge_l", "copy_precision", "copy_recall"),
    *("masked_accuracy", "next_sentence_accuracy", "detection_accuracy", "detection_recall"),
    *("hull_accuracy", "area_covered", "valid", "optimality", "position_accuracy"),
)
LOWER = (  # the less the better
    *("character_error_rate", "perplexity", "loss", "bits_per_character", "mae", "rmse", "unanswered", "tour_length"),
    *("pair_loss", "forward_perplexity", "backward_perplexity", "detection_perplexity", "generator_perplexity"),
)
COUNTERS: dict[str, type[Counts]] = {
    "spans": SpanCounter,
    "tags": TagCounter,
    "label": LabelCounter,
    "labels": LabelsCounter,
    "score": ScoreCounter,
    "number": NumberCounter,
    "length": LengthCounter,
    "text": TextCounter,
    "filled": FillingCounter,
    "vector": VectorCounter,
    "span": ReadingCounter,
    "pointers": PointerCounter,
}


# What of an answer kind its counter has to know.
TOLD = {"label": "out_of_scope", "text": "unknown_words", "pointers": "task"}


def counter(answer_kind: str, told: Any = None) -> Counts:
    """A fresh counter for answers of this kind, told what `TOLD` says of the kind, if that is anything."""
    if answer_kind not in COUNTERS:
        known = ", ".join(COUNTERS)
        raise UsageError(
            f"no metric for answers of kind {answer_kind!r}{nearest(answer_kind, COUNTERS)} (there is: {known})"
        )
    made: Callable[..., Counts] = COUNTERS[answer_kind]
    return made() if told is None else made(told)


def table(scores: Mapping[str, Any]) -> str:
    """The scores as aligned plain text: a row a label, then one over all; our own fractions in per cent.

    Of several heads each has a table of its own under its name; what is said of all of them stands last.
    """
    heads = {name: part for name, part in scores.items() if isinstance(part, Mapping) and name != "labels"}
    if heads:
        over_all = {name: value for name, value in scores.items() if name not in heads}
        return "\n\n".join([*(f"{name}\n{table(part)}" for name, part in heads.items()), table(over_all)])
    rows = [*scores.get("labels", {}).items(), ("overall", {k: v for k, v in scores.items() if k != "labels"})]
    columns = list(dict.fromkeys(column for _, row in reversed(rows) for column in row))
    lines = [["", *(column.replace("_", " ") for column in columns)]]
    lines += [[label, *(_cell(column, row.get(column)) for column in columns)] for label, row in rows]
    return "\n".join(text_table(lines, numbers=True))


def _each(gold: Counter[str], predicted: Counter[str], correct: Counter[str]) -> dict[str, Scores]:
    return {label: _f1(gold[label], predicted[label], correct[label]) for label in sorted(gold | predicted)}


def _f1(gold: int, predicted: int, correct: int) -> Scores:
    precision, recall = _ratio(correct, predicted), _ratio(correct, gold)
    return {
        "f1": _ratio(2 * correct, gold + predicted),
        "precision": precision,
        "recall": recall,
        "gold": gold,
        "predicted": predicted,
        "correct": correct,
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def shown(name: str, value: float) -> str:
    """A score as a person reads it; `name` may have a head's name in front."""
    return f"{100 * value:.2f}" if name.rpartition(".")[2] in FRACTIONS else f"{value:.4g}"


def _cell(column: str, value: object) -> str:
    if isinstance(value, float):
        return shown(column, value)
    return "" if value is None else str(value)
