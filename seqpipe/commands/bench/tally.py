"""What came back from a server under load: latencies by status code, rates, and what has no answer."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

from seqpipe.commands.bench.latency import Latency

OK = 200


class Tally:
    """Counts what happens in a window of time: latencies by when a request was due, rates by when its answer came.

    Args:
        start: When the window begins (of `time.perf_counter`); what was before is warm-up.
        end: When it ends.
        deadline: Seconds after which an answer is of no use.
    """

    def __init__(self, start: float, end: float, deadline: float):
        self.start, self.end, self.deadline = start, end, deadline
        self.latencies: dict[int, array[float]] = {}
        self.failures: Counter[str] = Counter()
        self._delays = array("d")
        self._came = self._in_time = 0
        self.total = 0  # answers, those of the warm-up too

    def answer(self, code: int, scheduled: float, now: float) -> None:
        """An answer that came now."""
        self.total += 1
        if code == OK and self.start <= now < self.end:
            self._came += 1
            self._in_time += now - scheduled <= self.deadline
        if not self.start <= scheduled < self.end:
            return
        if code not in self.latencies:
            self.latencies[code] = array("d")
        self.latencies[code].append(now - scheduled)

    def failure(self, reason: str, scheduled: float) -> None:
        """A request that gets no answer."""
        if self.start <= scheduled < self.end:
            self.failures[reason] += 1

    def delay(self, seconds: float) -> None:
        """How much later than scheduled a request was sent."""
        self._delays.append(seconds)

    def data(self) -> dict[str, Any]:
        """Rates in requests a second; `in_time_per_second` is the goodput."""
        seconds = self.end - self.start
        return {
            "seconds": round(seconds, 3),
            "per_second": round(self._came / seconds, 2),
            "deadline_s": self.deadline,
            "in_time_per_second": round(self._in_time / seconds, 2),
            "codes": {str(code): Latency.of(self.latencies[code]).data() for code in sorted(self.latencies)},
            "failures": dict(self.failures),
            **({"sent_late": Latency.of(self._delays).data()} if self._delays else {}),
        }
