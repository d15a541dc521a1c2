"""Ends runs of a graph that take longer than they may: a graph may hold a loop that never ends."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

from seqpipe.errors import UsageError

SECONDS = 600.0  # that a run may take by default
_OFTEN = 1.0  # seconds between two looks at the runs, at most


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
        self._lock = threading.Lock()
        self._runs: dict[Any, float] = {}  # options of a run: when it has to end
        self._thread: threading.Thread | None = None

    def start(self, options: Any) -> None:
        """Watch the run with these RunOptions, which begins now."""
        if self.seconds is None:
            return
        with self._lock:
            self._runs[options] = time.monotonic() + self.seconds
            if self._thread is None or not self._thread.is_alive():  # a fork has none
                pause = min(_OFTEN, self.seconds / 4)
                self._thread = threading.Thread(target=self._watch, args=(pause,), name="seqpipe-runs", daemon=True)
                self._thread.start()

    def stop(self, options: Any) -> None:
        """Forget a run that has ended."""
        with self._lock:
            self._runs.pop(options, None)

    def _watch(self, pause: float) -> None:
        while True:
            time.sleep(pause)
            now = time.monotonic()
            with self._lock:
                for options, end in self._runs.items():
                    options.terminate = options.terminate or now > end
                if not self._runs:
                    self._thread = None
                    return
