"""Read records from files and write answers: whole files and streams."""

from __future__ import annotations

import codecs
import contextlib
import functools
import io
import itertools
import os
import select
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqpipe.answers.answer_types import Answer
from seqpipe.answers.base import WARNING, AnswerKind
from seqpipe.batch.job import PredictJob
from seqpipe.batch.tables import (
    ENDINGS,
    OUTPUTS,
    TABLES,
    Columns,
    answer_columns,
    ending,
    input_form,
    read_rows,
    write_table,
)
from seqpipe.console import Console
from seqpipe.errors import DataError, EnvError, SkippedError, UsageError
from seqpipe.evaluation.text_scores import target_scores
from seqpipe.features.document import Record, locate_words
from seqpipe.features.media import with_paths
from seqpipe.features.sources import media_fields, numeric_fields, one_text, read_fields
from seqpipe.files import JSON_DECODER, LONGEST_LINE, encoding_fix, json_bytes, open_file, refuse_overwriting, writing
from seqpipe.runtime.bundle import reader_from
from seqpipe.runtime.decode_options import N_BEST, record_keys
from seqpipe.runtime.manifest import Reader
from seqpipe.runtime.opened import OpenedBundle
from seqpipe.runtime.predictor import CHUNK, Answers, raise_error
from seqpipe.runtime.streams import PieceStream

BYTES_PER_READ = 1 << 16  # bytes read at once
FORMATS = ("text", "jsonl", "conll", *TABLES)
Write = Callable[[bytes], Any]
Span = tuple[int, int]


def input_format(model: OpenedBundle, form: str, source: Path | None, names: Sequence[str] = ()) -> str:
    """Return the format of an input, for `auto` by the file's extension; UsageError if unknown."""
    if form == "auto":
        usual = "jsonl" if numeric_fields(model.predictor.featurizer) else "text"
        return input_form(source, names, usual) if source else usual
    if form not in FORMATS:
        raise UsageError(f"--format {form}: must be one of {', '.join(FORMATS)}")
    return form


class LinePlace:
    """File and number of a line of a part of a file; the lines before the part are counted when a message is made."""

    def __init__(self, source: Path, start: int, number: int):
        self.source, self.start, self.number = source, start, number

    def __str__(self) -> str:
        return f"{self.source}:{_lines_before(self.source, self.start) + self.number}"


@functools.lru_cache(maxsize=1)
def _lines_before(source: Path, start: int) -> int:
    with open_file(source) as file:
        sizes = [min(BYTES_PER_READ, start - at) for at in range(0, start, BYTES_PER_READ)]
        return sum(file.read(size).count(b"\n") for size in sizes)


