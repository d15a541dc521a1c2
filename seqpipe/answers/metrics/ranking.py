"""Scores of ranked lists: accuracy of the first, mean reciprocal rank, and recall."""

from __future__ import annotations

from collections.abc import Sequence

from seqpipe.answers.metrics.numbers import ratio
from seqpipe.answers.types import Scores


class RankCounter:
    """Where the first right entry stands in a list of k: first (accuracy), at all (recall), 1 / rank (MRR).

    The mean reciprocal rank (Voorhees 1999) counts 0 where none of the k is right.
    """

    def __init__(self) -> None:
        self.records = self.first = self.found = 0
        self.reciprocal = 0.0

    def add(self, gold: str, predicted: Sequence[str]) -> None:
        """One record's label, and those of the list, best first; an empty list is wrong."""
        self.records += 1
        if gold in predicted:
            rank = 1 + [*predicted].index(gold)
            self.first += rank == 1
            self.found += 1
            self.reciprocal += 1 / rank

    def result(self) -> Scores:
        counts = {"accuracy": self.first, "mrr": self.reciprocal, "recall_at_k": self.found}
        return {name: ratio(count, self.records) for name, count in counts.items()}
