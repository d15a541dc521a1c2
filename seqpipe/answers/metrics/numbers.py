"""Scores of numbers: correlation, explained variance and errors, counted record by record in constant memory."""

from __future__ import annotations

import math

from seqpipe.answers.types import Scores


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
        gold_off, predicted_off = gold - self.gold, predicted - self.predicted
        self.gold += gold_off / self.numbers
        self.predicted += predicted_off / self.numbers
        self.gold_squares += gold_off * (gold - self.gold)
        self.predicted_squares += predicted_off * (predicted - self.predicted)
        self.products += gold_off * (predicted - self.predicted)
        self.errors += abs(gold - predicted)
        self.squares += (gold - predicted) ** 2

    def result(self) -> Scores:
        return {
            "r2": 1 - self.squares / self.gold_squares if self.gold_squares else 0.0,
            "pearson": ratio(self.products, math.sqrt(self.gold_squares) * math.sqrt(self.predicted_squares)),
            "mae": ratio(self.errors, self.numbers),
            "rmse": math.sqrt(ratio(self.squares, self.numbers)),
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
            "mean_score": ratio(self.total, self.numbers),
            **({"unanswered": self.unanswered} if self.unanswered else {}),
        }


def ratio(part: float, whole: float) -> float:
    """A part of a whole, 0 of none."""
    return part / whole if whole else 0.0
