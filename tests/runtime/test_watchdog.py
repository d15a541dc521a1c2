"""Runs that are over their time are told to end; the thread that looks at them ends with them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from seqpipe.errors import UsageError
from seqpipe.runtime.session import Watchdog


class RunOptions:
    terminate = False


def eventually(what: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not what() and time.monotonic() < end:
        time.sleep(0.01)
    return what()


def watching() -> bool:
    return any(thread.name == "seqpipe-runs" for thread in threading.enumerate())


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="timeout must be a number of seconds above 0, or None for no limit; got"):
        Watchdog(seconds)


def test_only_runs_over_their_time_are_told_to_end() -> None:
    watchdog = Watchdog(0.4)
    late, later, again = RunOptions(), RunOptions(), RunOptions()
    watchdog.start(late)
    time.sleep(0.3)
    watchdog.start(later)
    assert eventually(lambda: late.terminate)
    assert not later.terminate
    watchdog.stop(late)
    watchdog.stop(later)
    assert eventually(lambda: not watching())
    watchdog.start(again)
    assert eventually(lambda: again.terminate)
    watchdog.stop(again)
    assert eventually(lambda: not watching())


@pytest.mark.parametrize("seconds", [None, 600.0])
def test_a_run_with_a_deadline_of_its_own_ends_then(seconds: float | None) -> None:
    watchdog, long, short = Watchdog(seconds), RunOptions(), RunOptions()
    watchdog.start(long, time.monotonic() + 500)
    began = time.monotonic()
    watchdog.start(short, began + 0.1)
    assert eventually(lambda: short.terminate)
    assert 0.1 <= time.monotonic() - began < 0.9
    assert not long.terminate
    watchdog.stop(long)
    watchdog.stop(short)
    assert eventually(lambda: not watching())


def test_without_a_limit_nothing_is_watched() -> None:
    watchdog, options = Watchdog(None), RunOptions()
    watchdog.start(options)
    assert not watching()
    watchdog.stop(options)
