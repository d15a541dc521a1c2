"""Answer standard input or a file while it is written: tags token by token, labels line by line."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from seqpipe.answers.types import Answer
from seqpipe.config.plugins import Plugins
from seqpipe.errors import DataError, UsageError
from seqpipe.files import json_bytes
from seqpipe.runtime.bundle_reader import reader_from
from seqpipe.runtime.model import Model
from seqpipe.runtime.piece_stream import PieceStream
from seqpipe.runtime.record_lines import BLOCK

Write = Callable[[bytes], None]
FORMS = ("text", "conll")


def answer_pieces(model: Model, source: BinaryIO, name: str, form: str, write: Write) -> None:
    """Answer what `source` holds as it comes, with an empty line at the end of each text.

    Of a bundle of tags or spans, a text is a line, and each token or span is a line of JSON; of others each line is a
    piece of a text that ends with an empty line, and the answer to the text so far is a line of JSON. In CoNLL a word
    is a line, a text ends with an empty line, and tags are written behind the words.
    """
    if form not in FORMS:
        raise UsageError(f"--stream --format {form}: must be one of {', '.join(FORMS)}")
    stream, tags = model.open_stream(), model.predictor.kind.tags_words
    if form == "conll":
        _conll(stream, source, name, _reader(model), tags, write)
    elif tags:
        _lines(stream, source, name, write)
    else:
        _texts_so_far(stream, source, name, write)


def _lines(stream: PieceStream, source: BinaryIO, name: str, write: Write) -> None:
    """Each line is a text, answered while it comes."""
    begun, held = False, ""
    for text in _decoded(source, name):
        *lines, rest = (held + text).split("\n")
        held = rest[len(rest.removesuffix("\r")) :]  # the end of a line, perhaps
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


def _texts_so_far(stream: PieceStream, source: BinaryIO, name: str, write: Write) -> None:
    """Each line is a piece of a text, and an empty line its end."""
    for line in _whole_lines(source, name):
        if line.strip():
            write(json_bytes(stream.feed(f"{line}\n")) + b"\n")
        else:
            stream.finish()
            write(b"\n")


def _conll(stream: PieceStream, source: BinaryIO, name: str, reader: Any, tags: bool, write: Write) -> None:
    """Each line is a word, and an empty line the end of a text."""
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


def _reader(model: Model) -> Any:
    """The reader of lines of words, with the options of the bundle's own where that is one of columns."""
    stored = model.manifest["reader"]
    options = stored["options"] if stored["use"] == "conll" else {}
    return reader_from({"use": "conll", "options": {**options, "tags": None}}, Plugins())


def _whole_lines(source: BinaryIO, name: str) -> Iterator[str]:
    rest = ""
    for text in _decoded(source, name):
        *lines, rest = (rest + text).split("\n")
        yield from (line.removesuffix("\r") for line in lines)
    if rest:
        yield rest


def _decoded(source: BinaryIO, name: str) -> Iterator[str]:
    """The text as it comes."""
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
        raise DataError(f"{where}: not UTF-8; convert it: iconv -f latin1 -t utf-8") from error
