"""The checks of what a head adds to the scores on dev: metrics of its own, and what it chooses on dev."""

from __future__ import annotations

import json
import math

import torch

from seqpipe.config.contract import dev_option, has_member, member
from seqpipe.config.signature import call
from seqpipe.runtime.evaluate import evaluate
from seqpipe.testing.bench import RAGGED, Bench, perturb, tensors
from seqpipe.testing.report import Check, FaultError, NotApplicableError
from seqpipe.testing.shapes import SHAPES
from seqpipe.training.evaluation import calibrate, predictor

METRICS, CHOSEN = "own metrics run", "what is chosen on dev stays"
_METRICS = (
    "`@staticmethod def metrics(options, gold, predicted) -> dict[str, float]`: gold and predicted are lists of what "
    "the answer kind compares (label texts, or lists of them; lists of (tag, start, end); numbers; texts; of vectors a "
    "label text and a list of numbers), and the names are new ones"
)
_CHOSEN = (
    "`evidence` returns a dict of tensors with a row a record; `calibrate` takes it, joined over all of dev, and keeps "
    "what it chooses in persistent buffers (self.register_buffer); `calibration` returns that as plain JSON data"
)


def dev_checks(bench: Bench, needs: tuple[str, ...]) -> list[Check]:
    checks = [Check(METRICS, lambda: _check_metrics(bench), _METRICS, (SHAPES, *needs))]
    if has_member(bench.subject.cls, "needs_dev"):
        checks.append(Check(CHOSEN, lambda: _check_calibration(bench), _CHOSEN, (SHAPES, *needs)))
    return checks


def _check_metrics(bench: Bench) -> None:
    if not has_member(bench.subject.cls, "metrics"):
        raise NotApplicableError("it has no `metrics` of its own, and needs none")
    model = predictor(bench.pipeline(3).eval(), bench.config)
    kind, records = bench.artifacts.kind, bench.records
    gold = [kind.gold(record) for record in records]
    predicted = [kind.predicted(answer) for answer in model.stream(records)]
    options = bench.config.head[0].options
    for expected, answers in ((gold, predicted), (gold, gold), (gold[:1], predicted[:1])):
        scores = member(bench.subject.cls, "metrics")(options, expected, answers)
        if not isinstance(scores, dict) or not all(map(_is_score, scores, scores.values())):
            raise FaultError(f"metrics returned {scores!r}, no dict from names to finite floats", _METRICS)
    lost = scores.keys() - evaluate(model, records)[""].keys()  # PluginError if a name is taken
    if lost:
        raise FaultError(f"{', '.join(sorted(lost))} do not get into the scores of `evaluate`", _METRICS)


def _is_score(name: object, value: object) -> bool:
    return isinstance(name, str) and isinstance(value, float) and math.isfinite(value)


def _check_calibration(bench: Bench) -> None:
    """Chosen on the toy records as dev, saved, and loaded into other weights: the same choice and answers."""
    if not dev_option(bench.config.head[0]):
        raise NotApplicableError("with these options it chooses nothing on dev")
    pipeline, features = perturb(bench.pipeline(3)).eval(), tensors(bench.feeds(RAGGED))
    halves = [bench.batches(list(rows)) for rows in (range(5), range(5, len(bench.examples)))]
    with torch.no_grad():
        evidence = call(pipeline.head.evidence, pipeline(halves[0]))
    if short := [name for name, rows in evidence.items() if len(rows) != len(halves[0]["mask"])]:
        raise FaultError(f"evidence returns {short[0]!r} without a row for each record", _CHOSEN)
    calibrate(pipeline, lambda: iter(halves))
    choice = pipeline.head.calibration()
    if not isinstance(choice, dict) or not _is_json(choice):
        raise FaultError(f"calibration returns {choice!r}, no plain JSON object", _CHOSEN)
    loaded = bench.pipeline(6).eval()
    loaded.load_state_dict(pipeline.state_dict())
    if (again := loaded.head.calibration()) != choice:
        raise FaultError(f"saved and loaded, {choice} becomes {again}", _CHOSEN)
    with torch.no_grad():
        first, second = (each.decide(features, {}) for each in (pipeline, loaded))
    if changed := [name for name, tensor in first.items() if not torch.equal(tensor, second[name])]:
        raise FaultError(f"saved and loaded, {changed[0]} differs", _CHOSEN)


def _is_json(value: object) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError):
        return False
