"""Batches made ahead are those made when they are needed; processes need no guard of a script, and none is left."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import UserList
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_pipelines import QUIET, BatchCallback, build_parts, environ, load_tagger, train_run, write_tagger
from torch import Tensor, nn

from seqpipe.config.loader import Config
from seqpipe.errors import TrainingError
from seqpipe.training import prefetch
from seqpipe.training.checkpoint import load
from seqpipe.training.datasets import Windows
from seqpipe.training.trainer import Trainer

SETTINGS = ("head.dropout=0.5", "train.accumulate=2", "train.average=0.9", "train.checkpoint_steps=2")

# A script without `if __name__ == "__main__"`: a process that ran it would start processes without end.
SCRIPT = """
import multiprocessing, os, signal, sys
import numpy as np
import torch
from seqpipe.errors import EnvError
from seqpipe.training.datasets import Windows
from seqpipe.training.prefetch import Prefetcher

windows = Windows(np.memmap("tokens.bin", "<u2", "r"), context=16, rows=4)
order = windows.order(0)
with Prefetcher(windows, torch.device("cpu"), 2) as ahead:
    for expected, batch in zip(map(windows, order), ahead(order), strict=True):
        assert all(torch.equal(expected[name], batch[name]) for name in expected | batch)
    print("equal", len(order), len(multiprocessing.active_children()))
    try:
        list(ahead([*order, ["no number"]]))
    except TypeError as error:
        print(error)
    for process in multiprocessing.active_children():
        os.kill(process.pid, signal.SIGINT)  # a terminal sends it to all; training alone decides
    try:
        for _ in ahead(order * 100):
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    except EnvError as error:
        print(error)
