"""The checks of heads: targets reach the loss, and decisions and scores are as the answer kind states."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from seqpipe.answers.types import Array
from seqpipe.config.contract import decode_options, has_member, is_self_supervised
from seqpipe.features.document import Arrays
from seqpipe.testing.bench import RAGGED, Bench, perturb, tensors
from seqpipe.testing.corruption import corruption_checks
from seqpipe.testing.dev_scores import dev_checks
from seqpipe.testing.report import Check, FaultError, NotApplicableError
from seqpipe.testing.shapes import SHAPES
from seqpipe.training.pipeline import Pipeline

TARGETS, DECISION = "targets reach the loss", "decision as its answer kind states"
SCORE = "score agrees with decide"
CLOSE = 1e-3

_TARGETS = "Let `loss` ask for the target of the answer kind by its name, and compare with it at the real positions"
_DECISION = (
    "`decide` returns a dict of tensors with the names, shapes, dtypes and values that the answer kind states; 0 in "
    "the padding of ids, alternatives the best first, and -1e8 or less as the log-probability of what does not exist "
    "(docs/plugins/head.md)"
)
_SCORE = (
    "`score` takes what `decide` returns and gives (B,): the model's log-probability of just that decision, "
    "the same that decide's own scores state, for any decision that it is given. A head may also do without `score`"
)


def head_checks(bench: Bench) -> list[Check]:
    checks = _HeadChecks(bench)
    return [
        Check(TARGETS, checks.targets, _TARGETS, (SHAPES,)),
        Check(DECISION, checks.decision, _DECISION, (SHAPES,)),
        Check(SCORE, checks.score, _SCORE, (SHAPES, DECISION)),
        *dev_checks(bench, (DECISION,)),
        *corruption_checks(bench),
    ]


class _HeadChecks:
    """The checks of one head."""

    def __init__(self, bench: Bench):
        self.bench = bench

    def targets(self) -> None:
        if is_self_supervised(self.bench.config.head[0]):
            raise NotApplicableError("it is self-supervised")
        kind = self.bench.answer
        pipeline, batch = perturb(self.bench.pipeline()).eval(), self.bench.batch()
        arrays = {name: tensor.numpy() for name, tensor in batch.items()}
        names = [name for name in kind.declared_targets(self.bench.settings) if not name.endswith("_mask")]
        with torch.no_grad():
            before = pipeline.loss(batch)
            for name in names:
                target = arrays[name]
                changed = np.array(kind.other_target(name, arrays, arrays["mask"]))
                if target.ndim == 1:  # of every second record only: which are alike may be all that counts
                    changed = np.where(np.arange(len(target)) % 2 == 0, changed, target)
                other = torch.from_numpy(changed).to(batch[name].dtype)
                if torch.equal(pipeline.loss({**batch, name: other}), before):
                    raise FaultError(f"the loss is {before.item():.6g} whatever {name!r} holds", _TARGETS)

    def decided(self, size: int = 1) -> tuple[Pipeline, Arrays, Arrays]:
        """A pipeline, features, and its decision with every decode option of type size at `size`."""
        pipeline = perturb(self.bench.pipeline(3)).eval()
        features = self.bench.artifacts.featurizer.collate(self.bench.docs(RAGGED))
        options = decode_options(self.bench.subject.cls)
        sizes = {name: size for name, option in options.items() if option.type == "size" and option.default == 1}
        with torch.no_grad():
            decision = pipeline.decide(tensors(features), sizes)
        return pipeline, features, {name: tensor.numpy() for name, tensor in decision.items()}

    def decision(self) -> None:
        kind = self.bench.answer
        for size in (1, 3):
            _, features, decision = self.decided(size)
            if fault := kind.decision_fault(decision, features, self.bench.settings):
                raise FaultError(f"{fault}; its answer kind is {kind.kind!r} ({_stated(kind.decided)})", _DECISION)
        docs = self.bench.docs(RAGGED)
        answers = kind.answers(docs, self.decided()[2])
        if len(answers) != len(docs):
            raise FaultError(f"{len(answers)} answers are made of the decision about {len(docs)} texts", _DECISION)

    def score(self) -> None:
        kind = self.bench.answer
        pipeline, features, decision = self.decided()
        if not has_member(pipeline.head, "score"):
            raise NotApplicableError("it has no `score`, and needs none")
        rated = kind.rated_decisions(decision, features["mask"])
        for given_decision, expected in rated:
            got = self.scored(pipeline, features, given_decision)
            if got.shape != expected.shape:
                raise FaultError(f"score gives {got.shape}, not {expected.shape}", _SCORE)
            if not np.allclose(got, expected, rtol=CLOSE, atol=CLOSE):
                row = int(np.abs(got - expected).argmax())
                raise FaultError(f"score gives {got[row]:.4g} where decide states {expected[row]:.4g}", _SCORE)
        if not kind.choices:
            raise NotApplicableError(f"an answer of kind {kind.kind!r} states nothing about its score")
        other = kind.other_decision(decision, features["mask"])
        if np.array_equal(self.scored(pipeline, features, decision), self.scored(pipeline, features, other)):
            names = " and ".join(kind.choices[0].outputs)
            raise FaultError(f"score gives the same whatever {names!r} holds", _SCORE)

    def scored(self, pipeline: Pipeline, features: Arrays, decision: Arrays) -> np.ndarray:
        with torch.no_grad():
            score: Tensor = pipeline.score(tensors(features), tensors(decision))
        return score.numpy()


def _stated(arrays: Mapping[str, Array]) -> str:
    required = [f"{name} {array.shape} {array.dtype}" for name, array in arrays.items() if array.required]
    return ", ".join(required)
