"""Which of the inputs that wait make a batch: what a run costs is learned from the runs there were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from seqpipe.runtime.predictor import ROWS, TOKENS

_UNKNOWN = 64.0  # what a run is taken to cost before there were any of different sizes
_MEMORY = 0.99  # weight of a run against the one after it
_SPREAD = 0.05  # least relative variance of sizes that shows what size costs


class Sized(Protocol):
    """What has a length in tokens."""

    length: int


S = TypeVar("S", bound=Sized)


class BatchCost:
    """Seconds of a run as a + b · (rows × longest), by least squares in which older runs fade.

    A run of a small model costs as much as hundreds of tokens, so padding is cheap; of a large one, as much as ten.
    """

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, padded: int, seconds: float) -> None:
        """Takes in a run of so many tokens, padding included."""
        sums = self._weight, self._x, self._y, self._xx, self._xy
        new = 1.0, padded, seconds, padded * padded, padded * seconds
        self._weight, self._x, self._y, self._xx, self._xy = (
            _MEMORY * old + more for old, more in zip(sums, new, strict=True)
        )

    @property
    def run(self) -> float:
        """What a run costs beside its tokens, in tokens: a / b."""
        if not self._weight:
            return _UNKNOWN
        x, y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - x * x
        slope = (self._xy / self._weight - x * y) / variance if variance > _SPREAD * x * x else 0.0
        return min(max(y / slope - x, 0.0), float(TOKENS)) if slope > 0 else _UNKNOWN

    def choose(self, first: S, others: Sequence[S]) -> list[S]:
        """The batch with `first` in it that costs least by token without padding; longest last.

        Args:
            first: One of `others`.
            others: What may go together.
        """
        items = sorted(others, key=lambda item: item.length)
        lengths, run = [item.length for item in items], self.run
        total, size = sum(lengths), len(items)
        if size <= ROWS and size * lengths[-1] <= min(TOKENS, total + run):
            return items
        at = items.index(first)
        best, chosen = float("inf"), (at, at + 1)
        for end in range(at + 1, min(size, at + ROWS) + 1):
            longest, start, rows = lengths[end - 1], at, end - at
            if rows > 1 and rows * longest > TOKENS:
                break
            total = sum(lengths[at:end])
            while start and rows < ROWS and (rows + 1) * longest <= TOKENS:
                if lengths[start - 1] * (run + rows * longest) <= longest * total:
                    break
                start, rows = start - 1, rows + 1
                total += lengths[start]
            if (cost := (run + rows * longest) / max(total, 1)) <= best:
                best, chosen = cost, (start, end)
        return items[slice(*chosen)]
