"""Read records from files and write answers: whole files and streams."""

from __future__ import annotations

import codecs
import io
import os
import select
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from seqpipe.answers.answer_types import Answer
from seqpipe.answers.base import WARNING, AnswerKind
from seqpipe.config.plugins import Plugins
from seqpipe.console import Console, Tick
from seqpipe.errors import DataError, EnvError, SkippedError, UsageError
from seqpipe.features.document import Record, locate
from seqpipe.features.sources import all_texts, fields_of, one_text
from seqpipe.files import JSON_DECODER, UNPACK_ERRORS, encoding_fix, json_bytes, unpacked, writing
from seqpipe.runtime.bundle import reader_from
from seqpipe.runtime.manifest import Reader
from seqpipe.runtime.model import Model
from seqpipe.runtime.predictor import CHUNK, Answers
from seqpipe.runtime.streams import PieceStream
from seqpipe.runtime.table_io import OUTPUTS, TABLES, Columns, answer_columns, form_of, read_rows, write_table

BLOCK = 1 << 16  # bytes read at once
MOST_LINE = 10_000_000  # bytes of a line, as of training data
FORMATS = ("text", "jsonl", "conll", *TABLES)


def input_format(form: str, source: Path | None, usual: str, names: Sequence[str] = ()) -> str:
    """Return the format of an input, for `auto` by the file's extension; UsageError if unknown."""
    if form == "auto":
        return form_of(source, names, usual) if source else usual
    if form not in FORMATS:
        raise UsageError(f"--format {form}: must be one of {', '.join(FORMATS)}")
    return form


def open_source(source: Path | None, stack: ExitStack) -> BinaryIO:
    if source is None:
        return sys.stdin.buffer
    try:
        return stack.enter_context(unpacked(source))  # type: ignore[return-value]
    except (OSError, *UNPACK_ERRORS) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{source}: cannot be read: {reason}") from error


def read_lines(stream: BinaryIO, name: str, dry: Callable[[], None]) -> Iterator[tuple[str | DataError, str]]:
    """Yield each line without its line end, or the error if it cannot be read, and its place."""
    for number, line in enumerate(_split(stream, dry), 1):
        where = f"{name}:{number}"
        if len(line) > MOST_LINE:
            yield DataError(f"{where}: this line has more than {MOST_LINE // 1_000_000} MB; split the text"), where
            continue
        try:
            text: str | DataError = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            text = DataError(f"{where}: byte {error.start + 1} is not UTF-8; {encoding_fix(line)}")
        yield text, where


def _split(stream: BinaryIO, dry: Callable[[], None]) -> Iterator[bytes]:
    """Yield the lines of a stream as they arrive, cut if too long; `dry` is called before each wait."""
    begun: list[bytes] = []  # parts of an incomplete line
    held = 0
    prompt = "one text a line; Ctrl-D ends\n> " if stream.isatty() and sys.stderr.isatty() else ""
    while True:
        if _may_wait(stream):
            dry()
        sys.stderr.write(prompt)
        sys.stderr.flush()
        prompt = prompt[-2:]
        try:
            block = stream.read1(BLOCK)  # type: ignore[attr-defined]
        except UNPACK_ERRORS as error:
            raise DataError(f"the input cannot be unpacked: {error}; is the file whole?") from error
        if not block:
            break
        first, *lines = block.split(b"\n")
        if held <= MOST_LINE:
            begun.append(first)
            held += len(first)
        if lines:
            yield b"".join(begun)
            *lines, last = lines
            yield from lines
            begun, held = [last], len(last)
    if any(begun):
        yield b"".join(begun)


def _may_wait(stream: BinaryIO) -> bool:
    """Return whether a read may block; True if the system cannot tell."""
    try:
        handle = stream.fileno()
        return not stat.S_ISREG(os.fstat(handle).st_mode) and not select.select([handle], [], [], 0)[0]
    except io.UnsupportedOperation:  # a stream in memory
        return False
    except (OSError, ValueError):
        return True


def read_records(
    model: Model, lines: Iterator[tuple[str | DataError, str]], form: str, name: str
) -> Iterator[tuple[Record | DataError, str]]:
    """Yield each record, or the error of an invalid line, and its place; an error in CoNLL ends the records."""
    featurizer = model.predictor.featurizer
    numbers = not all_texts(featurizer)
    if form == "text" and numbers:
        raise UsageError("--format text: this bundle reads numbers; give lines of JSON with --format jsonl")
    if form == "conll":
        yield from _sentences(model, lines, name)
        return
    fields = fields_of(featurizer)
    for line, where in lines:
        if form == "jsonl" and isinstance(line, str) and not line.strip():
            continue
        try:
            text = raise_error(line)
            yield (
                plain_record(text, fields, where) if form == "text" else parse_record(text, fields, where, numbers),
                where,
            )
        except DataError as error:
            yield error, where


