"""Answer texts in order: featurise, batch by length, run on every core, convert decisions to answers.

A batch is run by onnxruntime in deployment, by PyTorch in training and evaluation. The other steps are the same code.
"""

from __future__ import annotations

import copy
import ctypes
import itertools
import math
import os
import platform
import re
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np

from seqpipe.answers.answer_types import Answer
from seqpipe.answers.base import AnswerKind, ChunkReader, HeadAnswer
from seqpipe.answers.registry import task_metrics, task_of
from seqpipe.answers.task import Task as AnswerTask
from seqpipe.answers.text import check_ends
from seqpipe.answers.types import Metric
from seqpipe.errors import BundleError, DataError, UsageError
from seqpipe.features.document import Arrays, Doc, Record, first_tokens
from seqpipe.features.encoding import is_library_error
from seqpipe.features.sources import InputSource, TextSource, numeric_fields
from seqpipe.features.splitting import sentence_offsets
from seqpipe.features.vocabulary import PAD, SPECIALS
from seqpipe.runtime.decode_options import MIN_LENGTH, Chosen, options_of, record_keys, refuse_several, resolve_options
from seqpipe.runtime.manifest import Limits

if TYPE_CHECKING:
    from seqpipe.config.contract import Metrics


ON_ERROR = ("stop", "skip")  # of an input that cannot be answered: raise its error, or state it as the answer
CHUNK = 1024  # records encoded at a time
MIN_PARALLEL_RECORDS = 128  # records from which splitting uses several cores
RUN_ROWS, RUN_TOKENS = 32, 4096  # maximum rows and padded tokens of one run
# Characters of a text that are tokenized: this number per token of the limit, and at least this number.
CHARACTERS_PER_TOKEN, MOST_CHARACTERS = 10, 1_000_000
# White space, and characters that Unicode calls default ignorable: they are invisible.
_BLANK = re.compile(
    "[\\s\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]*"
)
_DEFAULTS = Chosen({}, {})  # no decode options
Item = TypeVar("Item")
Run = Callable[[Arrays], Arrays]  # features and decode options to a decision
# Known errors in place of answers; for each batch its rows and their future answers; the process that began the task.
Task = tuple[list[Answer | DataError | None], list[tuple[list[int], "Future[list[Answer | DataError]]"]], int]


class Renewable(Protocol):
    def before_fork(self) -> None:
        """Close, before a fork, what has threads of its own: the fork would wait for them when it ends."""

    def renew(self) -> None:
        """Replace, in a forked process, threads that do not exist in it and locks that may stay locked."""


# A forked process has only the thread that forked. Locks that other threads held at that moment are never released.
RENEWED: weakref.WeakSet[Renewable] = weakref.WeakSet()


def _before_fork() -> None:
    for owner in [*RENEWED]:
        owner.before_fork()


def _renew() -> None:
    for owner in [*RENEWED]:
        owner.renew()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(before=_before_fork, after_in_child=_renew)


def refuse_long(
    docs: Iterable[Doc], records: Iterable[Record], limits: Limits, before: int = 0, divided: bool = False
) -> None:
    """Raise DataError for the first record over a limit, with its place or its number, counted from `before` + 1.

    With `divided` a text may be answered sentence by sentence, which is then the fix.
    """
    for i, (doc, record) in enumerate(zip(docs, records, strict=True), before + 1):
        tokens, first = len(doc.ids), (doc.second or 1) - 1
        if tokens > limits.tokens:
            fix = ""
            if divided and len(sentence_offsets(doc.text)) > 1:
                fix = ", or ask for documents (predict --documents), which splits it into sentences"
            elif divided:
                fix = "; it is one sentence: documents (predict --documents) are split at . ! ? and at line ends"
            text = "text" if doc.rows is None else "input"
            message = f"{tokens:,} tokens exceed the limit of {limits.tokens:,}; split the {text}{fix}"
        elif first > limits.first_tokens:
            fix = "shorten it, or make it the second, which may have any length"
            most = f"at most {limits.first_tokens:,} leave room for the second"
            message = f"the first text has {first:,} tokens, and {most}; {fix}"
        else:
            continue
        raise DataError(f"{record.get('where', f'record {i}')}: {message}")


