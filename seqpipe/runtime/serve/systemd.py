"""Tells systemd how the server is (sd_notify(3)): ready, stopping, alive. Without NOTIFY_SOCKET nothing is sent."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"


def notify(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send a state to the service manager."""
    address = environment.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # Linux's abstract names
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), address)


def watchdog_seconds(environment: Mapping[str, str] = os.environ) -> float | None:
    """How often systemd wants to hear that this process lives; None if it does not (`WatchdogSec=` is not set)."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = environment.get("WATCHDOG_USEC")
    return int(microseconds) / 1e6 if microseconds else None


class Heartbeat:
    """Tells systemd twice in each of its periods that this process lives, if `beat` is called often enough."""

    def __init__(self, environment: Mapping[str, str] = os.environ):
        self._environment, self._period, self._next = environment, watchdog_seconds(environment), 0.0

    def beat(self) -> None:
        """Send a sign of life if one is due."""
        if self._period is not None and time.monotonic() >= self._next:
            notify(ALIVE, self._environment)
            self._next = time.monotonic() + self._period / 2
