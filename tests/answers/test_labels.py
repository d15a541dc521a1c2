"""Texts with one label each, through training, export, evaluation and a bundle; with a head's own metric."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gallery import gallery
from serving import Server
from tiny_pipelines import QUIET, plugins, seqpipe, toy_heads, write_classifier

from seqpipe import Model
from seqpipe import load as open_bundle
from seqpipe.answers.classification import Label
from seqpipe.config.contract import head_metrics
from seqpipe.config.loader import Config, load_config
from seqpipe.console import Console
from seqpipe.errors import PluginError, SeqpipeError, UsageError
from seqpipe.evaluation.scores import score_records
from seqpipe.features.document import Doc
from seqpipe.runs.full_run import RunOptions, run_all
from seqpipe.runs.scoring import open_target, score_target
from seqpipe.runtime.manifest import MetricsOwner
from seqpipe.training.fit import fit_artifacts


def labels(folder: Path, *overrides: str) -> Config:
    return load_config(write_classifier(folder), overrides, plugins(**toy_heads()))


@pytest.fixture(scope="module")
def model() -> Model:
    return open_bundle(gallery("plugin").bundle, "cpu")


@pytest.fixture
def installed_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqpipe.runs.scoring.Plugins", lambda **files: plugins(**toy_heads()))


def heads_with(metrics: Callable[..., Any], **changes: Any) -> dict[str, tuple[str, type]]:
    """The toy head with other metrics."""
    return {"mean": ("head", type("Mean", (toy_heads()["mean"][1],), {"metrics": staticmethod(metrics), **changes}))}


def test_labels_are_learned_and_the_bundle_answers_with_them(model: Model) -> None:
    answer = model("a lovely x day")
    assert (answer["label"], answer["score"] > 0.5) == ("good", True)
    assert model(["a sad z day", ""]) == [model("a sad z day"), {"label": None, "score": 0.0}]
    assert model.manifest.answer == {"kind": "label", "labels": ["bad", "fine", "good"], "target": None}


def test_a_metric_of_the_head_stands_before_those_of_the_kind_and_is_the_headline(model: Model) -> None:
    scores = gallery("plugin").scores
    assert list(scores) == ["mean_absolute_error", "accuracy", "macro_f1", "labels"]
    assert (scores["mean_absolute_error"], scores["accuracy"]) == (0.0, 1.0)
    owner = MetricsOwner(use="mean", distribution="toys", version="1.0", options={"order": ["bad", "fine", "good"]})
    assert model.manifest.own_metrics == {"": owner}


def test_a_bundle_is_scored_without_the_metric_of_a_head_that_is_absent(capsys: pytest.CaptureFixture[str]) -> None:
    opened = open_target(gallery("plugin").bundle, "cpu", None, Console())
    assert list(score_target(opened, Console())["test"]) == ["accuracy", "macro_f1", "labels"]
    message = "note: the metrics of head toys/mean 1.0 are not installed: no head named 'toys/mean'"
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("installed_head")
def test_a_bundle_is_scored_by_the_metric_of_an_installed_head_and_by_field(capsys: pytest.CaptureFixture[str]) -> None:
    scores = score_target(open_target(gallery("plugin").bundle, "cpu", None, Console()), Console(), by="label")["test"]
    assert {name: part["mean_absolute_error"] for name, part in scores.items()} == dict.fromkeys(
        ("", "label=bad", "label=fine", "label=good"), 0.0
    )
    assert "not installed" not in capsys.readouterr().err


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_metric_that_is_no_number_is_null(value: float, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = heads_with(lambda options, gold, predicted: {"correlation": value})
    config = load_config(write_classifier(folder), ["train.epochs=1", "head.use=toys/mean"], plugins(**heads))
    run_all(config, QUIET, RunOptions("cpu"))
    scores = (run_all(config, QUIET, RunOptions("cpu")).scores or {})["test"]  # reads what the first run wrote
    assert list(scores) == ["accuracy", "macro_f1", "correlation", "labels"]
    assert scores["correlation"] is None
    run = Path("runs/moods")
    for name in ("metrics.json", "checkpoints/metrics.jsonl", "bundle/bundle.json"):
        text = (run / name).read_text()
        assert '"correlation": null' in text
        assert not {"NaN", "Infinity"} & {*re.findall(r"\w+", text)}
    monkeypatch.setattr("seqpipe.runs.scoring.Plugins", lambda **files: plugins(**heads))
    opened = open_target(run / "bundle", "cpu", None, QUIET)
    assert "correlation" in score_target(opened, QUIET)["test"]  # of the head named with its distribution


def test_the_best_epoch_has_the_least_error_if_the_headline_is_an_error() -> None:
    lines = (gallery("plugin").run / "checkpoints/metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    ranks = [(row["dev"]["mean_absolute_error"], row["dev"]["loss"]) for row in rows]  # the loss breaks ties
    assert len({error for error, _ in ranks}) > 1
    best = [rank < min(ranks[:i], default=(math.inf, math.inf)) for i, rank in enumerate(ranks)]
    assert [row["best"] for row in rows] == best


def test_whole_numbers_are_labels_as_texts(tmp_path: Path) -> None:
    config = labels(tmp_path)
    records = [{"text": "a", "label": 10}, {"text": "b", "label": 2}, {"text": "c", "label": 2}]
    labels_of = fit_artifacts(config, records).tasks[0].labels
    assert (labels_of, labels_of.counts) == (("10", "2"), [1, 2])


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({"accuracy": 0.5}, "returns 'accuracy', a name of its answer kind"),
        ({"far": "away"}, "`metrics` raised ValueError"),
        (None, "`metrics` raised AttributeError"),
    ],
)
def test_a_wrong_metric_is_an_error_of_the_head(scores: Any, message: str) -> None:
    predictor = open_bundle(gallery("plugin").bundle, "cpu").predictor
    head = heads_with(lambda options, gold, predicted: scores)["mean"][1]
    metrics = head_metrics(head, {}, "head 'far' of toys")
    assert metrics
    predictor.metrics = {"": metrics}
    with pytest.raises(PluginError, match=message):
        score_records(predictor, [{"text": "a sad x day", "label": "bad"}])


def test_metrics_with_another_signature_are_an_error_of_the_yaml(tmp_path: Path) -> None:
    heads = heads_with(lambda gold, predicted: {})
    message = r"head 'mean' of toys: `metrics` must be a static method of options, gold, pred"
    with pytest.raises(SeqpipeError, match=message):
        load_config(write_classifier(tmp_path), (), plugins(**heads))


def test_n_best_answers_with_the_probability_of_each_label(model: Model) -> None:
    best, everything = model("a sad z day"), model("a sad z day", n_best="all")
    assert [*model.labels] == ["bad", "fine", "good"]
    assert {answer["label"] for answer in everything} == {*model.labels}
    scores = [answer["score"] for answer in everything]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1, abs=1e-5)
    assert model("a sad z day", n_best=2) == everything[:2]
    assert model("a sad z day", n_best=1) == best == everything[0]
    assert model(["a sad z day", ""], n_best=3) == [everything, [{"label": None, "score": 0.0}]]
    assert [*model(iter(["a sad z day"]), n_best="all")] == [everything]
    assert ("options=['n_best']" in repr(model), "answer='label'" in repr(model)) == (True, True)
    for value, message in (
        (4, "n_best: 4 is not between 1 and 3"),
        ("many", "n_best: must be int or 'all', not 'many'"),
        (True, "n_best: must be"),
    ):
        with pytest.raises(UsageError, match=message):
            model("a sad z day", n_best=value)


def test_n_best_of_several_labels_a_text_is_the_probability_of_each() -> None:
    model = open_bundle(gallery("labels").bundle, "cpu")
    plain, everything = model("a sad z day"), model("a sad z day", n_best="all")
    assert everything[0]["label"] == "any"
    assert {answer["label"] for answer in everything} == {"any", "bad", "fine", "good"}
    scores = [answer["score"] for answer in everything]
    assert scores == sorted(scores, reverse=True)
    assert plain == [answer for answer in everything if answer["score"] >= 0.5] != everything
    assert model("a sad z day", n_best=2) == everything[:2]
    assert model("a sad z day", n_best=1) == plain
    assert model("", n_best="all") == []
    assert model.predictor.task.predicted(plain) == sorted(answer["label"] for answer in plain)
    with pytest.raises(UsageError, match="n_best: 5 is not between 1 and 4"):
        model("fine", n_best=5)


def test_the_command_takes_n_best() -> None:
    for name, options in (
        *(("plugin", options) for options in (["--n-best", "all"], ["--option", "n_best=all"], ["--n-best", "3"])),
        ("labels", ["--n-best", "all"]),
    ):
        bundle = gallery(name).bundle
        result = seqpipe("predict", bundle, *options, stdin=b"a sad z day\n")
        assert json.loads(result.out) == open_bundle(bundle, "cpu")("a sad z day", n_best="all"), result.err
    result = seqpipe("predict", gallery("plugin").bundle, "--n-best", "7", stdin=b"a\n")
    assert "n_best: 7 is not between 1 and 3" in result.err


def test_the_server_takes_n_best_and_describes_it(model: Model) -> None:
    with Server(f"moods={gallery('plugin').bundle}", "--max-beams", "2") as server:
        for n_best in (1, 2, 3, "all"):
            reply = server.post("/v1/moods", {"inputs": "a sad z day", "options": {"n_best": n_best}})
            assert (reply.status, reply.json) == (200, {"answer": model("a sad z day", n_best=n_best)})
        for wrong in (0, 4, "most", None, 1.5, True, [1]):
            refused = server.post("/v1/moods", {"inputs": "a sad z day", "options": {"n_best": wrong}})
            assert (refused.status, "n_best: " in refused.json["error"]) == (422, True), refused.json
        meaning = model.predictor.kind.answer_options["n_best"]["description"]
        expected = {"type": "int", "default": 1, "minimum": 1, "maximum": 3, "const": "all", "description": meaning}
        assert server.get("/v1/moods").json["options"] == {"n_best": expected}
        options = server.get("/openapi.json").json["components"]["schemas"]["moods.Options"]["properties"]
        types = [{"type": "integer", "minimum": 1, "maximum": 3}, {"const": "all"}]
        assert options == {"n_best": {"anyOf": types, "default": 1, "description": meaning}}
        tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a sad z day"]}
        reply = server.post("/v2/models/moods/infer", {"inputs": [tensor], "parameters": {"n_best": 3}})
        assert model("a sad z day")["label"] in str([output["data"] for output in reply.json["outputs"]])


def test_a_label_that_a_threshold_decides_stands_first() -> None:
    kind = Label(["no", "maybe", "yes"])
    scores = np.array([[0.2, 0.5, 0.3]], np.float32)
    decision = {"label": np.array([2]), "scores": scores, "n_best": np.zeros(3, np.int64)}
    (answer,) = kind.answers([Doc("x", ["x"], [(0, 1)], [4])], decision)
    assert isinstance(answer, list)
    assert [part["label"] for part in answer] == ["yes", "maybe", "no"]
