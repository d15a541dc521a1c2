"""Several processes train one pipeline: weights equal those of one process, errors are one message, runs resume."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_pipelines
import torch
from tiny_pipelines import write_conll
from torch.distributed import TCPStore

from seqpipe import Pipeline
from seqpipe.commands.options import join_devices
from seqpipe.errors import EnvError, UsageError
from seqpipe.runs.train import refuse_batch_dependent
from seqpipe.training import checkpoint, devices
from seqpipe.training.devices import TrainingProcesses

ROOT = Path(__file__).resolve().parents[2]

# Trains in float64, in which sums of another order differ by 1e-15; small tables have rows-only gradients. With STOP a
# fault comes to the process VICTIM alone at that step: a signal, a NaN in the weights, or files that cannot grow.
PROGRAM = """
import os, resource, signal, sys
import torch
torch.set_default_dtype(torch.float64)
import seqpipe.errors
from seqpipe.training import network, optim, trainer
optim.DENSE_ROWS = int(os.environ.get("DENSE_ROWS", 10_000))
build, update = network.Network.__init__, trainer.Trainer._update

def build_in_float64(self, *arguments):
    build(self, *arguments)
    self.double()

def interrupted_update(self):
    if self.progress.step + 1 == int(os.environ.get("STOP", 0)) and self.processes.rank == int(os.environ["VICTIM"]):
        fault = os.environ["FAULT"]
        if fault == "nan":
            list(self.network.parameters())[-1].data.fill_(torch.nan)
        elif fault == "disk":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        else:
            os.kill(os.getpid(), int(fault))
    update(self)

network.Network.__init__, trainer.Trainer._update = build_in_float64, interrupted_update
try:
    seqpipe.Pipeline(sys.argv[1], sys.argv[2:]).train()
except seqpipe.errors.SeqpipeError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""
TWO_HEADS = """
name: tiny
data: {reader: {use: conll}, train: train.conll, dev: dev.conll, test: null}
tokenizer: {use: words}
embedding: {use: lookup, dim: 6}
encoder: {use: lstm, hidden: 5}
head:
  - {name: spans, use: crf}
  - {name: topics, use: label, target: topic, weight: 0.5, calibrate: true}
train:
  {epochs: 2, batch_tokens: 30, batch_size: 2, accumulate: 2, clip: 0.5, average: 0.9, optimizer: {use: adamw}}
"""

STATEFUL = """
name: tiny
data: {reader: {use: text}, train: train.txt}
tokenizer: {use: words}
embedding: {use: lookup, dim: 6}
encoder: {use: lstm, direction: forward, hidden: 6}
head: {use: lm, context: 8, stateful: true}
train: {epochs: 3, batch_size: 5, optimizer: {use: adamw, lr: 0.01}}
"""


