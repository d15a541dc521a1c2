"""Self-training: learning from unlabelled texts, the round that is kept, resuming, and refusals."""

import contextlib
import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_pipelines import QUIET, SMALL_TAGGER, plugins, write_conll, write_jsonl, write_tagger, write_yaml

from seqpipe import ConfigError, DataError, Pipeline, Run, UsageError
from seqpipe.answers import tagging_schemes as schemes
from seqpipe.config.loader import load_config
from seqpipe.console import Progress
from seqpipe.runs.run_folder import load_trained
from seqpipe.runs.self_training import pseudo_labels, train_in_rounds
from seqpipe.training import checkpoint
from seqpipe.training.evaluation import predictor
from seqpipe_plugins.readers.json import Jsonl

LABELLED = {"food": ("soup", "bread", "salad"), "way": ("bus", "street", "bridge")}
UNLABELLED = {"food": ("rice", "beans", "corn", "fish"), "way": ("tram", "ferry", "track", "road")}
THRESHOLDS = [0.6, 0.9]


def texts(known: int, new: int, count: int, seed: int) -> list[dict[str, Any]]:
    """Texts of a label with some words of the labelled texts and some that only the unlabelled ones have."""
    dice = random.Random(seed)
    rows = []
    for label in ["food", "way"] * (count // 2):
        words = dice.sample(LABELLED[label], known) + dice.sample(UNLABELLED[label], new)
        rows.append({"text": " ".join(words), "label": label})
    return rows


def pipeline(folder: Path, **changes: Any) -> dict[str, Any]:
    for name, rows in (("train", texts(2, 0, 12, 1)), ("dev", texts(0, 2, 30, 2)), ("test", texts(0, 2, 40, 3))):
        write_jsonl(folder / f"{name}.jsonl", rows)
    write_jsonl(folder / "more.jsonl", [{"text": row["text"]} for row in [*texts(2, 2, 60, 4), {"text": ""}]])
    sets = {"train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl", "unlabelled": "more.jsonl"}
    train = {"epochs": 8, "batch_size": 6, "optimizer": {"use": "adamw", "lr": 0.03}, "threads": 1}
    content = {
        "name": "self",
        "data": {"reader": "jsonl", **sets},
        "tokenizer": "words",
        "embedding": {"use": "lookup", "dim": 8},
        "head": {"use": "label", "pool": "mean"},
        "train": {**train, "self_training": {"rounds": 2, "thresholds": [0.6, 0.9]}},
    }
    return content | changes


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, str]]:
    """A self-training, in whose folder the tests stand, and what was reported of it."""
    folder, lines = tmp_path_factory.mktemp("self"), list[str]()
    with contextlib.chdir(folder):
        run = Pipeline(pipeline(folder)).run(device="cpu", progress=lambda report: lines.append(report.text))
        yield run, "\n".join(lines)


def test_words_that_no_labelled_text_has_are_learned_from_the_unlabelled_ones(trained: tuple[Run, str]) -> None:
    run, report = trained
    rows = run.self_training
    assert [(row["round"], row["threshold"]) for row in rows][:3] == [(0, None), (1, 0.6), (1, 0.9)]
    (kept,) = (row for row in rows if row["kept"])
    assert rows[0]["dev"] < 0.75
    assert kept["round"] > 0
    assert kept["dev"] == max(row["dev"] for row in rows) == run.outcome["dev"]
    assert (run.scores or {})["test"]["accuracy"] > 0.95
    assert "self-training: the labelled data alone: dev accuracy" in report
    assert report.count(", which is kept") == 1
    names = {path.name for path in run.folder.iterdir()}
    assert "self-training" not in names
    assert {"pseudo-labels.jsonl", "self-training.json", "bundle", "training.json"} < names
    answer: Any = run.bundle.load()("rice and beans")
    assert answer["label"] == "food"


