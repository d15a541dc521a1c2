"""Texts with one label each, through training, export, evaluation and a bundle; with a head's own metric."""

import contextlib
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from factory import QUIET, labelling, plugins, seqpipe, toy_heads, write_jsonl
from serving import Server

from seqpipe import load as open_bundle
from seqpipe.answers.classification import Label
from seqpipe.config.dataflow import explain
from seqpipe.config.loader import Config, load
from seqpipe.console import Console
from seqpipe.errors import DataError, PluginError, TrainingError, UsageError
from seqpipe.features.document import Doc
from seqpipe.pipeline.check import check_export
from seqpipe.pipeline.full_run import run_all
from seqpipe.pipeline.scoring import score_target
from seqpipe.plugin import Metric
from seqpipe.runtime.evaluate import evaluate
from seqpipe.runtime.manifest import MetricsOwner
from seqpipe.training.datasets import read
from seqpipe.training.fit import fit_artifacts


def labels(folder: Path, *overrides: str) -> Config:
    return load(labelling(folder), overrides, plugins(**toy_heads()))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a finished run."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("labels")
    with contextlib.chdir(folder):
        run_all(labels(folder), QUIET, "cpu")
        yield folder


def test_the_labels_are_learned_and_the_bundle_tells_them(finished: Path) -> None:
    scores = json.loads((finished / "runs/moods/metrics.json").read_text())["test"]
    assert scores["accuracy"] == 1.0
    model = open_bundle(finished / "runs/moods/bundle", "cpu")
    answer = model("a lovely x day")
    assert (answer["label"], answer["score"] > 0.5) == ("good", True)
    assert model(["a sad z day", ""]) == [model("a sad z day"), {"label": None, "score": 0.0}]
    assert model.verify() == []
    assert model.manifest.answer == {"kind": "label", "labels": ["bad", "fine", "good"], "target": None}


def test_a_heads_own_metric_stands_before_the_kinds_and_is_the_headline(finished: Path) -> None:
    scores = json.loads((finished / "runs/moods/metrics.json").read_text())["test"]
    assert list(scores) == ["mean_absolute_error", "accuracy", "macro_f1", "labels"]
    assert scores["mean_absolute_error"] == 0.0
    model = open_bundle(finished / "runs/moods/bundle", "cpu")
    owner = MetricsOwner(use="mean", distribution="toys", version="1.0", options={"order": ["bad", "fine", "good"]})
    assert model.manifest.own_metrics == {"": owner}


def test_a_heads_metric_without_a_direction_stands_behind_and_decides_nothing(tmp_path: Path) -> None:
    heads = toy_heads()
    heads["mean"][1].score_types = {}  # type: ignore[attr-defined]
    config = load(labelling(tmp_path), ["train.epochs=1"], plugins(**heads))
    with contextlib.chdir(tmp_path):
        scores = (run_all(config, QUIET, "cpu").scores or {})["test"]
    assert list(scores) == ["accuracy", "macro_f1", "mean_absolute_error", "labels"]