def _sentences(
    model: Model, lines: Iterator[tuple[str | DataError, str]], name: str
) -> Iterator[tuple[Record | DataError, str]]:
    stored = model.manifest.reader
    options = stored.options if stored.use == "conll" else {}
    if stored.use == "conllu":
        options = {"separator": "tab"}  # words may contain spaces, as in Vietnamese
    reader = reader_from(Reader(use="conll", options={**options, "tags": None}), Plugins())
    try:
        for record in reader.records((raise_error(line) for line, _ in lines), name):
            yield record, record["where"]
    except DataError as error:
        yield error, name


def raise_error(line: str | DataError) -> str:
    if isinstance(line, DataError):
        raise line
    return line


def one_record(model: Model, text: str) -> Record:
    """Return the record of one argument or file: the text, or a line of several fields or numbers."""
    featurizer = model.predictor.featurizer
    fields, numbers = fields_of(featurizer), not all_texts(featurizer)
    if one_text(featurizer):
        return {fields[0]: text}
    if text.startswith("{") or numbers:
        return parse_record(text.rstrip("\n"), fields, "the text", numbers)
    return plain_record(text.rstrip("\n"), fields, "the text")


def plain_record(line: str, fields: Sequence[str], where: str) -> Record:
    """Return the record of a plain line: a text, or the tab-separated texts of a pair or of several sources."""
    texts = [line] if len(fields) == 1 else line.split("\t")
    if len(texts) != len(fields):
        keys = ", ".join(f'"{field}": …' for field in fields)
        form = f"{'<TAB>'.join(fields)}, or lines of JSON such as {{{keys}}}"
        count = "one text" if len(texts) == 1 else f"a line of {len(texts)}"
        reads = "pairs" if len(fields) == 2 else f"{len(fields)} texts"
        raise DataError(f"{where}: this bundle reads {reads}, but this is {count}; write {form}")
    return dict(zip(fields, texts, strict=True))


def parse_record(line: str, fields: Sequence[str], where: str, numbers: bool) -> Record:
    """Return the record of a JSON line: an object, or the value of its only field."""
    try:
        record = JSON_DECODER.decode(line)
    except RecursionError as error:
        raise DataError(f"{where}: nested too deeply; write flat objects") from error
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}; use --format text for plain text") from error
    return json_record(record, fields, where, numbers)


def json_record(value: Any, fields: Sequence[str], where: str, numbers: bool) -> Record:
    """Return the record of a JSON value: an object, or the value of its only field; DataError for anything else."""
    if isinstance(value, (str, list) if numbers else str) and len(fields) == 1:
        return {fields[0]: value}
    if not isinstance(value, dict):
        keys = f"`{fields[0]}` or `words`" if len(fields) == 1 else " and ".join(f"`{field}`" for field in fields)
        raise DataError(f"{where}: must be an object with {keys}, not {type(value).__name__}")
    return value


# Answer standard input or a growing file: tags token by token, labels line by line.

Write = Callable[[bytes], None]
FORMS = ("text", "conll")


def answer_chunks(model: Model, source: BinaryIO, name: str, form: str, write: Write) -> None:
    """Answer the texts of `source` as they arrive, with an empty line at the end of each text.

    For a bundle of tags or spans, each line is a text, and each token or span is answered by a line of JSON. For
    others, each line is a chunk of a text that ends with an empty line, and is answered by a line of JSON about the
    text so far. In CoNLL each line is a word, a text ends with an empty line, and tags are written after the words.
    """
    if form not in FORMS:
        raise UsageError(f"--stream --format {form}: must be one of {', '.join(FORMS)}")
    stream, tags = model.open_stream(), model.predictor.kind.tags_words
    if form == "conll":
        stored = model.manifest.reader  # the options of its columns, if it reads lines of words
        options = stored.options if stored.use == "conll" else {}
        reader = reader_from(Reader(use="conll", options={**options, "tags": None}), Plugins())
        _stream_conll(stream, source, name, reader, tags, write)
    elif tags:
        _lines(stream, source, name, write)
    else:
        for line in _whole_lines(source, name):
            if line.strip():
                write(json_bytes(stream.feed(f"{line}\n")) + b"\n")
            else:
                stream.finish()
                write(b"\n")


def _lines(stream: PieceStream, source: BinaryIO, name: str, write: Write) -> None:
    """Answer lines as they arrive; each is a text."""
    begun, held = False, ""
    for text in _decode(source, name):
        *lines, rest = (held + text).split("\n")
        held = rest[len(rest.removesuffix("\r")) :]  # perhaps half of a line end
        rest = rest.removesuffix("\r")
        for line in lines:
            _put(stream.feed(line.removesuffix("\r")), write)
            _put(stream.finish(), write)
            write(b"\n")
        _put(stream.feed(rest), write)
        begun = bool(rest) or (begun and not lines)
    if begun:
        _put(stream.finish(), write)
        write(b"\n")