def read_lines(
    source: Path | None, flush: Callable[[], Any] = lambda: None, span: Span | None = None
) -> Iterator[tuple[str | DataError, str | LinePlace]]:
    """Yield each line of a file or of standard input without its end, or the error if it cannot be read, and its place.

    Args:
        source: The file; None: standard input.
        flush: Called before each wait for input.
        span: First and last (exclusive) byte of the lines of a part of the file; None: all of it.
    """
    start = span[0] if span else 0
    for number, line in enumerate(_split(source, flush, span), 1):
        where = LinePlace(source, start, number) if source and start else f"{_source_name(source)}:{number}"
        if len(line) > LONGEST_LINE:
            yield DataError(f"{where}: this line has more than {LONGEST_LINE // 1_000_000} MB; split the text"), where
            continue
        try:
            text: str | DataError = line.decode("utf-8-sig" if number == 1 and not start else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            text = DataError(f"{where}: byte {error.start + 1} is not UTF-8; {encoding_fix(line)}")
        yield text, where


def _split(source: Path | None, flush: Callable[[], Any], span: Span | None) -> Iterator[bytes]:
    """Yield the lines of a file or of standard input as they arrive, cut if too long."""
    begun: list[bytes] = []  # parts of an incomplete line
    size = 0
    for block in _read_blocks(source, span):
        if not block:
            flush()
            continue
        first, *lines = block.split(b"\n")
        if size <= LONGEST_LINE:
            begun.append(first)
            size += len(first)
        if lines:
            yield b"".join(begun)
            *lines, last = lines
            yield from lines
            begun, size = [last], len(last)
    if any(begun):
        yield b"".join(begun)


def _read_blocks(source: Path | None, span: Span | None = None) -> Iterator[bytes]:
    """Yield the blocks of a file or of standard input as they arrive, and an empty one before each wait."""
    with contextlib.nullcontext(sys.stdin.buffer) if source is None else open_file(source) as stream:
        remaining = sys.maxsize
        if span:
            stream.seek(span[0])
            remaining = span[1] - span[0]
        prompt = "one text a line; Ctrl-D ends\n> " if stream.isatty() and sys.stderr.isatty() else ""
        while True:
            if _may_wait(stream):
                yield b""
            sys.stderr.write(prompt)
            sys.stderr.flush()
            prompt = prompt[-2:]
            block = stream.read1(min(BYTES_PER_READ, remaining))  # type: ignore[union-attr]
            if not block:
                return
            remaining -= len(block)
            yield block


def _may_wait(stream: Any) -> bool:
    """Return whether a read may block; True if the system cannot tell."""
    try:
        handle = stream.fileno()
        return not stat.S_ISREG(os.fstat(handle).st_mode) and not select.select([handle], [], [], 0)[0]
    except io.UnsupportedOperation:  # a stream in memory
        return False
    except (OSError, ValueError):
        return True


def _source_name(source: Path | None) -> str:
    return str(source or "standard input")


def read_inputs(
    model: OpenedBundle,
    source: Path | None,
    form: str,
    flush: Callable[[], Any] = lambda: None,
    span: Span | None = None,
) -> Iterator[tuple[Record | DataError, str | LinePlace]]:
    """Yield each record, or the error of an invalid line, and its place; an error in CoNLL ends the records.

    `flush`, `span`: as of read_lines.
    """
    lines, featurizer = read_lines(source, flush, span), model.predictor.featurizer
    fields, numbers = read_fields(featurizer), bool(numeric_fields(featurizer))
    named: Any = model.manifest.reader.options.get("files", ())
    if form == "text" and numbers:
        raise UsageError("--format text: this bundle reads numbers; give lines of JSON with --format jsonl")
    if form == "conll":
        try:
            for record in _conll_reader(model).records((raise_error(line) for line, _ in lines), _source_name(source)):
                yield record, record["where"]
        except DataError as error:
            yield error, _source_name(source)
        return
    for line, where in lines:
        if form == "jsonl" and isinstance(line, str) and not line.strip():
            continue
        try:
            text = raise_error(line)
            record = plain_record(text, fields, where) if form == "text" else parse_record(text, fields, where, numbers)
            if source and named:  # standard input names no files
                record = with_paths(record, [name for name in named if name in record], str(where))
        except DataError as error:
            yield error, where
        else:
            yield record, where


def inputs_are_media(model: OpenedBundle, names: Sequence[str], form: str) -> bool:
    """Return whether inputs are pictures or sounds, or folders of them, and not data files of the bundle's records."""
    reads_media = len(model.fields) == 1 and bool(media_fields(model.predictor.featurizer))
    return reads_media and form == "auto" and any(ending(Path(name)) not in ENDINGS for name in names)


def _conll_reader(model: OpenedBundle) -> Any:
    """Return the reader of CoNLL without tags, with the columns of the training data if that is CoNLL."""
    stored = model.manifest.reader
    options = stored.options if stored.use == "conll" else {}
    if stored.use == "conllu":
        options = {"separator": "tab"}  # words may contain spaces, as in Vietnamese
    return reader_from(Reader(use="conll", options={**options, "tags": None}))


def one_record(model: OpenedBundle, text: str) -> Record:
    """Return the record of one argument or file: the text, or a line of several fields or numbers."""
    featurizer = model.predictor.featurizer
    fields, numbers = read_fields(featurizer), bool(numeric_fields(featurizer))
    if one_text(featurizer):
        return {fields[0]: text}
    if len(fields) == 1 and media_fields(featurizer):  # a file, since its content is too long for an argument
        return {fields[0]: Path(text), "where": text}
    if text.startswith("{") or numbers:
        return parse_record(text.rstrip("\n"), fields, "the text", numbers)
    return plain_record(text.rstrip("\n"), fields, "the text")


def answer_texts(model: OpenedBundle, texts: Sequence[str], options: Mapping[str, Any]) -> None:
    """Print the answers to texts, or to files of pictures or sounds, as lines of JSON."""
    if not media_fields(model.predictor.featurizer):
        for text in texts:
            if len(text) < 256 and os.path.isfile(text):
                raise UsageError(f"{text}: is a file, not a text; name it with --input")
    for answer in model([one_record(model, text) for text in texts], **options):
        _write_out(json_bytes(answer) + b"\n")


def plain_record(line: str, fields: Sequence[str], where: object) -> Record:
    """Return the record of a plain line: a text, or the tab-separated texts of a pair or of several sources."""
    texts = [line] if len(fields) == 1 else line.split("\t")
    if len(texts) != len(fields):
        keys = ", ".join(f'"{field}": …' for field in fields)
        form = f"{'<TAB>'.join(fields)}, or lines of JSON such as {{{keys}}}"
        count = "one text" if len(texts) == 1 else f"a line of {len(texts)}"
        reads = "pairs" if len(fields) == 2 else f"{len(fields)} texts"
        raise DataError(f"{where}: this bundle reads {reads}, but this is {count}; write {form}")
    return dict(zip(fields, texts, strict=True))


def parse_record(line: str, fields: Sequence[str], where: object, numbers: bool) -> Record:
    """Return the record of a JSON line: an object, or the value of its only field."""
    try:
        record = JSON_DECODER.decode(line)
    except RecursionError as error:
        raise DataError(f"{where}: nested too deeply; write flat objects") from error
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}; use --format text for plain text") from error
    return json_record(record, fields, where, numbers)


