"""Checks of heads: targets, decisions, scores, corruption of inputs, metrics, and calibration on dev."""

from __future__ import annotations

import json
import math
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from seqpipe.config.contract import (
    declaration,
    declared_corrupted_inputs,
    decode_options,
    dev_option,
    has_member,
    is_self_supervised,
    member,
)
from seqpipe.config.signature import call
from seqpipe.evaluation.scores import score_records
from seqpipe.export.graph import tensors_of
from seqpipe.features.document import Arrays
from seqpipe.testing.bench import RAGGED, SHAPES, Bench, check_bit_equal, perturb
from seqpipe.testing.kinds import KindChecks, checks_of
from seqpipe.testing.report import Check, FaultError, NotApplicableError
from seqpipe.training.evaluation import calibrate, predictor
from seqpipe.training.network import Network

CORRUPTION = "corruption as declared"
_CORRUPTION_FIX = (
    "`corrupt_batch` returns a dict with every name in `corrupted_inputs`, and reads real tokens only; in training it "
    "samples from torch's own generator, else from one with a fixed seed (`seqpipe.nn.corruption.BatchRandom`)"
)


# The checks of a head's own metrics on dev, and of its calibration on dev.

METRICS, CHOSEN = "own metrics run", "calibration is saved"
_METRICS_FIX = (
    "`@staticmethod def metrics(options, gold, predicted) -> dict[str, float]`: gold and predicted are lists of the "
    "values that the answer kind compares (label texts, or lists of them; lists of (tag, start, end); numbers; texts; "
    "for vectors a label text and a list of numbers), and the names are new"
)
_CHOSEN_FIX = (
    "`evidence` returns a dict of tensors with a row per record; `calibrate` takes it, joined over all of dev, and "
    "keeps its choice in persistent buffers (self.register_buffer); `calibration` returns the choice as plain JSON data"
)


# The checks of heads: targets reach the loss, and decisions and scores are as the answer kind declares.

TARGETS, DECISION = "targets reach the loss", "decision as its answer kind declares"
SCORE = "score agrees with decide"
LOSS_TOLERANCE = 1e-3

_TARGETS_FIX = "Let `loss` ask for the target of the answer kind by its name, and use it at the real positions"
_DECISION_FIX = (
    "`decide` returns a dict of tensors with the names, shapes, dtypes and values that the answer kind declares; 0 in "
    "the padding of ids, alternatives best first, and -1e8 or less as the log-probability of missing alternatives "
    "(docs/plugins/head.md)"
)
_SCORE_FIX = (
    "`score` takes the outputs of `decide` and returns (B,): the model's log-probability of exactly that decision, "
    "equal to the scores of `decide`, for any decision that it is given. A head needs no `score`"
)


_MEAN_LOSS_FIX = (
    "`loss` returns the mean over the texts of a batch, or over `loss_count(…)` items, so that several devices can "
    "divide a batch; a loss that needs the whole batch declares `batch_dependent = True`"
)


def head_checks(bench: Bench) -> list[Check]:
    checks, cls = _HeadChecks(bench), bench.subject.cls
    listed = [
        Check(TARGETS, checks.targets, _TARGETS_FIX, (SHAPES,)),
        Check(DECISION, checks.decision, _DECISION_FIX, (SHAPES,)),
        Check(SCORE, checks.score, _SCORE_FIX, (SHAPES, DECISION)),
        Check(METRICS, checks.metrics, _METRICS_FIX, (SHAPES, DECISION)),
        Check("the loss is a mean", checks.parts, _MEAN_LOSS_FIX, (SHAPES,)),
    ]
    if has_member(cls, "needs_dev"):
        listed.append(Check(CHOSEN, checks.calibration, _CHOSEN_FIX, (SHAPES, DECISION)))
    if has_member(cls, "corrupt_batch"):
        listed.append(Check(CORRUPTION, checks.corruption, _CORRUPTION_FIX, (SHAPES,)))
    return listed


