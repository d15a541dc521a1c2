"""Ends runs of a graph that take longer than they may: a graph may hold a loop that never ends."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

from seqpipe.errors import UsageError

SECONDS = 600.0  # that a run may take by default
_OFTEN = 1.0  # seconds that the thread outlives the last run, at most


class RunTimes(threading.local):
    """What a thread says of its runs, and learns of them.

    Attributes:
        deadline: When they have to end at the latest, by `time.monotonic`.
        count: How many there were.
        began: When the first of them began.
        seconds: What they took.
    """

    deadline = math.inf
    count, began, seconds = 0, 0.0, 0.0

    def restart(self, deadline: float = math.inf) -> None:
        """Begins to count anew."""
        self.deadline, self.count, self.began, self.seconds = deadline, 0, 0.0, 0.0

    def add(self, began: float, ended: float) -> None:
        """Counts a run."""
        self.began = self.began if self.count else began
        self.count, self.seconds = self.count + 1, self.seconds + ended - began


class Watchdog:
    """Sets `terminate` of the runs that are over their time, from a thread that lives only while there are runs.

    A thread for each run would take longer than a run of a small graph does.

    Args:
        seconds: That a run may take, above 0; None: any number.
    """

    def __init__(self, seconds: float | None):
        if seconds is not None and not 0 < seconds < math.inf:
            raise UsageError(f"timeout must be a number of seconds above 0, or None for no limit; got {seconds}")
        self.seconds = seconds
        self._changed = threading.Condition(threading.Lock())
        self._runs: dict[Any, float] = {}  # options of a run: when it has to end
        self._next = math.inf  # when the thread looks at them again
        self._thread: threading.Thread | None = None

    def start(self, options: Any, deadline: float = math.inf) -> None:
        """Watch the run with these RunOptions, which begins now, and has to end at `deadline` at the latest."""
        end = min(deadline, math.inf if self.seconds is None else time.monotonic() + self.seconds)
        if end == math.inf:
            return
        with self._changed:
            self._runs[options] = end
            if self._thread is None or not self._thread.is_alive():  # a fork has none
                self._thread = threading.Thread(target=self._watch, name="seqpipe-runs", daemon=True)
                self._thread.start()
            elif end < self._next:
                self._changed.notify()

    def stop(self, options: Any) -> None:
        """Forget a run that has ended."""
        with self._changed:
            self._runs.pop(options, None)

    def _watch(self) -> None:
        with self._changed:
            while self._runs:
                now = time.monotonic()
                for options, end in self._runs.items():
                    options.terminate = options.terminate or now >= end
                self._next = min([now + _OFTEN, *(end for end in self._runs.values() if end > now)])
                self._changed.wait(self._next - now)
            self._thread = None
