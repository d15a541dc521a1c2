"""A file or standard input in, answers out, line by line, in order, in constant memory."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from seqpipe.answers.base import WARNING, AnswerKind
from seqpipe.answers.types import Answer
from seqpipe.console import Console, Tick
from seqpipe.errors import DataError, EnvError, SkippedError, UsageError
from seqpipe.features.document import Record, locate
from seqpipe.features.sources import all_texts
from seqpipe.files import json_bytes, writing
from seqpipe.runtime.model import Model
from seqpipe.runtime.piece_io import answer_pieces
from seqpipe.runtime.predictor import CHUNK, Answers
from seqpipe.runtime.record_lines import input_format, open_source, read_lines, read_records

ON_ERROR = ("stop", "skip")


def predict_file(
    model: Model,
    source: Path | None,
    target: Path | None,
    form: str,
    documents: bool,
    options: Mapping[str, Any],
    on_error: str = "stop",
) -> None:
    """Answers everything in `source`; `target` appears only when all is written.

    Text gives a line of JSON a line, JSONL the record with the key `answer` added, CoNLL the words with their tags.
    What was read is answered when the source has nothing more to read for now.

    Raises:
        DataError: for the first line that cannot be answered, after the answers to those before it.
        SkippedError: at the end, where `on_error` is "skip" and some lines have `{"error": …}` in place of an answer.
    """
    form = input_format(form, source, "text" if all_texts(model.predictor.featurizer) else "jsonl")
    if form == "conll" and (documents or not model.predictor.kind.tags_words or options.get("n_best", 1) != 1):
        raise UsageError("--format conll: for bundles that answer with tags or spans, one answer a sentence")
    if on_error not in ON_ERROR:
        raise UsageError(f"--on-error {on_error}: must be one of {', '.join(ON_ERROR)}")
    if on_error == "skip" and form == "conll":
        raise UsageError("--on-error skip: for lines of text or JSON; where a bad sentence of CoNLL ends nobody knows")
    name = str(source or "standard input")
    with ExitStack() as stack:
        stream, write = open_source(source, stack), _writer(target, stack)
        tick = stack.enter_context(Console().progress("texts", None)) if target else None
        answers = _Documents(model, options) if documents else Answers(model.predictor, options)
        answering = _Answering(
            answers, 1 if documents else CHUNK, on_error == "skip", form, write, tick, model.predictor.kind
        )
        stack.push(answering.leave)
        for record, where in read_records(model, read_lines(stream, name, answering.flush), form, name):
            answering.add(record, _checked(model, record, where))
        answering.flush()
    if answering.skipped:
        message = f"{answering.skipped:,} of {answering.count:,} inputs have no answer"
        raise SkippedError(f"{name}: {message}; each has its error in its place. Correct them and give them again")


class _Answering:
    """Hands records to what answers them in groups, and writes each answer with the record that it belongs to."""

    def __init__(
        self,
        answers: Answers | _Documents,
        size: int,
        skip: bool,
        form: str,
        write: Callable[[bytes], None],
        tick: Tick | None,
        kind: AnswerKind,
    ):
        self._answers, self._size, self._skip, self._form, self._tell = answers, size, skip, form, tick
        self._write, self._kind = write, kind
        self._group: list[Record | DataError] = []
        self._unanswered: deque[Record | DataError] = deque()
        self.count = self.skipped = 0
        self._has_warned = False

    def add(self, record: Record | DataError, checked: Record | DataError) -> None:
        """Takes a record as it is written again and as it is answered, or the reason why it cannot be."""
        self._unanswered.append(record)
        self._group.append(checked)
        if len(self._group) == self._size:
            self._start()

    def flush(self) -> None:
        """Answers everything that was taken."""
        if self._group:
            self._start()
        self._put(self._answers.rest())

    def leave(self, kind: type[BaseException] | None, *rest: Any) -> None:
        """What an error or a signal leaves unanswered is not worth a wait."""
        if kind:
            self._answers.cancel()

    def _start(self) -> None:
        group, self._group = self._group, []
        self._put(self._answers.take(group, ahead=1))

    def _put(self, answers: Iterable[Answer | DataError]) -> None:
        for answer in answers:
            record = self._unanswered.popleft()
            self.count += 1
            if isinstance(answer, DataError):
                if not self._skip:
                    raise answer
                self.skipped += 1
                answer = {"error": str(answer)}
            else:
                self._warn(answer)
            self._write(_line({} if isinstance(record, DataError) else record, answer, self._form, self._kind))
            if self._tell:
                self._tell(self.count)

    def _warn(self, answer: Answer) -> None:
        """Tell of the first answer that holds a warning; the others say it themselves."""
        if self._has_warned or not (warning := self._kind.warning(answer)):
            return
        self._has_warned = True
        Console().say(f"warning: input {self.count} is {warning}; each such answer has the key {WARNING!r}")


def _checked(model: Model, record: Record | DataError, where: str) -> Record | DataError:
    """The record with its place, or the reason why the model cannot read it."""
    if isinstance(record, DataError):
        return record
    try:
        return model.record({**record, "where": where})
    except DataError as error:
        return error


class _Documents:
    """The answers to documents, one by one, each split into sentences."""

    def __init__(self, model: Model, options: Mapping[str, Any]):
        self._predictor, self._options = model.predictor, options

    def take(self, records: Sequence[Record | DataError], ahead: int) -> Iterator[Answer | DataError]:
        for record in records:
            if isinstance(record, DataError):
                yield record
                continue
            try:
                answer = self._predictor.document(record, **self._options)
            except DataError as error:
                answer = error
            yield answer

    def rest(self) -> Iterator[Answer | DataError]:
        yield from ()

    def cancel(self) -> None: ...


def stream_file(model: Model, source: Path | None, target: Path | None, form: str, options: Mapping[str, Any]) -> None:
    """Each line of `source` as a prompt, on standard output, and what follows it as it comes.

    A bundle that answers in pieces answers what `source` holds as it comes (`seqpipe.runtime.piece_io`).
    """
    if target is not None:
        raise UsageError("--stream: answers go to standard output as they come; leave --output out")
    if not model.predictor.kind.is_generated:
        if options:
            raise UsageError("--stream: answers in pieces have no decode options; leave them out")
        with ExitStack() as stack:
            write, form = _writer(None, stack), input_format(form, source, "text")
            answer_pieces(model, open_source(source, stack), str(source or "standard input"), form, write)
        return
    if form not in ("auto", "text"):
        raise UsageError("--stream: texts go to standard output as they come; leave --format out")
    with ExitStack() as stack:
        name = str(source or "standard input")
        for record, where in read_records(
            model, read_lines(open_source(source, stack), name, lambda: None), "text", name
        ):
            if isinstance(record, DataError):
                raise record
            pieces = model.stream({**record, "where": where}, **options)
            with _writing_out():
                sys.stdout.write(record[model.predictor.featurizer.fields[-1]])
            for piece in pieces:
                with _writing_out():
                    sys.stdout.write(piece)
                    sys.stdout.flush()
            with _writing_out():
                sys.stdout.write("\n")
                sys.stdout.flush()


def _line(record: Record, answer: Answer, form: str, kind: AnswerKind) -> bytes:
    if form == "conll":
        return _conll(record, answer, kind).encode()
    return json_bytes({**record, "answer": answer} if form == "jsonl" else answer) + b"\n"


def _conll(record: Record, answer: Answer, kind: AnswerKind) -> str:
    words = record["words"]
    tags = kind.word_tags(answer, locate(words, record["text"]))
    return "".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)) + "\n"


def _writer(target: Path | None, stack: ExitStack) -> Callable[[bytes], None]:
    stream: BinaryIO = sys.stdout.buffer
    if target is not None:
        stream = stack.enter_context(stack.enter_context(writing(target)).open("wb"))

    def write(line: bytes) -> None:
        if target is not None:
            stream.write(line)
            return
        with _writing_out():
            stream.write(line)
            stream.flush()

    return write


@contextmanager
def _writing_out() -> Iterator[None]:
    """EnvError if standard output takes no more; a pipe that somebody closed is none."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        cure = "make room or give another file; the answers before are whole"
        raise EnvError(f"standard output cannot be written: {error.strerror}; {cure}") from error
