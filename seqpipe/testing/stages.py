"""A stage in a pipeline of toys in, what it does with padding, batches, seeds and weights out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqpipe.console import Console, Tick
from seqpipe.errors import PluginError
from seqpipe.export.parity import CLOSE, TIE, TOKENS
from seqpipe.features.document import Arrays
from seqpipe.features.kinds import Matrix
from seqpipe.testing.isolation import access_check, import_check
from seqpipe.testing.options import MEMBERS, ROUND_TRIP, member_check, option_checks
from seqpipe.testing.report import Check, FaultError
from seqpipe.testing.toys import Bench, set_padding
from seqpipe.training import checkpoint
from seqpipe.training.optim import make_optimizer
from seqpipe.training.pipeline import Pipeline
from seqpipe.training.predictor import option_table
from seqpipe.training.trainer import train

BUILT, SHAPES, PADDING, BATCHES = "it is built", "shapes over a grid", "padding invariance", "batch invariance"
SEEDS, GRADIENT = "determinism", "gradient reaches every parameter"
SAVED, RESUMED = "save and load bit-equal", "resume bit-equal"
SIZES, LENGTHS = (1, 2, 3), (1, 2, 5, 9)
RAGGED = (4, 9, 1, 6, 2)  # lengths of the rows that are looked at alone and together
GARBAGE = {"NaN": float("nan"), "huge numbers": 1e4}

_BUILT = (
    "By position, a constructor asks only for what the pipeline wires in (dim, vocabulary, sizes, labels …); what it "
    "refuses it refuses with a UsageError that names the cure. Give the kit options that fit its toy pipeline"
)
_SHAPE = (
    "forward returns x (B, T, dim) in float32, or a dict with it and all that `returns` names, for every B and T "
    "from 1; `self.dim` is the width of that x, and T stays as it is, unless `returns` names a new mask, boolean (B, N)"
)
_PADDING = (
    "Silence the padding before anything mixes positions: x = torch.where(mask[..., None], x, 0.0) (a product would "
    "not do: NaN * 0 is NaN), scores before a softmax with masked_fill(~mask, -1e4), means over mask.sum(1)"
)
_BATCH = (
    "A row is computed from itself alone: no statistics over the batch (use LayerNorm in place of BatchNorm), no "
    "position counted from the end of the padded row, no size taken from the longest row"
)
_SEEDS = (
    "Take every random number from torch's own generator (torch.rand, nn.init, nn.Dropout), none from `random` or "
    "NumPy; with self.training False use none, and change nothing in `self`"
)
_GRADIENT = (
    "A parameter that the loss does not use learns nothing: use it, delete it, or requires_grad_(False) if it is "
    "meant to stay. `.detach()`, `.data`, torch.no_grad() and argmax cut the gradient"
)
_SAVED = (
    "What is learned or drawn at random is an nn.Parameter or a register_buffer (persistent); a plain attribute or a "
    "buffer with persistent=False is only for what the constructor makes of its arguments again"
)
_RESUMED = (
    "All that training changes must be in the weights: a counter or an average kept as a plain attribute is lost at "
    "a stop; make it a buffer (self.register_buffer('steps', torch.zeros(())))"
)


def stage_checks(bench: Bench) -> list[Check]:
    """What is looked at in embeddings, encoders and heads alike."""
    subject, looks = bench.subject, _Looks(bench)
    checks = [
        *option_checks(subject),
        member_check(subject),
        import_check(subject),
        Check(BUILT, looks.built, _BUILT, (ROUND_TRIP, MEMBERS)),
        Check(SHAPES, looks.shapes, _SHAPE, (BUILT,)),
        Check(PADDING, looks.padding, _PADDING, (SHAPES,)),
        Check(BATCHES, looks.batches, _BATCH, (SHAPES,)),
        Check(SEEDS, looks.seeds, _SEEDS, (SHAPES,)),
        Check(GRADIENT, looks.gradient, _GRADIENT, (SHAPES,)),
        Check(SAVED, looks.saved, _SAVED, (SHAPES, SEEDS)),
        Check(RESUMED, looks.resumed, _RESUMED, (SHAPES, SEEDS)),
        access_check(subject, looks.everything, SHAPES),
    ]
    return checks


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """One thread, and the random numbers of whoever calls stay as they were."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)