def test_training_data_are_the_answers_above_the_threshold(trained: tuple[Run, str]) -> None:
    run, _ = trained
    (kept,) = (row for row in run.self_training if row["kept"])
    rows = [json.loads(line) for line in (run.folder / "pseudo-labels.jsonl").read_text().splitlines()]
    assert len(rows) == kept["texts"]
    assert min(row["confidence"] for row in rows) >= kept["threshold"]
    unlabelled = {line["text"] for line in map(json.loads, Path("more.jsonl").read_text().splitlines())}
    assert {row["record"]["text"] for row in rows} <= unlabelled - {""}
    assert run.outcome["data"]["train"] == f"{12 + len(rows)} examples"


def test_a_finished_self_training_is_kept_and_other_texts_refused(trained: tuple[Run, str], tmp_path: Path) -> None:
    assert trained[0].folder == Path("runs/self")
    shutil.copytree(".", tmp_path, dirs_exist_ok=True)
    with contextlib.chdir(tmp_path):
        lines: list[str] = []
        Pipeline(pipeline(tmp_path)).run(device="cpu", progress=lambda report: lines.append(report.text))
        assert lines[0].startswith("runs/self is finished and nothing changed")
        Path("more.jsonl").write_text('{"text": "other"}\n')
        message = r"runs/self was made from other inputs:\n  data.unlabelled: the file's content"
        with pytest.raises(UsageError, match=message):
            Pipeline("runs/self/pipeline.yaml").run(device="cpu")


@pytest.mark.parametrize("trial", ["0", "1-0.9"])
def test_an_interrupted_self_training_ends_bit_equal(trained: tuple[Run, str], tmp_path: Path, trial: str) -> None:
    training = [""]
    rows, expected = trained[0].self_training, checkpoint.load_best(trained[0].checkpoints)

    def stop(report: Progress) -> None:
        training.append(report.text if report.text.startswith("training ") else training[-1])
        if (report.kind, report.text) == ("step", "training") and training[-1].endswith(f"self-training/{trial}"):
            raise KeyboardInterrupt

    with contextlib.chdir(tmp_path):
        interrupted = Pipeline(pipeline(tmp_path))
        with pytest.raises(KeyboardInterrupt):
            interrupted.train(device="cpu", progress=stop)
        assert Path("runs/self/self-training", trial).exists()
        with pytest.raises(UsageError, match=r"runs/self was made from other inputs:\n  train.epochs: 8 -> 7"):
            Pipeline(pipeline(tmp_path), ["train.epochs=7"]).train(device="cpu")
        for answers in Path("runs/self/self-training").glob("answers-*.jsonl"):
            answers.write_text(answers.read_text().splitlines(keepends=True)[0])  # cut by a disk that failed
        run = interrupted.train(device="cpu")
        assert run.self_training == rows
        resumed = checkpoint.load_best(run.checkpoints)
        assert all(torch.equal(resumed[name], tensor) for name, tensor in expected.items())
        Path("runs/self/self-training/2").mkdir(parents=True)  # killed before the folder was removed
        interrupted.train(device="cpu")
        assert not Path("runs/self/self-training").exists()


@pytest.mark.parametrize(("head", "reference"), [("crf", "spans"), ("{use: tags, scheme: none}", "tags")])
def test_tags_of_a_pseudo_label_are_those_of_the_answer(tmp_path: Path, head: str, reference: str) -> None:
    write_conll(tmp_path / "more.conll", 20, 5)
    reader = ["data.reader={use: conll, scheme: none}"] if reference == "tags" else []
    overrides = [SMALL_TAGGER[0], f"head={head}", *reader]
    with contextlib.chdir(tmp_path):
        run = Pipeline(write_tagger(tmp_path), [*overrides, "train.epochs=10"]).train(device="cpu")
        model = load_trained(run).network
        records = [{"text": "Ada flew to Oslo ."}, {"text": ""}, {"text": "Bob Ray left"}]
        rows, answering = pseudo_labels(model, records, "cpu"), predictor(model)
        answers: list[Any] = [*answering.stream([records[0], records[2]])]
        assert [row["record"]["text"] for row in rows] == [records[0]["text"], records[2]["text"]]
        if reference == "tags":
            assert [row["record"]["tags"] for row in rows] == [[word["entity"] for word in some] for some in answers]
            least = [min(word["score"] for word in some) for some in answers]
            assert [row["confidence"] for row in rows] == pytest.approx(least, abs=1e-5)
        else:
            task: Any = answering.task
            assert [task.gold(row["record"]) for row in rows] == [task.predicted(answer) for answer in answers]
            assert any(schemes.spans(row["record"]["tags"]) for row in rows)
        more = ["name=more", "data.unlabelled=more.conll", "train.self_training={thresholds: [0.01]}"]
        run = Pipeline("tiny.yaml", [*overrides, *more]).train(device="cpu")
        assert [row["texts"] for row in run.self_training] == [0, 20]


