"""A file or standard input in, answers out, line by line, in order, in constant memory."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from seqpipe.answers import Answer
from seqpipe.bundle_reader import reader_from
from seqpipe.console import Console
from seqpipe.errors import DataError, UsageError
from seqpipe.features import Record, locate
from seqpipe.files import json_bytes, writing
from seqpipe.inputs import all_texts, fields_of, one_text
from seqpipe.plugins import Plugins
from seqpipe.predictor import CHUNK
from seqpipe.runtime import Model
from seqpipe.schemes import to_tags

FORMATS = ("text", "jsonl", "conll")
_ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".conll": "conll", ".bio": "conll", ".iob": "conll"}


def predict_file(
    model: Model, source: Path | None, target: Path | None, form: str, documents: bool, options: Mapping[str, Any]
) -> None:
    """Answers everything in `source`; `target` appears only when all is written.

    Text gives a line of JSON a line, JSONL the record with the key `answer` added, CoNLL the words with their tags.
    """
    if form == "auto":
        usual = "text" if all_texts(model.predictor.featurizer) else "jsonl"
        form = _ENDINGS.get(source.suffix.lower(), usual) if source else usual
    if form not in FORMATS:
        raise UsageError(f"--format {form}: must be one of {', '.join(FORMATS)}")
    tagging = model.manifest["answer"]["kind"] in ("tags", "spans")
    if form == "conll" and (documents or not tagging or options.get("n_best", 1) != 1):
        raise UsageError("--format conll: for bundles that answer with tags or spans, one answer a sentence")
    interactive = source is None and sys.stdin.isatty()
    with ExitStack() as stack:
        lines = _lines(_open(source, stack), str(source or "standard input"))
        records, seen = _kept(_records(model, lines, form, str(source or "standard input")))
        write = _writer(target, stack)
        tick = stack.enter_context(Console().progress("texts", None)) if target else None
        answers = model(records, documents=documents, chunk=1 if interactive else CHUNK, **options)
        for count, answer in enumerate(answers, 1):
            write(_line(seen.popleft(), answer, form))
            if tick:
                tick(count)


def stream_file(model: Model, source: Path | None, target: Path | None, form: str, options: Mapping[str, Any]) -> None:
    """Each line of `source` as a prompt, on standard output, and what follows it as it comes."""
    if target is not None or form not in ("auto", "text"):
        raise UsageError("--stream: texts go to standard output as they come; leave --output and --format out")
    with ExitStack() as stack:
        name = str(source or "standard input")
        for record, where in _records(model, _lines(_open(source, stack), name), "text", name):
            pieces = model.stream({**record, "where": where}, **options)
            sys.stdout.write(record[model.predictor.featurizer.fields[-1]])
            for piece in pieces:
                sys.stdout.write(piece)
                sys.stdout.flush()
            sys.stdout.write("\n")


def _kept(records: Iterable[tuple[Record, str]]) -> tuple[Iterator[Record], deque[Record]]:
    """The records with the place they come from, each also kept as it was until its answer is written."""
    seen: deque[Record] = deque()

    def keep() -> Iterator[Record]:
        for record, where in records:
            seen.append(record)
            yield {**record, "where": where}

    return keep(), seen


def _open(source: Path | None, stack: ExitStack) -> BinaryIO:
    if source is None:
        return sys.stdin.buffer
    try:
        return stack.enter_context(source.open("rb"))
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from error


def _lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    for number, line in enumerate(stream, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}:{number}: byte {error.start + 1} is not UTF-8; convert it: iconv -f latin1 -t utf-8"
            ) from error


def _records(model: Model, lines: Iterator[str], form: str, name: str) -> Iterator[tuple[Record, str]]:
    featurizer = model.predictor.featurizer
    fields = fields_of(featurizer)
    if form == "text" and not all_texts(featurizer):
        raise UsageError("--format text: this bundle reads numbers; give lines of JSON, and --format jsonl")
    placed = ((line, f"{name}:{number}") for number, line in enumerate(lines, 1))
    if form == "text":
        return ((_plain(line, fields, where), where) for line, where in placed)
    if form == "jsonl":
        numbers = not all_texts(featurizer)
        return ((_parsed(line, fields, where, numbers), where) for line, where in placed if line.strip())
    stored = model.manifest["reader"]
    options = stored["options"] if stored["use"] == "conll" else {}
    reader = reader_from({"use": "conll", "options": {**options, "tags": None}}, Plugins())
    return ((record, record["where"]) for record in reader.records(lines, name))


def one_record(model: Model, text: str) -> Record:
    """The record of one argument or file: the text, or of several fields or numbers all, in the form of a line."""
    featurizer = model.predictor.featurizer
    fields, numbers = fields_of(featurizer), not all_texts(featurizer)
    if one_text(featurizer):
        return {fields[0]: text}
    if text.startswith("{") or numbers:
        return _parsed(text.rstrip("\n"), fields, "the text", numbers)
    return _plain(text.rstrip("\n"), fields, "the text")


def _plain(line: str, fields: Sequence[str], where: str) -> Record:
    """A line as the text, or as those of a pair or of several sources, with tabs between them."""
    texts = [line] if len(fields) == 1 else line.split("\t")
    if len(texts) != len(fields):
        keys = ", ".join(f'"{field}": …' for field in fields)
        form = f"{'<TAB>'.join(fields)}, or lines of JSON such as {{{keys}}}"
        count = "one text" if len(texts) == 1 else f"a line of {len(texts)}"
        reads = "pairs" if len(fields) == 2 else f"{len(fields)} texts"
        raise DataError(f"{where}: this bundle reads {reads}, and here is {count}; write {form}")
    return dict(zip(fields, texts, strict=True))


def _parsed(line: str, fields: Sequence[str], where: str, numbers: bool) -> Record:
    """A line of JSON: an object, or what its only field holds, a text or, where it does, numbers."""
    try:
        record = json.loads(line, parse_constant=_no_constant)
    except RecursionError as error:
        raise DataError(f"{where}: nested too deeply; write flat objects") from error
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}; use --format text for plain text") from error
    if isinstance(record, (str, list) if numbers else str) and len(fields) == 1:
        return {fields[0]: record}
    if not isinstance(record, dict):
        keys = f"`{fields[0]}` or `words`" if len(fields) == 1 else " and ".join(f"`{field}`" for field in fields)
        raise DataError(f"{where}: must be an object with {keys}, not {type(record).__name__}")
    return record


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _line(record: Record, answer: Answer, form: str) -> bytes:
    if form == "conll":
        return _conll(record, answer).encode()
    return json_bytes({**record, "answer": answer} if form == "jsonl" else answer) + b"\n"


def _conll(record: Record, answer: Answer) -> str:
    words = record["words"]
    places = locate(words, record["text"])
    if answer and "entity" in answer[0]:
        tags = [part["entity"] for part in answer]
    else:
        first = {start: i for i, (start, _) in enumerate(places)}
        last = {end: i + 1 for i, (_, end) in enumerate(places)}
        tags = to_tags([(s["entity_group"], first[s["start"]], last[s["end"]]) for s in answer], len(words), "IOB2")
    return "".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)) + "\n"


def _writer(target: Path | None, stack: ExitStack) -> Callable[[bytes], None]:
    stream: BinaryIO = sys.stdout.buffer
    if target is not None:
        stream = stack.enter_context(stack.enter_context(writing(target)).open("wb"))

    def write(line: bytes) -> None:
        stream.write(line)
        if target is None:
            stream.flush()

    return write
