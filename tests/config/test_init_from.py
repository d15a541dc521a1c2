"""`init` names a trained run that has such a stage; anything else is refused with its place and the fix."""

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from tiny_pipelines import write_tagger

from seqpipe.config.init_from import counterpart
from seqpipe.config.loader import load_config
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError, Problem

TITLE = {"use": "seq2seq", "name": "title", "target_tokenizer": "same"}
BODY = {"use": "seq2seq", "name": "body", "target_tokenizer": {"use": "chars"}}


@pytest.fixture
def yaml(tmp_path: Path) -> Path:
    """The tiny tagger's YAML, beside which `run` makes runs."""
    return write_tagger(tmp_path)


def run(folder: Path, **stages: Any) -> Path:
    """The files of a run of these stages that a YAML is checked against."""
    (folder / "checkpoints").mkdir(parents=True)
    for name in ("run.json", "checkpoints/last.ckpt", "checkpoints/best-0001.safetensors"):
        (folder / name).write_text("{}")
    (folder / "pipeline.yaml").write_text(dump({"tokenizer": {"use": "words"}, "head": {"use": "crf"}, **stages}))
    return folder


def problems(yaml: Path, *overrides: str) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        load_config(yaml, overrides)
    return caught.value.problems


def test_a_path_counts_from_the_folder_of_the_yaml(yaml: Path) -> None:
    run(yaml.parent / "runs/old", encoder={"use": "lstm"})
    config = load_config(yaml, ["encoder.init=runs/old", "train.seed=3"])
    assert config.inputs[0].encoder[0].common_keys["init"] == yaml.parent / "runs/old"
    assert config != load_config(yaml, ["train.seed=3"])


UNTRAINED = [
    ("run.json", r"runs/old is not a run \(no run.json\); name a folder that"),
    ("checkpoints/last.ckpt", "is not trained yet; train it first: seqpipe train .*runs/old/pipeline.yaml"),
    ("checkpoints/best-0001.safetensors", "stopped before its first epoch ended; resume it first"),
]


@pytest.mark.parametrize(("missing", "message"), UNTRAINED)
def test_a_folder_without_a_trained_run_is_refused_with_the_fix(yaml: Path, missing: str, message: str) -> None:
    old = run(yaml.parent / "runs/old", encoder={"use": "lstm"})
    (old / missing).unlink()
    (problem,) = problems(yaml, "encoder.init=runs/old")
    assert problem.key == "encoder.init"
    assert re.search(message, problem.message)
    assert load_config(yaml, ["encoder.init=runs/old"], runs=False)


def test_a_bundle_is_refused_with_the_run_that_it_was_exported_from(yaml: Path) -> None:
    old = run(yaml.parent / "runs/old", encoder={"use": "lstm"})
    (old / "bundle").mkdir()
    (old / "bundle/bundle.json").write_text("{}")
    (problem,) = problems(yaml, "encoder.init=runs/old/bundle")
    assert "is a bundle, which has no weights for training; name the run that it was exported from, " in problem.message
    assert problem.message.endswith("runs/old")


def test_a_path_from_the_working_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    yaml = write_tagger(tmp_path / "deep")
    run(tmp_path / "runs/old", encoder={"use": "lstm"})
    with contextlib.chdir(tmp_path):
        (problem,) = problems(yaml, "encoder.init=runs/old")
    assert f"a path counts from the YAML's folder, and runs/old is {tmp_path}/runs/old" in problem.message


def test_the_stage_of_the_same_place_goes_first_then_the_only_one_of_its_use(yaml: Path) -> None:
    several = [{"use": "lookup"}, {"use": "char-cnn"}, {"use": "lookup"}]
    run(yaml.parent / "a", embedding=several)
    run(yaml.parent / "b", embedding=[{"use": "char-cnn"}, {"use": "positions"}, {"use": "lookup"}])
    for folder, places in (("a", [0, 1]), ("b", [2, 0])):
        config = load_config(yaml, [f"embedding.0.init={folder}", f"embedding.1.init={folder}"])
        assert [counterpart(stage, yaml.parent / folder).number for stage in config.inputs[0].embedding] == places


THREE = {"embedding": [{"use": "positions"}, {"use": "lookup"}, {"use": "lookup"}]}
LISTED = "(it has: embedding.0 'positions', embedding.1 'lookup', embedding.2 'lookup')"
ACME = {"encoder": {"use": "lstm"}, "plugins": {"versions": {"encoder": "acme-lstm 1.0"}}}


WITHOUT_STAGE = [
    (THREE, "embedding.0.init=old", f"has several embeddings 'lookup' {LISTED}; put both at the same position"),
    (THREE, "embedding.1.init=old", f"has no embedding 'char-cnn' {LISTED}; choose a `use` that it has"),
    ({}, "encoder.init=old", "has no encoder 'lstm' (it has: none)"),
    ({}, "tokenizer={use: chars, init: old}", "has no tokenizer 'chars' (it has: tokenizer 'words')"),
    (ACME, "encoder.init=old", "has no encoder 'lstm'"),  # a component of another distribution
    ({}, "data.reader.init=old", "only beside the `use` of a tokenizer or embedding or encoder or head; delete it"),
]


@pytest.mark.parametrize(("stages", "override", "message"), WITHOUT_STAGE)
def test_a_run_without_such_a_stage_is_refused(yaml: Path, stages: dict, override: str, message: str) -> None:
    run(yaml.parent / "old", **stages)
    (problem,) = problems(yaml, override)
    assert message in problem.message


def test_a_target_tokenizer_is_found_among_those_of_the_heads(yaml: Path) -> None:
    run(yaml.parent / "old", tokenizer={"use": "words"}, head=[TITLE, BODY])
    head = "head={{use: seq2seq, target: tags, target_tokenizer: {{use: {0}, init: old}}}}"
    for use, number in (("chars", 1), ("words", 0)):
        chosen = load_config(yaml, [head.format(use)]).head[0].common_keys["target_tokenizer"]
        assert counterpart(chosen, yaml.parent / "old").number == number
    (problem,) = problems(yaml, head.format("bpe"))
    assert problem.key == "head.target_tokenizer.init"
    assert "no target tokenizer 'bpe' (it has: head.0.target_tokenizer 'words', head.1." in problem.message
