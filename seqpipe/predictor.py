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
from typing import TYPE_CHECKING, Any

import numpy as np

from seqpipe.answers import Answer, Kind
from seqpipe.errors import DataError, UsageError, nearest
from seqpipe.features import Arrays, Doc, Featurizer, Record, sentences
from seqpipe.joint import empty_answer

if TYPE_CHECKING:
    from seqpipe.wiring import Metrics

CHUNK = 1024  # records encoded at a time
ENOUGH = 128  # records to split on several cores
ROWS, TOKENS = 32, 4096  # most rows, and most padded tokens, of one run
_TYPES: Mapping[str, tuple[type, ...]] = {"size": (int,), "int": (int,), "float": (int, float), "bool": (bool,)}
Run = Callable[[Arrays], Arrays]  # features and decode options to a decision
Task = tuple[Sequence[Doc], list[tuple[list[int], "Future[list[Answer]]"]]]


class Predictor:
    """Answers for records: dicts with `text` or `words`. Safe to use from several threads at once."""

    def __init__(
        self,
        featurizer: Featurizer,
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
        feeds = option_arrays(self.options, options)
        empty = empty_answer(self.kind, feeds)
        pending: deque[Task] = deque()
        count = 0
        for some in _chunks(records, chunk):
            pending.append(self._start(some, feeds, count))
            count += len(some)
            if len(pending) > (chunk > 1):
                yield from _finish(pending.popleft(), empty)
        while pending:
            yield from _finish(pending.popleft(), empty)

    def document(self, record: Record, **options: Any) -> Answer:
        """Answers for a whole document: split into sentences, offsets into the document."""
        if self.kind.kind not in ("spans", "tags"):
            raise UsageError(f"documents are split for spans and tags; this bundle answers with {self.kind.kind!r}")
        if options.get("n_best", 1) != 1:
            raise UsageError("n_best is for single sentences; leave it out for documents")
        if self.featurizer.pairs:
            raise UsageError("documents are single texts; this bundle reads pairs")
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
        refuse_long(docs, records, self.limits, before)
        return docs

    def _start(self, records: Sequence[Record], feeds: Arrays, before: int) -> Task:
        docs, tasks = self.docs(records, before), []
        for rows in batches([len(doc) for doc in docs]):
            some = [docs[i] for i in rows]
            if self._pool is None or len(docs) <= 1:
                done: Future[list[Answer]] = Future()
                done.set_result(self._answers(some, feeds))
                tasks.append((rows, done))
            else:
                tasks.append((rows, self._pool.submit(self._answers, some, feeds)))
        return docs, tasks

    def _docs(self, records: Sequence[Record]) -> list[Doc]:
        """The records split, on every core if there are enough: most of what is not the run is splitting."""
        if self._pool is None or len(records) < ENOUGH:
            return self.featurizer.docs(records)
        size = -(-len(records) // self.workers)
        parts = [records[i : i + size] for i in range(0, len(records), size)]
        return [doc for some in self._pool.map(self.featurizer.docs, parts) for doc in some]

    def _answers(self, docs: Sequence[Doc], feeds: Arrays) -> list[Answer]:
        return self.kind.answers(docs, self.run(self.featurizer.collate(docs) | feeds))


def refuse_long(docs: Iterable[Doc], records: Iterable[Record], limits: Mapping[str, int], before: int = 0) -> None:
    """DataError for the first record that is over a limit, by its place, or its number from `before` + 1 on."""
    for i, (doc, record) in enumerate(zip(docs, records, strict=True), before + 1):
        if told := _too_long(doc, limits):
            raise DataError(f"{record.get('where', f'record {i}')}: {told}")


def _too_long(doc: Doc, limits: Mapping[str, int]) -> str:
    """Which limit a text is over, and what to do; nothing if none."""
    if len(doc) > limits["tokens"]:
        cure = "split the text, or ask for documents (predict --documents), which splits it into sentences"
        return f"{len(doc):,} tokens are over the limit of {limits['tokens']:,}; {cure}"
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


def option_arrays(known: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any]) -> Arrays:
    """Decode options as graph inputs; UsageError names an unknown option, a wrong type or a value out of range."""
    for name in given:
        if name not in known:
            raise UsageError(
                f"no decode option {name!r}{nearest(name, known)} (there is: {', '.join(known) or 'none'})"
            )
    arrays = {}
    for name, option in known.items():
        value = given.get(name, option["default"])
        if type(value) not in _TYPES[option["type"]]:
            raise UsageError(f"{name}: must be {option['type'].replace('size', 'int')}, not {value!r}")
        low, high = option.get("minimum"), option.get("maximum")
        if not ((low is None or value >= low) and (high is None or value <= high)):  # nan is not between either
            raise UsageError(f"{name}: {value} is not between {low} and {high}")
        dtype = {"int": np.int64, "float": np.float32, "bool": np.bool_}
        arrays[name] = np.zeros(value, np.int64) if option["type"] == "size" else np.array(value, dtype[option["type"]])
    for name in [name for name in arrays if name.endswith("n_best")]:
        beams = name.removesuffix("n_best") + "beams"
        if beams in arrays and len(arrays[name]) > len(arrays[beams]):
            told = f"{len(arrays[name])} answers need as many beams; {beams} is {len(arrays[beams])}"
            raise UsageError(f"{name}: {told}")
    return arrays


def cores() -> int:
    """Cores this process may use: its CPU affinity, and the container's quota where there is one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.exists():
        limit, period = quota.read_text().split()[:2]
        if limit != "max":
            allowed = min(allowed, max(1, int(limit) // int(period)))
    return allowed


def _chunks(records: Iterable[Record], size: int) -> Iterator[list[Record]]:
    iterator = iter(records)
    while some := list(itertools.islice(iterator, size)):
        yield some


def _finish(task: Task, empty: Answer) -> Iterator[Answer]:
    docs, tasks = task
    answers: list[Answer] = [None] * len(docs)
    for rows, future in tasks:
        for row, answer in zip(rows, future.result(), strict=True):
            answers[row] = answer
    for doc, answer in zip(docs, answers, strict=True):
        yield answer if len(doc) else copy.deepcopy(empty)