def test_a_bundle_is_scored_by_the_heads_metric_only_where_the_head_is_installed(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = Path("runs/moods/bundle")
    without = score_target(bundle, Console())
    assert list(without["test"]) == ["accuracy", "macro_f1", "labels"]
    assert (
        "note: the metrics of head toys/mean 1.0 are not installed: no head named 'toys/mean'"
        in capsys.readouterr().err
    )
    monkeypatch.setattr("seqpipe.pipeline.scoring.Plugins", lambda **files: plugins(**toy_heads()))
    assert score_target(bundle, Console())["test"] == {**without["test"], "mean_absolute_error": 0.0}
    assert "absent" not in capsys.readouterr().err


def test_a_head_named_with_its_distribution_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = labels(tmp_path, "head.use=toys/mean", "train.epochs=1")
    monkeypatch.setattr("seqpipe.pipeline.scoring.Plugins", lambda **files: plugins(**toy_heads()))
    with contextlib.chdir(tmp_path):
        run_all(config, QUIET, "cpu")
        assert "mean_absolute_error" in score_target(Path("runs/moods/bundle"), QUIET)["test"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_metric_that_is_no_number_is_null_in_every_file(value: float, tmp_path: Path) -> None:
    heads = toy_heads()
    heads["mean"][1].metrics = staticmethod(lambda options, gold, predicted: {"correlation": value})  # type: ignore[attr-defined]
    config = load(labelling(tmp_path), ["train.epochs=1", "train.metric=accuracy"], plugins(**heads))
    with contextlib.chdir(tmp_path):
        run_all(config, QUIET, "cpu")
        scores = run_all(config, QUIET, "cpu").scores  # reads what the first run wrote
    run = tmp_path / "runs/moods"
    bundle = (run / "bundle/bundle.json").read_text()
    for text in ((run / "metrics.json").read_text(), (run / "checkpoints/metrics.jsonl").read_text(), bundle):
        assert '"correlation": null' in text
        assert not {"NaN", "Infinity"} & {*re.findall(r"\w+", text)}
    assert (scores or {})["test"]["correlation"] is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_headline_that_is_no_number_decides_nothing(value: float, tmp_path: Path) -> None:
    heads = toy_heads()
    heads["mean"][1].metrics = staticmethod(lambda options, gold, predicted: {"correlation": value})  # type: ignore[attr-defined]
    heads["mean"][1].score_types = {"correlation": Metric()}  # type: ignore[attr-defined]
    config = load(labelling(tmp_path), ["train.epochs=2"], plugins(**heads))
    with (
        contextlib.chdir(tmp_path),
        pytest.raises(TrainingError, match="the dev score was NaN or infinite in each of 2 epochs"),
    ):
        run_all(config, QUIET, "cpu")


def test_of_a_headline_that_the_head_states_as_an_error_less_is_better(finished: Path) -> None:
    lines = (finished / "runs/moods/checkpoints/metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    errors = [row["dev"]["mean_absolute_error"] for row in rows]
    assert len({*errors}) > 1
    ranks = [(error, row["dev"]["loss"]) for error, row in zip(errors, rows, strict=True)]  # the loss breaks ties
    assert [row["best"] for row in rows] == [
        rank < min(ranks[:i], default=(math.inf, math.inf)) for i, rank in enumerate(ranks)
    ]


def test_the_bundle_states_the_kinds_score_as_compared(finished: Path) -> None:
    parity = open_bundle(finished / "runs/moods/bundle", "cpu").manifest.parity
    assert (parity["metric"], parity["pytorch"]) == ("accuracy", parity["onnxruntime"])


def test_the_heads_metric_is_split_by_a_field_too(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqpipe.pipeline.scoring.Plugins", lambda **files: plugins(**toy_heads()))
    found = score_target(Path("runs/moods/bundle"), QUIET, by="label")["test"]
    assert all("mean_absolute_error" in scores for scores in found.values())
    assert set(found) == {"", "label=bad", "label=fine", "label=good"}


def test_whole_numbers_are_labels_as_texts(tmp_path: Path) -> None:
    config = labels(tmp_path)
    records = [{"text": "a", "label": 10}, {"text": "b", "label": 2}, {"text": "c", "label": 2}]
    labels_of = fit_artifacts(config, records).tasks[0].labels
    assert (labels_of, labels_of.counts) == (("10", "2"), [1, 2])


def test_a_record_without_the_label_is_told(tmp_path: Path) -> None:
    config = labels(tmp_path, "head.target=mood")
    with pytest.raises(DataError, match=r"train\.jsonl:1: no field 'mood'"):
        fit_artifacts(config, read(config.data.reader, config.data.train))


def test_a_dev_label_that_training_never_saw_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = labels(tmp_path, "name=unseen", "train.epochs=1", "data.unseen_labels=miss")
    with (tmp_path / "dev.jsonl").open("a") as file:
        file.write('{"text": "a strange day", "label": "odd"}\n')
    with contextlib.chdir(tmp_path), pytest.raises(PluginError, match="`metrics` raised ValueError"):
        run_all(config, Console(), "cpu")  # the toy's metric knows no place for it
    assert "the dev set has 1 label that training never saw: 'odd' (" in capsys.readouterr().err


def test_explain_gives_the_shapes_of_this_answer_kind(tmp_path: Path) -> None:
    config = labels(tmp_path)
    rows = [line.split() for line in explain(config.inputs, config.head).splitlines()]
    assert ["label", "(B,)", "int64", "data", "(target", "of", "head)", "head.loss"] in rows


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda options, gold, predicted: {"accuracy": 0.5}, "returns 'accuracy', a name of its answer kind"),
        (lambda options, gold, predicted: {"far": "away"}, "`metrics` raised ValueError"),
        (lambda options, gold, predicted: None, "`metrics` raised AttributeError"),
    ],
)
def test_a_metric_that_will_not_do_is_the_heads_fault(finished: Path, made: object, told: str) -> None:
    from seqpipe.config.contract import head_metrics

    predictor = open_bundle(finished / "runs/moods/bundle", "cpu").predictor
    own = head_metrics(type("Head", (), {"metrics": staticmethod(made)}), {}, "head 'far' of toys")
    assert own
    predictor.metrics = {"": own}
    with pytest.raises(PluginError, match=told):
        evaluate(predictor, [{"text": "a sad x day", "label": "bad"}])


def test_metrics_with_another_signature_are_an_error_of_the_yaml(tmp_path: Path) -> None:
    mean = toy_heads()["mean"][1]
    odd = type("Odd", (mean,), {"metrics": staticmethod(lambda gold, predicted: {})})
    with pytest.raises(
        Exception, match=r"head 'mean' of toys: `metrics` must be a static method of options, gold, pred"
    ):
        load(labelling(tmp_path), (), plugins(mean=("head", odd)))


def test_check_knows_a_label_that_comes_late_in_the_file(tmp_path: Path) -> None:
    config = labels(tmp_path, "head={use: label, class_weights: {late: 2.0}}")
    lines = (tmp_path / "train.jsonl").read_text()
    (tmp_path / "train.jsonl").write_text(lines * 4 + '{"text": "a late day", "label": "late"}\n' * 2)
    check_export(config, QUIET)


def test_n_best_gives_the_probability_of_each_label(finished: Path) -> None:
    model = open_bundle(finished / "runs/moods/bundle", "cpu")
    best, everything = model("a sad z day"), model("a sad z day", n_best="all")
    assert [*model.labels] == ["bad", "fine", "good"]
    assert everything[0] == best
    assert {answer["label"] for answer in everything} == {*model.labels}
    scores = [answer["score"] for answer in everything]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1, abs=1e-5)
    assert model("a sad z day", n_best=2) == everything[:2]
    assert model("a sad z day", n_best=1) == best
    assert model(["a sad z day", ""], n_best=3) == [everything, [{"label": None, "score": 0.0}]]
    assert [*model(iter(["a sad z day"]), n_best="all")] == [everything]
    assert "options=['n_best']" in repr(model)
    with pytest.raises(UsageError, match="n_best: must be a whole number or 'all', not 'many'"):
        model("fine", n_best="many")
    assert "answer='label'" in repr(model)
    for wrong, message in ((4, "n_best: 4 is not between 1 and 3"), ("most", "n_best: must be"), (True, "must be")):
        with pytest.raises(UsageError, match=message):
            model("a sad z day", n_best=wrong)


