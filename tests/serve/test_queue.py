"""The queue of a bundle: which jobs make a batch, in which order, and which are refused or left out."""

import threading
import time
from collections.abc import Sequence

import pytest

from seqpipe.runtime.predictor import ROWS, TOKENS
from seqpipe.serve.http import HttpError
from seqpipe.serve.queue import BatchQueue, Job

SOON = 60.0


def job(name: str, key: str | None = "", tokens: int = 8, seconds: float = SOON) -> Job:
    return Job(key, tokens, time.monotonic() + seconds, name, None)


def names(batch: list[Job]) -> list[str]:
    return [one.payload for one in batch]


def batches(queue: BatchQueue) -> list[list[str]]:
    """All that waits, after which nothing more comes."""
    queue.close()
    found = []
    while batch := queue.take():
        found.append(names(batch))
    return found


def filled(*jobs: Job, most: int = 1_000_000) -> BatchQueue:
    queue = BatchQueue(most)
    for one in jobs:
        queue.put([one])
    return queue


def test_the_oldest_comes_first_with_those_of_its_options() -> None:
    queue = filled(job("a1", "a"), job("b1", "b"), job("a2", "a"), job("b2", "b"), job("a3", "a"))
    assert batches(queue) == [["a1", "a2", "a3"], ["b1", "b2"]]


def test_tokens_that_are_written_wait_with_those_that_are_read() -> None:
    def writing(written: int) -> Job:
        return Job("", 8, time.monotonic() + SOON, "", None, 0, written)

    queue = BatchQueue(100)
    with pytest.raises(HttpError, match=r"about 101 tokens in one request; .* ask for shorter texts") as e:
        queue.put([writing(93)])
    assert e.value.status == 413
    queue.put([writing(42)])
    queue.put([writing(42)])
    with pytest.raises(HttpError, match="too many requests are waiting"):
        queue.put([writing(0)])
    assert (queue.tokens, [one.tokens for one in queue.take()], queue.tokens) == (100, [8, 8], 0)


def test_like_lengths_go_together() -> None:
    queue = filled(*(job(f"{n} {i}", tokens=n) for i in range(2) for n in (8, 100, 500)))
    for padded in range(1, 1_000, 100):
        queue.done([job("done", tokens=padded)], 1e-5 * (1 + padded))
    assert batches(queue) == [["8 0", "8 1"], ["100 0", "100 1"], ["500 0", "500 1"]]


def test_what_runs_took_decides_what_goes_together() -> None:
    queue = filled(*(job(str(n), tokens=n) for n in (1, 100, 31, 500, 120, 8, 64)))
    for padded in range(1, 1_000, 100):
        queue.done([job("done", tokens=padded)], 1e-5 * (5_000 + padded))
    assert batches(queue) == [["1", "8", "31", "64", "100", "120", "500"]]


def test_a_worker_measures_what_came_since_the_last_batch_while_the_queue_takes_more() -> None:
    measured: list[list[str]] = []

    def measure(jobs: Sequence[Job]) -> None:
        measured.append(names([*jobs]))
        for one in jobs:
            one.length = len(one.payload)
        if len(measured) == 1:
            queue.put([job("three")])
            queue.cancel([gone])

    queue, gone = BatchQueue(1_000_000, measure=measure), job("gone")
    for one in (job("a"), job("call", None), gone):
        queue.put([one])
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


def test_calls_are_alone() -> None:
    assert batches(filled(job("a"), job("call", None), job("b"), job("call 2", None))) == [
        ["a", "b"],
        ["call"],
        ["call 2"],
    ]


def test_a_batch_has_at_most_so_many_rows_and_padded_tokens() -> None:
    assert [*map(len, batches(filled(*(job(str(i)) for i in range(2 * ROWS + 3)))))] == [ROWS, ROWS, 3]
    assert [*map(len, batches(filled(*(job(str(i), tokens=1_000) for i in range(9)))))] == [4, 4, 1]
    assert batches(filled(job("huge", tokens=TOKENS * 3), job("huge too", tokens=TOKENS * 3))) == [
        ["huge"],
        ["huge too"],
    ]


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
    with pytest.raises(HttpError) as refused:
        queue.put([job("b"), job("c")])
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
    with pytest.raises(HttpError) as never:
        queue.put([job("b"), job("c"), job("d")])
    assert never.value.status == 413
    assert batches(queue) == [["a"]]
    with pytest.raises(HttpError) as closed:
        queue.put([job("b")])
    assert closed.value.status == 503


def refused(queue: BatchQueue, tokens: int) -> bool:
    try:
        queue.put([job("more", tokens=tokens)])
    except HttpError:
        return True
    return False


def is_full(queue: BatchQueue) -> bool:
    try:
        queue.refuse_early()
    except HttpError:
        return True
    return False


def test_where_no_usual_request_fits_others_are_refused_before_they_are_read_until_there_is_room() -> None:
    queue = filled(*(job("a", tokens=10) for _ in range(95)), most=1_000)
    assert not is_full(queue)
    assert refused(queue, 60)
    assert not is_full(queue)  # smaller ones fit
    assert not refused(queue, 45)
    assert is_full(queue)
    queue.take()
    assert not is_full(queue)


def test_large_requests_keep_no_small_ones_out() -> None:
    queue = filled(*(job("a", tokens=400) for _ in range(2)), most=1_000)
    assert refused(queue, 400)
    assert not is_full(queue)


def test_the_time_to_try_again_follows_from_what_waits_and_the_speed() -> None:
    queue = filled(*(job(str(i), tokens=10) for i in range(10)), most=100)
    for _ in range(3):
        queue.done([job("done", tokens=20)], 1.0)
    with pytest.raises(HttpError) as refused:
        queue.put([job("b")])
    assert refused.value.headers == {"Retry-After": "5"}


def test_a_worker_waits_until_there_is_work() -> None:
    queue, taken = BatchQueue(100), []
    worker = threading.Thread(target=lambda: taken.extend([names(queue.take()), names(queue.take())]))
    worker.start()
    time.sleep(0.05)
    queue.put([job("a")])
    time.sleep(0.05)
    assert worker.is_alive()
    queue.close()
    worker.join(10)
    assert taken == [["a"], []]


def test_with_a_delay_the_oldest_waits_for_others_but_a_full_batch_and_a_call_do_not() -> None:
    queue = BatchQueue(1_000, delay=1)
    threading.Timer(0.05, lambda: queue.put([job("b")])).start()
    began = time.monotonic()
    queue.put([job("a")])
    assert names(queue.take()) == ["a", "b"]
    assert 0.95 < time.monotonic() - began < 5
    queue.put([job("call", None)])
    queue.put([job(str(i)) for i in range(ROWS)])
    began = time.monotonic()
    assert [len(queue.take()), len(queue.take())] == [1, ROWS]
    assert time.monotonic() - began < 0.75
