"""A pipeline and its open bundle in, proof that both answer alike out: on random features, then on records as read."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from seqpipe.answers.types import Answer
from seqpipe.config.loader import Config
from seqpipe.errors import DataError, ParityError
from seqpipe.export.generated_records import probe_records
from seqpipe.export.incremental import compare_pieces
from seqpipe.export.parity import CLOSE, Tally, compare, given_to, grid, moved, settle, shortened, trials
from seqpipe.features.document import Arrays, Doc, Record
from seqpipe.features.sources import masks
from seqpipe.runtime.decode_options import Chosen
from seqpipe.runtime.evaluate import evaluate, headline, judged
from seqpipe.runtime.model import Model, same_answer
from seqpipe.runtime.predictor import ROWS, Predictor, chunks
from seqpipe.training.pipeline import Pipeline, predictor

ROUNDED = 1e-3  # how far numbers of an answer may differ: they are rounded, and `compare` sees them whole
MOST_RECORDS = 2_000  # records that both answer
WITH_OPTIONS = {
    "records": MOST_RECORDS,
    "texts": 50,
}  # how many both also answer with decode options off their defaults
GARBAGE = 1_024  # tokens, padding included, of a random batch whose padding is also filled with garbage
PROBED = 60  # tokens of such a probe
SEED = 1  # of what is drawn
TRIED = 3  # random batches in which a decode option may show an effect


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
def verify_parity(comparison: Comparison, records: Sequence[Record]) -> dict[str, Any]:
    """Compares what a pipeline and its bundle read of texts, decide about random features and answer to records.

    - Decisions on random ragged batches, under many decode options (`seqpipe.export.parity`).
    - Features, exactly, of all records and of probes: texts of every script and of all that was learned.
    - Answers to the records, or to `MOST_RECORDS` that are drawn, and to some generated texts; at the default and at
      other decode options.
    - The metric of these answers.

    Args:
        comparison: Of the two.
        records: With references.

    Returns:
        The manifest's record of it: how many decisions, ties, the largest difference of a score, the metric.

    Raises:
        ParityError: if they differ.
    """
    ours, theirs, pipeline = comparison.ours, comparison.model.predictor, comparison.pipeline
    _on_random_features(comparison)
    probes = [*probe_records(ours.featurizer, ours.limits["tokens"], SEED)]
    same_features(ours, theirs, records, probes)
    draw, some = random.Random(SEED), drawn(records)
    asked = [ours.kind.question(record) for record in some]
    if pipeline.is_language_model:  # judged by perplexity, not by its continuations
        comparison.compared(asked[:ROWS])
        comparison.compared(asked[ROWS:], **shortened(ours.options, {}))
        wanted, scores = evaluate(ours, some)[""], evaluate(theirs, some)[""]
    else:
        answers = comparison.compared(asked)
        wanted, scores = (judged(ours, zip(some, one, strict=True))[""] for one in answers)
    answerable = [ours.kind.question(probe) for probe in probes if 0 <= _length(ours, probe) <= PROBED]
    ties = comparison.ties  # among these answers, of which the metrics are
    texts = draw.sample(answerable, min(WITH_OPTIONS["texts"], len(answerable)))
    again = draw.sample(asked, min(WITH_OPTIONS["records"], len(asked)))
    others = [shortened(ours.options, given) for given in trials(ours.options)]
    for options in others:
        comparison.compared([*texts, *again] if options else texts, **options)
    (name, one), (_, other) = headline(wanted), headline(scores)
    measured = pipeline.is_language_model or any(part.is_numeric for part in ours.kind.parts.values())
    allowed = ties + 1e-6 + (CLOSE * len(some) * max(1.0, abs(one)) if measured else 0)
    if abs(other - one) * len(some) > allowed:
        raise ParityError(f"{name} is {other:.6f} with onnxruntime and {one:.6f} with PyTorch on {len(some)} records")
    tally = comparison.tally
    settle(tally, pipeline, ours.run, comparison.model.run_all, ours.options)
    return {
        "decisions": tally.decisions,
        "ties": tally.ties,
        "worst_score": tally.worst,
        "records": len(some),
        "read": len(records) + len(probes),
        "texts": len(texts),
        "without_effect": comparison.without_effect,
        "records_with_options": len(again) if any(others) else 0,
        "metric": name,
        "pytorch": one,
        "onnxruntime": other,
    }


def drawn(records: Sequence[Record]) -> list[Record]:
    """The records, of many `MOST_RECORDS` that are drawn, in order."""
    chosen = random.Random(SEED).sample(range(len(records)), min(MOST_RECORDS, len(records)))
    return [records[i] for i in sorted(chosen)]


def _on_random_features(comparison: Comparison) -> None:
    pipeline, ours, options = comparison.pipeline, comparison.ours, comparison.options

    def compared(batches: Iterable[Arrays], given: Mapping[str, Any]) -> None:
        for feeds in batches:
            of_rows = given_to(feeds, options, shortened(options, given))
            garbage = sum(mask.size for mask in masks(feeds).values()) <= GARBAGE
            compare(comparison.tally, pipeline, ours.run, comparison.model.run_all, feeds, of_rows, garbage)

    for given in trials(options):
        small = {"sizes": (1, 3), "lengths": (1, 7)} if given else {}
        long = () if given else grid(pipeline.learned, 1, (2,), pipeline.long)
        compared(itertools.chain(grid(pipeline.learned, 1, **small), long), given)
    for name, candidates in moved(options).items():
        drawn_batches = [next(grid(pipeline.learned, seed, (3,), (7,))) for seed in range(SEED, SEED + TRIED)]
        trying = itertools.product(candidates, drawn_batches)
        found = next(((given, feeds) for given, feeds in trying if _matters(ours, feeds, name, given)), None)
        if found is None:
            comparison.without_effect.append(name)
        given, feeds = found or (candidates[0], drawn_batches[0])
        compared([feeds], given)
    if pipeline.cache:
        batches = grid(pipeline.learned, SEED, (1, 3), (1, 7))
        compare_pieces(comparison.tally, pipeline, ours.run, comparison.model.run_all, batches, options)
    comparison.tally.check()


def _matters(ours: Predictor, feeds: Arrays, name: str, given: Mapping[str, Any]) -> bool:
    """Whether PyTorch decides otherwise under these options than with the default of one of them."""
    default = {**given, name: ours.options[name]["default"]}
    one, other = (
        ours.run(feeds | given_to(feeds, ours.options, shortened(ours.options, some))) for some in (given, default)
    )
    return any(not _equal(one[key], other[key]) for key in one)


def same_features(ours: Predictor, theirs: Predictor, records: Sequence[Record], probes: Iterable[Record] = ()) -> None:
    """ParityError if the bundle reads a record or a probe as other features than training does: that is exact.

    Args:
        ours: PyTorch's.
        theirs: The bundle's.
        records: What both read without an error.
        probes: What both may refuse, with the same words.
    """
    asked = [ours.kind.question(record) for record in records]
    for some in chunks(asked, ROWS):
        if _read(ours, some) != _read(theirs, some):
            _tell(ours, theirs, some)
    for probe in probes:
        if _read(ours, [probe]) != _read(theirs, [probe]):
            _tell(ours, theirs, [probe])


class _Read:
    """What a side makes of records: texts, split, and features; or its words of why it refuses them."""

    def __init__(self, docs: Sequence[Doc], features: Arrays, refused: str):
        self.docs, self.features, self.refused = docs, features, refused

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Read) and not self.differs(other)

    def differs(self, other: _Read) -> str:
        """What is not the same in both."""
        if self.refused != other.refused:
            return f"its refusal ({other.refused or 'none'}; in training: {self.refused or 'none'})"
        names = {**self.features, **other.features}
        odd = [name for name in names if not _equal(self.features.get(name), other.features.get(name))]
        return f"its input {odd[0]!r}" if odd else "" if self.docs == other.docs else "where its tokens stand"


def _read(side: Predictor, records: Sequence[Record]) -> _Read:
    try:
        docs = side.docs(records)
    except DataError as error:
        return _Read([], {}, str(error))
    return _Read(docs, side.featurizer.collate(docs), "")


def _tell(ours: Predictor, theirs: Predictor, records: Sequence[Record]) -> None:
    """ParityError about the first record that both read otherwise."""
    for record in records:
        if what := _read(ours, [record]).differs(_read(theirs, [record])):
            raise ParityError(
                f"the bundle reads {_shown(record)} otherwise than training did: {what} differs; no bundle was "
                "written. All that a tokenizer or a feature does must follow from its file and the manifest"
            )
    raise ParityError("the bundle reads records in a batch otherwise than one by one; no bundle was written")


def _equal(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    return one is not None and other is not None and one.dtype == other.dtype and np.array_equal(one, other)


def _length(side: Predictor, record: Record) -> int:
    """How many tokens a record has; -1 if it is refused."""
    try:
        return len(side.docs([record])[0])
    except DataError:
        return -1


class Comparison(Predictor):
    """PyTorch's predictor, which runs the graph beside itself and tallies how the decisions differ.

    Args:
        pipeline: In evaluation, on the CPU.
        config: Of the pipeline.
        model: The bundle, as `seqpipe.runtime.bundle.read` reads it.
    """

    def __init__(self, pipeline: Pipeline, config: Config, model: Model):
        ours = self.ours = predictor(pipeline, config, explain=config.export.explain)
        ours.options, ours.limits = model.predictor.options, model.predictor.limits
        super().__init__(ours.featurizer, ours.kind, ours.run, ours.options, ours.limits)
        self.tally, self.pipeline, self.model = Tally(), pipeline, model
        self.ties = 0  # among answers to records
        self.without_effect: list[str] = []  # decode options that changed none of PyTorch's decisions where tried
        self._seen: list[Doc] = []
        self._tied: set[int] = set()  # of texts seen, by identity
        self._ran: deque[tuple[Arrays, Arrays]] = deque()  # inputs and decisions of the graph
        theirs = model.predictor
        self._theirs = type(theirs)(theirs.featurizer, theirs.kind, self._again, theirs.options, theirs.limits)

    def compared(self, records: Sequence[Record], **options: Any) -> tuple[list[Answer], list[Answer]]:
        """PyTorch's answers to the records as they are, and the bundle's.

        Raises:
            ParityError: if they differ and no tie explains it.
        """
        self._seen, self._tied, self._ran = [], set(), deque()
        expected = [*self.stream(records, **options)]
        got = [*self._theirs.stream(records, **options)]
        tied = [id(doc) in self._tied for doc in self._seen]
        self.ties += sum(tied)
        differ = [
            i
            for i, (one, other) in enumerate(zip(expected, got, strict=True))
            if not tied[i] and not same_answer(other, one, ROUNDED)
        ]
        self.tally.check()
        if differ:
            under = f" under {options}" if options else ""
            raise ParityError(
                f"{len(differ)} of {len(records)} records are answered differently{under}; first "
                f"{_shown(records[differ[0]])}: the bundle answers {got[differ[0]]}, PyTorch {expected[differ[0]]}; "
                "no bundle was written"
            )
        return expected, got

    def docs(self, records: Sequence[Record], before: int = 0) -> list[Doc]:
        docs = super().docs(records, before)
        self._seen += docs
        return docs

    def answers(self, docs: Sequence[Doc], decoding: Chosen) -> list[Answer]:
        feeds: Arrays = self.featurizer.collate(docs)
        options = decoding.of(docs)
        decision, got, tied = compare(
            self.tally, self.pipeline, self.run, self.model.run_all, feeds, options, garbage=False
        )
        self._ran.append((feeds | options, got))
        self._tied |= {id(doc) for doc, one in zip(docs, tied, strict=True) if one}
        return self.kind.answers(docs, decision)

    def _again(self, feeds: Arrays) -> Arrays:
        """The graph's decision, which is there already if the bundle reads the batch as training does."""
        given, decision = self._ran.popleft() if self._ran else ({}, {})
        same = given.keys() == feeds.keys() and all(_equal(given[name], feeds[name]) for name in feeds)
        return decision if same else self.model.run(feeds)


def _shown(record: Record) -> str:
    text = next((str(value) for name, value in record.items() if name != "where"), "")
    return f"{record.get('where', 'a record')} ({text[:60]!r})"