def test_the_confidence_in_several_labels_is_that_of_the_least_certain_one(tmp_path: Path) -> None:
    content = pipeline(tmp_path, head={"use": "label", "pool": "mean", "multi": True})
    write_jsonl(tmp_path / "train.jsonl", [{**row, "labels": [row["label"]]} for row in texts(3, 0, 8, 1)])
    content["data"] = {"reader": "jsonl", "train": "train.jsonl"}
    content["train"].pop("self_training")
    with contextlib.chdir(tmp_path):
        run = Pipeline(content).train(device="cpu")
        model, records = load_trained(run).network, [{"text": "soup bread"}, {"text": "bus soup"}]
        answers: list[Any] = list(predictor(model).stream(records, n_best=2))
        for row, answer in zip(pseudo_labels(model, records, "cpu"), answers, strict=True):
            assert row["record"]["labels"] == sorted(label["label"] for label in answer if label["score"] >= 0.5)
            least = min(max(label["score"], 1 - label["score"]) for label in answer)
            assert row["confidence"] == pytest.approx(least, abs=1e-5)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.self_training=null"], "data.unlabelled: nothing reads it; write train: {self_training: {}}, add"),
        (["data.unlabelled=null"], "train.self_training: it needs texts; name them in data.unlabelled, or delete"),
        (["data.dev=null"], "train.self_training: it needs the dev score; write data.dev, or delete self_training"),
        (["head={use: vector}"], "'vector' answers with neither labels nor tags, which train.self_training needs"),
        (["train.self_training.round=1"], "'self_training' has no such key; did you mean 'rounds'?"),
        (["train.self_training=2"], "train.self_training: should be a mapping of keys, not 2"),
        (["data.unlabelled=none.jsonl"], "data.unlabelled: no such file 'none.jsonl'"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(tmp_path: Path, overrides: list[str], message: str) -> None:
    with contextlib.chdir(tmp_path), pytest.raises(ConfigError, match=re.escape(message)):
        Pipeline(pipeline(tmp_path), overrides)


def test_an_unlabelled_text_that_is_too_long_is_named(tmp_path: Path) -> None:
    limits = ["train.max_tokens=3", "train.self_training.thresholds=[0.01]", "train.epochs=1"]
    message = r"more.jsonl:1\): 4 tokens exceed train.max_tokens"
    with contextlib.chdir(tmp_path), pytest.raises(DataError, match=message):
        Pipeline(pipeline(tmp_path), limits).train(device="cpu")


def test_records_that_are_new_in_each_epoch_cannot_have_answers_beside_them(tmp_path: Path) -> None:
    class Fresh(Jsonl):
        def changes(self, path: Path) -> bool:
            return True

        def epoch(self, path: Path, number: int) -> Iterator[Any]:
            return self.read(path)

    content = pipeline(tmp_path)
    content["data"]["reader"] = "fresh"
    config = load_config(write_yaml(tmp_path, "self", **content), (), plugins(fresh=("reader", Fresh)))
    with pytest.raises(DataError, match=r"train.jsonl: its reader yields other records .* answers cannot be added"):
        train_in_rounds(Run(tmp_path / "run", config), QUIET)