class _HeadChecks:
    """The checks of one head."""

    def __init__(self, bench: Bench):
        self.bench = bench

    @cached_property
    def checks(self) -> KindChecks:
        return checks_of(type(self.bench.task))(self.bench.task)

    def targets(self) -> None:
        if is_self_supervised(self.bench.config.head[0]):
            raise NotApplicableError("it is self-supervised")
        task = self.bench.task
        network, batch = perturb(self.bench.network()).eval(), self.bench.batch()
        arrays = {name: tensor.numpy() for name, tensor in batch.items()}
        names = [name for name in task.declared_targets(self.bench.settings) if not name.endswith("_mask")]
        with torch.no_grad():
            before = network.loss(batch)
            for name in names:
                target = arrays[name]
                changed = np.array(self.checks.other_target(name, arrays, arrays["mask"]))
                if target.ndim == 1:  # every second record only: the loss may depend only on which records are alike
                    changed = np.where(np.arange(len(target)) % 2 == 0, changed, target)
                replaced = torch.from_numpy(changed).to(batch[name].dtype)
                if torch.equal(network.loss({**batch, name: replaced}), before):
                    raise FaultError(f"the loss is {before.item():.6g} whatever {name!r} holds")

    def parts(self) -> None:
        """Compare the loss of a batch with the mean of those of two parts, which differ in size."""
        if declaration(self.bench.config.head[0], "batch_dependent"):
            raise NotApplicableError("it declares that it needs the whole batch")
        network = perturb(self.bench.network()).eval()
        (head,) = network.head_stages
        batch = network.corrupt(self.bench.batch())  # as a whole: its random numbers depend on the shape
        size = len(batch["mask"])

        def loss_of(rows: slice) -> tuple[float, float]:
            part = {name: tensor[rows] if len(tensor) == size else tensor for name, tensor in batch.items()}
            names = network(part)
            return float(head.loss(names)), float(head.count(names))

        with torch.no_grad():
            whole, _ = loss_of(slice(size))
            losses, counts = np.array([loss_of(slice(size // 3)), loss_of(slice(size // 3, size))]).T
        mean = float((losses * counts).sum() / counts.sum())
        if not math.isclose(whole, mean, rel_tol=LOSS_TOLERANCE):
            raise FaultError(f"the loss is {whole:.6g}, and the mean of its parts {mean:.6g}")

    def decided(self, size: int = 1) -> tuple[Network, Arrays, Arrays]:
        """Return a pipeline, features, and its decision with every decode option of type size at `size`."""
        network = perturb(self.bench.network(3)).eval()
        features = self.bench.feeds(RAGGED)
        options = decode_options(self.bench.subject.cls)
        sizes = {name: size for name, option in options.items() if option.type.is_size and option.default == 1}
        return network, features, self.bench.decide(network, features, sizes)

    def decision(self) -> None:
        kind = self.bench.task.kind
        for size in (1, 3):
            _, features, decision = self.decided(size)
            if fault := self.checks.decision_fault(decision, features, self.bench.settings):
                required = {name: array for name, array in kind.decided.items() if array.required}
                stated = ", ".join(f"{name} {array.shape} {array.dtype}" for name, array in required.items())
                raise FaultError(f"{fault}; its answer kind is {kind.kind!r} ({stated})")
        docs = self.bench.docs(RAGGED)
        answers = kind.answers(docs, self.decided()[2])
        if len(answers) != len(docs):
            raise FaultError(f"the decision about {len(docs)} texts gives {len(answers)} answers")

    def score(self) -> None:
        task = self.bench.task
        network, features, decision = self.decided()
        if not has_member(network.head, "score"):
            raise NotApplicableError("it has no `score`, which is optional")
        rated = self.checks.rated_decisions(decision, features["mask"])
        for given_decision, expected in rated:
            got = self.scored(network, features, given_decision)
            if got.shape != expected.shape:
                raise FaultError(f"score returns {got.shape}, not {expected.shape}")
            if not np.allclose(got, expected, rtol=LOSS_TOLERANCE, atol=LOSS_TOLERANCE):
                row = int(np.abs(got - expected).argmax())
                raise FaultError(f"score gives {got[row]:.4g} where decide gives {expected[row]:.4g}")
        if not task.choices:
            raise NotApplicableError(f"answer kind {task.kind.kind!r} declares nothing about its score")
        changed = self.checks.other_decision(decision, features["mask"])
        if np.array_equal(self.scored(network, features, decision), self.scored(network, features, changed)):
            names = " and ".join(task.choices[0].outputs)
            raise FaultError(f"score gives the same whatever {names!r} holds")

    def scored(self, network: Network, features: Arrays, decision: Arrays) -> np.ndarray:
        with torch.no_grad():
            score: Tensor = network.score(tensors_of(features), tensors_of(decision))
        return score.numpy()

    def metrics(self) -> None:
        if not has_member(self.bench.subject.cls, "metrics"):
            raise NotApplicableError("it has no `metrics`, which are optional")
        model = predictor(self.bench.network(3).eval())
        task, records = self.bench.artifacts.task, self.bench.records
        gold = [task.gold(record) for record in records]
        predicted = [task.predicted(answer) for answer in model.stream(records)]
        options = self.bench.config.head[0].options
        for expected, answers in ((gold, predicted), (gold, gold), (gold[:1], predicted[:1])):
            scores = member(self.bench.subject.cls, "metrics")(options, expected, answers)
            if not isinstance(scores, dict) or not all(
                isinstance(name, str) and isinstance(value, float) and math.isfinite(value)
                for name, value in scores.items()
            ):
                raise FaultError(f"metrics returned {scores!r}, not a dict from names to finite floats")
        lost = scores.keys() - score_records(model, records)[""].keys()  # PluginError if a name is taken
        if lost:
            raise FaultError(f"{', '.join(sorted(lost))} are missing from the scores of `evaluate`")

    def calibration(self) -> None:
        """Choose on the toy records as dev, save, and load into other weights: the choice and answers are the same."""
        if not dev_option(self.bench.config.head[0]):
            raise NotApplicableError("with these options it chooses nothing on dev")
        network, features = perturb(self.bench.network(3)).eval(), tensors_of(self.bench.feeds(RAGGED))
        halves = [self.bench.batches(list(rows)) for rows in (range(5), range(5, len(self.bench.examples)))]
        with torch.no_grad():
            evidence = call(network.head.evidence, network(halves[0]))
        if short := [name for name, rows in evidence.items() if len(rows) != len(halves[0]["mask"])]:
            raise FaultError(f"evidence returns {short[0]!r} without a row per record")
        calibrate(network, lambda: iter(halves))
        choice = network.head.calibration()
        if not isinstance(choice, dict) or json.loads(json.dumps(choice, allow_nan=False)) != choice:
            raise FaultError(f"calibration returns {choice!r}, not a plain JSON object")
        loaded = self.bench.network(6).eval()
        loaded.load_state_dict(network.state_dict())
        if (again := loaded.head.calibration()) != choice:
            raise FaultError(f"saved and loaded, {choice} becomes {again}")
        with torch.no_grad():
            first, second = (each.decide(features, {}) for each in (network, loaded))
        check_bit_equal(first, second, "saved and loaded")

    def corruption(self) -> None:
        if not declared_corrupted_inputs(self.bench.config.head[0]):
            raise NotApplicableError("with these options it corrupts nothing")
        network, batch = perturb(self.bench.network()).eval(), self.bench.batch()
        corrupted, again = (call(network.head.corrupt_batch, batch) for _ in range(2))
        check_bit_equal(corrupted, again, "in a second call in evaluation")
        with torch.no_grad():  # the loss changes with each name that `corrupt_batch` adds
            before = network.loss(batch)
            for name in corrupted.keys() - batch.keys():
                flipped = {**batch, **corrupted, name: corrupted[name].flip(0)}
                if torch.equal(call(network.head.loss, network(flipped)), before):
                    raise FaultError(f"the loss is {before.item():.6g} whatever {name!r} holds")
        changed = call(network.head.corrupt_batch, {**batch, "ids": torch.where(batch["mask"], batch["ids"], 1)})
        real = corrupted.get("mask", batch["mask"])
        for name, tensor in corrupted.items():
            same = tensor[real] == changed[name][real] if tensor.shape == real.shape else tensor == changed[name]
            if not bool(same.all()):
                raise FaultError(f"{name!r} of real tokens depends on the ids in the padding")
        # In training the same seed gives the same corruption, and another seed a different one.
        network.head.train()
        samples = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            samples.append(call(network.head.corrupt_batch, batch))
        first, same_seed, other_seed = samples
        check_bit_equal(first, same_seed, "in training with the same seed")
        if all(torch.equal(tensor, other_seed[name]) for name, tensor in first.items()):
            raise FaultError("in training the corruption is the same for every seed")