def json_record(value: Any, fields: Sequence[str], where: object, numbers: bool) -> Record:
    """Return the record of a JSON value: an object, or the value of its only field; DataError for anything else."""
    if isinstance(value, (str, list) if numbers else str) and len(fields) == 1:
        return {fields[0]: value}
    if not isinstance(value, dict):
        keys = f"`{fields[0]}` or `words`" if len(fields) == 1 else " and ".join(f"`{field}`" for field in fields)
        raise DataError(f"{where}: must be an object with {keys}, not {type(value).__name__}")
    return value


# Answer standard input or a growing file: tags token by token, labels line by line.


def answer_chunks(model: OpenedBundle, source: Path | None, form: str, write: Write) -> None:
    """Answer the texts of a file or of standard input as they arrive, with an empty line at the end of each text.

    For a bundle of tags or spans, each line is a text, and each token or span is answered by a line of JSON. For
    others, each line is a chunk of a text that ends with an empty line, and is answered by a line of JSON about the
    text so far. In CoNLL each line is a word, a text ends with an empty line, and tags are written after the words.
    """
    if form not in ("text", "conll"):
        raise UsageError(f"--stream --format {form}: must be one of text, conll")
    stream, tags = model.open_stream(), model.predictor.kind.tags_words
    if form == "text" and tags:
        _answer_texts(stream, source, write)
        return
    reader = _conll_reader(model) if form == "conll" else None
    is_begun = False
    for line, _ in read_lines(source):
        text = raise_error(line)
        is_blank = not text.strip()
        if reader is None:
            if is_blank:
                stream.finish()
            write(b"\n" if is_blank else json_bytes(stream.feed(f"{text}\n")) + b"\n")
            continue
        words = [word for record in reader.records([text, ""], _source_name(source)) for word in record["words"]]
        if words:
            answer = stream.feed(words)
            if tags:
                write("".join(f"{word}\t{tag}\n" for word, tag in zip(words, stream.tags, strict=True)).encode())
            else:
                write(json_bytes(answer) + b"\n")
        elif is_begun and is_blank:
            stream.finish()
            write(b"\n")
        is_begun = bool(words) or (is_begun and not is_blank)
    if is_begun:
        write(b"\n")