class Predictor:
    """Answers records: dicts with `text` or `words`. Thread-safe."""

    def __init__(
        self,
        featurizer: InputSource,
        kind: AnswerKind,
        run: Run,
        options: Mapping[str, Mapping[str, Any]],
        limits: Limits,
        workers: int = 1,
        metrics: Mapping[str, Metrics] | None = None,
        score_types: Mapping[str, Metric] | None = None,
        run_alone: Run | None = None,  # for one text that is answered by itself
    ):
        self.featurizer, self.kind, self.limits, self.workers = featurizer, kind, limits, workers
        self.options: Mapping[str, Mapping[str, Any]] = {**kind.answer_options, **options}
        self.run, self.run_alone, self.metrics = run, run_alone or run, dict(metrics or {})
        self.task: AnswerTask = task_of(kind)  # scores its answers
        self.metric_types = {**task_metrics(self.task), **(score_types or {})}
        self.defaults = resolve_options(self.options, {}, kind)  # decode options without values of a caller
        self._text_fields = [field for field in featurizer.fields if field not in numeric_fields(featurizer)]
        self._after_huge = False  # the last text was so long that it ran alone
        self.renew()
        RENEWED.add(self)

    def before_fork(self) -> None:
        pass

    def renew(self) -> None:
        self._pool = ThreadPoolExecutor(self.workers, "seqpipe") if self.workers > 1 else None

    def stream(
        self, records: Iterable[Record | DataError], chunk: int = CHUNK, skips: bool = False, **options: Any
    ) -> Iterator[Answer]:
        """Yield answers in the order of the records, in constant memory.

        The next records are read while `chunk` are answered, except with a chunk of 1, where the caller waits for each.
        With `skips` a record that cannot be answered has `{"error": message}` in place of an answer.
        """
        if chunk < 1:
            raise UsageError(f"chunk must be at least 1, got {chunk}")
        answers, finish = Answers(self, options), state_error if skips else raise_error
        for items in chunks(records, chunk):
            yield from map(finish, answers.take(items, ahead=chunk > 1))
        yield from map(finish, answers.rest())

    def answer(self, record: Record, **options: Any) -> Answer:
        """Answer one record as in a stream, but faster: without groups and reordering."""
        decoding = resolve_options(self.options, options, self.kind) if options else self.defaults
        (doc,) = self.docs([record])
        length = len(doc.ids)
        if not length and not self.kind.text_length(doc):  # [BOS] may precede an empty prompt
            return self.kind.empty_for(decoding.arrays)
        if self._after_huge or length > RUN_TOKENS:
            self._free_memory(length)
        try:
            return self.answers([doc], decoding, alone=True)[0]
        except DataError as error:
            raise DataError(f"{_place(record, 0)}: {error}") from None

    def answer_batch(self, records: Sequence[Record], decoding: Chosen) -> list[Answer | DataError]:
        """Answer a list of records; one that cannot be answered has the DataError in its place."""
        return list(_finish(self.start(records, [decoding] * len(records), 0)))

    def answer_docs(
        self, docs: Sequence[Doc | Exception], decoding: Chosen, places: Sequence[str]
    ) -> list[Answer | Exception]:
        """Answer results of `split`, few enough for one run; errors stay in their place. `places` name the texts."""
        rows = [i for i, doc in enumerate(docs) if isinstance(doc, Doc) and self.kind.text_length(doc)]
        batch = [doc for i in rows if isinstance(doc := docs[i], Doc)]
        self._free_memory(max(map(self.kind.text_length, batch), default=0))
        empty = self.kind.empty_for(decoding.arrays)
        answers = [doc if isinstance(doc, Exception) else copy.deepcopy(empty) for doc in docs]
        if batch:
            done = self._answers_or_errors(batch, decoding, [places[i] for i in rows])
            for i, answer in zip(rows, done, strict=True):
                answers[i] = answer
        return answers

    @property
    def reads_documents(self) -> bool:
        """Return whether `document` may be called."""
        one_text = isinstance(self.featurizer, TextSource) and not self.featurizer.pairs
        return self.kind.tags_words and one_text

    def document(self, record: Record, **options: Any) -> Answer:
        """Answer a whole document: split into sentences, with offsets into the document."""
        if not self.kind.tags_words:
            raise UsageError(f"documents need a bundle that answers with spans or tags, not {self.kind.kind!r}")
        refuse_several(options, "a document has a single answer")
        if not isinstance(self.featurizer, TextSource) or self.featurizer.pairs:
            raise UsageError("documents need a bundle that reads a single text")
        text, field = self.featurizer.text(record), self.featurizer.fields[0]
        places = sentence_offsets(text)
        parts = ({**record, "words": None, field: text[a:b]} for a, b in places)
        answers: Iterator[Any] = self.stream(parts, **options)  # words or spans of each sentence, with offsets
        return [
            {**part, "start": part["start"] + a, "end": part["end"] + a}
            for (a, _), answer in zip(places, answers, strict=True)
            for part in answer
        ]

    def documents(
        self, records: Iterable[Record | DataError], options: Mapping[str, Any]
    ) -> Iterator[Answer | DataError]:
        """Yield the answers to documents, one by one; one that cannot be answered has the DataError in its place."""
        for number, record in enumerate(records):
            try:
                record_options = {} if isinstance(record, DataError) else options_of(record, options, self.options)
                yield record if isinstance(record, DataError) else self.document(record, **record_options)
            except DataError as error:
                yield error
            except UsageError as error:
                if not record_keys(options):
                    raise
                yield DataError(f"{_place(record, number)}: {error}")

    def docs(self, records: Sequence[Record], before: int = 0, within_text: bool = False) -> list[Doc]:
        """Tokenize records, blank texts as empty unless `within_text`; DataError for too long ones."""
        records = [self._readable(record, number, within_text) for number, record in enumerate(records, before + 1)]
        if self._pool is None or len(records) < MIN_PARALLEL_RECORDS:
            docs = self.featurizer.docs(records)
        else:  # on every core: tokenization takes most of the time outside the run
            size = -(-len(records) // self.workers)
            parts = [records[i : i + size] for i in range(0, len(records), size)]
            docs = [doc for part_docs in self._pool.map(self.featurizer.docs, parts) for doc in part_docs]
        if self.limits.cut:
            docs = [first_tokens(doc, self.limits.tokens) for doc in docs]
        refuse_long(docs, records, self.limits, before, self.kind.tags_words)
        if self.kind.is_generated:
            for number, (doc, record) in enumerate(zip(docs, records, strict=True), before + 1):
                if not self.kind.text_length(doc):
                    message = "empty prompt: this model needs at least one token"
                    raise DataError.at({"where": f"record {number}", **record}, message)
        return docs

    def _readable(self, record: Record, number: int, keeps_blanks: bool) -> Record:
        """Return the record, a blank text as an empty one; DataError for one that is too long to tokenize."""
        texts = {field: record[field] for field in self._text_fields if isinstance(record.get(field), str)}
        longest = max(MOST_CHARACTERS, CHARACTERS_PER_TOKEN * self.limits.tokens)
        sizes = [(len(text), longest, "characters") for text in texts.values()]
        if isinstance(words := record.get("words"), Sequence):
            sizes.append((len(words), MOST_CHARACTERS if self.limits.cut else self.limits.tokens, "words"))
        for size, most, unit in sizes:
            if size > most:
                message = f"{size:,} {unit} exceed the limit of {most:,}; split the text"
                raise DataError(f"{_place(record, number - 1)}: {message}")
        keeps_blanks = keeps_blanks or bool(words) or self.kind.is_generated or self.kind.reads_blanks
        blank = {} if keeps_blanks else {field: "" for field, text in texts.items() if _BLANK.fullmatch(text)}
        return {**record, **blank} if blank else record

    def start(self, records: Sequence[Record | DataError], decodings: Sequence[Chosen], before: int) -> Task:
        """Start to answer records, numbered from `before` + 1, with these options; a DataError stays in its place."""
        docs_or_errors, tasks = self.split(records, before), []
        docs = {i: doc for i, doc in enumerate(docs_or_errors) if isinstance(doc, Doc)}
        lengths = [self.kind.text_length(docs[i]) if i in docs else 0 for i in range(len(docs_or_errors))]
        self._free_memory(max(lengths, default=0))
        groups: dict[int, list[int]] = {}  # rows with the same options
        for i, decoding in enumerate(decodings):
            groups.setdefault(id(decoding), []).append(i)
        for rows in (
            [group[i] for i in part] for group in groups.values() for part in batches([lengths[i] for i in group])
        ):
            decoding = decodings[rows[0]]
            batch = [docs[i] for i in rows], decoding, [_place(records[i], before + i) for i in rows]
            if self._pool is None or len(docs_or_errors) <= 1:
                done: Future[list[Answer | DataError]] = Future()
                done.set_result(self._answers_or_errors(*batch))
                tasks.append((rows, done))
            else:
                tasks.append((rows, self._pool.submit(self._answers_or_errors, *batch)))
        known: list[Answer | DataError | None] = []
        for doc, length, decoding in zip(docs_or_errors, lengths, decodings, strict=True):
            empty = None if length else copy.deepcopy(self.kind.empty_for(decoding.arrays))
            known.append(doc if isinstance(doc, DataError) else empty)
        return known, tasks, os.getpid()

    def _free_memory(self, longest: int) -> None:
        """Free the memory of a former huge text; called before each run, with the tokens of its longest text."""
        if self._after_huge:
            trim_heap()
        self._after_huge = longest > RUN_TOKENS

    def split(self, records: Sequence[Record | DataError], before: int = 0) -> Sequence[Doc | DataError]:
        """Tokenize records; one that cannot be answered has the DataError in its place."""
        answerable = [record for record in records if not isinstance(record, DataError)]
        if len(answerable) == len(records):
            with suppress(DataError):  # found again one by one
                return self.docs(answerable, before)
        docs: list[Doc | DataError] = []
        for number, record in enumerate(records, before):
            try:
                docs.append(record if isinstance(record, DataError) else self.docs([record], number)[0])
            except DataError as error:
                docs.append(error)
        return docs

    def _answers_or_errors(
        self, docs: Sequence[Doc], decoding: Chosen, places: Sequence[str]
    ) -> list[Answer | DataError]:
        """Answer one batch; if that fails, answer its texts one by one, with errors in their places."""
        try:
            return [*self.answers(docs, decoding)]
        except DataError as error:
            if len(docs) == 1:
                return [DataError(f"{places[0]}: {error}")]
            alone = (self._answers_or_errors([doc], decoding, [at]) for doc, at in zip(docs, places, strict=True))
            return [answer for answers in alone for answer in answers]

    def answers(self, docs: Sequence[Doc], decoding: Chosen, alone: bool = False) -> list[Answer]:
        """Answer the texts of one batch; `alone`: one text, which no other batch waits for."""
        run = self.run_alone if alone else self.run
        decision = run(self.featurizer.collate(docs) | decoding.of(docs))
        if self.kind.is_generated and (least := int(decoding.arrays.get(MIN_LENGTH, 0))):
            # Before this length a text ends only where the context of the model does.
            for doc, length in zip(docs, (decision["tokens"][:, 0] != SPECIALS.index(PAD)).sum(1), strict=True):
                if length < least:
                    message = f"{least} tokens do not fit: after a prompt of {len(doc.ids)} the context has {length}"
                    raise DataError(f"{MIN_LENGTH}: {message}; lower it, or shorten the prompt")
        return self.read(docs, decision, decoding)

    def read_chunk(self, reader: ChunkReader, doc: Doc, decision: Arrays) -> Answer:
        """Return the answers that are completed by the decision about the next chunk of a text."""
        return reader.read(doc, decision, self.read([doc], decision)[0])

    def read(self, docs: Sequence[Doc], decision: Arrays, decoding: Chosen = _DEFAULTS) -> list[Answer]:
        """Convert a decision to answers, with a warning for an input longer than any in training.

        A generated text ends before the first of the stop texts.
        """
        for name in decoding.allowed:
            head, dot, _ = name.rpartition(".")
            check_ends(name, decision[f"{head}{dot}tokens"])
        generator, decision, stops = cast(Any, self.kind), decision | decoding.rankings, decoding.stops
        answers = generator.answers(docs, decision, stops) if stops else self.kind.answers(docs, decision)
        for i, doc in enumerate(docs):
            if (tokens := len(doc.ids)) > (most := self.limits.trained):
                warning = f"longer than any input in training ({tokens:,} tokens; at most {most:,} in training)"
                answers[i] = self.kind.with_warning(answers[i], warning)
        return answers


class Answers:
    """Answers to records that arrive in groups, in their order.

    A record that cannot be answered has its DataError in place of an answer, without effect on other records.
    """

    def __init__(self, predictor: Predictor, options: Mapping[str, Any]):
        self._predictor, self._options, self._decoding = predictor, options, predictor.defaults
        if options:
            self._decoding = self._resolve({})
        self._pending: deque[Task] = deque()
        self._count = 0

    def take(self, records: Sequence[Record | DataError], ahead: int) -> Iterator[Answer | DataError]:
        """Start to answer these records; yield the answers to earlier groups except the last few."""
        decodings = [self._decoding] * len(records)
        if record_keys(self._options):
            records, decodings = self._own_options(records)
        self._pending.append(self._predictor.start(records, decodings, self._count))
        self._count += len(records)
        while len(self._pending) > ahead:
            yield from _finish(self._pending.popleft())

    def rest(self) -> Iterator[Answer | DataError]:
        """Yield all remaining answers."""
        while self._pending:
            yield from _finish(self._pending.popleft())

    def _resolve(self, record: Mapping[str, Any]) -> Chosen:
        predictor = self._predictor
        return resolve_options(predictor.options, options_of(record, self._options, predictor.options), predictor.kind)

    def _own_options(self, records: Sequence[Record | DataError]) -> tuple[list[Record | DataError], list[Chosen]]:
        """Return the options of each record, the same object for equal ones; DataError for a record with wrong ones."""
        checked, decodings, resolved = list(records), [self._decoding] * len(records), dict[str, Chosen]()
        keys = record_keys(self._options).values()
        for i, record in enumerate(records):
            if isinstance(record, DataError):
                continue
            stated = repr([record.get(key) for key in keys])
            try:
                if stated not in resolved:
                    resolved[stated] = self._resolve(record)
                decodings[i] = resolved[stated]
            except UsageError as error:
                checked[i] = DataError(f"{_place(record, self._count + i)}: {error}")
        return checked, decodings

    def cancel(self) -> None:
        """Cancel the runs that have not started yet."""
        for _, tasks, _ in self._pending:
            for _, future in tasks:
                future.cancel()


def _place(record: Record | DataError, before: int) -> str:
    """Return the name of a record in messages: its place, or its number."""
    return str(record.get("where", f"record {before + 1}")) if isinstance(record, Mapping) else ""


def batches(lengths: Sequence[int], rows: int = RUN_ROWS, tokens: int = RUN_TOKENS) -> Iterator[list[int]]:
    """Yield batches of positions of similar lengths, longest first, without empty texts, which need no run."""
    order = sorted((i for i, n in enumerate(lengths) if n), key=lambda i: (-lengths[i], i))
    while order:
        size = max(1, min(rows, tokens // lengths[order[0]]))
        yield order[:size]
        order = order[size:]


def quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> float:
    """Return the quota of this container in cores; infinite without one."""
    limit, period = file.read_text().split()[:2] if file.exists() else ("max", "")
    return math.inf if limit == "max" else int(limit) / int(period)


def cores() -> int:
    """Return the number of cores of this process: its CPU affinity, limited by a container's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(max(1, min(allowed, quota())))


def chunks(records: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of at most this many items, in order."""
    iterator = iter(records)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def trim_heap() -> None:
    """Return free memory of the C library to the system, if it supports that (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if platform.system() == "Linux" else None
    if trim:
        trim(0)


def state_error(answer: Answer | DataError) -> Any:
    return {"error": str(answer)} if isinstance(answer, DataError) else answer


def raise_error(item: Item | DataError) -> Item:
    if isinstance(item, DataError):
        raise item
    return item


def _finish(task: Task) -> Iterator[Answer | DataError]:
    answers, tasks, process = task
    if process != os.getpid():  # a fork lacks its threads
        raise UsageError("forked in the middle of these answers: call the model again, in this process")
    for rows, future in tasks:
        for row, answer in zip(rows, future.result(), strict=True):
            answers[row] = answer
    yield from cast("list[Answer | DataError]", answers)


# A predictor that does not trust the outputs of a bundle's graph: numbers, labels and shapes are checked.


class BundlePredictor(Predictor):
    """Refuses a decision with NaN in the outputs of an answer, or one that cannot be converted to answers."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._numbers = number_outputs(self.kind)

    def read(self, docs: Sequence[Doc], decision: Arrays, decoding: Chosen = _DEFAULTS) -> list[Answer]:
        refuse_nan(self._numbers, docs, decision)
        return self._check_decision(super().read, docs, decision, decoding)

    def read_chunk(self, reader: ChunkReader, doc: Doc, decision: Arrays) -> Answer:
        return self._check_decision(super().read_chunk, reader, doc, decision)

    def _check_decision(self, read: Callable[..., Any], *arguments: Any) -> Any:
        """Read a decision by this method; BundleError for a decision that is not an answer."""
        try:
            return read(*arguments)
        except BaseException as error:
            if not is_library_error(error):
                raise
            problem = f"the graph's outputs are not an answer of kind {self.kind.kind!r}"
            fix = "model.onnx and bundle.json do not belong together; export the bundle again"
            raise BundleError(f"{problem} ({type(error).__name__}: {error}): {fix}") from error


def refuse_nan(numbers: Sequence[tuple[str, str, HeadAnswer]], docs: Sequence[Doc], decision: Arrays) -> None:
    """Raise DataError if the answer to one of these texts would have NaN."""
    for output, name, part in numbers:
        array = decision.get(output)
        if array is None or array.dtype.kind != "f" or np.isfinite(array).all():
            continue
        invalid = part.is_invalid(name, array, docs)
        if invalid.any():
            what = "NaN" if np.isnan(array[invalid]).any() else "infinite"
            message = f"the model's {output!r} is {what} for this input"
            raise DataError(f"{message}: the weights overflow; leave it out, or train again")


def number_outputs(kind: AnswerKind) -> list[tuple[str, str, HeadAnswer]]:
    """Return the graph's outputs that can be numbers of an answer, each with its name in its head's answer kind."""
    parts = {f"{head}." if head else "": part for head, part in kind.parts.items()}
    return [(prefix + name, name, part) for prefix, part in parts.items() for name in part.decided]
