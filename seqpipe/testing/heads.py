"""The checks of heads: targets reach the loss, and decisions and scores are as the answer kind states."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from seqpipe.config.contract import (
    ANSWERS,
    decode_options,
    has_member,
    is_self_supervised,
)
from seqpipe.testing.bench import RAGGED, Bench, perturb
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
    "`decide` returns a dict of tensors: for tags and spans `tags` (B, T) int64 with 0 in the padding, `scores`, "
    "`opens`, `closes` (B, T) float32; for label `label` (B,) int64 and `scores` (B, L) float32, the probability of "
    "every label; for labels `labels` (B, L) int64, 0 or 1, and `scores` (B, L) float32; for score `score` (B,) "
    "float32; for vector `vector` (B, D) float32; for text `tokens` (B, K, N) int64 and `scores` (B, K) float32, "
    "log-probabilities, the best first; for span `starts` and `ends` (B, K) int64, positions of tokens of the second "
    "text or both -1, and `scores` (B, K) float32, log-probabilities, the best first, at most -1e8 where there is none"
    "; for pointers `pointers` (B, K, N) int64, positions of real tokens and -1 behind the last, and `scores` likewise"
)
_SCORE = (
    "`score` takes what `decide` returns and gives (B,): the model's log-probability of just that decision, "
    "the same that decide's own scores state, for any decision that it is given. A head may also do without `score`"
)
Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


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
        bench = self.bench
        pipeline, batch = perturb(bench.pipeline()).eval(), bench.batch()
        names = [name for name in ANSWERS[bench.answer].targets if name in batch and not name.endswith("_mask")]
        if is_self_supervised(bench.config.head[0]):
            raise NotApplicableError("it is self-supervised")
        if not names:
            raise NotApplicableError(f"the answer kind {bench.answer!r} has no targets yet")
        L, V = len(bench.learned.tasks[0].labels), len(bench.learned.tasks[0].target_vocabulary or ())
        with torch.no_grad():
            before = pipeline.loss(batch)
            for name in names:
                target = batch[name]
                if bench.answer == "span":
                    changed = batch["end" if name == "start" else "start"]  # shorter answers, where there were longer
                elif bench.answer == "pointers":
                    changed = _mirrored(target, batch["mask"])
                elif target.is_floating_point():  # numbers, or 0 and 1 for each label
                    changed = 1 - target
                else:
                    changed = (target + 1) % L if L else torch.where(target > 3, 4 + (target - 3) % (V - 4), 3)
                if target.dim() == 1:  # of every second record only: which are alike may be all that counts
                    changed = torch.where(torch.arange(len(target)) % 2 == 0, changed, target)
                if torch.equal(pipeline.loss({**batch, name: changed}), before):
                    raise FaultError(f"the loss is {before.item():.6g} whatever {name!r} holds", _TARGETS)

    def decided(self, size: int = 1) -> tuple[Pipeline, dict[str, Tensor], dict[str, Tensor]]:
        """A pipeline, features, and its decision with every decode option of type size at `size`."""
        pipeline = perturb(self.bench.pipeline(3)).eval()
        arrays = self.bench.learned.featurizer.collate(self.bench.docs(RAGGED))
        features = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        options = decode_options(self.bench.subject.cls)
        sizes = {name: size for name, option in options.items() if option.type == "size" and option.default == 1}
        with torch.no_grad():
            return pipeline, features, pipeline.decide(features, sizes)

    def decision(self) -> None:
        for size in (1, 3):
            _, features, decision = self.decided(size)
            self.shaped(decision, features["mask"])
            self.valued(decision, features["mask"])
            if self.bench.answer == "pointers":
                self.pointed(decision, features["mask"])
            if self.bench.answer == "span":
                self.spanned(decision, features["segments"])
        docs, arrays = self.bench.docs(RAGGED), {name: tensor.numpy() for name, tensor in self.decided()[2].items()}
        answers = self.bench.learned.kind.answers(docs, arrays)
        if len(answers) != len(docs):
            raise FaultError(f"{len(answers)} answers are made of the decision about {len(docs)} texts", _DECISION)

    def shaped(self, decision: Mapping[str, Tensor], mask: Tensor) -> None:
        """Whether every output that the answer kind reads has the stated shape and dtype."""
        i, f, L = torch.int64, torch.float32, len(self.bench.learned.tasks[0].labels)
        B, T = mask.shape
        N = decision["starts"].shape[-1] if "starts" in decision else 1
        K = decision["path_scores"].shape[-1] if "path_scores" in decision else 1
        tags: Shapes = {
            "tags": ((B, T), i),
            "scores": ((B, T), f),
            "opens": ((B, T), f),
            "closes": ((B, T), f),
            **({"paths": ((B, K, T), i), "path_scores": ((B, K), f)} if "paths" in decision else {}),
        }
        steps = decision.get("tokens", decision.get("pointers", mask))
        tokens = steps.shape if steps.dim() == 3 else (B, 1, 1)
        stated: Mapping[str, Shapes] = {
            "tags": tags,
            "spans": tags,
            "label": {"label": ((B,), i), "scores": ((B, L), f)},
            "labels": {"labels": ((B, L), i), "scores": ((B, L), f)},
            "score": {"score": ((B,), f)},
            "vector": {"vector": ((B, *decision["vector"].shape[1:2]) if "vector" in decision else (B, 1), f)},
            "text": {"tokens": ((B, *tokens[1:]), i), "scores": ((B, tokens[1]), f)},
            "span": {"starts": ((B, N), i), "ends": ((B, N), i), "scores": ((B, N), f)},
            "pointers": {"pointers": ((B, *tokens[1:]), i), "scores": ((B, tokens[1]), f)},
        }
        if self.bench.answer not in stated:
            raise NotApplicableError(f"nothing is stated yet about the answer kind {self.bench.answer!r}")
        for name, (shape, dtype) in stated[self.bench.answer].items():
            got = decision.get(name)
            if got is None:
                raise FaultError(f"decide returns no {name!r}; its answer kind is {self.bench.answer!r}", _DECISION)
            if tuple(got.shape) != shape or got.dtype != dtype:
                raise FaultError(f"{name} is {tuple(got.shape)} {got.dtype}, not {shape} {dtype}", _DECISION)

    def valued(self, decision: Mapping[str, Tensor], mask: Tensor) -> None:
        """Whether ids are within what there is, and scores are probabilities."""
        L, V = len(self.bench.learned.tasks[0].labels), len(self.bench.learned.tasks[0].target_vocabulary or ())
        V += mask.shape[1] if "copies" in self.bench.learned.tasks[0].answer else 0
        for name, most in (("tags", L), ("paths", L), ("label", L), ("labels", 2), ("tokens", V)):
            if name in decision and not bool(((decision[name] >= 0) & (decision[name] < most)).all()):
                raise FaultError(f"{name} holds ids that are not from 0 to {most - 1}", _DECISION)
        if "scores" not in decision:  # numbers, and not probabilities
            return
        scores, text = decision["scores"], not {"tokens", "starts", "pointers"}.isdisjoint(decision)
        real = scores[mask] if scores.shape == mask.shape and not text else scores
        low, high = (-math.inf, 0.0) if text else (0.0, 1.0)
        if not bool(((real >= low - CLOSE) & (real <= high + CLOSE)).all()):
            what = "log-probabilities" if text else "probabilities"
            raise FaultError(f"scores go from {real.min():.3g} to {real.max():.3g}; they are to be {what}", _DECISION)
        if "label" in decision and not torch.allclose(scores.sum(1), torch.ones(len(scores)), atol=CLOSE):
            raise FaultError(f"the scores of all labels add up to {scores.sum(1)[0]:.4g}, not 1", _DECISION)
        if text and not bool((scores.diff(dim=1) <= CLOSE).all()):
            raise FaultError("what is decided does not stand best first", _DECISION)

    def pointed(self, decision: Mapping[str, Tensor], mask: Tensor) -> None:
        """Whether each position is that of a real token, and nothing stands behind the end."""
        pointers, lengths = decision["pointers"], mask.sum(1)[:, None, None]
        if not bool(((pointers >= -1) & (pointers < lengths)).all()):
            raise FaultError("pointers hold what is neither -1 nor the position of a real token", _DECISION)
        if bool(((pointers[..., 1:] >= 0) & (pointers[..., :-1] < 0)).any()):
            raise FaultError("behind a -1 a position stands again", _DECISION)
        if not bool((decision["scores"][:, 0] > -1e8).all()):
            raise FaultError("the first sequence has a score of -1e8 or less: every text has one", _DECISION)

    def spanned(self, decision: Mapping[str, Tensor], segments: Tensor) -> None:
        """Whether each answer is none, or goes from a token of the second text to one that is not before it."""
        starts, ends, exists = decision["starts"], decision["ends"], decision["scores"] > -1e8
        if not bool(exists[:, 0].all()):
            raise FaultError(
                "the first answer has a score of -1e8 or less: every text has one, if only none", _DECISION
            )
        none = (starts == -1) & (ends == -1)
        inside = [(segments.gather(1, at.clamp(0, segments.shape[1] - 1)) == 2) & (at >= 0) for at in (starts, ends)]
        if not bool((none | ~exists | (inside[0] & inside[1] & (starts <= ends))).all()):
            raise FaultError("an answer is not from a token of the second text to one that is not before it", _DECISION)
        if bool((exists & none & (self.bench.subject.chosen.get("no_answer") is not True)).any(0)[1:].any()):
            raise FaultError("none is answered beside others, and there is no option no_answer: true", _DECISION)

    def score(self) -> None:
        pipeline, features, decision = self.decided()
        if not has_member(pipeline.head, "score"):
            raise NotApplicableError("it has no `score`, and needs none")
        if self.bench.answer in ("labels", "score", "vector"):
            raise NotApplicableError(f"nothing is stated about the score of an answer of kind {self.bench.answer!r}")
        for known, expected in self.known(features["mask"], decision):
            with torch.no_grad():
                got = pipeline.score(features, known)
            if got.shape != expected.shape:
                raise FaultError(f"score gives {tuple(got.shape)}, not {tuple(expected.shape)}", _SCORE)
            if not torch.allclose(got, expected, rtol=CLOSE, atol=CLOSE):
                row = int((got - expected).abs().argmax())
                raise FaultError(f"score gives {got[row]:.4g} where decide states {expected[row]:.4g}", _SCORE)
        self.other_decision(pipeline, features, decision)

    def known(self, mask: Tensor, decision: Mapping[str, Tensor]) -> list[tuple[dict[str, Tensor], Tensor]]:
        """Decisions and their log-probabilities, where the outputs of `decide` state them."""
        if self.bench.answer == "label":
            scores = decision["scores"]
            labels = range(scores.shape[1])
            return [({**decision, "label": torch.full((len(scores),), n)}, scores[:, n].log()) for n in labels]
        if self.bench.answer in ("text", "span", "pointers"):
            return [(dict(decision), decision["scores"][:, 0])]
        last = mask.sum(1, keepdim=True) - 1
        return [(dict(decision), decision["opens"][:, 0] + decision["closes"].gather(1, last)[:, 0])]

    def other_decision(
        self, pipeline: Pipeline, features: Mapping[str, Tensor], decision: Mapping[str, Tensor]
    ) -> None:
        """The score of another decision must differ: else it says nothing about ties."""
        named = {"label": "label", "text": "tokens", "span": "starts", "pointers": "pointers"}
        name = named.get(self.bench.answer, "tags")
        most = len(self.bench.learned.tasks[0].labels) or len(self.bench.learned.tasks[0].target_vocabulary or ())
        if name == "starts":  # another answer: the last token, and of those that are so already none
            last = features["mask"].sum(1, keepdim=True) - 1
            at = torch.where(decision["starts"] == last, -1, last)
            changed = {**decision, "starts": at, "ends": at}
        elif name == "pointers":
            changed = {**decision, name: _mirrored(decision[name], features["mask"][:, None])}
        else:
            changed = {**decision, name: (decision[name] + 1) % most}
        with torch.no_grad():
            if torch.equal(pipeline.score(features, decision), pipeline.score(features, changed)):
                raise FaultError(f"score gives the same whatever {name!r} holds", _SCORE)


def _mirrored(pointers: Tensor, mask: Tensor) -> Tensor:  # (…, N), (…, T)
    """The positions counted from the last one; -1, and what stands in the padding, as it is."""
    mirrored = mask.sum(-1, keepdim=True) - 1 - pointers
    return torch.where((pointers >= 0) & (mirrored >= 0), mirrored, pointers)
