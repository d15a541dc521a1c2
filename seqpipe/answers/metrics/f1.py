"""Precision, recall and F1 of spans, tags and labels, counted record by record in constant memory.

Scores are fractions (0 to 1), and a division by zero gives 0.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from seqpipe.answers.metrics.numbers import SumCounter, ratio
from seqpipe.answers.tagging_schemes import Span
from seqpipe.answers.types import Scores

SPLIT_TAG = "(split otherwise)"  # the tag of a word that the model splits differently


class _Counter(SumCounter):
    """Counts of each label: in the reference, in the answers, and correct."""

    @staticmethod
    def counts(**labels: Iterable[str]) -> Counter[tuple[str, str]]:
        """Return the counts of labels by the names of the sums."""
        return Counter((name, label) for name, of_record in labels.items() for label in of_record)

    def scores(self, sums: Counter[Any]) -> Scores:
        by_name: dict[str, Counter[str]] = defaultdict(Counter)
        for (name, label), count in sums.items():
            by_name[name][label] = count
        gold, predicted, correct = by_name["gold"], by_name["predicted"], by_name["correct"]
        each = {label: _f1(gold[label], predicted[label], correct[label]) for label in sorted({**gold, **predicted})}
        return self.overall(_f1(gold.total(), predicted.total(), correct.total()), each, sums) | {"labels": each}

    @abstractmethod
    def overall(self, total: Scores, each: dict[str, Scores], sums: Counter[Any]) -> Scores:
        """Return the scores over all labels, given those of all counts and of each label."""

    @staticmethod
    def macro_f1(each: dict[str, Scores]) -> float:
        """Return the mean F1 of the labels that the references or the answers have."""
        present = sum((scores["gold"] + scores["predicted"] > 0) * 1 for scores in each.values())
        return ratio(sum(scores["f1"] for scores in each.values()), present)


class SpanCounter(_Counter):
    """Precision, recall and F1 of spans with correct label and boundaries (micro average, like conlleval)."""

    def terms(self, gold: Iterable[Span], predicted: Iterable[Span]) -> Counter[tuple[str, str]]:
        """Count one record's spans; a repeated span counts once."""
        sides = {"gold": set(gold), "predicted": set(predicted)}
        sides["correct"] = sides["gold"] & sides["predicted"]
        return self.counts(**{name: [label for label, _, _ in spans] for name, spans in sides.items()})

    def overall(self, total: Scores, each: dict[str, Scores], sums: Counter[Any]) -> Scores:
        return total


class TagCounter(_Counter):
    """Accuracy over all words, and precision, recall and F1 of each tag."""

    def terms(self, gold: Sequence[Span], predicted: Sequence[Span]) -> Counter[tuple[str, str]]:
        """Count one record's tags, each with its word's offsets; a word that the model splits differently is missed."""
        tags = {(start, end): tag for tag, start, end in predicted}
        pairs = [(right, tags.get((start, end), SPLIT_TAG)) for right, start, end in gold]
        correct = [right for right, tag in pairs if right == tag]
        return self.counts(gold=[right for right, _ in pairs], predicted=[tag for _, tag in pairs], correct=correct)

    def overall(self, total: Scores, each: dict[str, Scores], sums: Counter[Any]) -> Scores:
        return {"accuracy": total["recall"]}


class LabelCounter(_Counter):
    """Accuracy, the mean of the labels' F1, and precision, recall and F1 of each label.

    With an out-of-scope label: also the accuracy on all other texts, and the recall of that label (Larson et al. 2019).
    """

    def __init__(self, out_of_scope: str | None = None) -> None:
        self.out_of_scope = out_of_scope
        super().__init__()

    def terms(self, gold: str, predicted: str | None) -> dict[tuple[str, str], int]:
        """Count one record's label; None for a text without tokens."""
        answered = {} if predicted is None else {("predicted", predicted): 1}
        return {("gold", gold): 1, ("correct", gold): int(gold == predicted), **answered}

    def overall(self, total: Scores, each: dict[str, Scores], sums: Counter[Any]) -> Scores:
        scores = {"accuracy": total["recall"], "macro_f1": self.macro_f1(each)}
        if self.out_of_scope is not None:
            texts, refused = sums["gold", self.out_of_scope], sums["correct", self.out_of_scope]
            scores["in_scope_accuracy"] = ratio(total["correct"] - refused, total["gold"] - texts)
            scores["out_of_scope_recall"] = ratio(refused, texts)
        return scores


class LabelsCounter(_Counter):
    """F1 over all labels of all texts (micro average), the mean of the labels' F1, and the share of equal sets."""

    def terms(self, gold: Iterable[str], predicted: Iterable[str]) -> Counter[tuple[str, str]]:
        """Count one record's labels; a repeated label counts once."""
        right, answered = set(gold), set(predicted)
        sets = {"texts": [""], "equal": [""] if right == answered else []}
        return self.counts(gold=right, predicted=answered, correct=right & answered, **sets)

    def overall(self, total: Scores, each: dict[str, Scores], sums: Counter[Any]) -> Scores:
        return {
            "micro_f1": total.pop("f1"),
            "macro_f1": self.macro_f1(each),
            "exact_match": ratio(sums["equal", ""], sums["texts", ""]),
            **total,
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
