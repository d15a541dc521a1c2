"""Stopped at any batch, training resumes and ends bit-equal: weights, their average and the optimiser's state."""

import contextlib
import itertools
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_pipelines import QUIET, BatchCallback, load_tagger, train_run, write_classifier, write_seq2seq

from seqpipe.config.loader import Config, load_config
from seqpipe.console import Console
from seqpipe.errors import InterruptedRunError
from seqpipe.runs.table import list_runs
from seqpipe.training import checkpoint, optim

STEPS = 60  # of each pipeline of the long tier, at least
RANDOM = ("head.dropout=0.3", "embedding.0.rare_dropout=0.5", "embedding.1.dropout=0.2")
EVERYTHING = (*RANDOM, "train.epochs=2", "train.average=0.9", "train.accumulate=2", "train.schedule=cosine")
MOMENTUM = (*RANDOM, "train.epochs=2", "train.optimizer={use: sgd, lr: 0.1, momentum: 0.9}", "train.patience=1")
SMALL = ("train.batch_size=1",)
SEQ2SEQ = {
    "embedding": {"use": "lookup", "dim": 8, "dropout": 0.2},
    "encoder": {"use": "gru", "hidden": 8, "dropout": 0.2, "layers": 2},
    "head": {"use": "seq2seq", "hidden": 8, "target": "reversed", "target_tokenizer": "same", "dropout": 0.2},
    "train": {"epochs": 3, "batch_size": 1, "accumulate": 2, "threads": 1},
}
CLASSIFIER = {
    "encoder": {"use": "transformer", "layers": 1, "heads": 2, "dropout": 0.2},
    "head": {"use": "label", "dropout": 0.3},
    "train": {"epochs": 4, "batch_size": 4, "schedule": {"use": "plateau", "patience": 1}, "threads": 1},
}
MASKED = {
    "encoder": {"use": "transformer", "layers": 1, "heads": 2, "dropout": 0.2},
    "head": "mlm",
    "train": {"epochs": 4, "batch_size": 2, "accumulate": 2, "average": 0.9, "threads": 1},
}
STATEFUL = {
    "encoder": {"use": "lstm", "hidden": 8, "layers": 2, "direction": "forward", "dropout": 0.3},
    "head": {"use": "lm", "context": 5, "stateful": True},
    "train": {"epochs": 4, "epoch_steps": 15, "batch_size": 2, "threads": 1},
}
Pipeline = Callable[..., Config]  # made in a folder, with overrides


def of_tiny(*fixed: str) -> Pipeline:
    return lambda folder, *more: load_tagger(folder, *fixed, *more)


def of(write: Callable[..., Path], changes: dict[str, Any]) -> Pipeline:
    return lambda folder, *more: load_config(write(folder, changes), more)


SHORT = {  # two epochs
    "average-accumulate": of_tiny(*EVERYTHING),
    "momentum-patience": of_tiny(*MOMENTUM),
    "stateful": of(write_classifier, {**STATEFUL, "train": {**STATEFUL["train"], "epochs": 2, "epoch_steps": 8}}),
}
LONG = {
    "average-accumulate": of_tiny(*EVERYTHING, *SMALL, "train.epochs=4"),
    "momentum-patience": of_tiny(*MOMENTUM, *SMALL),
    "seq2seq": of(write_seq2seq, SEQ2SEQ),
    "classifier": of(write_classifier, CLASSIFIER),
    "masked-words": of(write_classifier, MASKED),
    "stateful": of(write_classifier, STATEFUL),
}


def pipelines(*short: str) -> list[Any]:
    """Pipelines, and whether to stop them at every batch, which is for the long tier."""
    marks = [pytest.mark.long, pytest.mark.timeout(900)]
    every = [pytest.param(LONG[name], True, id=f"{name}-every", marks=marks) for name in LONG]
    return [*(pytest.param(SHORT[name], False, id=name) for name in short), *every]


class PowerCutError(Exception):
    """Ends training without a word."""


@pytest.fixture(autouse=True)
def one_thread_and_sparse_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(optim, "DENSE_ROWS", 0)


def trained(folder: Path, config: Config, console: Console = QUIET) -> dict[str, Any]:
    """The state that training ends with, without the time it took; it begins, or resumes, in this folder."""
    folder.mkdir(exist_ok=True)
    with contextlib.chdir(folder):
        train_run(config, console)
    state = saved(folder, config)
    for row in state["progress"]["history"]:
        del row["seconds"]
    return state


def saved(folder: Path, config: Config) -> dict[str, Any]:
    return checkpoint.load(folder / "runs" / config.name / "checkpoints" / "last.ckpt")


def assert_equal(first: Any, second: Any, name: str = "") -> None:
    """Equal to the bit, in every tensor and every number."""
    if isinstance(first, torch.Tensor):
        assert torch.equal(first, second), name
    elif isinstance(first, dict):
        assert first.keys() == second.keys(), name
        for key, value in first.items():
            assert_equal(value, second[key], f"{name}.{key}")
    elif isinstance(first, list):
        assert_equal(dict(enumerate(first)), dict(enumerate(second)), name)
    else:
        assert first == second, name


