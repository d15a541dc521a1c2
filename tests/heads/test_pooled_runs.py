"""Several labels, a number, a vector, and texts out of scope: from data through training to a bundle's answers."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from factory import QUIET, write_jsonl

from seqpipe import load as open_bundle
from seqpipe.config.loader import load
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError, DataError, UsageError
from seqpipe.pipeline.full_run import run_all
from seqpipe.runtime.evaluate import evaluate
from seqpipe.training.datasets import collate, examples
from seqpipe.training.fit import fit_artifacts

WORDS = {"sun": "weather", "rain": "weather", "goal": "sport", "match": "sport", "bank": "money", "tax": "money"}
FILLERS = ("the", "a", "of", "today", "and", "here")


def texts(count: int, seed: int) -> list[dict[str, Any]]:
    """Texts of fillers and telling words: their topics, the first of these or `other`, and a number about 70."""
    dice, made = random.Random(seed), []
    for i in range(count):
        told = dice.sample(sorted(WORDS), i % 3)
        words = [*told, *dice.choices(FILLERS, k=dice.randint(2, 5))]
        dice.shuffle(words)
        topics = sorted({WORDS[word] for word in told})
        only = topics[0] if len(topics) == 1 else "other"
        score = 70.0 + 10 * words.count("sun") - 10 * words.count("tax")
        made.append({"text": " ".join(words), "labels": topics, "label": only, "score": score})
    return made


def pipeline(folder: Path, head: dict[str, Any], *overrides: str) -> Any:
    for name, count, seed in (("train", 240, 1), ("dev", 60, 2), ("test", 60, 3)):
        write_jsonl(folder / f"{name}.jsonl", texts(count, seed))
    content = {
        "name": "topics",
        "data": {"reader": "jsonl", "train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl"},
        "tokenizer": "words",
        "embedding": {"use": "lookup", "dim": 12},
        "head": head,
        "train": {"epochs": 12, "batch_tokens": 128, "optimizer": {"use": "adamw", "lr": 0.03}, "threads": 1},
    }
    (folder / "topics.yaml").write_text(dump(content))
    return load(folder / "topics.yaml", overrides)


def finished(folder: Path, head: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The scores on the test set, and the bundle opened."""
    torch.set_num_threads(1)
    config = pipeline(folder, head)
    with contextlib.chdir(folder):
        run_all(config, QUIET, "cpu")
    run = folder / "runs/topics"
    model = open_bundle(run / "bundle", "cpu")
    assert model.verify() == []
    return json.loads((run / "metrics.json").read_text())["test"], model


def test_several_labels_are_learned_and_their_threshold_is_chosen_on_dev(tmp_path: Path) -> None:
    head = {"use": "label", "multi": True, "threshold": "dev", "calibrate": True, "class_weights": "balanced"}
    scores, model = finished(tmp_path, head)
    assert scores["micro_f1"] > 0.95
    assert [one["label"] for one in model("the sun and the tax")] in (["weather", "money"], ["money", "weather"])
    assert model(["", "the of"]) == [[], model("the of")]
    chosen = model.manifest.answer["calibration"]
    assert set(chosen) == {"temperature", "ece_before", "ece_after", "threshold"}
    assert "micro_f1" in scores


def test_what_is_out_of_scope_is_refused_by_a_threshold_from_dev(tmp_path: Path) -> None:
    head = {"use": "label", "out_of_scope": "other", "threshold": "dev", "exposure": 1.0, "dropout": 0.1}
    scores, model = finished(tmp_path, head)
    assert scores["in_scope_accuracy"] > 0.9
    assert scores["out_of_scope_recall"] > 0.6
    assert model("the of a")["label"] == "other"
    assert model("a goal today")["label"] == "sport"
    assert 0 < model.manifest.answer["calibration"]["threshold"] < 1


def test_a_number_far_from_zero_is_learned(tmp_path: Path) -> None:
    scores, model = finished(tmp_path, {"use": "score", "pool": "attention"})
    assert next(iter(scores)) == "r2"
    assert scores["r2"] > 0.9
    assert model("the sun today")["score"] > 76
    assert model("") == {"score": None}


def test_vectors_of_one_label_lie_near_each_other(tmp_path: Path) -> None:
    scores, model = finished(tmp_path, {"use": "vector", "width": 5})
    assert scores["precision_at_1"] > 0.8
    sun, rain, tax = (torch.tensor(model(f"the {word}")["vector"]) for word in ("sun", "rain", "tax"))
    assert sun.norm().item() == pytest.approx(1, abs=1e-4)
    assert sun @ rain > sun @ tax
    with pytest.raises(UsageError, match="answers of kind vector are neither right nor wrong"):
        evaluate(model.predictor, texts(3, 1), errors=tmp_path / "errors.jsonl")


def test_a_batch_holds_a_row_of_zeros_and_ones_or_a_number_for_each_text(tmp_path: Path) -> None:
    some = texts(6, 1)
    for head, name, expected in (
        (
            {"use": "label", "multi": True},
            "label",
            [[float(t in one["labels"]) for t in sorted(set(WORDS.values()))] for one in some],
        ),
        ({"use": "score"}, "score", [one["score"] for one in some]),
    ):
        config = pipeline(tmp_path, head)
        artifacts = fit_artifacts(config, texts(240, 1))
        batch = collate(artifacts, examples(config, artifacts, some))
        assert batch[name].dtype == torch.float32
        assert batch[name].tolist() == expected


def test_an_out_of_scope_label_that_no_training_text_has_can_be_answered(tmp_path: Path) -> None:
    config = pipeline(tmp_path, {"use": "label", "out_of_scope": "none", "threshold": 0.5})
    labels = fit_artifacts(config, texts(40, 1)).tasks[0].labels
    assert (labels, labels.counts[labels.index("none")]) == (("money", "none", "other", "sport", "weather"), 0)


@pytest.mark.parametrize(
    ("head", "line", "told"),
    [
        ({"use": "label", "multi": True}, {"labels": "sport"}, r"train\.jsonl:241: field 'labels' is 'sport'; several"),
        ({"use": "score"}, {"score": "high"}, r"train\.jsonl:241: field 'score' is 'high'; a finite number"),
        ({"use": "vector"}, {"label": None}, r"train\.jsonl:241: field 'label' is None; a label is a text"),
    ],
)
def test_a_target_that_will_not_do_is_told_with_its_line(tmp_path: Path, head: Any, line: Any, told: str) -> None:
    config = pipeline(tmp_path, head)
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write(json.dumps({"text": "a text", **line}) + "\n")
    with contextlib.chdir(tmp_path), pytest.raises(DataError, match=told):
        run_all(config, QUIET, "cpu")


def test_what_is_chosen_on_dev_needs_dev_data_before_training(tmp_path: Path) -> None:
    head = {"use": "label", "multi": True, "threshold": "dev"}
    with pytest.raises(ConfigError, match=r"head\.threshold: .* write data\.dev"):
        pipeline(tmp_path, head, "data.dev=null")


def test_dev_data_without_a_text_out_of_scope_are_refused_before_training(tmp_path: Path) -> None:
    config = pipeline(tmp_path, {"use": "label", "out_of_scope": "none", "threshold": "dev"})
    with contextlib.chdir(tmp_path), pytest.raises(DataError, match="no dev text has the label of out_of_scope"):
        run_all(config, QUIET, "cpu")
    assert not list(tmp_path.glob("runs/*/checkpoints/*.ckpt"))