def test_n_best_of_several_labels_a_text_is_the_probability_of_each(tmp_path: Path) -> None:
    head = {"use": "label", "multi": True, "target": "moods"}
    path = labelling(tmp_path, {"head": head, "train": {"epochs": 2, "threads": 1}})
    for file in tmp_path.glob("*.jsonl"):
        records = map(json.loads, file.read_text().splitlines())
        write_jsonl(file, [{"text": record["text"], "moods": [record["label"], "any"]} for record in records])
    with contextlib.chdir(tmp_path):
        run_all(load(path), QUIET, "cpu")
    bundle = tmp_path / "runs/moods/bundle"
    model = open_bundle(bundle, "cpu")
    plain, everything = model("a sad z day"), model("a sad z day", n_best="all")
    assert [answer["label"] for answer in everything[:1]] == ["any"]
    assert {answer["label"] for answer in everything} == {"any", "bad", "fine", "good"}
    scores = [answer["score"] for answer in everything]
    assert scores == sorted(scores, reverse=True)
    assert plain == [answer for answer in everything if answer["score"] >= 0.5] != everything
    assert model("a sad z day", n_best=2) == everything[:2]
    assert model("a sad z day", n_best=1) == plain
    assert model("", n_best="all") == []
    done = seqpipe("predict", bundle, "--n-best", "all", stdin=b"a sad z day\n")
    assert json.loads(done.out) == everything
    assert model.predictor.task.predicted(plain) == sorted(answer["label"] for answer in plain)
    with pytest.raises(UsageError, match="n_best: 5 is not between 1 and 4"):
        model("fine", n_best=5)