_OF_TARGETS = {"target_": "target_mask", "pointers": "pointers_mask"}  # masks of targets, by how those begin


class _Looks:
    """The checks of one stage."""

    def __init__(self, bench: Bench):
        self.bench = bench

    def built(self) -> None:
        self.bench.pipeline()

    def shapes(self) -> None:
        bench = self.bench
        pipeline = bench.pipeline().eval()
        for rows in SIZES:
            for longest in LENGTHS:
                feeds = self.feeds([longest, *[max(1, longest - 1)] * (rows - 1)])
                try:
                    self.shaped(pipeline, feeds)
                except PluginError as error:
                    raise FaultError(f"at B={rows}, T={longest}: {error}", _SHAPE) from error
        pipeline.train()
        for some in ([0], [1, 3, 6], range(len(bench.examples))):
            loss = pipeline.loss(bench.batches(list(some)))
            if loss.shape != () or not loss.is_floating_point() or not bool(torch.isfinite(loss)):
                raise FaultError(
                    f"the loss of {len(some)} records is {loss.detach()}, no finite number",
                    "loss returns a scalar tensor",
                )

    def shaped(self, pipeline: Pipeline, feeds: Arrays) -> None:
        """One batch through the stages, what they return looked at; then the decision."""
        with torch.no_grad():
            names = pipeline(_tensors(feeds))
            x, mask = names.get("x"), names["mask"]
            kept = self.bench.replaces_mask or mask.shape == feeds["mask"].shape
            if not kept or mask.dim() != 2 or len(mask) != len(feeds["mask"]) or mask.dtype != torch.bool:
                raise FaultError("the mask it returns is no boolean (B, T) of the same T", _SHAPE)
            if x is not None and (x.shape[:2] != mask.shape or x.dtype != torch.float32):
                raise FaultError(f"x is {tuple(x.shape)} {x.dtype}; the mask is {tuple(mask.shape)}", _SHAPE)
            if x is not None and not bool(torch.isfinite(x[mask]).all()):
                raise FaultError(f"x holds {x[mask][~torch.isfinite(x[mask])][0]} where words are", _SHAPE)
            self.decided(pipeline, feeds)

    def padding(self) -> None:
        """Whatever stands in the padding, features and targets alike, real positions come out the same."""
        bench, pipeline = self.bench, self.bench.pipeline().eval()
        feeds = self.feeds(RAGGED)
        batch = bench.batch()
        expected, loss = self.decided(pipeline, feeds), _loss(pipeline, batch)
        for what, value in GARBAGE.items() if bench.subject.kind != "embedding" else ():
            set_padding(pipeline, value)
            self.same(expected, self.decided(pipeline, feeds), feeds, f"with {what} in the padding of x")
            self.same_loss(loss, _loss(pipeline, batch), f"with {what} in the padding of x")
        set_padding(pipeline, 0.0)
        for seed in (1, 2):
            self.same(expected, self.decided(pipeline, self.dirty(feeds, seed)), feeds, "with other ids in the padding")
        dirty = _tensors(self.dirty({name: tensor.numpy() for name, tensor in batch.items()}, 3))
        self.same_loss(loss, _loss(pipeline, dirty), "with other ids and targets in the padding")

    def dirty(self, feeds: Arrays, seed: int) -> Arrays:
        """The same arrays with other whole numbers where no word, and no target token, is."""
        random, artifacts = np.random.default_rng(seed), self.bench.artifacts
        sizes = {"ids": len(artifacts.vocabulary), "tags": len(artifacts.tasks[0].labels)}
        sizes |= {name: feature.size for name, feature in artifacts.featurizer.features.items()}
        V = len(artifacts.tasks[0].target_vocabulary or ())
        sizes |= {"target_ids": V, "copy": V, "pointers": feeds["mask"].shape[1]}
        made = {}
        for name, array in feeds.items():
            outside = ~feeds[next((mask for before, mask in _OF_TARGETS.items() if name.startswith(before)), "mask")]
            made[name] = array
            feature = artifacts.featurizer.features.get(name)
            by_token = feature is None or feature.axes[1] == TOKENS
            if isinstance(feature, Matrix):
                made[name] = np.where(outside[..., None], np.float32("nan"), array)
            if array.dtype.kind == "i" and array.shape[:2] == outside.shape and by_token:
                made[name] = np.array(array)
                made[name][outside] = random.integers(1, sizes[name], made[name][outside].shape)
        return made

    def same(self, expected: Arrays, got: Arrays, feeds: Arrays, when: str) -> None:
        lengths = feeds["mask"].sum(1)
        for row, length in enumerate(lengths):
            for told in self.unlike(expected, got, row, row, int(length), feeds):
                raise FaultError(f"{told}, {when}", _PADDING)

    def same_loss(self, expected: float, got: float, when: str) -> None:
        if not abs(expected - got) <= CLOSE * max(1.0, abs(expected)):
            raise FaultError(f"the loss is {got:.6g}, not {expected:.6g}, {when}", _PADDING)

    def batches(self) -> None:
        """A row alone, among others, and in another order has one answer."""
        pipeline, docs = self.bench.pipeline().eval(), self.bench.docs(RAGGED)
        collate = self.bench.artifacts.featurizer.collate
        orders = (list(range(len(docs))), list(reversed(range(len(docs)))), [0, 0, 2, 1, 2])
        alone = [(feeds := collate([doc]), self.decided(pipeline, feeds)) for doc in docs]
        for order in orders:
            together = self.decided(pipeline, collate([docs[i] for i in order]))
            for row, i in enumerate(order):
                feeds, expected = alone[i]
                for told in self.unlike(expected, together, 0, row, len(docs[i]), feeds):
                    raise FaultError(f"{told}, where the row stands among {len(order)} and not alone", _BATCH)

    def unlike(self, one: Arrays, other: Arrays, row: int, other_row: int, length: int, feeds: Arrays) -> Iterator[str]:
        """In what a row of one decision differs from a row of another, padding apart."""
        decided = []
        for name, array in one.items():
            first, second = array[row], other[name][other_row]
            for axis in range(min(first.ndim, second.ndim)):
                if first.shape[axis] != second.shape[axis]:  # one is padded further
                    most = min(length, first.shape[axis], second.shape[axis])
                    first, second = (a.take(range(most), axis) for a in (first, second))
            if first.shape != second.shape:
                yield f"{name} of a text of {length} words is {second.shape}, not {first.shape}"
            elif first.dtype.kind == "f" and not np.allclose(first, second, rtol=CLOSE, atol=CLOSE):
                gap = np.abs(first - second).max()
                yield f"{name} of a text of {length} words changes by {gap:.2g}"
            elif first.dtype.kind != "f" and not np.array_equal(first, second):
                decided.append(name)
        if decided and not self.tied(feeds, one, other, row, other_row):
            yield f"{', '.join(decided)} of a text of {length} words is decided differently"

    def tied(self, feeds: Arrays, one: Arrays, other: Arrays, row: int, other_row: int) -> bool:
        """Whether the head itself knows no difference between two decisions about a row of `feeds`."""
        if len(feeds["mask"]) == 1:  # the other decision has more rows, and longer ones
            picked = {name: array[other_row : other_row + 1] for name, array in other.items()}
            other = {name: array[tuple(map(slice, one[name].shape))] for name, array in picked.items()}
        pipeline = self.bench.pipeline().eval()
        with torch.no_grad():
            return bool(pipeline.gap(*map(_tensors, (feeds, one, other)))[row] < TIE)

    def seeds(self) -> None:
        """A seed says everything; an answer is the same twice."""
        bench = self.bench
        one, other = bench.pipeline(3), bench.pipeline(3)
        for name, tensor in one.state_dict().items():
            if not torch.equal(tensor, other.state_dict()[name]):
                raise FaultError(f"built twice with the same seed, {name} differs", _SEEDS)
        losses = []
        for pipeline in (one, other):
            torch.manual_seed(4)
            losses.append(pipeline.train().loss(bench.batch()).item())
        if losses[0] != losses[1]:
            raise FaultError(f"with the same seed the loss in training is {losses[0]!r}, then {losses[1]!r}", _SEEDS)
        feeds = self.feeds(RAGGED)
        first, *more = (self.decided(one.eval(), feeds) for _ in range(3))
        for later in more:
            _bit_equal(first, later, feeds, "asked again in evaluation", _SEEDS)

    def gradient(self) -> None:
        bench = self.bench
        pipeline = bench.pipeline().train()
        for rows in (range(len(bench.examples)), [1, 3, 6], [4, 7, 9]):
            pipeline.loss(bench.batches(list(rows))).backward()
        for name, parameter in bench.module(pipeline).named_parameters():
            if parameter.requires_grad and (parameter.grad is None or not bool(parameter.grad.any())):
                raise FaultError(f"no gradient reaches {name} {tuple(parameter.shape)}", _GRADIENT)
            if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
                raise FaultError(f"the gradient of {name} is not finite", _GRADIENT)

    def saved(self) -> None:
        """Trained a little, saved as a run saves, loaded into a pipeline of another seed: the same answers."""
        bench, feeds = self.bench, self.feeds(RAGGED)
        pipeline = bench.pipeline(5)
        self.trained(pipeline)
        path = bench.folder / "weights.safetensors"
        digest = checkpoint.save_weights(path, pipeline.state_dict())
        other = bench.pipeline(6)
        other.load_state_dict(checkpoint.load_weights(path, digest))
        first, second = (self.decided(one.eval(), feeds) for one in (pipeline, other))
        _bit_equal(first, second, feeds, "after its weights were saved and loaded", _SAVED)

    def trained(self, pipeline: Pipeline, steps: int = 3) -> None:
        pipeline.train()
        optimizer = make_optimizer(pipeline, self.bench.config)
        for rows in ([1, 3, 6], [0, 2, 4, 5], [7, 8, 9])[:steps]:
            optimizer.zero_grad()
            pipeline.loss(self.bench.batches(rows)).backward()
            optimizer.step()

    def resumed(self) -> None:
        """Stopped in the middle and resumed, training ends with the same weights to the bit."""
        whole = self.run("whole", None)
        stop = len(self.bench.batches.order(0)) + 2
        with contextlib.suppress(_StopError):
            self.run("stopped", stop)
        again = self.run("stopped", None)
        for name, tensor in whole.items():
            if not torch.equal(tensor, again[name]):
                gap = (tensor.float() - again[name].float()).abs().max()
                raise FaultError(f"stopped at batch {stop} and resumed, {name} ends {gap:.2g} off", _RESUMED)

    def run(self, name: str, stop: int | None) -> dict[str, Tensor]:
        bench = self.bench
        pipeline = bench.pipeline(bench.config.train.seed)
        train(pipeline, bench.config, bench.batches, None, bench.folder / name, _Stopping(stop))
        return pipeline.state_dict()

    def everything(self) -> None:
        """Building, training and deciding, for the watch over files and network."""
        pipeline = self.bench.pipeline()
        self.trained(pipeline, 1)
        self.decided(pipeline.eval(), self.feeds(RAGGED))

    def feeds(self, lengths: Any) -> Arrays:
        return self.bench.artifacts.featurizer.collate(self.bench.docs(lengths))

    def decided(self, pipeline: Pipeline, feeds: Arrays) -> Arrays:
        """The decision with every size at 3, where a head has decode options of that type."""
        sizes = {n: 3 for n, option in option_table(self.bench.config.head[0]).items() if option["type"] == "size"}
        with torch.no_grad():
            return {name: tensor.numpy() for name, tensor in pipeline.decide(_tensors(feeds), sizes).items()}


@dataclass
class _Stopping(Console):
    """A quiet console that ends training at a batch, as a power cut would."""

    stop: int | None
    volume: int = -1

    @contextlib.contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Tick]:
        count = 0

        def tick(done: int, note: str = "") -> None:
            nonlocal count
            count += 1
            if count == self.stop:
                raise _StopError

        yield tick


class _StopError(Exception):
    pass


def _tensors(feeds: Any) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.require(array, requirements=["C", "W"])) for name, array in feeds.items()}


def _loss(pipeline: Pipeline, batch: Any) -> float:
    with torch.no_grad():
        return float(pipeline.loss(batch))


def _bit_equal(one: Arrays, other: Arrays, feeds: Arrays, when: str, cure: str) -> None:
    for name, array in one.items():
        if array.shape != other[name].shape or not np.array_equal(
            array, other[name], equal_nan=array.dtype.kind == "f"
        ):
            raise FaultError(f"{name} differs, {when}", cure)