def _stream_conll(stream: PieceStream, source: BinaryIO, name: str, reader: Any, tags: bool, write: Write) -> None:
    """Answer words as they arrive, one per line; an empty line ends a text."""
    begun = False
    for line in _whole_lines(source, name):
        words = [word for record in reader.records([line, ""], name) for word in record["words"]]
        if words:
            answer = stream.feed(words)
            known = zip(words, stream.tags, strict=True) if tags else ()
            write("".join(f"{word}\t{tag}\n" for word, tag in known).encode() if tags else json_bytes(answer) + b"\n")
        elif begun and not line.strip():
            stream.finish()
            write(b"\n")
        begun = bool(words) or (begun and bool(line.strip()))
    if begun:
        write(b"\n")


def _put(parts: Answer, write: Write) -> None:
    for part in parts:
        write(json_bytes(part) + b"\n")


def _whole_lines(source: BinaryIO, name: str) -> Iterator[str]:
    rest = ""
    for text in _decode(source, name):
        *lines, rest = (rest + text).split("\n")
        yield from (line.removesuffix("\r") for line in lines)
    if rest:
        yield rest


def _decode(source: BinaryIO, name: str) -> Iterator[str]:
    """Decode a text incrementally."""
    decoder, line = codecs.getincrementaldecoder("utf-8-sig")(), 1
    while block := source.read1(BLOCK):  # type: ignore[attr-defined]
        line += block.count(b"\n")
        yield _text(decoder, block, False, f"{name}: up to line {line}")
    if rest := _text(decoder, b"", True, f"{name}: line {line}"):
        yield rest


def _text(decoder: codecs.IncrementalDecoder, block: bytes, final: bool, where: str) -> str:
    try:
        return decoder.decode(block, final)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8; {encoding_fix(error.object)}") from error


# Answer a file or standard input line by line, in order, in constant memory.

ON_ERROR = ("stop", "skip")


def predict_file(
    model: Model,
    source: Path | None,
    target: Path | None,
    form: str,
    documents: bool,
    options: Mapping[str, Any],
    on_error: str = "stop",
    names: Sequence[str] = (),
) -> None:
    """Answer everything in `source`; `target` appears only when it is complete.

    A line of text is answered by a line of JSON, a row of a table or a JSON record by the record with the key `answer`,
    CoNLL by the words with their tags; a `target` that ends in .csv, .tsv or .parquet has a table. `names` are the
    columns or keys of the texts. Pending records are answered whenever the source has nothing more to read.

    Raises:
        DataError: for the first line that cannot be answered, after the answers to those before it.
        SkippedError: at the end, if `on_error` is "skip" and some lines have `{"error": …}` in place of an answer.
    """
    columns = Columns(model, names)
    wanted = [*columns.names, *columns.fields]
    form = input_format(form, source, "text" if all_texts(model.predictor.featurizer) else "jsonl", wanted)
    if names and form in ("text", "conll", "conllu"):
        raise UsageError(f"--field: names a column of a table or a key of JSON, and this is {form}; leave it out")
    if form in TABLES and source is None:
        raise UsageError(f"--format {form}: such input is read from a file; name it with --input")
    if form == "conllu" and model.predictor.kind.tags_words and not documents and options.get("n_best", 1) == 1:
        shown = "conll"
    else:
        shown = "text" if form == "text" else "conll" if form == "conll" else "jsonl"
    is_table = target is not None and target.suffix.lower() in OUTPUTS
    if is_table and shown == "conll":
        raise UsageError(f"{target}: CoNLL is no table; name a file such as answers.conll, or answers.jsonl")
    if form == "conll" and (documents or not model.predictor.kind.tags_words or options.get("n_best", 1) != 1):
        raise UsageError("--format conll: for bundles that answer with tags or spans, one answer a sentence")
    if on_error not in ON_ERROR:
        raise UsageError(f"--on-error {on_error}: must be one of {', '.join(ON_ERROR)}")
    if on_error == "skip" and form == "conll":
        raise UsageError("--on-error skip: for lines of text or JSON; the end of a bad sentence of CoNLL is unknown")
    name = str(source or "standard input")
    with ExitStack() as stack:
        rows = list[Record]()
        write = rows.append if is_table else _writer(target, stack)
        tick = stack.enter_context(Console().progress("texts", None)) if target else None
        answers = _Documents(model, options) if documents else Answers(model.predictor, options)
        answering = _Answering(
            answers, 1 if documents else CHUNK, on_error == "skip", shown, write, tick, model.predictor.kind, is_table
        )
        stack.push(answering.leave)
        parts: Iterator[tuple[Record | DataError, Record | DataError, str]]
        if form in TABLES:
            assert source is not None
            parts = read_rows(model, source, form, columns)
        else:
            lines = read_lines(open_source(source, stack), name, answering.flush)
            records = read_records(model, lines, form, name)
            parts = ((record, _chosen(record, columns, where), where) for record, where in records)
        for record, chosen, where in parts:
            checked = chosen
            if not isinstance(chosen, DataError):
                try:
                    checked = model.record({**chosen, "where": where})
                except DataError as error:
                    checked = error
            answering.add(record, checked)
        answering.flush()
        if is_table:
            assert target is not None
            write_table(target, rows)
    if answering.skipped:
        message = f"{answering.skipped:,} of {answering.count:,} inputs have no answer"
        raise SkippedError(f"{name}: {message}; each has an error in its place; correct these and run them again")