def _answer_texts(stream: PieceStream, source: Path | None, write: Write) -> None:
    """Answer lines, each a text, while they arrive."""

    def put(parts: Answer, end: bytes = b"") -> None:
        write(b"".join(json_bytes(part) + b"\n" for part in parts) + end)

    decoder, number, is_begun, line_end = codecs.getincrementaldecoder("utf-8-sig")(), 1, False, ""
    try:
        for block in _read_blocks(source):
            number += block.count(b"\n")
            *lines, last = (line_end + decoder.decode(block)).split("\n")
            for line in lines:
                put(stream.feed(line.removesuffix("\r")))
                put(stream.finish(), b"\n")
            part = last.removesuffix("\r")
            line_end = last[len(part) :]  # perhaps half of a line end
            put(stream.feed(part))
            is_begun = bool(part) or (is_begun and not lines)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{_source_name(source)}: up to line {number}: not UTF-8; {encoding_fix(error.object)}"
        ) from error
    if is_begun:
        put(stream.finish(), b"\n")


# Answer a file or standard input line by line, in order, in constant memory.


def output_format(model: OpenedBundle, job: PredictJob, form: str) -> str:
    """Return the format of the answers to inputs of a format: text (an answer a line), jsonl or conll."""
    if form in ("conll", "conllu"):
        tags_sentences = model.predictor.kind.tags_words and not job.documents and job.options.get(N_BEST, 1) == 1
        return "conll" if tags_sentences else "jsonl"
    return "text" if form == "text" else "jsonl"


