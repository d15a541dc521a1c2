"""Jobs in from the event loop, batches out to worker threads: oldest first, like ones together, the dead left out."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

from seqpipe.runtime.predictor import ROWS, TOKENS
from seqpipe.runtime.serve.http_errors import HttpError, full, unavailable

SHORT = 32  # tokens up to which lengths are alike: the run costs more than they do
_SMALL = 0.01  # of all that may wait
_RECENT = 0.1  # weight of the last batch in the mean speed


class Job:
    """One input that waits for its answer, or one call.

    Args:
        key: What has to be equal for jobs to be answered in one batch; None: it is alone.
        tokens: Estimated.
        deadline: When nobody waits any more, by `time.monotonic`.
        payload: What a worker needs to know.
        request: Whose part it is, for whoever gets the answer.
        place: Its position in the request.
    """

    __slots__ = ("arrived", "deadline", "key", "payload", "place", "queue_key", "request", "tokens")

    def __init__(self, key: Hashable, tokens: int, deadline: float, payload: Any, request: Any, place: int = 0):
        self.key, self.tokens, self.deadline, self.payload = key, tokens, deadline, payload
        self.request, self.place, self.arrived = request, place, time.monotonic()
        self.queue_key = self if key is None else (key, max(tokens, SHORT).bit_length())


class BatchQueue:
    """What waits for one bundle. Safe to use from several threads.

    Args:
        most: How many tokens may wait.
        delay: Seconds that the oldest waits for others.
    """

    def __init__(self, most: int, delay: float = 0.0):
        self._most, self._delay = most, delay
        self._groups: OrderedDict[Hashable, OrderedDict[Job, None]] = OrderedDict()
        self._changed = threading.Condition(threading.Lock())
        self._closed = self._is_full = False
        self._speed = 0.0  # tokens a second, of late
        self.tokens = 0  # that wait

    def __len__(self) -> int:
        with self._changed:
            return sum(map(len, self._groups.values()))

    def age(self) -> float:
        """How many seconds the oldest has waited."""
        with self._changed:
            oldest = min((next(iter(group)).arrived for group in self._groups.values()), default=math.inf)
        return max(0.0, time.monotonic() - oldest)

    def put(self, jobs: Sequence[Job]) -> None:
        """Takes all jobs of a request, or none.

        Raises:
            HttpError: 429 if too much waits, 413 if it could never wait here, 503 after `close`.
        """
        tokens = sum(job.tokens for job in jobs)
        if tokens > self._most:
            raise HttpError(413, f"about {tokens:,} tokens in one request; at most {self._most:,}: send fewer inputs")
        with self._changed:
            if self._closed:
                raise unavailable("is stopping")
            if self.tokens + tokens > self._most:
                self._is_full = self._is_full or tokens <= _SMALL * self._most
                raise full(self._wait())
            self.tokens += tokens
            for job in jobs:
                self._groups.setdefault(job.queue_key, OrderedDict())[job] = None
            self._changed.notify(len(jobs))

    def refuse_early(self) -> None:
        """HttpError 429 if a small request was refused since the last batch began: so would be what is not read yet."""
        if self._is_full:
            raise full(self._wait())

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Takes out those that still wait."""
        with self._changed:
            for job in jobs:
                group = self._groups.get(job.queue_key)
                if group is not None and job in group:
                    self._remove(job, group)

    def take(self) -> list[Job]:
        """The next batch, as soon as there is one; nothing when all is done after `close`."""
        with self._changed:
            while True:
                group = self._oldest()
                if group is None:
                    if self._closed:
                        return []
                    self._changed.wait()
                    continue
                first = next(iter(group))
                due = first.arrived + self._delay - time.monotonic()
                if due > 0 and first.key is not None and len(group) < ROWS and not self._closed:
                    self._changed.wait(due)
                    continue
                if batch := self._batch(group):
                    return batch

    def done(self, jobs: Sequence[Job], seconds: float) -> None:
        """Tells how long a batch took, for the time that others will have to wait."""
        speed = sum(job.tokens for job in jobs) / max(seconds, 1e-6)
        with self._changed:
            self._speed = speed if not self._speed else (1 - _RECENT) * self._speed + _RECENT * speed

    def close(self) -> None:
        """Takes no more jobs; workers finish those that wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _oldest(self) -> OrderedDict[Job, None] | None:
        return min(self._groups.values(), key=lambda group: next(iter(group)).arrived, default=None)

    def _batch(self, group: OrderedDict[Job, None]) -> list[Job]:
        self._is_full, now, longest = False, time.monotonic(), 0
        batch: list[Job] = []
        while group and len(batch) < ROWS:
            job = next(iter(group))
            longest = max(longest, job.tokens)
            if batch and longest * (len(batch) + 1) > TOKENS:
                break
            self._remove(job, group)
            if job.deadline > now:
                batch.append(job)
        return batch

    def _remove(self, job: Job, group: OrderedDict[Job, None]) -> None:
        del group[job]
        self.tokens -= job.tokens
        if not group:
            del self._groups[job.queue_key]

    def _wait(self) -> int:
        """Seconds until what waits is done, about."""
        return min(60, math.ceil(self.tokens / self._speed)) if self._speed else 1
