"""What a pipeline needs is made by its first run, in order, whole, and once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from factory import QUIET, seqpipe, tagging

from seqpipe import Pipeline, Run
from seqpipe.config.loader import load
from seqpipe.errors import ConfigError
from seqpipe.pipeline import full_run as needs_module
from seqpipe.pipeline.full_run import make_needs, missing_needs

LSTM: dict[str, Any] = {"use": "lstm", "hidden": 4, "init": "../runs/first"}
SMALL = {"embedding": {"use": "lookup", "dim": 4}, "train": {"epochs": 1, "threads": 1}}


def pipeline(folder: Path, name: str, **changes: Any) -> Path:
    """A tiny pipeline in the folder `yaml`, beside the folder of runs."""
    (folder / "yaml").mkdir(exist_ok=True)
    path = tagging(folder / "yaml", {"name": name, "encoder": {"use": "lstm", "hidden": 4}, **SMALL, **changes})
    return path.rename(path.with_name(f"{name}.yaml"))


def chain(folder: Path) -> Path:
    """A pipeline that starts from the run of another."""
    pipeline(folder, "first")
    return pipeline(folder, "second", needs=[{"path": "../runs/first", "run": "first.yaml"}], encoder=LSTM)


def test_check_says_what_would_be_run_and_run_runs_it_once(tmp_path: Path) -> None:
    path = chain(tmp_path)
    checked = seqpipe("check", path, "--json", folder=tmp_path)
    assert "needs runs/first: the run of yaml/first.yaml, which is run first" in checked.err
    assert (checked.code, json.loads(checked.out)) == (0, {"file": str(path), "doubtful": [], "needs": ["runs/first"]})
    assert not (tmp_path / "runs").exists()
    done = seqpipe("train", path, "--device", "cpu", folder=tmp_path)
    assert done.code == 0, done.err
    assert "second needs runs/first: the run of yaml/first.yaml" in done.err
    assert done.err.index("training first") < done.err.index("training second")
    assert "encoder: starts from runs/first" in done.err
    assert (tmp_path / "runs/first/bundle/model.onnx").is_file()
    again = seqpipe("train", path, "--device", "cpu", folder=tmp_path)
    assert (again.code, "needs" in again.err) == (0, False)


def test_the_function_of_a_caller_hears_only_of_the_epochs_of_its_own_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    histories: list[int] = []
    Pipeline(chain(tmp_path)).train(device="cpu", on_epoch=lambda history: histories.append(len(history)))
    assert histories == [1]
    assert len(Run("runs/first").history) == 1


def test_runs_stand_where_the_yaml_says_and_an_interrupted_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load(chain(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    states = iter(({"progress": {"done": False}}, {"progress": {"done": True}}))
    assert seqpipe("train", tmp_path / "yaml/first.yaml", "--device", "cpu", folder=tmp_path).code == 0
    monkeypatch.setattr(needs_module.checkpoint, "load", lambda path: next(states))
    assert [step.need.path for step in missing_needs(config)] == [tmp_path / "runs/first"]
    assert missing_needs(config) == []


def test_a_tiny_bert_is_made_of_the_training_texts(tmp_path: Path) -> None:
    bert = {"use": "pretrained", "checkpoint": "models/bert"}
    need = {"path": "models/bert", "make": "tiny-bert", "pieces": 60}
    words = [bert, {"use": "words"}]
    path = pipeline(tmp_path, "tagger", needs=[need], tokenizer=bert, embedding=None, encoder=words)
    config = load(path)
    assert make_needs(config, QUIET, "cpu", None)
    assert not make_needs(load(path), QUIET, "cpu", None)
    folder = tmp_path / "yaml/models/bert"
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert {"[CLS]", "##a", "in"} <= vocabulary.keys()
    assert len(vocabulary) <= 60
    assert [file.name for file in folder.parent.iterdir()] == ["bert"]  # nothing half-written beside it
    checked = seqpipe("check", path, "--static", folder=tmp_path)
    assert (checked.code, "needs" in checked.err) == (0, False)


def test_what_an_override_replaces_is_not_needed(tmp_path: Path) -> None:
    path = chain(tmp_path)
    assert load(path).needs
    assert load(path, ["encoder.init=null"]).needs == ()


def test_pipelines_that_need_each_other_are_an_error(tmp_path: Path) -> None:
    back = [{"path": "../runs/second", "run": "second.yaml"}]
    path = chain(tmp_path)
    pipeline(tmp_path, "first", needs=back, encoder=LSTM | {"init": "../runs/second"})
    done = seqpipe("run", path, folder=tmp_path)
    assert done.code == 2
    assert "first.yaml:" in done.err
    assert "needs.0: pipelines need each other in a cycle: second.yaml -> first.yaml -> second.yaml" in done.err
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_is_no_run_of_its_yaml_is_an_error(tmp_path: Path) -> None:
    pipeline(tmp_path, "first")
    need = {"path": "../runs/one", "run": "first.yaml"}
    path = pipeline(tmp_path, "second", needs=[need], encoder=LSTM | {"init": "../runs/one"})
    with pytest.raises(ConfigError, match=r"needs\.0\.path: the run of first.yaml is called 'first'; end the path"):
        missing_needs(load(path))


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        ("first", "needs: should be a list of mappings such as {path: FOLDER, run: FILE.yaml}"),
        ([{"path": "a"}], "needs.0: an entry of 'needs' has a path and either run: FILE.yaml or make: tiny-bert"),
        ([{"path": "a", "run": "first.yaml", "make": "tiny-bert"}], "either run: FILE.yaml or make: tiny-bert"),
        ([{"path": "../runs/first", "run": "frist.yaml"}], "needs.0.run: no such file 'frist.yaml'"),
        ([{"path": "a", "make": "huge-bert"}], "needs.0.make: should be "),
        ([{"path": "a", "script": "make.py"}], "needs.0.script: an entry of 'needs' has no such key"),
    ],
)
def test_wrong_entries_are_told(tmp_path: Path, needs: Any, message: str) -> None:
    path = chain(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load(path, [f"needs={json.dumps(needs)}"])
    assert message in str(caught.value)