def predict_file(
    model: OpenedBundle,
    job: PredictJob,
    sources: Sequence[Path],
    target: Path | None,
    span: Span | None = None,
    progress: bool = True,
) -> int:
    """Answer everything in `sources`; `target` appears only when it is complete. Return the number of inputs.

    A line of text is answered by a line of JSON, a row of a table or a JSON record by the record with the key `answer`,
    CoNLL by the words with their tags; a `target` that ends in .csv, .tsv or .parquet has a table. Pending records are
    answered whenever the source has nothing more to read.

    Args:
        model: The model.
        job: The settings.
        sources: Pictures or sounds, if the job is about these; otherwise one file, or none for standard input.
        target: File of the answers; None: standard output.
        span: The bytes of a part of a file of lines; None: all.
        progress: Show a progress bar, if there is a `target`.

    Raises:
        DataError: for the first line that cannot be answered, after the answers to those before it.
        SkippedError: at the end, if the job skips errors and some lines have `{"error": …}` in place of an answer.
    """
    source, columns, options = next(iter(sources), None), Columns(model, job.names or ()), job.options
    kind = model.predictor.kind
    form = "jsonl" if job.media else input_format(model, job.form, source, [*columns.names, *columns.fields])
    shown = output_format(model, job, form)
    is_table = target is not None and target.suffix.lower() in OUTPUTS
    option_keys = record_keys(options).values()
    for flag, keys in (("--field", job.names), ("--option-field", option_keys)):
        if keys and form in ("text", "conll", "conllu"):
            raise UsageError(f"{flag}: names a column of a table or a key of JSON, and this is {form}; leave it out")
    if form in TABLES and source is None:
        raise UsageError(f"--format {form}: such input is read from a file; name it with --input")
    if is_table and shown == "conll":
        raise UsageError(f"{target}: CoNLL is not a table; name a file such as answers.conll, or answers.jsonl")
    if form == "conll" and shown != "conll":
        raise UsageError("--format conll: for bundles that answer with tags or spans, one answer a sentence")
    if job.on_error == "skip" and form == "conll":
        raise UsageError("--on-error skip: for lines of text or JSON; the end of a bad sentence of CoNLL is unknown")
    if target:
        refuse_overwriting(target, sources)
    rows = list[Record]()
    write: Write = _write_out
    with contextlib.ExitStack() as stack:
        part = stack.enter_context(writing(target)) if target else None  # which names a path that cannot be written
        if part and not is_table:
            write = stack.enter_context(part.open("wb")).write
        tick = stack.enter_context(Console().progress("texts", None)) if target and progress else None

        def write_answer(record: Record, answer: Answer | DataError) -> None:
            record = {key: str(value) if isinstance(value, Path) else value for key, value in record.items()}
            if form in ("json", "parquet"):  # whose readers repeat the values within an object under dotted names
                record = {key: record[key] for key in record if "." not in key or key.split(".")[0] not in record}
            if is_table:
                rows.append({**record, **answer_columns(answer)})
            else:
                write(_line(record, answer, shown, kind))
            if tick:
                tick(answering.count)

        answers = Answers(model.predictor, {} if job.documents else options)
        answering = _Answering(model, job, answers, write_answer)
        stack.callback(answers.cancel)  # after an error or a signal
        records: Iterable[tuple[Record | DataError, str | LinePlace]]
        if job.media:
            records = [({model.fields[0]: file}, str(file)) for file in sources]
        elif source and form in TABLES:
            records = read_rows(model, source, form, columns)
        else:
            records = read_inputs(model, source, form, answering.flush, span)
        for record, where in records:
            try:
                row = chosen = raise_error(record)
                if form in TABLES or columns.are_given:
                    model.refuse_option_keys({**row, "where": where}, {*columns.names, *option_keys})
                    chosen = {**columns.record(row, where), **columns.own_options(row, option_keys, where, form)}
                checked: Record | DataError = model.record({**chosen, "where": where}, options)
            except DataError as error:
                checked = error
            answering.add(record, checked)
        answering.flush()
        if target and part and is_table:
            write_table(target, part, rows)
    if answering.skipped:
        raise SkippedError.of(_source_name(source), answering.count, answering.skipped)
    return answering.count


class _Answering:
    """Answers records in groups, and writes each answer with its record."""

    def __init__(self, model: OpenedBundle, job: PredictJob, answers: Answers, write: Callable[..., None]):
        self._predictor, self._job, self._answers, self._write = model.predictor, job, answers, write
        self._group: list[Record | DataError] = []
        self._unanswered: deque[Record | DataError] = deque()
        self.count = self.skipped = 0
        self._has_warned = False

    def add(self, record: Record | DataError, checked: Record | DataError) -> None:
        """Add a record in its output and input forms, or the error if it cannot be answered."""
        self._unanswered.append(record)
        self._group.append(checked)
        if self._job.documents or len(self._group) == CHUNK:
            self._start()

    def flush(self) -> None:
        """Answer all pending records."""
        if self._group:
            self._start()
        self._put(self._answers.rest())

    def _start(self) -> None:
        group, self._group = self._group, []
        if self._job.documents:
            self._put(self._predictor.documents(group, self._job.options))
        else:
            self._put(self._answers.take(group, ahead=1))

    def _put(self, answers: Iterable[Answer | DataError]) -> None:
        for answer in answers:
            record = self._unanswered.popleft()
            self.count += 1
            if isinstance(answer, DataError):
                if self._job.on_error == "stop":
                    raise answer
                self.skipped += 1
            elif not self._has_warned and (warning := self._predictor.kind.warning(answer)):
                self._has_warned = True
                message = f"warning: input {self.count} is {warning}; each such answer has the key {WARNING!r}"
                Console().say(message)
            self._write({} if isinstance(record, DataError) else record, answer)


