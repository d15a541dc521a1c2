"""A head in a pipeline of toys in, whether it learns, decides and scores as its answer kind states out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from seqpipe.config.contract import (
    ANSWERS,
    declared_corrupted_inputs,
    decode_options,
    dev_option,
    has_member,
    is_self_supervised,
    member,
)
from seqpipe.config.signature import call
from seqpipe.runtime.evaluate import evaluate
from seqpipe.testing.report import Check, FaultError, SkippedError
from seqpipe.testing.stages import RAGGED, SHAPES
from seqpipe.testing.toys import Bench
from seqpipe.training.measures import calibrate
from seqpipe.training.pipeline import Pipeline
from seqpipe.training.predictor import predictor

TARGETS, DECISION = "targets reach the loss", "decision as its answer kind states"
CORRUPTION = "corruption as stated"
SCORE, METRICS, CHOSEN = "score agrees with decide", "own metrics run", "what is chosen on dev stays"
CLOSE = 1e-3

_TARGETS = "Let `loss` ask for the target of the answer kind by its name, and compare with it at the real positions"
_CORRUPTION = (
    "`corrupt_batch` returns a dict with every name of `corrupted_inputs`; with self.training it draws from torch's "
    "own generator, else from one with a fixed seed (seqpipe.nn.corruption.Drawn), and it looks at real tokens alone"
)
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
_METRICS = (
    "`@staticmethod def metrics(options, gold, predicted) -> dict[str, float]`: gold and predicted are lists of what "
    "the answer kind compares (label texts, or lists of them; lists of (tag, start, end); numbers; texts; of vectors a "
    "label text and a list of numbers), and the names are new ones"
)
_CHOSEN = (
    "`evidence` returns a dict of tensors with a row a record; `calibrate` takes it, joined over all of dev, and keeps "
    "what it chooses in persistent buffers (self.register_buffer); `calibration` returns that as plain JSON data"
)
Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


def head_checks(bench: Bench) -> list[Check]:
    looks = _Looks(bench)
    chosen = Check(CHOSEN, looks.chosen, _CHOSEN, (SHAPES, DECISION))
    return [
        Check(TARGETS, looks.targets, _TARGETS, (SHAPES,)),
        Check(DECISION, looks.decision, _DECISION, (SHAPES,)),
        Check(SCORE, looks.score, _SCORE, (SHAPES, DECISION)),
        Check(METRICS, looks.metrics, _METRICS, (SHAPES, DECISION)),
        *([chosen] if has_member(bench.subject.cls, "needs_dev") else []),
        *(
            [Check(CORRUPTION, looks.corruption, _CORRUPTION, (SHAPES,))]
            if has_member(bench.subject.cls, "corrupt_batch")
            else []
        ),
    ]


class _Looks:
    """The checks of one head."""

    def __init__(self, bench: Bench):
        self.bench = bench

    def targets(self) -> None:
        bench = self.bench
        pipeline, batch = _stirred(bench.pipeline()).eval(), bench.batch()
        asked = [name for name in ANSWERS[bench.answer].targets if name in batch and not name.endswith("_mask")]
        if is_self_supervised(bench.config.head[0]):
            raise SkippedError("it is self-supervised")
        if not asked:
            raise SkippedError(f"the answer kind {bench.answer!r} has no targets yet")
        L, V = len(bench.artifacts.tasks[0].labels), len(bench.artifacts.tasks[0].target_vocabulary or ())
        with torch.no_grad():
            before = pipeline.loss(batch)
            for name in asked:
                given = batch[name]
                if bench.answer == "span":
                    other = batch["end" if name == "start" else "start"]  # shorter answers, where there were longer
                elif bench.answer == "pointers":
                    other = _turned(given, batch["mask"])
                elif given.is_floating_point():  # numbers, or 0 and 1 for each label
                    other = 1 - given
                else:
                    other = (given + 1) % L if L else torch.where(given > 3, 4 + (given - 3) % (V - 4), 3)
                if given.dim() == 1:  # of every second record only: which are alike may be all that counts
                    other = torch.where(torch.arange(len(given)) % 2 == 0, other, given)
                if torch.equal(pipeline.loss({**batch, name: other}), before):
                    raise FaultError(f"the loss is {before.item():.6g} whatever {name!r} holds", _TARGETS)

    def corruption(self) -> None:
        """The same twice in evaluation, other in training, blind to the padding; the loss sees what was hidden."""
        if not declared_corrupted_inputs(self.bench.config.head[0]):
            raise SkippedError("with these options it changes nothing")
        pipeline, batch = _stirred(self.bench.pipeline()).eval(), self.bench.batch()
        head = pipeline.head
        first, again = (call(head.corrupt_batch, batch) for _ in range(2))
        if told := [name for name, one in first.items() if not torch.equal(one, again[name])]:
            raise FaultError(f"in evaluation {told[0]!r} is not the same twice", _CORRUPTION)
        with torch.no_grad():
            before = pipeline.loss(batch)
            for name in [name for name in first if name not in batch]:
                changed = {key: one.flip(0) if key == name else one for key, one in first.items()}
                if torch.equal(call(head.loss, pipeline({**batch, **changed})), before):
                    raise FaultError(f"the loss is {before.item():.6g} whatever {name!r} holds", _CORRUPTION)
        dirty = {**batch, "ids": torch.where(batch["mask"], batch["ids"], 1)}
        changed = call(head.corrupt_batch, dirty)
        for name, one in first.items():
            real = first.get("mask", batch["mask"])
            same = one[real] == changed[name][real] if one.shape == real.shape else one == changed[name]
            if not bool(same.all()):
                raise FaultError(f"{name!r} of real tokens changes with other ids in the padding", _CORRUPTION)
        head.train()
        drawn = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            drawn.append(call(head.corrupt_batch, batch))
        for name, one in drawn[0].items():
            if not torch.equal(one, drawn[1][name]):
                raise FaultError(f"in training {name!r} differs with the same seed", _CORRUPTION)
        if all(
            one.shape == drawn[2][name].shape and torch.equal(one, drawn[2][name]) for name, one in drawn[0].items()
        ):
            raise FaultError("in training it hides the same whatever the seed", _CORRUPTION)

    def decided(self, size: int = 1) -> tuple[Pipeline, dict[str, Tensor], dict[str, Tensor]]:
        """A pipeline, features, and its decision with every decode option of type size at `size`."""
        pipeline = _stirred(self.bench.pipeline(3)).eval()
        arrays = self.bench.artifacts.featurizer.collate(self.bench.docs(RAGGED))
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
        answers = self.bench.artifacts.kind.answers(docs, arrays)
        if len(answers) != len(docs):
            raise FaultError(f"{len(answers)} answers are made of the decision about {len(docs)} texts", _DECISION)

    def shaped(self, decision: Mapping[str, Tensor], mask: Tensor) -> None:
        """Whether every output that the answer kind reads has the stated shape and dtype."""
        i, f, L = torch.int64, torch.float32, len(self.bench.artifacts.tasks[0].labels)
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
            raise SkippedError(f"nothing is stated yet about the answer kind {self.bench.answer!r}")
        for name, (shape, dtype) in stated[self.bench.answer].items():
            got = decision.get(name)
            if got is None:
                raise FaultError(f"decide returns no {name!r}; its answer kind is {self.bench.answer!r}", _DECISION)
            if tuple(got.shape) != shape or got.dtype != dtype:
                raise FaultError(f"{name} is {tuple(got.shape)} {got.dtype}, not {shape} {dtype}", _DECISION)

    def valued(self, decision: Mapping[str, Tensor], mask: Tensor) -> None:
        """Whether ids are within what there is, and scores are probabilities."""
        L, V = len(self.bench.artifacts.tasks[0].labels), len(self.bench.artifacts.tasks[0].target_vocabulary or ())
        V += mask.shape[1] if "copies" in self.bench.artifacts.tasks[0].answer else 0
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
            raise SkippedError("it has no `score`, and needs none")
        if self.bench.answer in ("labels", "score", "vector"):
            raise SkippedError(f"nothing is stated about the score of an answer of kind {self.bench.answer!r}")
        for given, expected in self.known(features["mask"], decision):
            with torch.no_grad():
                got = pipeline.score(features, given)
            if got.shape != expected.shape:
                raise FaultError(f"score gives {tuple(got.shape)}, not {tuple(expected.shape)}", _SCORE)
            if not torch.allclose(got, expected, rtol=CLOSE, atol=CLOSE):
                row = int((got - expected).abs().argmax())
                raise FaultError(f"score gives {got[row]:.4g} where decide states {expected[row]:.4g}", _SCORE)
        self.other_decision(pipeline, features, decision)

    def known(self, mask: Tensor, decision: Mapping[str, Tensor]) -> list[tuple[dict[str, Tensor], Tensor]]:
        """Decisions whose log-probability decide's own outputs tell, with it."""
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
        """A score that does not look at the decision tells no tie from an error."""
        named = {"label": "label", "text": "tokens", "span": "starts", "pointers": "pointers"}
        name = named.get(self.bench.answer, "tags")
        most = len(self.bench.artifacts.tasks[0].labels) or len(self.bench.artifacts.tasks[0].target_vocabulary or ())
        if name == "starts":  # another answer: the last token, and of those that are so already none
            last = features["mask"].sum(1, keepdim=True) - 1
            at = torch.where(decision["starts"] == last, -1, last)
            other = {**decision, "starts": at, "ends": at}
        elif name == "pointers":
            other = {**decision, name: _turned(decision[name], features["mask"][:, None])}
        else:
            other = {**decision, name: (decision[name] + 1) % most}
        with torch.no_grad():
            if torch.equal(pipeline.score(features, decision), pipeline.score(features, other)):
                raise FaultError(f"score gives the same whatever {name!r} holds", _SCORE)

    def metrics(self) -> None:
        if not has_member(self.bench.subject.cls, "metrics"):
            raise SkippedError("it has no `metrics` of its own, and needs none")
        pipeline = self.bench.pipeline(3).eval()
        found = predictor(pipeline, self.bench.config)
        kind, some = self.bench.artifacts.kind, self.bench.records
        gold = [kind.gold(record) for record in some]
        predicted = [kind.predicted(answer) for answer in found.stream(some)]
        options = self.bench.config.head[0].options
        for one, other in ((gold, predicted), (gold, gold), (gold[:1], predicted[:1])):
            scores = member(self.bench.subject.cls, "metrics")(options, one, other)
            wrong = not isinstance(scores, dict) or [
                name
                for name, value in scores.items()
                if not isinstance(name, str) or not isinstance(value, float) or not math.isfinite(value)
            ]
            if wrong:
                raise FaultError(f"metrics returned {scores!r}, no dict from names to finite floats", _METRICS)
        lost = scores.keys() - evaluate(found, some)[""].keys()  # PluginError if a name is taken
        if lost:
            raise FaultError(f"{', '.join(sorted(lost))} do not get into the scores of `evaluate`", _METRICS)

    def chosen(self) -> None:
        """Chosen on the toy records as dev, saved, and loaded into other weights: the same choice and answers."""
        if not dev_option(self.bench.config.head[0]):
            raise SkippedError("with these options it chooses nothing on dev")
        bench, (pipeline, features, _) = self.bench, self.decided()
        halves = [bench.batches(list(rows)) for rows in (range(5), range(5, len(bench.examples)))]
        with torch.no_grad():
            evidence = call(pipeline.head.evidence, pipeline(halves[0]))
        if short := [name for name, rows in evidence.items() if len(rows) != len(halves[0]["mask"])]:
            raise FaultError(f"evidence returns {short[0]!r} without a row for each record", _CHOSEN)
        calibrate(pipeline, lambda: iter(halves))
        told = pipeline.head.calibration()
        try:
            same = json.loads(json.dumps(told, allow_nan=False)) == told
        except (TypeError, ValueError):
            same = False
        if not same or not isinstance(told, dict):
            raise FaultError(f"calibration returns {told!r}, no plain JSON object", _CHOSEN)
        other = bench.pipeline(6).eval()
        other.load_state_dict(pipeline.state_dict())
        if (again := other.head.calibration()) != told:
            raise FaultError(f"saved and loaded, {told} becomes {again}", _CHOSEN)
        with torch.no_grad():
            first, second = (one.decide(features, {}) for one in (pipeline, other))
        if changed := [name for name, tensor in first.items() if not torch.equal(tensor, second[name])]:
            raise FaultError(f"saved and loaded, {changed[0]} differs", _CHOSEN)


def _turned(pointers: Tensor, mask: Tensor) -> Tensor:  # (…, N), (…, T)
    """The positions counted from the last one; -1, and what stands in the padding, as it is."""
    other = mask.sum(-1, keepdim=True) - 1 - pointers
    return torch.where((pointers >= 0) & (other >= 0), other, pointers)


def _stirred(pipeline: Pipeline) -> Pipeline:
    """The pipeline with its weights moved a little: at first a head may think all targets equally likely."""
    with torch.no_grad():
        for parameter in pipeline.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return pipeline
