"""The checks that padding and the rest of the batch change nothing in a row's answer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from seqpipe.export.graph import TOKENS
from seqpipe.export.parity.decisions import CLOSE, TIE
from seqpipe.features.document import Arrays
from seqpipe.testing.bench import RAGGED, Bench, set_padding, tensors
from seqpipe.testing.report import Check, FaultError
from seqpipe.testing.shapes import SHAPES
from seqpipe.training.datasets import Batch
from seqpipe.training.pipeline import Pipeline

PADDING, BATCHES = "padding invariance", "batch invariance"
GARBAGE = {"NaN": float("nan"), "huge numbers": 1e4}

_PADDING = (
    "Silence the padding before anything mixes positions: x = torch.where(mask[..., None], x, 0.0) (a product would "
    "not do: NaN * 0 is NaN), scores before a softmax with masked_fill(~mask, -1e4), means over mask.sum(1)"
)
_BATCH = (
    "A row is computed from itself alone: no statistics over the batch (use LayerNorm in place of BatchNorm), no "
    "position counted from the end of the padded row, no size taken from the longest row"
)


def invariance_checks(bench: Bench) -> list[Check]:
    return [
        Check(PADDING, lambda: _check_padding(bench), _PADDING, (SHAPES,)),
        Check(BATCHES, lambda: _check_batches(bench), _BATCH, (SHAPES,)),
    ]


def _check_padding(bench: Bench) -> None:
    """Whatever stands in the padding, features and targets alike, real positions come out the same."""
    pipeline, feeds, batch = bench.pipeline().eval(), bench.feeds(RAGGED), bench.batch()
    expected, loss = bench.decide(pipeline, feeds), _loss(pipeline, batch)

    def check_loss(changed: Batch, when: str) -> None:
        changed_loss = _loss(pipeline, changed)
        if not abs(loss - changed_loss) <= CLOSE * max(1.0, abs(loss)):
            raise FaultError(f"the loss is {changed_loss:.6g}, not {loss:.6g}, {when}", _PADDING)

    def check_decision(changed: Arrays, when: str) -> None:
        decision = bench.decide(pipeline, changed)
        for row, length in enumerate(feeds["mask"].sum(1)):
            for difference in _differences(bench, expected, decision, (row, row), int(length), feeds):
                raise FaultError(f"{difference}, {when}", _PADDING)

    if bench.subject.kind != "embedding":
        for what, value in GARBAGE.items():
            set_padding(pipeline, value)
            check_decision(feeds, f"with {what} in the padding of x")
            check_loss(batch, f"with {what} in the padding of x")
    set_padding(pipeline, 0.0)
    for seed in (1, 2):
        check_decision(_with_garbage(bench, feeds, seed), "with other ids in the padding")
    arrays = {name: tensor.numpy() for name, tensor in batch.items()}
    check_loss(tensors(_with_garbage(bench, arrays, 3)), "with other ids and targets in the padding")


def _with_garbage(bench: Bench, feeds: Arrays, seed: int) -> Arrays:
    """The same arrays with other whole numbers where no word, and no target token, is."""
    random, learned = np.random.default_rng(seed), bench.artifacts
    targets, T = bench.answer.declared_targets(bench.settings), feeds["mask"].shape[1]
    V = len(learned.tasks[0].target_vocabulary or ())
    counts = {"label": len(learned.tasks[0].labels), "token": V, "position": T}
    sizes = {"ids": len(learned.vocabulary)}
    sizes |= {name: feature.size or V for name, feature in learned.featurizer.features.items()}
    sizes |= {name: counts.get(array.values, 2) for name, array in targets.items()}
    changed = {}
    for name, array in feeds.items():
        outside = ~feeds[targets[name].mask if name in targets else "mask"]
        feature = learned.featurizer.features.get(name)
        by_token = feature is None or feature.axes[1] == TOKENS
        if feature is not None and by_token and array.dtype.kind == "f":
            array = np.where(outside[..., None], np.float32("nan"), array)
        if array.dtype.kind == "i" and array.shape[:2] == outside.shape and by_token:
            array = np.array(array)
            array[outside] = random.integers(1, sizes[name], array[outside].shape)
        changed[name] = array
    return changed


def _check_batches(bench: Bench) -> None:
    """A row alone, among others, and in another order has one answer."""
    pipeline, docs = bench.pipeline().eval(), bench.docs(RAGGED)
    collate = bench.artifacts.featurizer.collate
    orders = (list(range(len(docs))), list(reversed(range(len(docs)))), [0, 0, 2, 1, 2])
    alone = [(feeds := collate([doc]), bench.decide(pipeline, feeds)) for doc in docs]
    for order in orders:
        together = bench.decide(pipeline, collate([docs[i] for i in order]))
        for row, i in enumerate(order):
            feeds, expected = alone[i]
            for difference in _differences(bench, expected, together, (0, row), len(docs[i]), feeds):
                raise FaultError(f"{difference}, where the row stands among {len(order)} and not alone", _BATCH)


def _differences(
    bench: Bench, expected: Arrays, decision: Arrays, rows: tuple[int, int], length: int, feeds: Arrays
) -> Iterator[str]:
    """In what a row of a decision differs from a row of the expected one, padding apart; `rows` has the two numbers."""
    unequal = []
    for name, array in expected.items():
        first, second = array[rows[0]], decision[name][rows[1]]
        for axis in range(min(first.ndim, second.ndim)):
            if first.shape[axis] != second.shape[axis]:  # one is padded further
                shared = min(length, first.shape[axis], second.shape[axis])
                first, second = (a.take(range(shared), axis) for a in (first, second))
        if first.shape != second.shape:
            yield f"{name} of a text of {length} words is {second.shape}, not {first.shape}"
        elif first.dtype.kind == "f" and not np.allclose(first, second, rtol=CLOSE, atol=CLOSE):
            gap = np.abs(first - second).max()
            yield f"{name} of a text of {length} words changes by {gap:.2g}"
        elif first.dtype.kind != "f" and not np.array_equal(first, second):
            unequal.append(name)
    if unequal and not _tied(bench, feeds, expected, decision, rows):
        yield f"{', '.join(unequal)} of a text of {length} words is decided differently"


def _tied(bench: Bench, feeds: Arrays, expected: Arrays, decision: Arrays, rows: tuple[int, int]) -> bool:
    """Whether the head itself knows no difference between two decisions about a row of `feeds`."""
    if len(feeds["mask"]) == 1:  # the decision has more rows, and longer ones
        picked = {name: array[rows[1] : rows[1] + 1] for name, array in decision.items()}
        decision = {name: array[tuple(map(slice, expected[name].shape))] for name, array in picked.items()}
    pipeline = bench.pipeline().eval()
    with torch.no_grad():
        return bool(pipeline.gap(*map(tensors, (feeds, expected, decision)))[rows[0]] < TIE)


def _loss(pipeline: Pipeline, batch: Batch) -> float:
    with torch.no_grad():
        return float(pipeline.loss(batch))
