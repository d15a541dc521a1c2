"""The judgement whether a bundle in int8 answers nearly as well as in fp32."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from seqpipe.answers.metrics.table import metric_of, shown
from seqpipe.answers.multi_head import part_of
from seqpipe.errors import ParityError
from seqpipe.export.example_inputs import random_batches
from seqpipe.export.parity.answers import Comparison
from seqpipe.export.parity.gate import sampled
from seqpipe.export.parity.trial_options import option_inputs, with_short_texts
from seqpipe.features.document import Arrays, Record
from seqpipe.features.sources import masks
from seqpipe.runtime.evaluate import evaluate, goodness, headline
from seqpipe.runtime.model import Model
from seqpipe.runtime.predictor import batches

MOST_LOST, MOST_LOST_SHARE = 0.005, 0.02  # what int8 may cost of a fraction, and of any other metric
RECORDS = 200  # on fewer a metric says too little
DECISIONS, MOST_CHANGED = 1_000, 0.01  # compared instead, and the share of them that int8 may change

_CURE = "set export.precision: fp32, or make the model wider or train it longer"


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
    sample = sampled(records)
    (name, expected), (_, got) = (
        headline(evaluate(model.predictor, sample)[""]) for model in (comparison.model, small)
    )
    metrics = comparison.model.predictor.metric_types
    int8, fp32 = (shown(name, value, metrics) for value in (got, expected))
    message = f"{name} is {int8} in int8 and {fp32} in fp32 on {len(sample):,} records"
    report = {"precision": "int8", "onnxruntime": got}
    if len(sample) >= RECORDS:
        worse = goodness({name: expected}, None, metrics) - goodness({name: got}, None, metrics)
        if worse > (MOST_LOST if metric_of(name, metrics).percent else MOST_LOST_SHARE * abs(expected)) + 1e-9:
            raise ParityError(f"{message}; {_CURE}")
        return report
    same, count = _agreement(comparison, small, sample)
    if count - same > MOST_CHANGED * count:
        raise ParityError(f"{same:,} of {count:,} decisions in int8 are those in fp32, and {message}; {_CURE}")
    return report | {"agreement": same / count, "compared": count}


def _agreement(comparison: Comparison, small: Model, records: Sequence[Record]) -> tuple[int, int]:
    """How many decisions are the same, and of how many: of all records, then of random texts until there are enough."""
    same = count = 0

    def add(feeds: Arrays) -> None:
        nonlocal same, count
        options = option_inputs(feeds, comparison.options, with_short_texts(comparison.options, {}))
        expected, got = (model.run(feeds | options) for model in (comparison.model, small))
        for head, part in comparison.kind.parts.items():
            pair = part_of(expected, head), part_of(got, head)
            for equal in part.equal_decisions(*pair, [*masks(feeds).values()]):
                same, count = same + int(equal.sum()), count + equal.size

    docs = comparison.docs([comparison.kind.question(record) for record in records])
    for rows in batches([len(doc) for doc in docs]):
        add(comparison.featurizer.collate([docs[i] for i in rows]))
    for seed in itertools.count():
        if count >= DECISIONS:
            break
        for feeds in random_batches(comparison.pipeline.artifacts, seed, (7,), (2, 9)):
            add(feeds)
    return same, count
