"""The queue of a bundle: which jobs make a batch, in which order, and which are refused or left out."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from seqpipe.runtime.predictor import RUN_ROWS, RUN_TOKENS
from seqpipe.serve.http import HttpError
from seqpipe.serve.queue import BatchQueue, Job

SOON = 60.0


def job(name: str, key: str | None = "", tokens: int = 8, seconds: float = SOON) -> Job:
    return Job(key, tokens, time.monotonic() + seconds, name, None)


def names(batch: Sequence[Job]) -> list[str]:
    return [waiting.payload for waiting in batch]


def batches(queue: BatchQueue) -> list[list[str]]:
    """All that waits, after which nothing more comes."""
    queue.close()
    return [names(batch) for batch in iter(queue.take, [])]


def filled(*jobs: Job, most: int = 1_000_000) -> BatchQueue:
    queue = BatchQueue(most)
    for waiting in jobs:
        queue.put([waiting])
    return queue


def refusal(queue: BatchQueue, *jobs: Job) -> Any:
    """The error that a request of these jobs gets; without jobs, before it is read."""
    try:
        if jobs:
            queue.put(jobs)
        else:
            queue.refuse_early()
    except HttpError as error:
        return error
    return None


def test_the_oldest_comes_first_with_those_of_its_options() -> None:
    queue = filled(job("a1", "a"), job("b1", "b"), job("a2", "a"), job("b2", "b"), job("a3", "a"))
    assert batches(queue) == [["a1", "a2", "a3"], ["b1", "b2"]]


def test_tokens_that_are_written_wait_with_those_that_are_read() -> None:
    def writing(written: int) -> Job:
        return Job("", 8, time.monotonic() + SOON, "", None, 0, written)

    queue = BatchQueue(100)
    error = refusal(queue, writing(93))
    assert (error.status, error.message[:31]) == (413, "about 101 tokens in one request")
    assert error.message.endswith("ask for shorter texts and fewer beams")
    for _ in range(2):
        queue.put([writing(42)])
    with pytest.raises(HttpError, match="too many requests are waiting"):
        queue.put([writing(0)])
    assert (queue.tokens, [waiting.tokens for waiting in queue.take()], queue.tokens) == (100, [8, 8], 0)


PLANS = [(1, [["8", "8"], ["100", "100"], ["500", "500"]]), (5_000, [["8", "8", "100", "100", "500", "500"]])]


@pytest.mark.parametrize(("run", "expected"), PLANS)
def test_the_time_of_runs_decides_which_lengths_go_together(run: int, expected: list[list[str]]) -> None:
    queue = filled(*(job(str(n), tokens=n) for _ in range(2) for n in (8, 100, 500)))
    for padded in range(1, 1_000, 100):
        queue.done([job("done", tokens=padded)], 1e-5 * (run + padded))
    assert batches(queue) == expected


def test_a_worker_measures_what_came_since_the_last_batch_while_the_queue_takes_more() -> None:
    measured: list[list[str]] = []

    def measure(jobs: Sequence[Job]) -> None:
        measured.append(names(jobs))
        for waiting in jobs:
            waiting.length = len(waiting.payload)
        if len(measured) == 1:
            queue.put([job("three")])
            queue.cancel([gone])

    queue, gone = BatchQueue(1_000_000, measure=measure), job("gone")
    for waiting in (job("a"), job("call", None), gone):
        queue.put([waiting])
    assert names(queue.take()) == ["a"]
    assert len(queue) == 2
    assert batches(queue) == [["call"], ["three"]]
    assert measured == [["a", "gone"], ["three"]]


def test_a_worker_that_waits_takes_what_another_has_measured() -> None:
    began, free = threading.Event(), threading.Event()

    def measure(jobs: Sequence[Job]) -> None:
        began.set()
        free.wait(SOON)

    queue, taken = BatchQueue(1_000, measure=measure), []
    queue.put([job("a"), job("b", "other")])
    workers = [threading.Thread(target=lambda: taken.append(names(queue.take()))) for _ in range(3)]
    for worker in workers:
        worker.start()
    assert began.wait(SOON)
    queue.close()
    free.set()
    for worker in workers:
        worker.join(SOON)
    assert sorted(taken) == [[], ["a"], ["b"]]


def test_calls_are_alone_and_a_batch_has_at_most_so_many_rows_and_padded_tokens() -> None:
    calls = filled(job("a"), job("call", None), job("b"), job("call 2", None))
    assert batches(calls) == [["a", "b"], ["call"], ["call 2"]]
    assert [*map(len, batches(filled(*(job(str(i)) for i in range(2 * RUN_ROWS + 3)))))] == [RUN_ROWS, RUN_ROWS, 3]
    assert [*map(len, batches(filled(*(job(str(i), tokens=1_000) for i in range(9)))))] == [4, 4, 1]
    huge = filled(job("huge", tokens=RUN_TOKENS * 3), job("huge too", tokens=RUN_TOKENS * 3))
    assert batches(huge) == [["huge"], ["huge too"]]


def test_what_nobody_waits_for_is_left_out() -> None:
    gone, late = job("gone"), job("late", seconds=-1)
    queue = filled(job("a"), gone, late, job("b"), job("late too", "other", seconds=-1))
    queue.cancel([gone])
    assert (len(queue), queue.tokens) == (4, 32)
    queue.cancel([gone])
    assert batches(queue) == [["a", "b"]]
    assert (len(queue), queue.tokens, queue.age()) == (0, 0, 0)


def test_a_request_is_taken_whole_or_not_at_all() -> None:
    queue = filled(job("a"), most=20)
    refused, never = refusal(queue, job("b"), job("c")), refusal(queue, job("b"), job("c"), job("d"))
    assert (refused.status, refused.headers, never.status) == (429, {"Retry-After": "1"}, 413)
    assert batches(queue) == [["a"]]
    assert refusal(queue, job("b")).status == 503


def test_where_no_usual_request_fits_others_are_refused_before_they_are_read_until_there_is_room() -> None:
    queue = filled(*(job("a", tokens=10) for _ in range(95)), most=1_000)
    assert not refusal(queue)
    assert refusal(queue, job("more", tokens=60))
    assert not refusal(queue)  # smaller ones fit
    assert not refusal(queue, job("more", tokens=45))
    assert refusal(queue)
    queue.take()
    assert not refusal(queue)


def test_large_requests_keep_no_small_ones_out() -> None:
    queue = filled(*(job("a", tokens=400) for _ in range(2)), most=1_000)
    assert refusal(queue, job("more", tokens=400))
    assert not refusal(queue)


def test_the_time_to_try_again_follows_from_what_waits_and_the_speed() -> None:
    queue = filled(*(job(str(i), tokens=10) for i in range(10)), most=100)
    for _ in range(3):
        queue.done([job("done", tokens=20)], 1.0)
    assert refusal(queue, job("b")).headers == {"Retry-After": "5"}


def test_with_a_delay_the_oldest_waits_for_others_but_a_full_batch_and_a_call_do_not() -> None:
    queue, began = BatchQueue(1_000, delay=0.2), time.monotonic()
    queue.put([job("a")])
    assert names(queue.take()) == ["a"]
    assert time.monotonic() - began >= 0.2
    measured, taken = threading.Event(), list[list[str]]()
    queue = BatchQueue(1_000, delay=10 * SOON, measure=lambda jobs: measured.set())
    worker = threading.Thread(target=lambda: taken.append(names(queue.take())))
    worker.start()
    queue.put([job("a")])
    assert measured.wait(SOON)
    others = [str(i) for i in range(RUN_ROWS - 1)]
    queue.put([job(name) for name in others])
    worker.join(SOON)
    assert taken == [["a", *others]]
    queue.put([job("call", None)])
    assert names(queue.take()) == ["call"]
