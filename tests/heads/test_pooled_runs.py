"""Several labels, a number, a vector, and texts out of scope: from data through training to a bundle's answers."""

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from gallery import gallery, train_settings, write_pipeline
from tiny_pipelines import QUIET

from seqpipe import load as open_bundle
from seqpipe.config.loader import Config, load_config
from seqpipe.errors import ConfigError, DataError, UsageError
from seqpipe.evaluation.scores import score_records
from seqpipe.runs.full_run import RunOptions, run_all
from seqpipe.training.datasets import collate, examples
from seqpipe.training.fit import fit_artifacts

TOPICS = {"sun": "weather", "rain": "weather", "goal": "sport", "match": "sport", "bank": "money", "tax": "money"}
FILLERS = ("the", "a", "of", "today", "and", "here")


def texts(count: int, seed: int) -> list[dict[str, Any]]:
    """Texts of fillers and words that give away their topics, and the first of these or `other`; and a number."""
    dice, rows = random.Random(seed), []
    for i in range(count):
        words = dice.sample(sorted(TOPICS), i % 3)
        topics = sorted({TOPICS[word] for word in words})
        words += dice.choices(FILLERS, k=dice.randint(2, 5))
        label = topics[0] if len(topics) == 1 else "other"
        text = " ".join(dice.sample(words, len(words)))
        rows.append({"text": text, "labels": topics, "label": label, "score": 70.0 + len(words)})
    return rows


def pipeline(folder: Path, *overrides: str, **head: Any) -> Config:
    content = {"tokenizer": "words", "embedding": {"use": "lookup", "dim": 12}, "head": head}
    path = write_pipeline(folder, texts, "topics", (240, 60, 60), **content, train=train_settings(12, 0.03, 128))
    return load_config(path, overrides)


def run(folder: Path, **head: Any) -> tuple[dict[str, Any], Any]:
    """The scores on the test set, and the bundle opened."""
    with contextlib.chdir(folder):
        run_all(pipeline(folder, use="label", **head), QUIET, RunOptions("cpu"))
    model = open_bundle(folder / "runs/topics/bundle", "cpu")
    assert model.verify() == []
    return json.loads((folder / "runs/topics/metrics.json").read_text())["test"], model


def test_several_labels_are_learned_and_their_threshold_is_chosen_on_dev(tmp_path: Path) -> None:
    scores, model = run(tmp_path, multi=True, threshold="dev", calibrate=True, class_weights="balanced")
    assert scores["micro_f1"] > 0.95
    assert {answer["label"] for answer in model("the sun and the tax")} == {"weather", "money"}
    assert model(["", "the of"]) == [[], model("the of")]
    assert set(model.manifest.answer["calibration"]) == {"temperature", "ece_before", "ece_after", "threshold"}


def test_a_text_out_of_scope_is_refused_by_a_threshold_from_dev(tmp_path: Path) -> None:
    scores, model = run(tmp_path, out_of_scope="other", threshold="dev", exposure=1.0, dropout=0.1)
    assert scores["in_scope_accuracy"] > 0.9
    assert scores["out_of_scope_recall"] > 0.6
    assert [answer["label"] for answer in model(["the of a", "a goal today"])] == ["other", "sport"]
    assert 0 < model.manifest.answer["calibration"]["threshold"] < 1


def test_a_number_is_learned() -> None:
    example = gallery("score")
    assert next(iter(example.scores)) == "r2"
    assert example.scores["r2"] > 0.7
    model = open_bundle(example.bundle, "cpu")
    bad, fine, good = (model(f"a {word} x day")["score"] for word in ("sad", "fair", "glad"))
    assert bad + 0.5 < fine < good - 0.5
    assert model("") == {"score": None}


def test_vectors_of_one_label_lie_near_each_other(tmp_path: Path) -> None:
    example = gallery("vector")
    assert example.scores["precision_at_1"] > 0.8
    model = open_bundle(example.bundle, "cpu")
    awful, sad, glad = (torch.tensor(model(f"a {word} x day")["vector"]) for word in ("awful", "sad", "glad"))
    assert awful.norm().item() == pytest.approx(1, abs=1e-4)
    assert awful @ sad > awful @ glad
    with pytest.raises(UsageError, match="answers of kind vector are neither right nor wrong"):
        score_records(model.predictor, texts(3, 1), errors=tmp_path / "errors.jsonl")


def test_a_batch_holds_a_row_of_zeros_and_ones_or_a_number_for_each_text(tmp_path: Path) -> None:
    records, topics = texts(6, 1), sorted(set(TOPICS.values()))
    rows = [[float(topic in record["labels"]) for topic in topics] for record in records]
    for name, options, expected in (
        ("label", {"multi": True}, rows),
        ("score", {}, [record["score"] for record in records]),
    ):
        config = pipeline(tmp_path, use=name, **options)
        artifacts = fit_artifacts(config, texts(240, 1))
        batch = collate(artifacts, examples(config, artifacts, records))
        assert batch[name].dtype == torch.float32
        assert batch[name].tolist() == expected


def test_an_out_of_scope_label_that_no_training_text_has_can_be_answered(tmp_path: Path) -> None:
    config = pipeline(tmp_path, use="label", out_of_scope="none", threshold=0.5)
    labels = fit_artifacts(config, texts(40, 1)).tasks[0].labels
    assert (labels, labels.counts[labels.index("none")]) == (("money", "none", "other", "sport", "weather"), 0)


@pytest.mark.parametrize(
    ("head", "line", "message"),
    [
        ({"use": "label", "multi": True}, {"labels": "sport"}, r"train\.jsonl:241: field 'labels' is 'sport'; several"),
        ({"use": "score"}, {"score": "high"}, r"train\.jsonl:241: field 'score' is 'high'; a finite number"),
        ({"use": "vector"}, {"label": None}, r"train\.jsonl:241: field 'label' is None; a label is a text"),
    ],
)
def test_a_faulty_target_is_named_with_its_line(tmp_path: Path, head: Any, line: Any, message: str) -> None:
    config = pipeline(tmp_path, **head)
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write(json.dumps({"text": "a text", **line}) + "\n")
    with contextlib.chdir(tmp_path), pytest.raises(DataError, match=message):
        run_all(config, QUIET, RunOptions("cpu"))


def test_dev_data_that_cannot_determine_a_threshold_are_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"head\.threshold: .* write data\.dev"):
        pipeline(tmp_path, "data.dev=null", use="label", multi=True, threshold="dev")
    config = pipeline(tmp_path, use="label", out_of_scope="none", threshold="dev")
    with contextlib.chdir(tmp_path), pytest.raises(DataError, match="no dev text has the label of out_of_scope"):
        run_all(config, QUIET, RunOptions("cpu"))
    assert not list(tmp_path.glob("runs/*/checkpoints/*.ckpt"))
