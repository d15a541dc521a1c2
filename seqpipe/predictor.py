"""Texts in, answers out, in order: featurise, batch by length, run on every core, turn decisions into answers.

What runs a batch is given: onnxruntime at deployment, PyTorch in training and evaluation. All around it is this code.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from seqpipe.answers import Answer, Kind
from seqpipe.continuing import Continuation
from seqpipe.errors import DataError, UsageError
from seqpipe.features import Arrays, Doc, Featurizer, Record, sentences
from seqpipe.inputs import Inputs
from seqpipe.joint import empty_answer
from seqpipe.options import Chosen, chosen

if TYPE_CHECKING:
    from seqpipe.wiring import Metrics

CHUNK = 1024  # records encoded at a time
ENOUGH = 128  # records to split on several cores
ROWS, TOKENS = 32, 4096  # most rows, and most padded tokens, of one run
DIVIDED = ("spans", "tags")  # answer kinds of which a document's answer is those of its sentences
Item = TypeVar("Item")
Run = Callable[[Arrays], Arrays]  # features and decode options to a decision
Task = tuple[Sequence[Doc], list[tuple[list[int], "Future[list[Answer]]"]]]


class RecordError(DataError):
    """An input that cannot be answered: `row` says which of a batch, until its place stands in the message."""

    def __init__(self, row: int, message: str):
        super().__init__(message)
        self.row = row


class Predictor:
    """Answers for records: dicts with `text` or `words`. Safe to use from several threads at once."""

    def __init__(
        self,
        featurizer: Inputs,
        kind: Kind,
        run: Run,
        options: Mapping[str, Mapping[str, Any]],
        limits: Mapping[str, int],
        workers: int = 1,
        metrics: Mapping[str, Metrics] | None = None,
    ):
        self.featurizer, self.kind, self.options, self.limits, self.workers = featurizer, kind, options, limits, workers
        self.run, self.metrics = run, metrics or {}
        self._pool = ThreadPoolExecutor(workers, "seqpipe") if workers > 1 else None

    def stream(self, records: Iterable[Record], chunk: int = CHUNK, **options: Any) -> Iterator[Answer]:
        """Answers in the order of the records, in constant memory.

        While `chunk` records are answered the next are read; not so one at a time: there somebody waits for each.
        """
        if chunk < 1:
            raise UsageError(f"chunk: {chunk} inputs at a time are none; at least 1")
        decoding = chosen(self.options, options, self.kind)
        empty = empty_answer(self.kind, decoding.arrays)
        pending: deque[Task] = deque()
        count = 0
        for some in chunks(records, chunk):
            pending.append(self._start(some, decoding, count))
            count += len(some)
            if len(pending) > (chunk > 1):
                yield from _finish(pending.popleft(), empty)
        while pending:
            yield from _finish(pending.popleft(), empty)

    def document(self, record: Record, **options: Any) -> Answer:
        """Answers for a whole document: split into sentences, offsets into the document."""
        if self.kind.kind not in DIVIDED:
            raise UsageError(f"documents are split for spans and tags; this bundle answers with {self.kind.kind!r}")
        if options.get("n_best", 1) != 1:
            raise UsageError("n_best is for single sentences; leave it out for documents")
        if not isinstance(self.featurizer, Featurizer) or self.featurizer.pairs:
            raise UsageError("documents are single texts; this bundle reads something else")
        text, field = self.featurizer.text(record), self.featurizer.fields[0]
        places = sentences(text)
        parts = ({**record, "words": None, field: text[a:b]} for a, b in places)
        found = self.stream(parts, **options)
        return [
            {**part, "start": part["start"] + a, "end": part["end"] + a}
            for (a, _), answer in zip(places, found, strict=True)
            for part in answer
        ]

    def docs(self, records: Sequence[Record], before: int = 0) -> list[Doc]:
        """The records split; DataError for one that is too long, by its number from `before` + 1 on."""
        docs = self._docs(records)
        refuse_long(docs, records, self.limits, before, self.kind.kind in DIVIDED)
        if isinstance(self.kind, Continuation) and not self.kind.begins:
            self.kind.refuse_empty(docs, records, before)
        return docs

    def _start(self, records: Sequence[Record], decoding: Chosen, before: int) -> Task:
        docs, tasks = self.docs(records, before), []
        for rows in batches([self._tokens(doc) for doc in docs]):
            batch = [docs[i] for i in rows], [records[i] for i in rows], [before + i for i in rows], decoding
            if self._pool is None or len(docs) <= 1:
                done: Future[list[Answer]] = Future()
                done.set_result(self._batch(*batch))
                tasks.append((rows, done))
            else:
                tasks.append((rows, self._pool.submit(self._batch, *batch)))
        return docs, tasks

    def _batch(
        self, docs: Sequence[Doc], records: Sequence[Record], before: Sequence[int], decoding: Chosen
    ) -> list[Answer]:
        """The answers to these texts; DataError names the place of a record that cannot be answered."""
        try:
            return self.answers(docs, decoding)
        except RecordError as error:
            where = records[error.row].get("where", f"record {before[error.row] + 1}")
            raise DataError(f"{where}: {error}") from error

    def _tokens(self, doc: Doc) -> int:
        """How many tokens are read of a text; of one that [BOS] stands before at least that."""
        return len(doc) + (isinstance(self.kind, Continuation) and self.kind.begins)

    def _docs(self, records: Sequence[Record]) -> list[Doc]:
        """The records split, on every core if there are enough: most of what is not the run is splitting."""
        if self._pool is None or len(records) < ENOUGH:
            return self.featurizer.docs(records)
        size = -(-len(records) // self.workers)
        parts = [records[i : i + size] for i in range(0, len(records), size)]
        return [doc for some in self._pool.map(self.featurizer.docs, parts) for doc in some]

    def answers(self, docs: Sequence[Doc], decoding: Chosen) -> list[Answer]:
        """The answers to the texts of one batch."""
        return self.read(docs, self.run(self.featurizer.collate(docs) | decoding.of(docs)))

    def read(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        """The answers that a decision means."""
        return self.kind.answers(docs, decision)


def refuse_long(
    docs: Iterable[Doc],
    records: Iterable[Record],
    limits: Mapping[str, int],
    before: int = 0,
    divided: bool = False,
) -> None:
    """DataError for the first record that is over a limit, by its place, or its number from `before` + 1 on.

    Args:
        docs: The records, split.
        records: They themselves.
        limits: As a bundle states them.
        before: How many records came before.
        divided: Whether a text may be answered sentence by sentence, which is then the cure.
    """
    for i, (doc, record) in enumerate(zip(docs, records, strict=True), before + 1):
        if told := _too_long(doc, limits, divided):
            raise DataError(f"{record.get('where', f'record {i}')}: {told}")


def _too_long(doc: Doc, limits: Mapping[str, int], divided: bool) -> str:
    """Which limit a text is over, and what to do; nothing if none."""
    if len(doc) > limits["tokens"]:
        cure = ", or ask for documents (predict --documents), which splits it into sentences" if divided else ""
        return f"{len(doc):,} tokens are over the limit of {limits['tokens']:,}; split the text{cure}"
    first = (doc.second or 1) - 1
    if first > limits.get("first_tokens", first):
        told = f"the first text has {first:,} tokens, and at most {limits['first_tokens']:,} leave room for the second"
        return f"{told}; shorten it, or make it the second of the two, which may have any length"
    return ""


def batches(lengths: Sequence[int], rows: int = ROWS, tokens: int = TOKENS) -> Iterator[list[int]]:
    """Positions of like lengths together, longest first; empty texts are left out, they need no run."""
    order = sorted((i for i, n in enumerate(lengths) if n), key=lambda i: (-lengths[i], i))
    while order:
        size = max(1, min(rows, tokens // lengths[order[0]]))
        yield order[:size]
        order = order[size:]


def cores() -> int:
    """Cores this process may use: its CPU affinity, and the container's quota where there is one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.exists():
        limit, period = quota.read_text().split()[:2]
        if limit != "max":
            allowed = min(allowed, max(1, int(limit) // int(period)))
    return allowed


def chunks(records: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """So many at a time, in order."""
    iterator = iter(records)
    while some := list(itertools.islice(iterator, size)):
        yield some


def _finish(task: Task, empty: Answer) -> Iterator[Answer]:
    docs, tasks = task
    answers: list[Answer] = [None] * len(docs)
    for rows, future in tasks:
        for row, answer in zip(rows, future.result(), strict=True):
            answers[row] = answer
    for answer in answers:
        yield copy.deepcopy(empty) if answer is None else answer
