"""Checks of embeddings, encoders and heads: shapes, padding, batches, determinism, gradients, saving and resuming."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from seqpipe.console import Console, Tick
from seqpipe.export.graph import TOKEN_AXIS, tensors_of
from seqpipe.export.parity.decisions import SCORE_ATOL, TIE_MARGIN, Judge, growth, margins
from seqpipe.export.parity.gate import one_thread
from seqpipe.features.document import Arrays
from seqpipe.testing.bench import RAGGED, SHAPES, Bench, check_bit_equal, set_padding, shape_checks
from seqpipe.testing.isolation import access_check, import_check
from seqpipe.testing.report import Check, FaultError, member_check, option_checks
from seqpipe.training import checkpoint
from seqpipe.training.datasets import Batch
from seqpipe.training.network import Network
from seqpipe.training.optim import make_optimizer
from seqpipe.training.trainer import Trainer

# The checks that padding and the other rows of the batch change nothing in a row's answer.

GARBAGE = {"NaN": float("nan"), "huge numbers": 1e4}

_PADDING_FIX = (
    "Mask the padding before any step mixes positions: x = torch.where(mask[..., None], x, 0.0) (a product does not "
    "work: NaN * 0 is NaN), masked_fill(~mask, -1e4) on scores before a softmax, means over mask.sum(1)"
)
_BATCH_FIX = (
    "Compute a row from itself alone: no statistics over the batch (use LayerNorm in place of BatchNorm), no "
    "position counted from the end of the padded row, no size that depends on the longest row"
)


def _with_garbage(bench: Bench, feeds: Arrays, seed: int) -> Arrays:
    """The same arrays with other integers in the padding of words and target tokens."""
    random, learned = np.random.default_rng(seed), bench.artifacts
    targets, T = bench.task.declared_targets(bench.settings), feeds["mask"].shape[1]
    V = len(learned.tasks[0].target_vocabulary or ())
    counts = {"label": len(learned.tasks[0].labels), "token": V, "position": T}
    sizes = {"ids": len(learned.vocabulary)}
    sizes |= {name: feature.size or V for name, feature in learned.featurizer.features.items()}
    sizes |= {name: counts.get(array.values, 2) for name, array in targets.items()}
    changed = {}
    for name, array in feeds.items():
        outside = ~feeds[targets[name].mask if name in targets else "mask"]
        feature = learned.featurizer.features.get(name)
        by_token = feature is None or feature.axes[1] == TOKEN_AXIS
        if feature is not None and by_token and array.dtype.kind == "f":
            array = np.where(outside[..., None], np.float32("nan"), array)
        if array.dtype.kind == "i" and array.shape[:2] == outside.shape and by_token:
            array = np.array(array)
            array[outside] = random.integers(1, sizes[name], array[outside].shape)
        changed[name] = array
    return changed


def _differences(
    bench: Bench, expected: Arrays, decision: Arrays, rows: tuple[int, int], length: int, feeds: Arrays
) -> Iterator[str]:
    """Yield the differences of a row of a decision from a row of the expected one, without padding; `rows`: the two."""
    unequal = []
    for name, array in expected.items():
        first, second = array[rows[0]], decision[name][rows[1]]
        for axis in range(min(first.ndim, second.ndim)):
            if first.shape[axis] != second.shape[axis]:  # one is padded further
                shared = min(length, first.shape[axis], second.shape[axis])
                first, second = (a.take(range(shared), axis) for a in (first, second))
        if first.shape != second.shape:
            yield f"{name} of a text of {length} words is {second.shape}, not {first.shape}"
        elif first.dtype.kind == "f" and not np.allclose(first, second, rtol=SCORE_ATOL, atol=SCORE_ATOL):
            gap = np.abs(first - second).max()
            yield f"{name} of a text of {length} words changes by {gap:.2g}"
        elif first.dtype.kind != "f" and not np.array_equal(first, second):
            unequal.append(name)
    if unequal and not _tied(bench, feeds, expected, decision, rows):
        yield f"{', '.join(unequal)} of a text of {length} words is decided differently"


def _tied(bench: Bench, feeds: Arrays, expected: Arrays, decision: Arrays, rows: tuple[int, int]) -> bool:
    """Return whether the head itself gives two decisions about a row of `feeds` the same score."""
    if len(feeds["mask"]) == 1:  # the decision has more rows, and longer ones
        picked = {name: array[rows[1] : rows[1] + 1] for name, array in decision.items()}
        decision = {name: array[tuple(map(slice, expected[name].shape))] for name, array in picked.items()}
    network, row = bench.network().eval(), rows[0]
    allowed = TIE_MARGIN * growth(network.head_stages[0], feeds, expected)
    return bool(margins(network, feeds, expected, decision)[0, row] < allowed[row])


# The check that a decision is computed in float64 too: a reference for the errors of float32.

FLOAT64 = "a decision in float64"

_FLOAT64_FIX = (
    "Make tensors with x.new_zeros, or with torch.get_default_dtype(), in place of torch.float32 and .float(): a "
    "graph that differs from PyTorch is judged by a copy of the pipeline in float64. So a component must also survive "
    "copy.deepcopy: it holds no locks, generators or open files"
)


# The checks of training: gradients, seeds, and weights that are saved, loaded and resumed to the bit.

SAME_SEED, GRADIENT = "determinism", "gradient reaches every parameter"
SAVED, RESUMED = "save and load bit-equal", "resume bit-equal"

_SEED_FIX = (
    "Take random numbers only from torch's own generator (torch.rand, nn.init, nn.Dropout), never from `random` or "
    "NumPy; with self.training False use none, and change nothing in `self`"
)
_GRADIENT_FIX = (
    "A parameter that the loss does not use learns nothing: use it, delete it, or requires_grad_(False) if it is "
    "meant to be constant. `.detach()`, `.data`, torch.no_grad() and argmax cut the gradient"
)
_SAVED_FIX = (
    "Keep learned or sampled values in an nn.Parameter or a persistent buffer (register_buffer); a plain attribute or "
    "a buffer with persistent=False is only for values that the constructor computes from its arguments"
)
_RESUMED_FIX = (
    "Everything that training changes must be in the weights: a counter or an average in a plain attribute is lost "
    "when training stops; make it a buffer (self.register_buffer('steps', torch.zeros(())))"
)


def train_steps(bench: Bench, network: Network, steps: int) -> None:
    """Train the pipeline for some steps, each on a few records."""
    network.train()
    optimizer = make_optimizer(network, bench.config)
    for rows in ([1, 3, 6], [0, 2, 4, 5], [7, 8, 9])[:steps]:
        optimizer.zero_grad()
        network.loss(bench.batches(rows)).backward()
        optimizer.step()


def _train(bench: Bench, name: str, stop: int | None) -> dict[str, Tensor]:
    network = bench.network(bench.config.train.seed)
    Trainer(network, bench.config, bench.batches, None, bench.folder / name, _StoppingConsole(stop)).train()
    return network.state_dict()


@dataclass
class _StoppingConsole(Console):
    """A quiet console that ends training at a batch, as a power cut would."""

    stop: int | None
    volume: int = -1

    @contextlib.contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Tick]:
        ticks = itertools.count(1)

        def tick(done: int, note: str = "") -> None:
            if next(ticks) == self.stop:
                raise _StopError

        yield tick


class _StopError(Exception):
    pass


# The checks that embeddings, encoders and heads share.


class _StageChecks:
    """The checks of one stage: padding, batches, seeds, gradients, and weights that are saved and resumed."""

    def __init__(self, bench: Bench):
        self.bench = bench

    @torch.no_grad()
    def padding(self) -> None:
        """Check that real positions do not depend on the padding of features and targets."""
        network, feeds, batch = self.bench.network().eval(), self.bench.feeds(RAGGED), self.bench.batch()
        expected, loss = self.bench.decide(network, feeds), network.loss(batch).item()

        def check_loss(changed: Batch, when: str) -> None:
            changed_loss = network.loss(changed).item()
            if not abs(loss - changed_loss) <= SCORE_ATOL * max(1.0, abs(loss)):
                raise FaultError(f"the loss is {changed_loss:.6g}, not {loss:.6g}, {when}")

        def check_decision(changed: Arrays, when: str) -> None:
            decision = self.bench.decide(network, changed)
            for row, length in enumerate(feeds["mask"].sum(1)):
                for difference in _differences(self.bench, expected, decision, (row, row), int(length), feeds):
                    raise FaultError(f"{difference}, {when}")

        if self.bench.subject.kind != "embedding":
            for what, value in GARBAGE.items():
                set_padding(network, value)
                check_decision(feeds, f"with {what} in the padding of x")
                check_loss(batch, f"with {what} in the padding of x")
        set_padding(network, 0.0)
        for seed in (1, 2):
            check_decision(_with_garbage(self.bench, feeds, seed), "with other ids in the padding")
        arrays = {name: tensor.numpy() for name, tensor in batch.items()}
        check_loss(tensors_of(_with_garbage(self.bench, arrays, 3)), "with other ids and targets in the padding")

    def batches(self) -> None:
        """Check that a row has the same answer alone, in a batch, and in another order."""
        network, docs = self.bench.network().eval(), self.bench.docs(RAGGED)
        collate = self.bench.artifacts.featurizer.collate
        orders = (list(range(len(docs))), list(reversed(range(len(docs)))), [0, 0, 2, 1, 2])
        alone = [(feeds := collate([doc]), self.bench.decide(network, feeds)) for doc in docs]
        for order in orders:
            together = self.bench.decide(network, collate([docs[i] for i in order]))
            for row, i in enumerate(order):
                feeds, expected = alone[i]
                for difference in _differences(self.bench, expected, together, (0, row), len(docs[i]), feeds):
                    raise FaultError(f"{difference}, in a batch of {len(order)} rows instead of alone")

    def exact(self) -> None:
        """Check that a copy in float64 decides, with numbers in float64."""
        judge = Judge(self.bench.network(2).eval(), {})
        judge.decide(self.bench.feeds(RAGGED))
        if judge.fault:
            raise FaultError(judge.fault)

    def seeds(self) -> None:
        """Check that a seed determines weights and losses, and that an answer is the same twice."""
        first, second = self.bench.network(3), self.bench.network(3)
        check_bit_equal(first.state_dict(), second.state_dict(), "built twice with the same seed")
        losses = []
        for network in (first, second):
            torch.manual_seed(4)
            losses.append(network.train().loss(self.bench.batch()).item())
        if losses[0] != losses[1]:
            raise FaultError(f"with the same seed the loss in training is {losses[0]!r}, then {losses[1]!r}")
        feeds = self.bench.feeds(RAGGED)
        decision, *repeated = (self.bench.decide(first.eval(), feeds) for _ in range(3))
        for again in repeated:
            check_bit_equal(tensors_of(decision), tensors_of(again), "in a second call in evaluation")

    def gradient(self) -> None:
        network = self.bench.network().train()
        for rows in (range(len(self.bench.examples)), [1, 3, 6], [4, 7, 9]):
            network.loss(self.bench.batches(list(rows))).backward()
        component = next(module for stage, module in network.stages if stage.kind == self.bench.subject.kind)
        for name, parameter in component.named_parameters():
            if parameter.requires_grad and (parameter.grad is None or not bool(parameter.grad.any())):
                raise FaultError(f"no gradient reaches {name} {tuple(parameter.shape)}")
            if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
                raise FaultError(f"the gradient of {name} is not finite")

    def saved(self) -> None:
        """Check that trained and saved weights, loaded into a pipeline of another seed, give the same answers."""
        network, feeds = self.bench.network(5), self.bench.feeds(RAGGED)
        train_steps(self.bench, network, 3)
        path = self.bench.folder / "weights.safetensors"
        digest = checkpoint.save_weights(path, network.state_dict())
        loaded = self.bench.network(6)
        loaded.load_state_dict(checkpoint.load_weights(path, digest))
        first, second = (tensors_of(self.bench.decide(each.eval(), feeds)) for each in (network, loaded))
        check_bit_equal(first, second, "saved and loaded")

    def resumed(self) -> None:
        """Check that training, stopped and resumed, ends with bit-equal weights."""
        whole = _train(self.bench, "whole", None)
        stop = len(self.bench.batches.order(0)) + 2
        with contextlib.suppress(_StopError):
            _train(self.bench, "stopped", stop)
        resumed = _train(self.bench, "stopped", None)
        check_bit_equal(whole, resumed, f"stopped at batch {stop} and resumed")


def stage_checks(bench: Bench) -> list[Check]:
    subject, checks = bench.subject, _StageChecks(bench)

    def everything() -> None:
        """Build, train and decide, for the watch over files and network."""
        network = bench.network()
        train_steps(bench, network, 1)
        bench.decide(network.eval(), bench.feeds(RAGGED))

    return [
        *option_checks(subject),
        member_check(subject),
        import_check(subject),
        *shape_checks(bench),
        Check("padding invariance", checks.padding, _PADDING_FIX, (SHAPES,)),
        Check("batch invariance", checks.batches, _BATCH_FIX, (SHAPES,)),
        Check(FLOAT64, checks.exact, _FLOAT64_FIX, (SHAPES,)),
        Check(SAME_SEED, checks.seeds, _SEED_FIX, (SHAPES,)),
        Check(GRADIENT, checks.gradient, _GRADIENT_FIX, (SHAPES,)),
        Check(SAVED, checks.saved, _SAVED_FIX, (SHAPES, SAME_SEED)),
        Check(RESUMED, checks.resumed, _RESUMED_FIX, (SHAPES, SAME_SEED)),
        access_check(subject, everything, SHAPES),
    ]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Run on one thread, and leave the caller's random state unchanged."""
    with one_thread(), torch.random.fork_rng(devices=[]):
        yield
