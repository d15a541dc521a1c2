"""A bundle in fp32 and the same in int8 in, whether the integers cost too much out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from seqpipe.answers.metrics.counters import FRACTIONS, shown
from seqpipe.errors import ParityError
from seqpipe.export.parity import given_to, grid, shortened
from seqpipe.export.parity_gate import Comparison, drawn
from seqpipe.features.document import Arrays, Record
from seqpipe.features.sources import masks
from seqpipe.runtime.evaluate import evaluate, goodness, headline, posed
from seqpipe.runtime.model import LOOSE, Model
from seqpipe.runtime.predictor import batches

MOST_LOST, MOST_LOST_SHARE = 0.005, 0.02  # what int8 may cost of a fraction, and of any other metric
RECORDS = 200  # on fewer a metric tells too little
DECISIONS, MOST_CHANGED = 1_000, 0.01  # compared instead, and the share of them that int8 may change

_CURE = "set export.precision: fp32, or make the model wider or train it longer"
_ABSENT = {"tokens": 0, "pointers": -1}  # what stands behind a text, or behind the last pointer


def judge_int8(comparison: Comparison, small: Model, records: Sequence[Record]) -> dict[str, Any]:
    """Judges a bundle in int8 by its metric on `RECORDS` or more, else by how many decisions are those of fp32.

    Args:
        comparison: Of PyTorch and the bundle in fp32.
        small: The bundle in int8.
        records: With references.

    Returns:
        For the manifest: the metric in int8, and, of few records, on how many decisions which share agreed.

    Raises:
        ParityError: if the metric is worse by more than `MOST_LOST`, or more than `MOST_CHANGED` of the decisions are
            others.
    """
    some = drawn(records)
    (name, expected), (_, got) = (headline(evaluate(one.predictor, some)[""]) for one in (comparison.model, small))
    told = f"{name} is {shown(name, got)} in int8 and {shown(name, expected)} in fp32 on {len(some):,} records"
    found = {"precision": "int8", "onnxruntime": got}
    if len(some) >= RECORDS:
        worse = goodness({name: expected}, None) - goodness({name: got}, None)
        if worse > (MOST_LOST if name in FRACTIONS else MOST_LOST_SHARE * abs(expected)) + 1e-9:
            raise ParityError(f"{told}; {_CURE}")
        return found
    same, count = _agreement(comparison, small, some)
    if count - same > MOST_CHANGED * count:
        raise ParityError(f"{same:,} of {count:,} decisions in int8 are those in fp32, and {told}; {_CURE}")
    return found | {"agreement": same / count, "compared": count}


def _agreement(comparison: Comparison, small: Model, records: Sequence[Record]) -> tuple[int, int]:
    """How many decisions are the same, and of how many: of all records, then of random texts until there are enough."""
    same = count = 0

    def add(feeds: Arrays) -> None:
        nonlocal same, count
        options = given_to(feeds, comparison.options, shortened(comparison.options, {}))
        one, other = (model.run(feeds | options) for model in (comparison.model, small))
        for equal in _equal(one, other, feeds):
            same, count = same + int(equal.sum()), count + equal.size

    docs = comparison.docs([posed(comparison.kind, record) for record in records])
    for rows in batches([len(doc) for doc in docs]):
        add(comparison.featurizer.collate([docs[i] for i in rows]))
    for seed in itertools.count():
        if count >= DECISIONS:
            break
        for feeds in grid(comparison.pipeline.artifacts, seed, (7,), (2, 9)):
            add(feeds)
    return same, count


def _equal(one: Arrays, other: Arrays, feeds: Arrays) -> Iterator[np.ndarray]:
    """Of each decision, flat, whether it is the same: a tag, a label, a token of the best text; of numbers, whether
    they are as near as golden examples in int8 have to be."""
    head_of = {name: name.rpartition(".")[0] for name in one}
    decided = {head_of[name] for name, array in one.items() if array.dtype.kind == "i"}  # heads that choose
    for name in one:
        output, a, b = name.rpartition(".")[2], one[name], other[name]
        if output in _ABSENT:
            size = max(a.shape[2], b.shape[2])
            a, b = (_padded(array[:, 0], size, _ABSENT[output]) for array in (a, b))
            yield (a == b)[(a != _ABSENT[output]) | (b != _ABSENT[output])]
        elif output == "tags":
            real = [mask for mask in masks(feeds).values() if mask.shape == a.shape]
            yield (a == b)[real[0]] if real else (a == b).ravel()
        elif output in ("starts", "ends"):
            yield a[:, 0] == b[:, 0]
        elif output in ("label", "labels"):
            yield (a == b).ravel()
        elif head_of[name] not in decided:
            yield np.abs(a - b).ravel() <= LOOSE * np.maximum(1, np.abs(a).ravel())


def _padded(array: np.ndarray, size: int, absent: int) -> np.ndarray:
    return np.pad(array, ((0, 0), (0, size - array.shape[1])), constant_values=absent)
