"""Runs that are over their time limit are terminated; the thread that watches them ends with them."""

import threading
import time
from collections.abc import Callable

import pytest

from seqpipe.errors import UsageError
from seqpipe.runtime import session
from seqpipe.runtime.session import Watchdog


class RunOptions:
    terminate = False


def eventually(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def no_thread() -> bool:
    return all(thread.name != "seqpipe-runs" for thread in threading.enumerate())


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_limit_that_is_no_positive_number_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="timeout must be a number of seconds above 0, or None for no limit; got"):
        Watchdog(seconds)


def test_runs_over_the_time_limit_are_terminated_and_the_thread_ends_with_them() -> None:
    watchdog = Watchdog(0.1)
    for _ in range(2):
        options, began = RunOptions(), time.monotonic()
        watchdog.start(options)
        assert eventually(lambda options=options: options.terminate)  # type: ignore[misc]
        assert time.monotonic() - began >= 0.1
        watchdog.stop(options)
        assert eventually(no_thread)


@pytest.mark.parametrize("seconds", [None, 600.0])
def test_a_run_with_an_earlier_deadline_is_terminated_alone(
    seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    watchdog, long, first, short = Watchdog(seconds), RunOptions(), RunOptions(), RunOptions()
    monkeypatch.setattr(session, "_MAX_IDLE_SECONDS", 3600)  # so a new deadline is seen because it wakes the thread
    watchdog.start(long, time.monotonic() + 500)
    watchdog.start(first, 0)
    assert eventually(lambda: first.terminate)
    monkeypatch.undo()
    began = time.monotonic()
    watchdog.start(short, began + 0.1)
    assert eventually(lambda: short.terminate)
    assert time.monotonic() - began >= 0.1
    assert not long.terminate
    for options in (long, first, short):
        watchdog.stop(options)
    assert eventually(no_thread)


def test_without_a_limit_nothing_is_watched() -> None:
    watchdog, options = Watchdog(None), RunOptions()
    watchdog.start(options)
    assert no_thread()
    watchdog.stop(options)
