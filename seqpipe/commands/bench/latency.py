"""Latencies in, percentiles out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True)
class Latency:
    """Percentiles of latencies in milliseconds; each is a latency that was measured (nearest rank)."""

    count: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency:
        """The percentiles of at least one latency."""
        ms = np.percentile(np.asarray(seconds) * 1000, (50, 90, 99, 100), method="inverted_cdf")
        return cls(len(seconds), *(round(float(value), 3) for value in ms))

    def data(self) -> dict[str, float]:
        return asdict(self)

    def cells(self) -> list[str]:
        """The percentiles as cells of a table."""
        return [f"{value:,.2f}" for value in (self.p50_ms, self.p90_ms, self.p99_ms, self.max_ms)]


HEADINGS = ["p50 ms", "p90 ms", "p99 ms", "max ms"]
