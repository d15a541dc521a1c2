"""The cost of a run is learned from runs, and decides which inputs are answered together."""

import itertools
import random

import pytest

from seqpipe.runtime.predictor import RUN_ROWS, RUN_TOKENS
from seqpipe.serve.queue import BatchCost, Job


def job(length: int) -> Job:
    return Job(None, length, deadline=0.0, payload=None, request=None)


def learned(run: float, runs: int = 300) -> BatchCost:
    """The cost after runs of all sizes, of a model whose run costs as much as so many tokens, with some noise."""
    cost, chance = BatchCost(), random.Random(0)
    for _ in range(runs):
        padded = chance.randint(1, 1_000)
        cost.add(padded, 1e-5 * (run + padded) * chance.uniform(0.95, 1.05))
    return cost


def lengths(cost: BatchCost, first: int, *others: int) -> list[int]:
    items = [job(length) for length in (first, *others)]
    return [item.length for item in cost.choose(items[0], items)]


@pytest.mark.parametrize("run", [0, 10, 300])
def test_what_a_run_costs_beside_its_tokens_is_learned_from_noisy_times(run: float) -> None:
    assert learned(run).run == pytest.approx(run, rel=0.2, abs=20)


@pytest.mark.parametrize("runs", [[(100, 0.1), (100, 0.3), (100, 0.2)], [(100, 0.2), (1_000, 0.1)]])
def test_runs_of_one_size_and_runs_that_get_cheaper_with_size_teach_nothing(runs: list[tuple[int, float]]) -> None:
    cost = BatchCost()
    unknown = cost.run
    for padded, seconds in runs:
        cost.add(padded, seconds)
    assert cost.run == unknown > 0


def test_older_runs_fade() -> None:
    cost = learned(500)
    for i in range(1_000):
        padded = i * 37 % 1_000
        cost.add(padded, 1e-5 * (10 + padded))
    assert cost.run == pytest.approx(10, abs=10)


def test_where_a_run_costs_little_like_lengths_go_together_and_where_it_costs_much_all() -> None:
    assert lengths(learned(5_000), 8, 100, 9, 7, 120, 500) == [7, 8, 9, 100, 120, 500]
    cost = learned(2)
    assert lengths(cost, 8, 100, 8, 8, 100, 500) == [8, 8, 8]
    assert lengths(cost, 100, 8, 8, 8, 100, 500) == [100, 100]
    assert lengths(cost, 500, 8, 8, 8, 100, 100) == [500]
    assert lengths(BatchCost(), 0, 0, 0) == [0, 0, 0]


def test_the_first_is_always_in_the_batch_which_holds_to_its_limits_and_is_in_order() -> None:
    chance = random.Random(1)
    for run, count in itertools.product((0, 30, 1_000), (1, 5, RUN_ROWS, 2 * RUN_ROWS)):
        items = [job(chance.choice((1, 5, 20, 300, 2_000, 2 * RUN_TOKENS))) for _ in range(count)]
        batch = learned(run).choose(items[-1], items)
        assert any(item is items[-1] for item in batch)
        assert len(batch) == 1 or (len(batch) <= RUN_ROWS and len(batch) * batch[-1].length <= RUN_TOKENS)
        assert batch == sorted(batch, key=lambda item: item.length)


def test_no_run_of_neighbours_in_length_with_the_first_costs_less_by_token() -> None:
    chance, cost = random.Random(2), learned(50)
    run = cost.run

    def by_token(batch: list[int]) -> float:
        return (run + len(batch) * batch[-1]) / sum(batch)

    for _ in range(50):
        items = [job(chance.randint(1, 200)) for _ in range(12)]
        chosen = [item.length for item in cost.choose(items[0], items)]
        by_length = sorted(item.length for item in items)
        if len(items) * by_length[-1] <= sum(by_length) + run:
            continue  # so little padding that all go
        at = by_length.index(items[0].length)
        best = min(by_token(by_length[a:b]) for a in range(at + 1) for b in range(at + 1, len(items) + 1))
        assert by_token(chosen) == pytest.approx(best, rel=0.05)