def score_file(
    model: OpenedBundle, source: Path | None, form: str, names: Sequence[str], target: str, token_scores: bool
) -> None:
    """Score the text in the field `target` of each record as its answer; print the record with the key `answer`.

    A line of plain text is the texts of the input and that text, separated by tabs. `names` are those of `Columns`.
    """
    columns, rows, is_empty = Columns(model, names), deque[Record](), True
    form = input_format(model, form, source, [*columns.names, target])
    if form in TABLES and source is None:
        raise UsageError(f"--format {form}: such input is read from a file; name it with --input")
    if form == "conll":
        raise UsageError("--format conll: words and tags are no text to score; give lines of text, JSON or a table")
    records: Iterable[tuple[Record | DataError, object]]
    if source and form in TABLES:
        records = read_rows(model, source, form, columns)
    elif form == "text":
        fields = (*columns.fields, target)
        records = ((plain_record(raise_error(line), fields, where), where) for line, where in read_lines(source))
    else:
        records = read_inputs(model, source, form)

    def pairs() -> Iterator[tuple[Record, str]]:
        for record, where in records:
            rows.append(raise_error(record))
            if not isinstance(text := rows[-1].get(target), str):
                known = ", ".join(rows[-1])
                is_one = "is no text" if target in rows[-1] else f"is not there (there is: {known})"
                raise DataError(f"{where}: the text {target!r} to score {is_one}; name a field of texts with --target")
            yield model.record({**columns.record(rows[-1], where), "where": where}), text

    for answer in target_scores(model.predictor, pairs(), token_scores):
        _write_out(_line(rows.popleft(), answer, "jsonl", model.predictor.kind))
        is_empty = False
    if is_empty:
        fix = "; a table has the names of its columns in the first row: add them, or give --format text"
        raise DataError(f"{_source_name(source)}: has no texts to score{fix if form in TABLES else ''}")


def stream_file(model: OpenedBundle, job: PredictJob, source: Path | None) -> None:
    """Write each line of `source`, a prompt, and its continuation to standard output as it is generated.

    A bundle with streaming answers the texts of `source` as they arrive (`answer_chunks`).
    """
    if record_keys(job.options):
        raise UsageError("--option-field: a streamed text has no keys; set the option for all with --option")
    if not model.predictor.kind.is_generated:
        if job.options:
            raise UsageError("--stream: streamed answers have no decode options; leave them out")
        answer_chunks(model, source, input_format(model, job.form, source), _write_out)
        return
    if job.form not in ("auto", "text"):
        raise UsageError("--stream: texts go to standard output; leave --format out")
    for record, where in read_inputs(model, source, "text"):
        prompt = raise_error(record)
        pieces = model.stream({**prompt, "where": where}, **job.options)
        for piece in itertools.chain([prompt[model.predictor.featurizer.fields[-1]]], pieces, ["\n"]):
            _write_out(piece.encode())


def _line(record: Record, answer: Answer | DataError, form: str, kind: AnswerKind) -> bytes:
    if form == "conll" and not isinstance(answer, DataError):
        words = record["words"]
        tags = kind.word_tags(answer, locate_words(words, record["text"]))
        return ("".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)) + "\n").encode()
    stated = {"error": str(answer)} if isinstance(answer, DataError) else answer
    return json_bytes({**record, "answer": stated} if form == "jsonl" else stated) + b"\n"


def _write_out(data: bytes) -> None:
    """Write to standard output; EnvError if it cannot be written, but not if it is a pipe that its reader closed."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        fix = "free some space, or write to another path; the answers before are complete"
        raise EnvError(f"standard output cannot be written: {error.strerror}; {fix}") from error