def cut() -> None:
    raise PowerCutError


def terminated() -> None:
    signal.raise_signal(signal.SIGTERM)


def at(batch: int, do: Callable[[], None]) -> BatchCallback:
    return BatchCallback(lambda count: do() if count == batch else None)


def batches_of(folder: Path, config: Config) -> tuple[dict[str, Any], int]:
    console = BatchCallback(lambda count: None)
    return trained(folder, config, console), console.count


def ends(state: dict[str, Any]) -> set[int]:
    """The last step of each epoch."""
    return {row["step"] for row in state["progress"]["history"]}


@pytest.mark.parametrize(("pipeline", "every"), pipelines("average-accumulate", "momentum-patience", "stateful"))
def test_a_signal_at_any_batch_loses_nothing(tmp_path: Path, pipeline: Pipeline, every: bool) -> None:
    config = pipeline(tmp_path)
    expected, count = batches_of(tmp_path / "whole", config)
    assert every or 12 <= count <= 30
    epoch = count // config.train.epochs
    around = {1, 2, 3, 5, epoch - 2, epoch - 1, epoch, epoch + 1, epoch + 2, count - 2, count - 1, count}
    steps = set()
    for batch in range(1, count + 1) if every else sorted(around):
        folder = tmp_path / f"stopped-{batch}"
        with pytest.raises(InterruptedRunError, match="SIGTERM: stopped in epoch"):
            trained(folder, config, at(batch, terminated))
        steps.add(saved(folder, config)["progress"]["step"])
        assert_equal(expected, trained(folder, config))
        shutil.rmtree(folder)
    if every:  # a signal is heeded after the next batch: none stops after the first of an epoch, but cuts do
        assert steps | {end + 1 for end in (0, *ends(expected))} >= set(range(1, STEPS))


@pytest.mark.parametrize(("pipeline", "every"), pipelines("average-accumulate"))
def test_a_cut_at_any_batch_goes_back_to_the_last_checkpoint(tmp_path: Path, pipeline: Pipeline, every: bool) -> None:
    config = pipeline(tmp_path, f"train.checkpoint_steps={1 if every else 2}")
    interval = config.train.checkpoint_steps * config.train.accumulate
    expected, count = batches_of(tmp_path / "whole", config)
    steps = set()
    for batch in range(1, count + 1, config.train.accumulate):
        folder = tmp_path / f"cut-{batch}"
        with pytest.raises(PowerCutError):
            trained(folder, config, at(batch, cut))
        if batch >= interval:
            steps.add(saved(folder, config)["progress"]["step"])
        resumed, batches = batches_of(folder, config)
        assert_equal(expected, resumed)
        assert batches <= count - batch + interval  # at most one interval is done again
        shutil.rmtree(folder)
    if every:  # an epoch's last step is saved when the epoch ends, after its batch: signals stop there
        assert steps | ends(expected) >= set(range(1, STEPS))


def test_a_clock_that_jumps_by_decades_and_files_of_the_future_change_no_result_and_no_duration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder, jumps = load_tagger(tmp_path, *EVERYTHING), tmp_path / "jumps", itertools.count()
    expected = trained(tmp_path / "whole", config)
    monkeypatch.setattr(time, "time", lambda: 2e9 + (-1) ** next(jumps) * 1e9)
    with pytest.raises(InterruptedRunError):
        trained(folder, config, at(3, terminated))
    for path in folder.rglob("*"):
        os.utime(path, (4e9, 4e9))
    assert_equal(expected, trained(folder, config))
    assert all(0 <= row["seconds"] < 1e6 for row in saved(folder, config)["progress"]["history"])
    assert [row["state"] for row in list_runs(folder / "runs")] == ["trained"]


def test_the_comparison_sees_a_run_that_forgets_where_it_was(tmp_path: Path) -> None:
    config = load_tagger(tmp_path, *EVERYTHING)
    expected = trained(tmp_path / "whole", config)
    for part, forget in (
        ("progress", lambda state: state["progress"].update(position=state["progress"]["position"] - 2)),
        ("optimizer", lambda state: state["optimizer"]["state"].clear()),
        ("average", lambda state: [tensor.zero_() for tensor in state["average"]["tensors"].values()]),
        ("logs", lambda state: state["average"].update(logs={})),
    ):
        folder = tmp_path / part
        with pytest.raises(InterruptedRunError):
            trained(folder, config, at(3, terminated))
        path, state = folder / "runs" / config.name / "checkpoints" / "last.ckpt", saved(folder, config)
        forget(state)
        checkpoint.save(path, state)
        with pytest.raises(AssertionError):
            assert_equal(expected, trained(folder, config))
