"""How the system divides a core between the event loop and the runs of the model."""

from __future__ import annotations

import asyncio
import logging
import os
from time import monotonic

_CALM = 0.25  # seconds without a call after which all is as before
log = logging.getLogger("seqpipe.serve")


class RunsFirst:
    """While it is called again and again, what arrives waits for the scheduler's next tick (1 to 4 ms) to be read.

    On a core that is full, each arrival would else interrupt a run and leave it a cold cache, for a refusal. Linux has
    a policy for it, which needs no privilege (SCHED_BATCH, see sched(7)); elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self._is_on, self._last = False, 0.0
        self._works = hasattr(os, "SCHED_BATCH")

    def __call__(self) -> None:
        """From the thread of the event loop."""
        self._last = monotonic()
        if self._works and not self._is_on:
            self._is_on = self._works = self._set("SCHED_BATCH")
            if self._is_on:
                asyncio.get_running_loop().call_later(_CALM, self._look)

    def _look(self) -> None:
        if (left := self._last + _CALM - monotonic()) > 0:
            asyncio.get_running_loop().call_later(left, self._look)
        else:
            self._is_on = False
            self._set("SCHED_OTHER")

    def _set(self, policy: str) -> bool:
        """Whether the system lets it."""
        flags = getattr(os, policy) | os.SCHED_RESET_ON_FORK  # threads that start meanwhile are as others
        try:
            os.sched_setscheduler(0, flags, os.sched_param(0))
        except OSError as error:  # a sandbox may forbid it
            log.info("%s: %s; a full server will answer fewer requests", policy, error)
            return False
        return True