def test_every_command_that_answers_takes_n_best(finished: Path) -> None:
    bundle = finished / "runs/moods/bundle"
    expected = open_bundle(bundle, "cpu")("a sad z day", n_best="all")
    for arguments in (("--n-best", "all"), ("--option", "n_best=all"), ("--option", "n_best=3")):
        done = seqpipe("predict", bundle, *arguments, stdin=b"a sad z day\n")
        assert (done.code, json.loads(done.out)) == (0, expected), done.err
    assert "n_best: 7 is not between 1 and 3" in seqpipe("predict", bundle, "--n-best", "7", stdin=b"a\n").err


def test_the_server_takes_n_best_and_describes_it(finished: Path) -> None:
    bundle = finished / "runs/moods/bundle"
    model = open_bundle(bundle, "cpu")
    with Server(f"moods={bundle}", "--max-beams", "2") as server:
        for n_best in (1, 2, 3, "all"):
            reply = server.post("/v1/moods", {"inputs": "a sad z day", "options": {"n_best": n_best}})
            assert (reply.status, reply.json) == (200, {"answer": model("a sad z day", n_best=n_best)})
        for wrong in (0, 4, "most", None, 1.5, True, [1]):
            refused = server.post("/v1/moods", {"inputs": "a sad z day", "options": {"n_best": wrong}})
            assert (refused.status, "n_best: " in refused.json["error"]) == (422, True), refused.json
        described = server.get("/v1/moods").json["options"]
        meaning = model.predictor.kind.answer_options["n_best"]["description"]
        expected = {"type": "int", "default": 1, "minimum": 1, "maximum": 3, "const": "all", "description": meaning}
        assert described == {"n_best": expected}
        options = server.get("/openapi.json").json["components"]["schemas"]["moods.Options"]["properties"]
        count = {"type": "integer", "minimum": 1, "maximum": 3}
        anything = {"anyOf": [count, {"const": "all"}], "default": 1, "description": meaning}
        assert options == {"n_best": anything}
        tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a sad z day"]}
        body = {"inputs": [tensor], "parameters": {"n_best": 3}}
        outputs = {
            output["name"]: output["data"] for output in server.post("/v2/models/moods/infer", body).json["outputs"]
        }
        assert model("a sad z day")["label"] in str(outputs)


def test_a_label_that_a_threshold_decides_stands_first() -> None:
    kind = Label(["no", "maybe", "yes"])
    scores = np.array([[0.2, 0.5, 0.3]], np.float32)
    decision = {"label": np.array([2]), "scores": scores, "n_best": np.zeros(3, np.int64)}
    (answer,) = kind.answers([Doc("x", ["x"], [(0, 1)], [4])], decision)
    assert isinstance(answer, list)
    assert [part["label"] for part in answer] == ["yes", "maybe", "no"]
