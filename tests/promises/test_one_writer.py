"""Commands that start together, or into a running one, lose nothing: one writes, the others end at once with exit 2."""

import random
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_pipelines import ForkedCommand, tiers, write_tagger

from seqpipe.runtime import bundle
from seqpipe.training import checkpoint

SETTINGS: dict[str, Any] = {
    "embedding": {"use": "lookup", "dim": 8},
    "head": "tags",
    "train": {"epochs": 3, "batch_tokens": 48, "threads": 1, "checkpoint_steps": 2},
}
COMMANDS = (["run", "tiny.yaml"], ["train", "tiny.yaml"], ["run", "tiny.yaml", "--fresh"], ["export", "runs/tiny"])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The best weights of a training that nothing disturbed."""
    folder = tmp_path_factory.mktemp("alone")
    write_tagger(folder, SETTINGS)
    assert ForkedCommand(folder, "train", "tiny.yaml").end() == 0
    return checkpoint.load_best(folder / "runs/tiny/checkpoints")


def run_again(folder: Path) -> None:
    last = ForkedCommand(folder, "run", "tiny.yaml")
    assert last.end() == 0, last.told.read_text()


@pytest.mark.parametrize("rounds", tiers(3, long=20, seconds=1800))
def test_random_starts_of_commands_lose_nothing(rounds: int, tmp_path: Path, alone: dict[str, torch.Tensor]) -> None:
    dice, refusals = random.Random(3), 0
    for number in range(rounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_tagger(folder, SETTINGS)
        children = []
        for i in range(2 + number % 2):
            arguments = COMMANDS[0] if not i else dice.choice(COMMANDS)
            kill = ("seconds", dice.uniform(0.1, 0.6)) if dice.random() < 0.3 else None
            children.append((ForkedCommand(folder, *arguments, kill=kill, name=str(i)), arguments, kill))
            time.sleep(dice.choice([0, dice.uniform(0, 1)]))
        for child, arguments, kill in children:
            code, log = child.end(), child.told.read_text()
            assert "Traceback" not in log
            if code == 2:
                refusals += 1
                unready = re.search("not a run|not trained yet|before the first epoch", log)
                named = re.search(r"process (\d+) on \S+ is writing to this run", log)
                known = named and int(named[1]) in {child.process.pid for child, *_ in children}
                assert known or (arguments[0] == "export" and unready), log
            else:
                assert code == 0 or (kill and code == -signal.SIGKILL), log
        run_again(folder)
        bundle.read(folder / "runs/tiny/bundle")
        for run in (folder / "runs").iterdir():  # those that --fresh moved aside are whole too
            if not (run / "bundle").exists():
                shutil.move(folder / "runs/tiny", folder / f"before-{run.name}")
                shutil.move(run, folder / "runs/tiny")
                run_again(folder)
                run = folder / "runs/tiny"
            found = checkpoint.load_best(run / "checkpoints")
            assert all(torch.equal(found[name], tensor) for name, tensor in alone.items())
            assert not list(run.rglob(".*.part"))
    assert refusals >= rounds / 3
