"""SIGINT and SIGTERM during training."""

from __future__ import annotations

import signal
from typing import Any

from seqpipe.errors import InterruptedRunError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Context in which the first signal is remembered, so that training can save its state, and a second one kills."""

    received: int | None = None

    def __enter__(self) -> Interrupts:
        self._handlers: dict[int, Any] = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def raise_if_received(self, state: str) -> None:
        """InterruptedRunError if a signal came, with what was saved."""
        if self.received is not None:
            name = signal.Signals(self.received).name
            raise InterruptedRunError(self.received, f"{name}: {state}; run the same command to resume")

    def _receive(self, number: int, frame: object) -> None:
        if self.received is not None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.received = number
