"""The answers of a pipeline and of its bundle to the same records, compared decision by decision."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from seqpipe.answers.base import Answer
from seqpipe.config.loader import Config
from seqpipe.errors import ParityError
from seqpipe.export.parity.decisions import DecisionParity
from seqpipe.export.parity.features import described, same_array
from seqpipe.features.document import Arrays, Doc, Record
from seqpipe.runtime.decode_options import Chosen
from seqpipe.runtime.model import Model, same_answer
from seqpipe.runtime.predictor import Predictor
from seqpipe.training.evaluation import predictor
from seqpipe.training.pipeline import Pipeline

ROUNDED = 1e-3  # how far numbers of an answer may differ: they are rounded, and `compare` sees them whole


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
        self.pipeline, self.model = pipeline, model
        self.decisions = DecisionParity(pipeline, ours.run, model.run_all, ours.options)
        self.ties = 0  # among answers to records
        self.without_effect: list[str] = []  # decode options that changed none of PyTorch's decisions where tried
        self.on_compared: Callable[[int], None] = lambda texts: None  # called with how many more texts were answered
        self._docs_read: list[Doc] = []
        self._tied: set[int] = set()  # of texts read, by identity
        self._graph_runs: deque[tuple[Arrays, Arrays]] = deque()  # inputs and decisions of the graph
        theirs = model.predictor
        self._theirs = type(theirs)(theirs.featurizer, theirs.kind, self._graph_decision, theirs.options, theirs.limits)

    def answer_both(self, records: Sequence[Record], **options: Any) -> tuple[list[Answer], list[Answer]]:
        """PyTorch's answers to the records as they are, and the bundle's.

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
                f"{described(records[differ[0]])}: the bundle answers {got[differ[0]]}, PyTorch {expected[differ[0]]}; "
                "no bundle was written"
            )
        return expected, got

    def docs(self, records: Sequence[Record], before: int = 0) -> list[Doc]:
        docs = super().docs(records, before)
        self._docs_read += docs
        return docs

    def answers(self, docs: Sequence[Doc], decoding: Chosen) -> list[Answer]:
        feeds: Arrays = self.featurizer.collate(docs)
        options = decoding.of(docs)
        decision, got, tied = self.decisions.compare(feeds, options, garbage=False)
        self._graph_runs.append((feeds | options, got))
        self._tied |= {id(doc) for doc, is_tied in zip(docs, tied, strict=True) if is_tied}
        return self.read(docs, decision)

    def _graph_decision(self, feeds: Arrays) -> Arrays:
        """The graph's decision, which is there already if the bundle reads the batch as training does."""
        inputs, decision = self._graph_runs.popleft() if self._graph_runs else ({}, {})
        same = inputs.keys() == feeds.keys() and all(same_array(inputs[name], feeds[name]) for name in feeds)
        return decision if same else self.model.run(feeds)