def start(folder: Path, count: int, *arguments: str, **environment: Any) -> list[subprocess.Popen[str]]:
    """Start PROGRAM in processes with the variables that torchrun sets."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {name: str(value) for name, value in {"VICTIM": 0, "FAULT": int(signal.SIGTERM), **environment}.items()}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    return [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            cwd=folder,
            env={**os.environ, **variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


def end(processes: list[subprocess.Popen[str]], exit_code: int = 0) -> None:
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == exit_code, errors


def state(folder: Path, name: str = "tiny") -> dict[str, Any]:
    return checkpoint.load(folder / "runs" / name / "checkpoints" / "last.ckpt")


def difference(first: Any, second: Any) -> float:
    """Relative difference of all weights."""
    names = [name for name, weight in first["weights"].items() if weight.is_floating_point()]
    a, b = (torch.cat([part["weights"][name].flatten().double() for name in names]) for part in (first, second))
    return float((a - b).norm() / a.norm())


def assert_same_training(first: Any, second: Any) -> None:
    assert difference(first, second) < 1e-6
    for rows in zip(first["progress"]["history"], second["progress"]["history"], strict=True):
        assert [row["loss"] for row in rows] == pytest.approx([rows[0]["loss"]] * 2, rel=1e-6)
        scores = [row.get("dev", {}) | {"train": None} for row in rows]
        assert flat(scores[0]) == pytest.approx(flat(scores[1]), rel=1e-6)


def flat(scores: Any) -> dict[str, float]:
    parts = {name: flat(value) if isinstance(value, dict) else {"": value} for name, value in scores.items()}
    return {f"{name}.{key}": value for name, part in parts.items() for key, value in part.items() if value is not None}


def tiny(folder: Path) -> Path:
    folder.mkdir()
    write_conll(folder / "train.conll", 23, 1)
    write_conll(folder / "dev.conll", 7, 2)
    (folder / "tiny.yaml").write_text(TWO_HEADS)
    return folder


def test_two_processes_train_as_one_with_two_heads_sparse_gradients_and_empty_shares(tmp_path: Path) -> None:
    single, pair = tiny(tmp_path / "single"), tiny(tmp_path / "pair")
    for processes in (start(single, 1, "tiny.yaml", DENSE_ROWS=10), start(pair, 2, "tiny.yaml", DENSE_ROWS=10)):
        end(processes)
    assert state(single)["weights"]["embedding.0.table.weight"].dtype == torch.float64
    assert_same_training(state(single), state(pair))


@pytest.mark.parametrize(
    "head",
    [
        "{use: label, target: topic, contrastive: 0.1}",
        "{use: vector, target: topic}",
        "{use: seq2seq, target_tokenizer: same, hard_attention: reinforce}",
    ],
)
def test_a_head_that_needs_the_whole_batch_is_refused_by_name(tmp_path: Path, head: str) -> None:
    with pytest.raises(UsageError, match=r"head: head .* needs all texts of a batch.*train on one device"):
        refuse_batch_dependent(tiny_pipelines.load_tagger(tmp_path, f"head={head}"))


def test_two_processes_do_not_begin_to_train_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_pipelines.load_tagger(tmp_path)
    pipeline = Pipeline(tmp_path / "tiny.yaml", ["head={use: vector, target: topic}"])
    processes = SimpleNamespace(count=2, rank=0, by_first=lambda function: function())
    monkeypatch.setattr(devices, "current_processes", lambda: processes)
    with pytest.raises(UsageError, match="needs all texts of a batch"):
        pipeline.train()


def test_more_processes_than_cuda_devices_are_refused() -> None:
    with pytest.raises(EnvError, match=f"--devices 1000: PyTorch sees {torch.cuda.device_count()} CUDA devices"):
        join_devices(1000, "cuda")


LONG_RUNS = [
    ("ner", ["embedding.0.word_dropout=0", "embedding.0.dropout=0", "embedding.1.dropout=0", "head.dropout=0"]),
    ("dates", ["embedding.dropout=0", "head.dropout=0", "data.dev=null"]),  # does not generate in float64
    ("gpt", ["train.epoch_steps=50"]),
    ("intent-bert", ["head.dropout=0", "encoder.dropout=0"]),
]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "changes"), LONG_RUNS)
def test_two_processes_train_a_pipeline_as_one(tmp_path: Path, name: str, changes: list[str]) -> None:
    for count in (1, 2):
        folder = tmp_path / str(count)
        folder.mkdir()
        (folder / "data").symlink_to(ROOT / "pipelines" / "data")
        yaml = (ROOT / "pipelines" / f"{name}.yaml").read_text()
        (folder / f"{name}.yaml").write_text(yaml.replace("data/tiny-bert", "tiny-bert"))
        end(start(folder, count, f"{name}.yaml", "train.epochs=1", "data.test=null", *changes))
    assert_same_training(state(tmp_path / "1", name), state(tmp_path / "2", name))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("task", ["heads", "stateful"])
def test_a_run_resumes_with_another_number_of_processes_in_the_same_order(tmp_path: Path, task: str) -> None:
    whole, parts = tiny(tmp_path / "whole"), tiny(tmp_path / "parts")
    if task == "stateful":
        for folder in (whole, parts):
            (folder / "train.txt").write_text("one two three four five six seven\n" * 60)
            (folder / "tiny.yaml").write_text(STATEFUL)
    end(start(whole, 1, "tiny.yaml"))
    for count, stop in ((1, 3), (2, 7), (3, 11)):  # in the midst of an epoch
        end(start(parts, count, "tiny.yaml", STOP=stop), 128 + signal.SIGTERM)
        assert state(parts)["progress"]["step"] == stop
    end(start(parts, 1, "tiny.yaml"))
    assert_same_training(state(whole), state(parts))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_ends_ends_the_command_with_one_message(tmp_path: Path, signal_number: int) -> None:
    folder = tiny(tmp_path / "run")
    command = [sys.executable, "-m", "seqpipe", "run", "tiny.yaml", "--devices", "2", "train.epochs=10000"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as running:
        while "epoch" not in running.stderr.readline():
            assert running.poll() is None
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(running.pid)], capture_output=True, text=True)
        os.kill(int(children.stdout.split()[-1]), signal_number)
        _, errors = running.communicate()
    *epochs, message = errors.splitlines()
    assert all("epoch" in line for line in epochs)
    if signal_number == signal.SIGTERM:
        assert running.returncode == 128 + signal_number
        assert message.startswith("SIGTERM: stopped in epoch ")
    else:
        assert running.returncode == EnvError.exit_code
        assert message.startswith("one of 2 processes was ended by signal 9")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("fault", "victim", "exit_codes", "message"),
    [
        (int(signal.SIGKILL), 0, [-signal.SIGKILL, 7], "one of 2 processes ended without a message: it failed or was"),
        (int(signal.SIGKILL), 1, [7, -signal.SIGKILL], "one of 2 processes ended without a message: it failed or was"),
        ("disk", 0, [7, 7], "last.ckpt: cannot grow: File too large; what was there is unchanged."),
        ("nan", 0, [4, 4], "the loss became nan in epoch 2, step 9; lower"),
        ("nan", 1, [4, 4], "the loss became nan in epoch 2, step 9; lower"),
    ],
)
def test_a_fault_of_one_process_ends_both_with_its_message_and_the_same_command_resumes(
    tmp_path: Path, fault: Any, victim: int, exit_codes: list[int], message: str
) -> None:
    whole, folder = tiny(tmp_path / "whole"), tiny(tmp_path / "run")
    end(start(whole, 1, "tiny.yaml"))
    processes = start(folder, 2, "tiny.yaml", STOP=8, FAULT=fault, VICTIM=victim)
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert ([process.returncode for process in processes], message in "".join(errors)) == (exit_codes, True), errors
    assert "Traceback" not in "".join(errors)
    if fault == "nan":  # both name the stage of the process that has it
        assert all("(head.1: head 'label'" in text for text in errors), errors
    assert state(folder)["progress"]["step"] == 6  # of the first epoch
    assert not [*folder.rglob(".*.part")]
    end(start(folder, 2, "tiny.yaml"))
    assert_same_training(state(whole), state(folder))


def test_a_process_reports_its_error_when_that_with_the_store_has_ended() -> None:
    first = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    second = TCPStore("127.0.0.1", first.port, is_master=False)
    processes = TrainingProcesses(1, 2, second)
    del first
    assert processes.is_reporter(7, "the other process was killed")
