"""A bundle and a run that seqpipe wrote before format version 2 are refused by name, with the cure."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from factory import seqpipe, write_jsonl

from seqpipe.config.loader import load
from seqpipe.errors import UsageError
from seqpipe.pipeline.run_folder import fingerprint
from seqpipe.training import checkpoint
from seqpipe.training.artifacts import Artifacts

VERSION_1 = Path(__file__).parents[1] / "version1"  # a run of commit 9f947d1, `mlm` on `gru`, with its bundle
RUN_AGAIN = "`seqpipe run PIPELINE.yaml --fresh`"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(VERSION_1, tmp_path / "version-1"))


@pytest.mark.parametrize("command", ["verify", "predict", "evaluate"])
def test_a_version_1_bundle_is_refused_with_its_version_and_the_cure(command: str, run: Path) -> None:
    done = seqpipe(command, run / "bundle")
    assert done.code == 6
    assert "bundle.json: bundle format version 1; this seqpipe reads versions 2 to 4: " in done.err
    assert RUN_AGAIN in done.err


@pytest.mark.parametrize(
    "arguments", [["export", "RUN"], ["evaluate", "RUN"], ["vectors", "RUN"]], ids=lambda arguments: str(arguments[0])
)
def test_a_run_of_an_older_form_is_refused_with_its_file_and_the_cure(arguments: list[str], run: Path) -> None:
    done = seqpipe(*(run if argument == "RUN" else argument for argument in arguments))
    assert done.code == 2
    assert f"{run / 'learned.json'}: has format 1, of an older seqpipe; this one reads format 2: " in done.err
    assert RUN_AGAIN in done.err


@pytest.mark.parametrize("command", ["run", "train"])
def test_a_run_of_an_older_form_is_not_resumed(command: str, run: Path, tmp_path: Path) -> None:
    rows = [{"text": f"Ada flew to {place}"} for place in ("Rome", "Oslo")] * 4
    for name in ("train", "dev", "test"):
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    shutil.copytree(run, tmp_path / "runs/version-1")
    config = load(tmp_path / "runs/version-1/pipeline.yaml")
    (tmp_path / "runs/version-1/run.json").write_text(json.dumps({"fingerprint": fingerprint(config)}))
    done = seqpipe(command, "runs/version-1/pipeline.yaml", folder=tmp_path)
    assert done.code == 2
    assert "learned.json: has format 1, of an older seqpipe; this one reads format 2: " in done.err
    assert seqpipe(command, "runs/version-1/pipeline.yaml", "--fresh", folder=tmp_path).code == 0


def test_training_that_starts_from_a_run_of_an_older_form_is_refused(run: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", [{"text": "Ada flew to Rome", "label": "a"}] * 4)
    content = {
        "name": "new",
        "data": {"reader": "jsonl", "train": "train.jsonl", "dev": "train.jsonl"},
        "tokenizer": {"use": "words", "init": run.name},
        "embedding": "lookup",
        "encoder": "gru",
        "head": "label",
    }
    (tmp_path / "new.yaml").write_text(json.dumps(content))
    done = seqpipe("train", "new.yaml", folder=tmp_path)
    assert done.code == 2
    assert ": has format 1, of an older seqpipe; this one reads format 2: " in done.err


def test_a_checkpoint_of_an_older_form_is_refused(run: Path) -> None:
    with pytest.raises(UsageError, match=r"last\.ckpt: has format 1, of an older seqpipe; this one reads format 2: "):
        checkpoint.load(run / "checkpoints/last.ckpt")


def test_a_run_of_a_newer_form_is_refused(run: Path) -> None:
    state = json.loads((run / "learned.json").read_text())
    (run / "learned.json").write_text(json.dumps(state | {"form": 3}))
    with pytest.raises(UsageError, match=r"learned\.json: has format 3, of a newer seqpipe"):
        Artifacts.load(run)
