"""Compare a bundle with training on records: tokens, features and answers must be the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from seqpipe.answers.answer_types import Answer
from seqpipe.errors import DataError, ParityError
from seqpipe.export.parity.decisions import DecisionParity
from seqpipe.features.document import Arrays, Doc, Record
from seqpipe.features.raw_text import with_raw_text
from seqpipe.features.sources import TextSource
from seqpipe.features.splitting import CUTS, Cut, smallest_chunks
from seqpipe.runtime.decode_options import Chosen
from seqpipe.runtime.opened import OpenedBundle, same_answer
from seqpipe.runtime.predictor import RUN_ROWS, Predictor, chunks
from seqpipe.training.evaluation import TrainedPipeline, predictor

# Check that a bundle reads records like training: the same tokens, the same features, the same refusals.


def check_features(
    ours: Predictor,
    theirs: Predictor,
    records: Sequence[Record],
    probes: Iterable[Record],
    on_compared: Callable[[int], None],
) -> None:
    """Raise ParityError if bundle and training compute different features of a record or probe.

    Both read the records without an error, and may refuse probes, with the same message.
    """
    without_targets = [ours.task.question(record) for record in records]
    for batch in chunks(without_targets, RUN_ROWS):
        _check_batch(ours, theirs, batch)
        on_compared(len(batch))
    for probe in probes:
        _check_batch(ours, theirs, [probe])
        on_compared(1)


def same_array(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    """Return whether both arrays exist and are equal in type, shape and content."""
    return first is not None and second is not None and first.dtype == second.dtype and np.array_equal(first, second)


def describe_record(record: Record) -> str:
    """Return the place and the first words of a record, for a message."""
    text = next((str(value) for name, value in record.items() if name != "where"), "")
    return f"{record.get('where', 'a record')} ({text[:60]!r})"


def _difference(ours: Predictor, theirs: Predictor, records: Sequence[Record]) -> tuple[str, str]:
    """Return the first difference of what both sides read, and the graph input that differs; "" if there is none."""
    (docs, features, refusal), (other_docs, other_features, other_refusal) = (
        _read(side, records) for side in (ours, theirs)
    )
    if refusal != other_refusal:
        return f"its refusal ({other_refusal or 'none'}; in training: {refusal or 'none'})", ""
    for name in {**features, **other_features}:
        if not same_array(features.get(name), other_features.get(name)):
            return f"its input {name!r}", name
    return ("" if docs == other_docs else "the offsets of its tokens"), ""


def _read(side: Predictor, records: Sequence[Record]) -> tuple[Sequence[Doc], Arrays, str]:
    """Return tokenized texts and their features, or the message of a refusal."""
    try:
        docs = side.docs(records)
    except DataError as error:
        return [], {}, str(error)
    return docs, side.featurizer.collate(docs), ""


def _check_batch(ours: Predictor, theirs: Predictor, records: Sequence[Record]) -> None:
    """Raise ParityError for the first record that the two sides read differently."""
    if not any(_difference(ours, theirs, records)):
        return
    for record in records:
        difference, name = _difference(ours, theirs, [record])
        if difference:
            error = ParityError(
                f"the bundle reads {describe_record(record)} differently from training: {difference} differs; no "
                "bundle was written. A tokenizer or feature must be fully determined by its file and the manifest"
            )
            error.input = name
            raise error
    raise ParityError("the bundle reads records in a batch differently from one by one; no bundle was written")


# Find where a text may be cut into chunks that its tokenizer splits like the whole text.


def possible_cut(source: TextSource, records: Sequence[Record]) -> Cut | None:
    """Return where such texts may be cut for streaming; None if only words can be streamed."""
    return next((cut for cut in CUTS if find_different_split(source, records, cut) is None), None)


def find_different_split(source: TextSource, records: Iterable[Record], cut: Cut) -> str | None:
    """Return the first text whose tokens differ when it is streamed in chunks; None if there is none."""
    known: dict[str, Doc] = {}  # each chunk, split once
    for record in records:
        raw = {name: value for name, value in with_raw_text(record).items() if name != "words"}
        text = source.text(raw)
        (whole,) = source.docs([raw])
        pieces = [*smallest_chunks(text, cut)]
        new = [piece for piece in dict.fromkeys(pieces) if piece not in known]
        known |= zip(new, source.docs([{**raw, source.fields[0]: piece} for piece in new]), strict=True)
        if _tokens_and_words([whole]) != _tokens_and_words([known[piece] for piece in pieces]):
            return text
    return None


def _tokens_and_words(docs: Iterable[Doc]) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    """Return id, start and end of each token of a text in chunks, and start and end of each word."""
    tokens: list[tuple[int, int, int]] = []
    words: list[tuple[int, int]] = []
    length = 0
    for doc in docs:
        tokens += [(i, a + length, b + length) for i, (a, b) in zip(doc.ids, doc.offsets, strict=True)]
        words += [(a + length, b + length) for a, b in doc.word_offsets]
        length += len(doc.text)
    return tokens, words


# The answers of a pipeline and of its bundle to the same records, compared decision by decision.

ROUNDED = 1e-3  # allowed difference of rounded numbers in answers; `compare` checks the exact ones


class DualPredictor(Predictor):
    """PyTorch's predictor (on the CPU), which also runs the graph and counts differences of the decisions."""

    def __init__(self, pipeline: TrainedPipeline, model: OpenedBundle):
        ours = self.ours = predictor(pipeline.network, explain=pipeline.config.export.explain)
        ours.options, ours.limits = model.manifest.options, model.predictor.limits
        super().__init__(ours.featurizer, ours.kind, ours.run, ours.options, ours.limits)
        # The seed is that of the generated texts.
        self.network, self.model, self.seed = pipeline.network, model, pipeline.config.train.seed
        self.decisions = DecisionParity(self.network, ours.run, model.graph.run_all, ours.options)
        self.ties = 0  # among answers to records, and scores that are as near to float64 as PyTorch's
        self.without_effect: list[str] = []  # decode options that changed no decision of PyTorch when tried
        self.on_compared: Callable[[int], None] = lambda texts: None  # called with the number of newly answered texts
        self._docs_read: list[Doc] = []
        self._tied: set[int] = set()  # texts with ties, by identity
        self._graph_runs: deque[tuple[Arrays, Arrays]] = deque()  # inputs and decisions of the graph
        theirs = model.predictor
        self._theirs = type(theirs)(theirs.featurizer, theirs.kind, self._graph_decision, theirs.options, theirs.limits)

    def answer_both(self, records: Sequence[Record], **options: Any) -> tuple[list[Answer], list[Answer]]:
        """Return the answers of PyTorch and of the bundle to the records.

        Raises:
            ParityError: if they differ and no tie explains it.
        """
        self._docs_read, self._tied, self._graph_runs = [], set(), deque()
        expected = []
        for answer in self.stream(records, **options):
            expected.append(answer)
            self.on_compared(1)
        got = [*self._theirs.stream(records, **options)]
        tied = [id(doc) in self._tied for doc in self._docs_read]
        self.ties += sum(tied)
        differ = [
            i
            for i, (theirs, ours) in enumerate(zip(got, expected, strict=True))
            if not tied[i] and not same_answer(theirs, ours, ROUNDED)
        ]
        self.decisions.tally.check()
        if differ:
            under = f" under {options}" if options else ""
            raise ParityError(
                f"{len(differ)} of {len(records)} records are answered differently{under}; first "
                f"{describe_record(records[differ[0]])}: the bundle answers {got[differ[0]]}, PyTorch "
                f"{expected[differ[0]]}; no bundle was written"
            )
        return expected, got

    def docs(self, records: Sequence[Record], before: int = 0, within_text: bool = False) -> list[Doc]:
        docs = super().docs(records, before, within_text)
        self._docs_read += docs
        return docs

    def answers(self, docs: Sequence[Doc], decoding: Chosen, alone: bool = False) -> list[Answer]:
        feeds: Arrays = self.featurizer.collate(docs)
        options = decoding.of(docs)
        decision, got, tied = self.decisions.compare(feeds, options, garbage=False)
        self._graph_runs.append((feeds | options, got))
        self._tied |= {id(doc) for doc, is_tied in zip(docs, tied, strict=True) if is_tied}
        return self.read(docs, decision, decoding)

    def _graph_decision(self, feeds: Arrays) -> Arrays:
        """Return the graph's decision; it is available already if both sides have the same features."""
        inputs, decision = self._graph_runs.popleft() if self._graph_runs else ({}, {})
        same = inputs.keys() == feeds.keys() and all(same_array(inputs[name], feeds[name]) for name in feeds)
        return decision if same else self.model.run(feeds)
