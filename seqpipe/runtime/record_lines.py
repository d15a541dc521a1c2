"""Read records from a file or standard input: lines of text, JSON Lines, CoNLL."""

from __future__ import annotations

import io
import json
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from seqpipe.config.plugins import Plugins
from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Record
from seqpipe.features.sources import all_texts, fields_of, one_text
from seqpipe.runtime.bundle_reader import reader_from
from seqpipe.runtime.model import Model

BLOCK = 1 << 16  # bytes read at once
FORMATS = ("text", "jsonl", "conll")
_ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".conll": "conll", ".bio": "conll", ".iob": "conll"}


def input_format(form: str, source: Path | None, usual: str) -> str:
    """The format of an input: as given, or for `auto` by the file's extension; UsageError for one that there is not."""
    if form == "auto":
        return _ENDINGS.get(source.suffix.lower(), usual) if source else usual
    if form not in FORMATS:
        raise UsageError(f"--format {form}: must be one of {', '.join(FORMATS)}")
    return form


def open_source(source: Path | None, stack: ExitStack) -> BinaryIO:
    if source is None:
        return sys.stdin.buffer
    try:
        return stack.enter_context(source.open("rb"))
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from error


def read_lines(stream: BinaryIO, name: str, dry: Callable[[], None]) -> Iterator[tuple[str | DataError, str]]:
    """Each line without its end, or the reason why it cannot be read, and its place."""
    for number, line in enumerate(_split(stream, dry), 1):
        where = f"{name}:{number}"
        try:
            text: str | DataError = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            text = DataError(f"{where}: byte {error.start + 1} is not UTF-8; convert it: iconv -f latin1 -t utf-8")
        yield text, where


def _split(stream: BinaryIO, dry: Callable[[], None]) -> Iterator[bytes]:
    """The lines of a stream as they come; `dry` is called before a wait for more."""
    begun: list[bytes] = []  # of a line whose end is not here yet
    while True:
        if _may_wait(stream):
            dry()
        block = stream.read1(BLOCK)  # type: ignore[attr-defined]
        if not block:
            break
        first, *lines = block.split(b"\n")
        begun.append(first)
        if lines:
            yield b"".join(begun)
            *lines, last = lines
            yield from lines
            begun = [last]
    if any(begun):
        yield b"".join(begun)


def _may_wait(stream: BinaryIO) -> bool:
    """Whether a read would wait for somebody to write; where the system cannot say, it may."""
    try:
        handle = stream.fileno()
        return not stat.S_ISREG(os.fstat(handle).st_mode) and not select.select([handle], [], [], 0)[0]
    except io.UnsupportedOperation:  # what is in memory
        return False
    except (OSError, ValueError):
        return True


def read_records(
    model: Model, lines: Iterator[tuple[str | DataError, str]], form: str, name: str
) -> Iterator[tuple[Record | DataError, str]]:
    """Each record, or the reason why a line is none, and its place; after an error in CoNLL there are no more."""
    featurizer = model.predictor.featurizer
    numbers = not all_texts(featurizer)
    if form == "text" and numbers:
        raise UsageError("--format text: this bundle reads numbers; give lines of JSON, and --format jsonl")
    if form == "conll":
        yield from _sentences(model, lines, name)
    else:
        yield from parse_lines(lines, form, fields_of(featurizer), numbers)


def parse_lines(
    lines: Iterator[tuple[str | DataError, str]], form: str, fields: Sequence[str], numbers: bool
) -> Iterator[tuple[Record | DataError, str]]:
    """The records of lines of text or JSON for a bundle with these input fields; `numbers`: a field may hold some."""
    for line, where in lines:
        if form == "jsonl" and isinstance(line, str) and not line.strip():
            continue
        try:
            text = _raised(line)
            yield _plain(text, fields, where) if form == "text" else _parsed(text, fields, where, numbers), where
        except DataError as error:
            yield error, where


def _sentences(
    model: Model, lines: Iterator[tuple[str | DataError, str]], name: str
) -> Iterator[tuple[Record | DataError, str]]:
    stored = model.manifest["reader"]
    options = stored["options"] if stored["use"] == "conll" else {}
    if stored["use"] == "conllu":
        options = {"separator": "tab"}  # its words may hold blanks, as in Vietnamese
    reader = reader_from({"use": "conll", "options": {**options, "tags": None}}, Plugins())
    try:
        for record in reader.records((_raised(line) for line, _ in lines), name):
            yield record, record["where"]
    except DataError as error:
        yield error, name


def _raised(line: str | DataError) -> str:
    if isinstance(line, DataError):
        raise line
    return line


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
    return json_record(record, fields, where, numbers)


def json_record(value: Any, fields: Sequence[str], where: str, numbers: bool) -> Record:
    """A value of JSON as a record: an object, or what its only field holds; DataError for anything else."""
    if isinstance(value, (str, list) if numbers else str) and len(fields) == 1:
        return {fields[0]: value}
    if not isinstance(value, dict):
        keys = f"`{fields[0]}` or `words`" if len(fields) == 1 else " and ".join(f"`{field}`" for field in fields)
        raise DataError(f"{where}: must be an object with {keys}, not {type(value).__name__}")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
