"""A pipeline and its open bundle in, proof that both answer alike out: on random features, then on records as read."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from seqpipe.answers import Answer
from seqpipe.config import Config
from seqpipe.errors import ParityError
from seqpipe.evaluate import evaluate, headline, judged, posed
from seqpipe.features import Arrays, Doc, Record
from seqpipe.options import Chosen
from seqpipe.parity import CLOSE, Tally, compare, given_to, grid, shortened, trials
from seqpipe.pipeline import Pipeline, option_table, predictor
from seqpipe.predictor import ROWS, Predictor, chunks
from seqpipe.runtime import Model, same_answer

MEASURED = {"score", "vector"}  # answer kinds that, like perplexity, are numbers, and their metrics with them
ROUNDED = 1e-3  # how far numbers of an answer may differ: they are rounded to four digits, `compare` sees them whole


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch on one thread: on small batches the others wait for longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def verify_parity(pipeline: Pipeline, config: Config, model: Model, records: Sequence[Record]) -> dict[str, Any]:
    """Compares decisions on random ragged batches, then what both read of the records and answer to them.

    Args:
        pipeline: In evaluation, on the CPU.
        config: Of the pipeline.
        model: The bundle.
        records: With references: the metric is reckoned from both sides' answers.

    Returns:
        The manifest's record of it: how many decisions, ties, the largest difference of a score, the metric.

    Raises:
        ParityError: if they differ.
    """
    ours, tally = predictor(pipeline, config, explain=config.export.explain), Tally()
    _on_random_features(tally, ours, pipeline, config, model)
    _same_features(ours, model.predictor, records)
    beside = _Beside(ours, tally, pipeline, model)
    expected = [*beside.stream(posed(ours.kind, record) for record in records)]
    tally.check()
    got = [*model.predictor.stream(posed(ours.kind, record) for record in records)]
    _same_answers(records, expected, got, beside.tied)
    if pipeline.continues:  # judged by how it foretells texts, not by how it goes on with them
        wanted, scores = evaluate(ours, records)[""], evaluate(model.predictor, records)[""]
    else:
        wanted, scores = (judged(ours, zip(records, answers, strict=True))[""] for answers in (expected, got))
    (name, one), (_, other) = headline(wanted), headline(scores)
    measured = pipeline.continues or MEASURED & pipeline.learned.kinds
    allowed = len(beside.tied) + 1e-6 + (CLOSE * len(records) * max(1.0, abs(one)) if measured else 0)
    if abs(other - one) * len(records) > allowed:
        told = f"{name} is {other:.6f} with onnxruntime and {one:.6f} with PyTorch on {len(records)} records"
        raise ParityError(told)
    return {
        "decisions": tally.decisions,
        "ties": tally.ties,
        "worst_score": tally.worst,
        "records": len(records),
        "metric": name,
        "pytorch": one,
        "onnxruntime": other,
    }


def _on_random_features(tally: Tally, ours: Predictor, pipeline: Pipeline, config: Config, model: Model) -> None:
    options = option_table(*config.head)
    for given in trials(options):
        small = {"sizes": (1, 3), "lengths": (1, 7)} if given else {}
        long = () if given else grid(pipeline.learned, 1, (2,), pipeline.long)
        for feeds in itertools.chain(grid(pipeline.learned, 1, **small), long):
            of_rows = given_to(feeds, options, shortened(options, given))
            compare(tally, pipeline, ours.run, model.run_all, feeds, of_rows)


def _same_features(ours: Predictor, theirs: Predictor, records: Sequence[Record]) -> None:
    """ParityError if the bundle reads a record as other features than training does: that is exact."""
    for some in chunks([posed(ours.kind, record) for record in records], ROWS):
        one, other = (side.featurizer.collate(side.docs(some)) for side in (ours, theirs))
        for name in [name for name in {**one, **other} if not _equal(one.get(name), other.get(name))]:
            record = next((record for record in some if not _reads_alike(ours, theirs, record)), some[0])
            raise ParityError(
                f"the bundle reads {_shown(record)} otherwise than training did: its input {name!r} differs; "
                "no bundle was written. What a tokenizer or feature does must follow from what its file and the "
                "manifest say of it"
            )


def _reads_alike(ours: Predictor, theirs: Predictor, record: Record) -> bool:
    one, other = (side.featurizer.collate(side.docs([record])) for side in (ours, theirs))
    return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)


def _equal(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    return one is not None and other is not None and one.dtype == other.dtype and np.array_equal(one, other, True)


class _Beside(Predictor):
    """PyTorch's predictor, which runs the graph beside itself and tallies how the decisions differ."""

    def __init__(self, ours: Predictor, tally: Tally, pipeline: Pipeline, model: Model):
        super().__init__(ours.featurizer, ours.kind, ours.run, ours.options, ours.limits)
        self.tally, self.pipeline, self.model = tally, pipeline, model
        self._docs_in_order: list[Doc] = []
        self._tied: set[int] = set()

    @property
    def tied(self) -> set[int]:
        """The positions of the records whose answers may differ, since two decisions tied."""
        return {i for i, doc in enumerate(self._docs_in_order) if id(doc) in self._tied}

    def docs(self, records: Sequence[Record], before: int = 0) -> list[Doc]:
        docs = super().docs(records, before)
        self._docs_in_order += docs
        return docs

    def answers(self, docs: Sequence[Doc], decoding: Chosen) -> list[Answer]:
        feeds: Arrays = self.featurizer.collate(docs)
        decision, tied = compare(
            self.tally, self.pipeline, self.run, self.model.run_all, feeds, decoding.of(docs), garbage=False
        )
        self._tied |= {id(doc) for doc, one in zip(docs, tied, strict=True) if one}
        return self.kind.answers(docs, decision)


def _same_answers(records: Sequence[Record], expected: Sequence[Answer], got: Sequence[Answer], tied: set[int]) -> None:
    differ = [
        i
        for i, (one, other) in enumerate(zip(expected, got, strict=True))
        if i not in tied and not same_answer(other, one, ROUNDED)
    ]
    if differ:
        first = differ[0]
        raise ParityError(
            f"{len(differ)} of {len(records)} records are answered differently; first {_shown(records[first])}: "
            f"the bundle answers {got[first]}, PyTorch {expected[first]}; no bundle was written"
        )


def _shown(record: Record) -> str:
    text = next((str(value) for name, value in record.items() if name != "where"), "")
    return f"{record.get('where', 'a record')} ({text[:60]!r})"
