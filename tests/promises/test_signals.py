"""SIGTERM and SIGINT end a training within seconds, with its state saved; the same command goes on."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tiny_pipelines import ForkedCommand, command_line, environ, fail_with, write_tagger

from seqpipe.training import checkpoint

SETTINGS = {"head": "tags", "train": {"epochs": 100_000, "batch_tokens": 48, "threads": 1, "accumulate": 2}}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_training_and_the_same_command_goes_on(tmp_path: Path, number: signal.Signals, code: int) -> None:
    write_tagger(tmp_path, SETTINGS)
    before = 0
    for line in ("training tiny", "resuming from epoch", "resuming from epoch"):
        trainer = ForkedCommand(tmp_path, "train", "tiny.yaml")
        trainer.wait_for(line)
        while trainer.steps < 3 + before % 7:
            assert trainer.process.is_alive()
            time.sleep(0.02)
        os.kill(trainer.process.pid or 0, number)
        assert trainer.end() == code
        log = trainer.told.read_text()
        assert f"{number.name}: stopped in epoch" in log
        assert "run the same command to resume" in log
        assert "Traceback" not in log
        steps = checkpoint.load(tmp_path / "runs/tiny/checkpoints/last.ckpt")["progress"]["step"]
        assert steps > before
        before = steps


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    write_tagger(tmp_path, SETTINGS)
    trainer = ForkedCommand(tmp_path, "train", "tiny.yaml")
    trainer.wait_for("epoch   1/")
    os.kill(trainer.process.pid or 0, signal.SIGTERM)
    os.kill(trainer.process.pid or 0, signal.SIGTERM)
    assert trainer.end() in (143, -signal.SIGTERM)


def test_the_shell_sees_the_same_exit_code(tmp_path: Path) -> None:
    write_tagger(tmp_path, SETTINGS)
    line = command_line("train", "tiny.yaml")
    trainer = subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environ())
    assert trainer.stderr is not None
    assert any("epoch " in line for line in trainer.stderr)
    trainer.send_signal(signal.SIGTERM)
    _, rest = trainer.communicate()
    assert trainer.returncode == 143
    assert "SIGTERM: stopped in epoch" in rest


def test_resume_refuses_to_begin(tmp_path: Path) -> None:
    write_tagger(tmp_path)
    fail_with(2, "is not a run yet; omit --resume to start one", "train", "tiny.yaml", "--resume", folder=tmp_path)
    assert not (tmp_path / "runs").exists()
