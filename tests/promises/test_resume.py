"""Stopped at any batch, training goes on and ends bit-equal: weights, their average and the optimiser's state."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from factory import QUIET, Watched, tiny, train_run

from seqpipe.config.loader import Config
from seqpipe.console import Console
from seqpipe.errors import InterruptedRunError
from seqpipe.training import checkpoint

RANDOM = ("head.dropout=0.3", "embedding.0.rare_dropout=0.5", "embedding.1.dropout=0.2")
EVERYTHING = (*RANDOM, "train.epochs=2", "train.average=0.9", "train.accumulate=2", "train.schedule=cosine")
MOMENTUM = (*RANDOM, "train.epochs=2", "train.optimizer={use: sgd, lr: 0.1, momentum: 0.9}", "train.patience=1")


class PowerCutError(Exception):
    """Ends training without a word."""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def trained(folder: Path, config: Config, console: Console = QUIET) -> dict[str, Any]:
    """The state that training ends with, without the time it took; it begins, or goes on, in this folder."""
    folder.mkdir(exist_ok=True)
    with contextlib.chdir(folder):
        train_run(config, console)
    state = checkpoint.load(folder / "runs" / "tiny" / "checkpoints" / "last.ckpt")
    for row in state["progress"]["history"]:
        del row["seconds"]
    return state


def leaves(state: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(state, dict):
        for key, value in state.items():
            yield from leaves(value, f"{name}.{key}")
    elif isinstance(state, list):
        for i, value in enumerate(state):
            yield from leaves(value, f"{name}.{i}")
    else:
        yield name, state


def assert_equal(one: Any, other: Any) -> None:
    """Equal to the bit, in every tensor and every number."""
    first, second = dict(leaves(one)), dict(leaves(other))
    assert first.keys() == second.keys()
    for name, value in first.items():
        same = torch.equal(value, second[name]) if isinstance(value, torch.Tensor) else value == second[name]
        assert same, name


def at(batch: int, do: Callable[[], None]) -> Watched:
    return Watched(lambda count: do() if count == batch else None)


def cut() -> None:
    raise PowerCutError


def terminated() -> None:
    signal.raise_signal(signal.SIGTERM)


def batches_of(folder: Path, config: Config) -> tuple[dict[str, Any], int]:
    console = Watched(lambda count: None)
    return trained(folder, config, console), console.count


@pytest.mark.parametrize("settings", [EVERYTHING, MOMENTUM], ids=["average-accumulate", "momentum-patience"])
def test_a_signal_at_any_batch_loses_nothing(tmp_path: Path, settings: tuple[str, ...]) -> None:
    config = tiny(tmp_path, *settings)
    expected, count = batches_of(tmp_path / "whole", config)
    assert 12 <= count <= 30
    epoch = count // 2
    for batch in sorted({1, 2, 3, 5, epoch - 2, epoch - 1, epoch, epoch + 1, epoch + 2, count - 2, count - 1, count}):
        folder = tmp_path / f"stopped-{batch}"
        with pytest.raises(InterruptedRunError, match="SIGTERM: stopped in epoch"):
            trained(folder, config, at(batch, terminated))
        assert_equal(expected, trained(folder, config))


def test_a_cut_at_any_batch_goes_back_to_the_last_checkpoint_and_ends_the_same(tmp_path: Path) -> None:
    config = tiny(tmp_path, *EVERYTHING, "train.checkpoint_steps=2")
    expected, count = batches_of(tmp_path / "whole", config)
    for batch in range(1, count + 1, 2):
        folder = tmp_path / f"cut-{batch}"
        with pytest.raises(PowerCutError):
            trained(folder, config, at(batch, cut))
        again = Watched(lambda count: None)
        assert_equal(expected, trained(folder, config, again))
        assert again.count <= count - batch + 2 * 2 + 1  # at most one interval is done again


def test_stopped_at_every_other_batch_it_still_ends_the_same(tmp_path: Path) -> None:
    config = tiny(tmp_path, *EVERYTHING)
    expected, count = batches_of(tmp_path / "whole", config)
    folder, stops = tmp_path / "stopped", 0
    for _ in range(count):
        try:
            state = trained(folder, config, at(1, terminated))
            break
        except InterruptedRunError:
            stops += 1
    assert stops >= 4
    assert_equal(expected, state)


def test_the_comparison_sees_a_run_that_forgets_where_it_was(tmp_path: Path) -> None:
    config = tiny(tmp_path, *EVERYTHING)
    expected = trained(tmp_path / "whole", config)
    for part, forget in (
        ("progress", lambda state: state["progress"].update(position=state["progress"]["position"] - 2)),
        ("optimizer", lambda state: state["optimizer"]["state"].clear()),
        ("average", lambda state: state["average"].update(state["weights"])),
    ):
        folder = tmp_path / part
        with pytest.raises(InterruptedRunError):
            trained(folder, config, at(3, terminated))
        path = folder / "runs" / "tiny" / "checkpoints" / "last.ckpt"
        state = checkpoint.load(path)
        forget(state)
        checkpoint.save(path, state)
        with pytest.raises(AssertionError):
            assert_equal(expected, trained(folder, config))