def _chosen(record: Record | DataError, columns: Columns, where: str) -> Record | DataError:
    """Return the record with the texts of the columns that are named; as it is if none are."""
    if isinstance(record, DataError) or not columns.are_given:
        return record
    try:
        return columns.record(record, where)
    except DataError as error:
        return error


class _Answering:
    """Answers records in groups, and writes each answer with its record."""

    def __init__(
        self,
        answers: Answers | _Documents,
        size: int,
        skip: bool,
        form: str,
        write: Callable[[Any], None],
        tick: Tick | None,
        kind: AnswerKind,
        is_table: bool,
    ):
        self._answers, self._size, self._skip, self._form, self._tell = answers, size, skip, form, tick
        self._write, self._kind, self._is_table = write, kind, is_table
        self._group: list[Record | DataError] = []
        self._unanswered: deque[Record | DataError] = deque()
        self.count = self.skipped = 0
        self._has_warned = False

    def add(self, record: Record | DataError, checked: Record | DataError) -> None:
        """Add a record in its output and input forms, or the error if it cannot be answered."""
        self._unanswered.append(record)
        self._group.append(checked)
        if len(self._group) == self._size:
            self._start()

    def flush(self) -> None:
        """Answer all pending records."""
        if self._group:
            self._start()
        self._put(self._answers.rest())

    def leave(self, kind: type[BaseException] | None, *rest: Any) -> None:
        """Cancel pending answers after an error or a signal."""
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
            elif not self._has_warned and (warning := self._kind.warning(answer)):
                self._has_warned = True
                message = f"warning: input {self.count} is {warning}; each such answer has the key {WARNING!r}"
                Console().say(message)
            stated = {} if isinstance(record, DataError) else record
            if self._is_table:
                self._write({**stated, **answer_columns(answer)})
            else:
                self._write(_line(stated, answer, self._form, self._kind))
            if self._tell:
                self._tell(self.count)


class _Documents:
    """Answers to documents, one by one, each split into sentences."""

    def __init__(self, model: Model, options: Mapping[str, Any]):
        self._predictor, self._options = model.predictor, options

    def take(self, records: Sequence[Record | DataError], ahead: int) -> Iterator[Answer | DataError]:
        for record in records:
            if isinstance(record, DataError):
                yield record
                continue
            try:
                yield self._predictor.document(record, **self._options)
            except DataError as error:
                yield error

    def rest(self) -> Iterator[Answer | DataError]:
        yield from ()

    def cancel(self) -> None: ...


def stream_file(model: Model, source: Path | None, target: Path | None, form: str, options: Mapping[str, Any]) -> None:
    """Write each line of `source`, a prompt, and its continuation to standard output as it is generated.

    A bundle with streaming answers the texts of `source` as they arrive (`answer_chunks`).
    """
    if target is not None:
        raise UsageError("--stream: answers go to standard output; leave --output out")
    if not model.predictor.kind.is_generated:
        if options:
            raise UsageError("--stream: streamed answers have no decode options; leave them out")
        with ExitStack() as stack:
            write, form = _writer(None, stack), input_format(form, source, "text")
            answer_chunks(model, open_source(source, stack), str(source or "standard input"), form, write)
        return
    if form not in ("auto", "text"):
        raise UsageError("--stream: texts go to standard output; leave --format out")
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


def _line(record: Record, answer: Answer | DataError, form: str, kind: AnswerKind) -> bytes:
    if form == "conll" and not isinstance(answer, DataError):
        words = record["words"]
        tags = kind.word_tags(answer, locate(words, record["text"]))
        return ("".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)) + "\n").encode()
    stated = {"error": str(answer)} if isinstance(answer, DataError) else answer
    return json_bytes({**record, "answer": stated} if form == "jsonl" else stated) + b"\n"


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
    """Raise EnvError if standard output cannot be written; ignore a pipe closed by its reader."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        fix = "free some space, or write to another path; the answers before are complete"
        raise EnvError(f"standard output cannot be written: {error.strerror}; {fix}") from error
