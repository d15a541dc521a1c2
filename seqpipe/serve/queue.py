"""Jobs from the event loop, batches for worker threads: oldest first, grouped by options, expired jobs skipped."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

from seqpipe.runtime.predictor import RUN_ROWS, RUN_TOKENS
from seqpipe.serve.http import HttpError

_UNKNOWN = 64.0  # assumed cost of a run before there were runs of different sizes
_MEMORY = 0.99  # weight of a run relative to the next one
_SPREAD = 0.05  # minimum relative variance of sizes for an estimate of the cost
POOL = 2 * RUN_ROWS  # number of the oldest jobs from which a batch is chosen
_MEASURED = 4 * RUN_TOKENS  # tokens of new jobs that are measured at a time
_SMALL = 0.02  # share of the maximum number of waiting tokens
_RECENT = 0.1  # weight of the newest value in a moving average


class BatchCost:
    """Model of the seconds of a run, a + b · (rows × longest), by least squares with decaying weights.

    A run of a small model costs as much as hundreds of tokens, so padding is cheap; of a large one, as much as ten.
    """

    def __init__(self) -> None:
        self._sums = [0.0] * 5  # of 1, x, y, x² and x·y, where x is rows × longest and y the seconds

    def add(self, padded: int, seconds: float) -> None:
        """Add a run of this many tokens, padding included."""
        new = 1.0, padded, seconds, padded * padded, padded * seconds
        self._sums = [_MEMORY * old + more for old, more in zip(self._sums, new, strict=True)]

    @property
    def run(self) -> float:
        """Return the constant cost of a run in tokens: a / b."""
        if not self._sums[0]:
            return _UNKNOWN
        x, y, xx, xy = (total / self._sums[0] for total in self._sums[1:])
        variance = xx - x * x
        slope = (xy - x * y) / variance if variance > _SPREAD * x * x else 0.0
        return min(max(y / slope - x, 0.0), float(RUN_TOKENS)) if slope > 0 else _UNKNOWN

    def choose(self, first: Job, others: Sequence[Job]) -> list[Job]:
        """Return the batch that contains `first` and has the lowest cost per real token, sorted by length in tokens.

        Args:
            first: One of `others`.
            others: The items that may be in one batch.
        """
        items = sorted(others, key=lambda item: item.length)
        lengths, run = [item.length for item in items], self.run
        total, size = sum(lengths), len(items)
        if size <= RUN_ROWS and size * lengths[-1] <= min(RUN_TOKENS, total + run):
            return items
        at = items.index(first)
        best, chosen = float("inf"), (at, at + 1)
        for end in range(at + 1, min(size, at + RUN_ROWS) + 1):
            longest, start, rows = lengths[end - 1], at, end - at
            if rows > 1 and rows * longest > RUN_TOKENS:
                break
            total = sum(lengths[at:end])
            while start and rows < RUN_ROWS and (rows + 1) * longest <= RUN_TOKENS:
                if lengths[start - 1] * (run + rows * longest) <= longest * total:
                    break
                start, rows = start - 1, rows + 1
                total += lengths[start]
            if (cost := (run + rows * longest) / max(total, 1)) <= best:
                best, chosen = cost, (start, end)
        return items[slice(*chosen)]


@dataclass(slots=True, eq=False)
class Job:
    """One input that is waiting for its answer, or one call."""

    key: Hashable  # jobs with equal keys may be in one batch; None: never in a batch
    tokens: int  # of the input, estimated
    deadline: float  # time by `time.monotonic` after which nobody waits
    payload: Any  # data for the worker
    request: Any  # that it belongs to
    place: int = 0  # its position in the request
    written: InitVar[int] = 0  # maximum number of generated tokens, over all beams
    cost: int = field(init=False)  # number of tokens, read and generated
    length: int = field(init=False)  # exact number of its input tokens, once they are counted
    waits: bool = field(default=False, init=False)  # whether it is in the queue
    arrived: float = field(default_factory=time.monotonic, init=False)

    def __post_init__(self, written: int) -> None:
        self.cost, self.length = self.tokens + written, self.tokens


class BatchQueue:
    """Queue of jobs for one bundle. Thread-safe.

    Args:
        most: Maximum number of waiting tokens; the memory of a run grows with the tokens that it reads and generates.
        delay: Seconds that the oldest job waits for others.
        measure: Sets the `length` of jobs; called with the new ones by the worker that is about to choose a batch.
    """

    def __init__(self, most: int, delay: float = 0.0, measure: Callable[[Sequence[Job]], None] | None = None):
        self._most, self._delay, self._measure = most, delay, measure
        self._fresh: dict[Job, None] = {}  # not measured yet, oldest first
        self._pool: dict[Job, None] = {}  # measured: a batch is chosen from these
        self._changed = threading.Condition(threading.Lock())
        self._cost = BatchCost()
        self._closed = False
        self._speed = 0.0  # tokens per second, a moving average
        self._log_size = 0.0  # of the cost of a request, a moving average: robust against a few large ones
        self._count = 0  # jobs that wait
        self.tokens = 0  # of the waiting jobs, read and generated

    def __len__(self) -> int:
        return self._count

    def age(self) -> float:
        """Return the seconds that the oldest item has waited."""
        with self._changed:
            oldest = (next(iter(jobs)).arrived for jobs in (self._fresh, self._pool) if jobs)
            return max(0.0, time.monotonic() - min(oldest, default=math.inf))

    def put(self, jobs: Sequence[Job]) -> None:
        """Add all jobs of a request, or none.

        Raises:
            HttpError: 429 if the queue is full, 413 if the request could never fit, 503 after `close`.
        """
        tokens = sum(job.cost for job in jobs)
        if tokens > self._most:
            fix = "send fewer inputs, or ask for shorter texts and fewer beams"
            raise HttpError(413, f"about {tokens:,} tokens in one request; at most {self._most:,}: {fix}")
        with self._changed:
            if self._closed:
                raise HttpError(503, "the server is stopping; try again", {"Retry-After": "1"})
            if self.tokens + tokens > self._most:
                raise self._full_error()
            self._log_size = _mean(self._log_size, math.log(max(1, tokens)))
            self.tokens += tokens
            self._count += len(jobs)
            for job in jobs:
                job.waits = True
                self._fresh[job] = None
            self._changed.notify(len(jobs))

    def refuse_early(self) -> None:
        """Raise HttpError 429 if there is no room for a request of the usual size, before it is read."""
        usual = min(math.exp(self._log_size), _SMALL * self._most)  # if requests are large, small ones may still fit
        if self.tokens + usual > self._most:
            raise self._full_error()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Remove the jobs that are still waiting."""
        with self._changed:
            for job in jobs:
                self._remove(job)

    def take(self) -> list[Job]:
        """Wait for the next batch and return it; empty when all jobs are done after `close`."""
        with self._changed:
            while True:
                if self._fresh and (room := POOL - len(self._pool)) > 0:
                    oldest = [*itertools.islice(self._fresh, room)]
                    sizes = itertools.accumulate(job.tokens for job in oldest)  # the first ones wait for no other
                    self._fill(oldest[: 1 + sum(size < _MEASURED for size in sizes)])
                if not self._pool:
                    if self._closed and not self._count:
                        return []
                    self._changed.wait()
                    continue
                first = next(iter(self._pool))
                alike = [job for job in self._pool if job.key == first.key] if first.key is not None else [first]
                wait = first.arrived + self._delay - time.monotonic()
                if wait > 0 and first.key is not None and len(alike) < RUN_ROWS and not self._closed:
                    self._changed.wait(wait)
                    continue
                batch = self._cost.choose(first, alike) if len(alike) > 1 else [first]
                for job in batch:
                    self._remove(job)
                now = time.monotonic()
                if batch := [job for job in batch if job.deadline > now]:
                    return batch

    def done(self, jobs: Sequence[Job], seconds: float) -> None:
        """Record the duration of a batch, for the choice of batches and the estimate of waiting times."""
        speed = sum(job.cost for job in jobs) / max(seconds, 1e-6)
        with self._changed:
            self._speed = _mean(self._speed, speed)
            if jobs[0].key is not None and (longest := max(job.length for job in jobs)):
                self._cost.add(len(jobs) * longest, seconds)

    def close(self) -> None:
        """Accept no more jobs; workers finish the waiting ones."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _fill(self, jobs: list[Job]) -> None:
        """Move jobs to the candidates for batches; the queue is unlocked while they are measured."""
        for job in jobs:
            del self._fresh[job]
        batchable = [job for job in jobs if job.key is not None]
        if self._measure is not None and batchable:
            self._changed.release()
            try:
                self._measure(batchable)
            finally:
                self._changed.acquire()
        self._pool.update((job, None) for job in jobs if job.waits)
        self._changed.notify_all()

    def _remove(self, job: Job) -> None:
        if job.waits:
            job.waits = False
            self._pool.pop(job, None)
            self._fresh.pop(job, None)
            self._count -= 1
            self.tokens -= job.cost
            if self._closed and not self._count:
                self._changed.notify_all()

    def _full_error(self) -> HttpError:
        """Return the error for a full queue, with an estimate of the seconds until all waiting jobs are done."""
        seconds = min(60, math.ceil(self.tokens / self._speed)) if self._speed else 1
        return HttpError(429, f"too many requests are waiting; try again in {seconds} s", {"Retry-After": str(seconds)})


def _mean(before: float, value: float) -> float:
    """Return the exponential moving average."""
    return before + _RECENT * (value - before) if before else value
