"""A bundle and a run that seqpipe wrote before format version 2 are refused by name, with the cure."""

import json
import shutil
from pathlib import Path

import pytest
from tiny_pipelines import fail_with, seqpipe, write_jsonl, write_tagger

from seqpipe.config.loader import load_config
from seqpipe.errors import UsageError
from seqpipe.runs.run_folder import fingerprint
from seqpipe.training import checkpoint
from seqpipe.training.artifacts import Artifacts

VERSION_1 = Path(__file__).parents[1] / "version1"  # a run of commit 9f947d1, `mlm` on `gru`, with its bundle


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(VERSION_1, tmp_path / "version-1"))


OLD_BUNDLE = "bundle.json: bundle format version 1; this seqpipe reads versions 2 to 5: "
OLD_RUN = "learned.json: has format 1, of an older seqpipe; this one reads format 2: "


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        *((f"{command} version-1/bundle", 6, OLD_BUNDLE) for command in ("verify", "predict", "evaluate")),
        *((f"{command} version-1", 2, f"version-1/{OLD_RUN}") for command in ("export", "evaluate", "vectors")),
    ],
)
def test_an_older_bundle_or_run_is_refused_with_its_cure(arguments: str, code: int, message: str, run: Path) -> None:
    done = fail_with(code, message, *arguments.split(), folder=run.parent)
    assert "`seqpipe run PIPELINE.yaml --fresh`" in done.err


def test_a_run_of_an_older_form_is_not_resumed(run: Path, tmp_path: Path) -> None:
    rows = [{"text": f"Ada flew to {place}"} for place in ("Rome", "Oslo")] * 4
    for name in ("train", "dev", "test"):
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    shutil.copytree(run, tmp_path / "runs/version-1")
    config = load_config(tmp_path / "runs/version-1/pipeline.yaml")
    (tmp_path / "runs/version-1/run.json").write_text(json.dumps({"fingerprint": fingerprint(config)}))
    for command in ("run", "train"):
        fail_with(2, OLD_RUN, command, "runs/version-1/pipeline.yaml", folder=tmp_path)
    assert seqpipe("train", "runs/version-1/pipeline.yaml", "--fresh", folder=tmp_path).code == 0


def test_training_that_starts_from_a_run_of_an_older_form_is_refused(run: Path, tmp_path: Path) -> None:
    tokenizer = {"use": "words", "init": run.name}
    file = write_tagger(tmp_path, {"tokenizer": tokenizer, "embedding": "lookup", "head": "crf"})
    fail_with(2, OLD_RUN.partition(":")[2], "train", file.name, folder=tmp_path)


def test_a_checkpoint_of_an_older_form_is_refused(run: Path) -> None:
    with pytest.raises(UsageError, match=r"last\.ckpt: has format 1, of an older seqpipe; this one reads format 2: "):
        checkpoint.load(run / "checkpoints/last.ckpt")


def test_a_run_of_a_newer_form_is_refused(run: Path) -> None:
    state = json.loads((run / "learned.json").read_text())
    (run / "learned.json").write_text(json.dumps(state | {"form": 3}))
    with pytest.raises(UsageError, match=r"learned\.json: has format 3, of a newer seqpipe"):
        Artifacts.load(run)
