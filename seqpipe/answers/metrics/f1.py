"""Precision, recall and F1 of spans, tags and labels, counted record by record in constant memory.

Scores are fractions (0 to 1), and a division by zero gives 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from seqpipe.answers.metrics.numbers import ratio
from seqpipe.answers.tagging_schemes import Span
from seqpipe.answers.types import Scores

SPLIT = "(split otherwise)"  # the tag of a word that the model splits differently


class _Counter:
    """Counts of each label: in the reference, in the answers, and correct."""

    def __init__(self) -> None:
        self.gold: Counter[str] = Counter()
        self.predicted: Counter[str] = Counter()
        self.correct: Counter[str] = Counter()

    def each(self) -> dict[str, Scores]:
        labels = sorted({**self.gold, **self.predicted})
        return {label: _f1(self.gold[label], self.predicted[label], self.correct[label]) for label in labels}

    @staticmethod
    def macro_f1(each: dict[str, Scores]) -> float:
        """Return the mean F1 of the labels that the references or the answers have."""
        present = sum((scores["gold"] + scores["predicted"] > 0) * 1 for scores in each.values())
        return ratio(sum(scores["f1"] for scores in each.values()), present)


class SpanCounter(_Counter):
    """Precision, recall and F1 of spans with correct label and boundaries (micro average, like conlleval)."""

    def add(self, gold: Iterable[Span], predicted: Iterable[Span]) -> None:
        """Add one record's spans; a repeated span counts once."""
        right, answered = set(gold), set(predicted)
        self.gold.update(label for label, _, _ in right)
        self.predicted.update(label for label, _, _ in answered)
        self.correct.update(label for label, _, _ in right & answered)

    def result(self) -> Scores:
        totals = self.gold.total(), self.predicted.total(), self.correct.total()
        return {**_f1(*totals), "labels": self.each()}


class TagCounter(_Counter):
    """Accuracy over all words, and precision, recall and F1 of each tag."""

    def add(self, gold: Sequence[Span], predicted: Sequence[Span]) -> None:
        """Add one record's tags, each with its word's offsets; a word that the model splits differently is missed."""
        tags = {(start, end): tag for tag, start, end in predicted}
        for right, start, end in gold:
            tag = tags.get((start, end), SPLIT)
            self.gold[right] += 1
            self.predicted[tag] += 1
            self.correct[right] += right == tag

    def result(self) -> Scores:
        accuracy = ratio(self.correct.total(), self.gold.total())
        return {"accuracy": accuracy, "labels": self.each()}


class LabelCounter(_Counter):
    """Accuracy, the mean of the labels' F1, and precision, recall and F1 of each label.

    With an out-of-scope label: also the accuracy on all other texts, and the recall of that label (Larson et al. 2019).
    """

    def __init__(self, out_of_scope: str | None = None) -> None:
        self.out_of_scope = out_of_scope
        super().__init__()

    def add(self, gold: str, predicted: str | None) -> None:
        """Add one record's label; None for a text without tokens."""
        self.gold[gold] += 1
        self.predicted.update([] if predicted is None else [predicted])
        self.correct[gold] += gold == predicted

    def result(self) -> Scores:
        each, outside, scopes = self.each(), self.out_of_scope, dict[str, float]()
        if outside is not None:
            refused, of_others = self.correct[outside], self.gold.total() - self.gold[outside]
            scopes["in_scope_accuracy"] = ratio(self.correct.total() - refused, of_others)
            scopes["out_of_scope_recall"] = ratio(refused, self.gold[outside])
        return {
            "accuracy": ratio(self.correct.total(), self.gold.total()),
            "macro_f1": self.macro_f1(each),
            **scopes,
            "labels": each,
        }


class LabelsCounter(_Counter):
    """F1 over all labels of all texts (micro average), the mean of the labels' F1, and the share of equal sets."""

    def __init__(self) -> None:
        super().__init__()
        self.texts = self.equal = 0

    def add(self, gold: Iterable[str], predicted: Iterable[str]) -> None:
        """Add one record's labels; a repeated label counts once."""
        right, answered = set(gold), set(predicted)
        self.gold.update(right)
        self.predicted.update(answered)
        self.correct.update(right & answered)
        self.texts += 1
        self.equal += right == answered

    def result(self) -> Scores:
        each = self.each()
        all_labels = _f1(self.gold.total(), self.predicted.total(), self.correct.total())
        return {
            "micro_f1": all_labels.pop("f1"),
            "macro_f1": self.macro_f1(each),
            "exact_match": ratio(self.equal, self.texts),
            **all_labels,
            "labels": each,
        }


def _f1(gold: int, predicted: int, correct: int) -> Scores:
    precision, recall = ratio(correct, predicted), ratio(correct, gold)
    return {
        "f1": ratio(2 * correct, gold + predicted),
        "precision": precision,
        "recall": recall,
        "gold": gold,
        "predicted": predicted,
        "correct": correct,
    }
