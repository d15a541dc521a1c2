"""A run makes its needs first, in order, whole and once; ends with excerpts of answers; and scores raw text."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_pipelines import QUIET, SMALL_TAGGER, fail_with, load_tagger, seqpipe, succeed, write_tagger

from seqpipe import Pipeline, Run
from seqpipe.api.model import load as load_bundle
from seqpipe.config.loader import load_config
from seqpipe.console import Console, text_width
from seqpipe.errors import ConfigError
from seqpipe.runs import full_run
from seqpipe.runs.scoring import score_raw_text
from seqpipe.runtime.manifest import Golden, Limits

# Needs


LSTM: dict[str, Any] = {"use": "lstm", "hidden": 4, "init": "../runs/first"}
SMALL = {"embedding": {"use": "lookup", "dim": 4}, "train": {"epochs": 1, "threads": 1}}


def pipeline(folder: Path, name: str, **changes: Any) -> Path:
    """A tiny pipeline in the folder `yaml`, beside the folder of runs."""
    (folder / "yaml").mkdir(exist_ok=True)
    path = write_tagger(folder / "yaml", {"name": name, "encoder": {"use": "lstm", "hidden": 4}, **SMALL, **changes})
    return path.rename(path.with_name(f"{name}.yaml"))


def chain(folder: Path, path: str = "../runs/first") -> Path:
    """A pipeline that starts from the run of another."""
    pipeline(folder, "first")
    return pipeline(folder, "second", needs=[{"path": path, "run": "first.yaml"}], encoder=LSTM | {"init": path})


def test_check_names_the_run_that_is_needed_and_run_makes_it_once(tmp_path: Path) -> None:
    path = chain(tmp_path)
    checked = seqpipe("check", path, "--json", folder=tmp_path)
    assert "needs runs/first: the run of yaml/first.yaml, which is run first" in checked.err
    assert (checked.code, json.loads(checked.out)) == (0, {"file": str(path), "doubtful": [], "needs": ["runs/first"]})
    assert not (tmp_path / "runs").exists()
    done = succeed("train", path, "--device", "cpu", folder=tmp_path)
    assert "second needs runs/first: the run of yaml/first.yaml" in done.err
    assert done.err.index("training first") < done.err.index("training second")
    assert "encoder: starts from runs/first" in done.err
    assert (tmp_path / "runs/first/bundle/model.onnx").is_file()
    again = seqpipe("train", path, "--device", "cpu", folder=tmp_path)
    assert (again.code, "needs" in again.err) == (0, False)


def test_a_caller_gets_only_the_epochs_of_its_own_pipeline(folder: Path) -> None:
    histories: list[int] = []
    Pipeline(chain(folder)).train(device="cpu", on_epoch=lambda history: histories.append(len(history)))
    assert histories == [1]
    assert len(Run("runs/first").history) == 1


def test_an_interrupted_run_is_needed_where_the_yaml_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(chain(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    states = iter(({"progress": {"done": False}}, {"progress": {"done": True}}))
    assert seqpipe("train", tmp_path / "yaml/first.yaml", "--device", "cpu", folder=tmp_path).code == 0
    monkeypatch.setattr(full_run.checkpoint, "load", lambda path: next(states))
    assert [step.need.path for step in full_run.missing_needs(config)] == [tmp_path / "runs/first"]
    assert full_run.missing_needs(config) == []


def test_a_tiny_bert_is_made_of_the_training_texts(tmp_path: Path) -> None:
    bert = {"use": "pretrained", "checkpoint": "models/bert"}
    need = {"path": "models/bert", "make": "tiny-bert", "pieces": 60}
    words = [bert, {"use": "words"}]
    path = pipeline(tmp_path, "tagger", needs=[need], tokenizer=bert, embedding=None, encoder=words)
    assert full_run.make_needs(load_config(path), QUIET, full_run.RunOptions("cpu"))
    assert not full_run.make_needs(load_config(path), QUIET, full_run.RunOptions("cpu"))
    folder = tmp_path / "yaml/models/bert"
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert {"[CLS]", "##a", "in"} <= vocabulary.keys()
    assert len(vocabulary) <= 60
    assert [file.name for file in folder.parent.iterdir()] == ["bert"]  # nothing half-written beside it
    checked = seqpipe("check", path, "--static", folder=tmp_path)
    assert (checked.code, "needs" in checked.err) == (0, False)


def test_a_run_that_an_override_replaces_is_not_needed(tmp_path: Path) -> None:
    path = chain(tmp_path)
    assert load_config(path).needs
    assert load_config(path, ["encoder.init=null"]).needs == ()


def test_pipelines_that_need_each_other_are_an_error(tmp_path: Path) -> None:
    path = chain(tmp_path)
    back = [{"path": "../runs/second", "run": "second.yaml"}]
    pipeline(tmp_path, "first", needs=back, encoder=LSTM | {"init": "../runs/second"})
    done = fail_with(2, "first.yaml:", "run", path, folder=tmp_path)
    assert "needs.0: pipelines need each other in a cycle: second.yaml -> first.yaml -> second.yaml" in done.err
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_is_no_run_of_its_yaml_is_an_error(tmp_path: Path) -> None:
    path = chain(tmp_path, "../runs/one")
    with pytest.raises(ConfigError, match=r"needs\.0\.path: the run of first.yaml is called 'first'; end the path"):
        full_run.missing_needs(load_config(path))


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
def test_wrong_entries_are_named(tmp_path: Path, needs: Any, message: str) -> None:
    path = chain(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(path, [f"needs={json.dumps(needs)}"])


# Answers


WORDS = " ".join(f"word{number}" for number in range(100))


def test_a_text_that_fits_stands_whole_on_one_line() -> None:
    assert full_run.cut_line("one\ntwo  three\t four", 30) == "one two three four"
    text = "x" * full_run.ANSWER_WIDTH
    assert full_run.cut_line(text, full_run.ANSWER_WIDTH) == text


@pytest.mark.parametrize("word", ["word0", "word20", "word50", "word98", "word99"])
def test_a_long_text_is_cut_between_words_around_the_place_that_matters(word: str) -> None:
    cut = full_run.cut_line(WORDS, 60, WORDS.index(word))
    assert word in cut.split()
    assert 40 <= len(cut) <= 64
    kept = cut.removeprefix("… ").removesuffix(" …")
    assert f" {kept} " in f" {WORDS} "
    assert cut.startswith("…") == (not WORDS.startswith(kept))
    assert cut.endswith("…") == (not WORDS.endswith(kept))


def test_a_text_without_blanks_is_cut_by_its_columns() -> None:
    cut = full_run.cut_line("春江潮水连海平" * 30, 60, 100)
    assert (cut[:2], cut[-2:], text_width(cut)) == ("… ", " …", 64)


def test_few_lines_stand_below_each_other_and_many_are_joined() -> None:
    assert full_run.shorten_lines(["Ada: PER", "Oslo: LOC"]) == ["Ada: PER", "Oslo: LOC"]
    assert full_run.shorten_lines(list("abcde")) == ["a; b; c; d; e"]
    lines = [f"word{number}: NOUN (0.99)" for number in range(40)]
    (line,) = full_run.shorten_lines(lines)
    count = line.count("NOUN")
    assert line == f"{'; '.join(lines[:count])}; … and {40 - count} more"
    assert count > 5


def test_the_answers_of_a_bundle_are_shown_with_their_texts(capsys: pytest.CaptureFixture[str]) -> None:
    passage = f"{WORDS} Ada\nlives in Oslo. {WORDS}"
    a = passage.index("Ada")
    golden: list[dict[str, Any]] = [
        {"record": {"question": "Who?", "text": passage}, "answer": {"answer": "Ada", "start": a, "end": a + 3}},
        {"record": {"words": ["a", "b"]}, "answer": {"answer": "", "start": 0, "end": 0}},
        {"record": {"points": [[0.125, 0.25]] * 40}, "answer": {"answer": "0 1"}},
        {"record": {"text": "left out"}, "answer": {"answer": "c"}, "options": {"n_best": 3}},
    ]
    kind = SimpleNamespace(lines=lambda answer: [answer["answer"] or "(nothing)"])
    manifest = SimpleNamespace(golden=[Golden.model_validate(example) for example in golden])
    model: Any = SimpleNamespace(manifest=manifest, predictor=SimpleNamespace(kind=kind))
    full_run.print_answers(model, [], "test", Console())
    blank, title, *lines = capsys.readouterr().err.splitlines()
    assert (blank, title) == ("", "answers of the bundle to test records:")
    assert lines[0].startswith("  Who? | … word")
    assert " Ada lives in Oslo. word0 " in lines[0]
    assert lines[1:4] == ["    Ada", "  a b", "    (nothing)"]
    assert lines[4].endswith(", …")
    assert len(lines[4]) <= full_run.INPUT_WIDTH + 4
    assert len(lines) == 6


# Raw text


def test_a_tokenizer_that_cuts_words_is_warned_of_and_scored_on_raw_text(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    letters = r"tokenizer={use: words, pattern: \w}"
    scores = full_run.run_all(
        load_tagger(folder, *SMALL_TAGGER, letters, "train.epochs=6", "train.batch_size=4"),
        Console(0),
        full_run.RunOptions("cpu"),
    ).scores
    assert scores is not None
    raw = scores["test (raw)"]
    assert list(scores) == ["test", "test (raw)"]
    assert raw["f1"] < scores["test"]["f1"] - 0.02
    assert raw["split_otherwise"] > 0.5
    messages = capsys.readouterr().err.splitlines()
    (warning,) = [line for line in messages if "split differently" in line and "warning" in line]
    assert "on raw text" in warning
    assert r"""with `tokenizer: {use: words, pattern: "\\w+|[^\\w\\s]"}` it is 0.0 %""" in warning
    card = (folder / "runs" / "tiny" / "bundle" / "README.md").read_text()
    assert "| test (raw) | f1 |" in card
    share = f"{100 * raw['split_otherwise']:.1f} %"
    assert f"test (raw): the text alone is given, as in deployment; {share}" in card


def test_raw_text_that_is_refused_has_no_score(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predictor = load_bundle(tiny_bundle, "cpu").predictor
    predictor.limits = Limits(tokens=2)
    records = [{"text": "Anna-Lena", "words": ["Anna-Lena"], "tags": ["B-person"]}]
    assert score_raw_text(predictor, "test", records, {"f1": 1.0}, {}, Console(0)) == {}
    message = capsys.readouterr().err
    assert "warning: 100.0 % of 1 words are split differently" in message
    assert "it cannot be scored: " in message


def test_an_answer_that_is_one_of_several_references_is_as_expected() -> None:
    task = SimpleNamespace(
        question=lambda record: record,
        gold=lambda record: record["answers"],
        predicted=lambda answer: answer,
        is_comparable=True,
        is_right=lambda gold, predicted: predicted in gold,
        mistakes=lambda gold, predicted: {"expected": gold, "got": predicted},
    )
    predictor: Any = SimpleNamespace(task=task, kind=SimpleNamespace(is_generated=False))
    record = {"answers": ["Bern", "in Bern"]}
    assert [*full_run.expected_lines(predictor, record, "in Bern")] == ["as expected"]
    assert [*full_run.expected_lines(predictor, record, "B")] == ['expected: ["Bern", "in Bern"]']