print(multiprocessing.active_children())
"""


@pytest.mark.parametrize("by_name", [True, pytest.param(False, marks=pytest.mark.long)])
def test_processes_make_the_same_batches_for_a_script_without_a_guard(tmp_path: Path, by_name: bool) -> None:
    np.arange(5000, dtype="<u2").tofile(tmp_path / "tokens.bin")
    (tmp_path / "script.py").write_text(SCRIPT)
    command, source = [sys.executable, "script.py" if by_name else "-"], b"" if by_name else SCRIPT.encode()
    done = subprocess.run(command, cwd=tmp_path, input=source, capture_output=True, env=environ())
    assert done.stdout.decode().splitlines() == [
        "equal 78 2",
        'can only concatenate str (not "int") to str',
        "a process that makes batches was killed, perhaps since memory is short; run the same command to resume",
        "[]",
    ], done.stderr.decode()


def test_small_data_and_busy_machines_start_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = build_parts(load_tagger(tmp_path))[1]
    mapped = replace(batches, data=UserList(batches.data))  # no list, as examples of a file mapped into memory
    windows = Windows(np.arange(100, dtype="<u2"), 10, 2)
    counts = {}
    for cores in (1, 2, 3, 16):
        monkeypatch.setattr(prefetch, "cores", lambda n=cores: n)
        counts[cores] = [prefetch.process_count(some, threads=1) for some in (batches, mapped, windows)]
    assert counts == {1: [0, 0, 0], 2: [0, 0, 0], 3: [0, 2, 0], 16: [0, 4, 0]}
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")
    assert prefetch.process_count(mapped, threads=1) == 2
    assert prefetch.process_count(mapped, threads=2) == 0


def state_of(config: Config, folder: Path, **changes: Any) -> dict[str, Any]:
    """The last checkpoint of a training whose trainer has these attributes."""
    pipeline, batches = build_parts(config)
    trainer = Trainer(pipeline, config, batches, None, folder, QUIET)
    for name, value in changes.items():
        setattr(trainer.prefetcher if name == "pins" else trainer, name, value)
    trainer.train()
    return read_state(folder)


def read_state(folder: Path) -> dict[str, Any]:
    """The last checkpoint without times."""
    state = load(folder / "last.ckpt")
    for row in (state["progress"], *state["progress"]["history"]):
        del row["seconds"]
    return state


def assert_same(first: Any, second: Any) -> None:
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for name in first:
            assert_same(first[name], second[name])
    elif isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    else:
        assert first == second


def test_rare_reports_and_a_thread_give_the_same_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self.clone())  # it needs a GPU
    config = load_tagger(tmp_path, *SETTINGS)
    usual = state_of(config, tmp_path / "usual")
    assert usual["progress"]["history"][0]["gradients"]
    assert_same(state_of(config, tmp_path / "ahead", report_batches=5, pins=True), usual)


@pytest.mark.long
def test_processes_and_mapped_data_give_the_same_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, states, counts = load_tagger(tmp_path, *SETTINGS), [], []
    monkeypatch.setattr(prefetch, "cores", lambda: 3)
    for features in ("memory", "mapped"):
        monkeypatch.setenv("SEQPIPE_FEATURES", features)
        (tmp_path / features).mkdir()
        with contextlib.chdir(tmp_path / features):
            train_run(config, BatchCallback(lambda count: counts.append(len(multiprocessing.active_children()))))
        states.append(read_state(tmp_path / features / "runs/tiny/checkpoints"))
    assert counts[0] == 0
    assert counts[-1] > 0
    assert multiprocessing.active_children() == []
    assert_same(states[0], states[1])


RUN = """
import sys
from seqpipe.training import prefetch
prefetch.cores = lambda: 3
from seqpipe.commands.app import main
sys.argv = ["seqpipe", "train", "tiny.yaml", "train.epochs=500"]
main()
"""


@pytest.mark.long
def test_a_signal_of_the_terminal_ends_training_and_its_processes_after_a_checkpoint(tmp_path: Path) -> None:
    write_tagger(tmp_path)
    (tmp_path / "script.py").write_text(RUN)
    options: dict[str, Any] = {"cwd": tmp_path, "env": environ(SEQPIPE_FEATURES="mapped"), "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "script.py"], start_new_session=True, text=True, **options)
    while not list(tmp_path.glob("runs/*/checkpoints/last.ckpt")):
        assert process.poll() is None
        time.sleep(0.1)
    assert len(session(process.pid)) >= 3  # the training and two processes, at least
    os.killpg(process.pid, signal.SIGINT)
    _, messages = process.communicate()
    assert process.returncode == 130, messages
    assert "run the same command to resume" in messages
    assert "Traceback" not in messages
    while session(process.pid):  # Python's tracker of semaphores ends after training
        time.sleep(0.1)


def session(leader: int) -> list[str]:
    """The processes of a session, by their numbers."""
    done = subprocess.run(["ps", "-s", str(leader), "-o", "pid="], capture_output=True, text=True)
    return done.stdout.split()


class Overflows(nn.Module):
    """An encoder whose output is no number for a batch of `limit` tokens."""

    limit = 0

    def __init__(self, dim: int):
        super().__init__()
        self.dim, self.linear = dim, nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y * torch.where(mask.sum() == self.limit, torch.nan, 1.0)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_late_report_names_the_step_and_the_stage_of_a_loss_that_is_no_number(tmp_path: Path, optimizer: str) -> None:
    sets = ("encoder=overflows", "embedding={use: lookup, dim: 8}", f"train.optimizer={{use: {optimizer}, lr: 0.1}}")
    config, messages = load_tagger(tmp_path, *sets, overflows=("encoder", Overflows)), []
    for report_batches in (1, 8):
        pipeline, batches = build_parts(config)
        sizes = [int(batches(rows)["mask"].sum()) for rows in batches.order(0)]
        Overflows.limit = next(size for size in sizes[2:] if size not in sizes[:2])
        trainer = Trainer(pipeline, config, batches, None, tmp_path / str(report_batches), QUIET)
        trainer.report_batches = report_batches
        with pytest.raises(TrainingError) as caught:
            trainer.train()
        messages.append(str(caught.value))
    step = sizes.index(Overflows.limit) + 1
    assert messages[0].startswith(f"the loss became nan in epoch 1, step {step}; ")
    assert "(encoder: encoder 'overflows'" in messages[0]
    assert messages[1] == messages[0]
