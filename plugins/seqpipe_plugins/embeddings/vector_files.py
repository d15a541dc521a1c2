"""Files of word vectors, read one vector at a time: word2vec, GloVe, fastText.

A line of word2vec's text, of GloVe and of fastText's .vec is a word and its numbers; word2vec and fastText say in a
first line how many words and how many numbers a word there are. word2vec's binary has that line too, then each word, a
blank, and its numbers as float32, little end first.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import numpy as np

from seqpipe.plugin import DataError

Format = Literal["auto", "word2vec", "word2vec-binary", "glove"]

LONGEST_LINE, LONGEST_WORD = 10_000_000, 10_000  # bytes
CHUNK = 1 << 18
_HEADER = re.compile(rb"(?:\xef\xbb\xbf)?(\d{1,18}) (\d{1,9})[ \t]*\r?\n")
_WRITTEN = re.compile(rb"[-+.0-9eEnaif \t\r]+(\n[^\0-\x08\x0b\x0c\x0e-\x1f]*)?")  # numbers as text, then more text
_FASTTEXT_MODEL = (793712314).to_bytes(4, "little")


class Entry(NamedTuple):
    """A word, where it stands, and its numbers (D,)."""

    word: str
    place: str
    numbers: np.ndarray


def entries(path: Path, wanted: Callable[[str], bool], form: Format, limit: int | None) -> Iterator[Entry]:
    """The entries of wanted words among the first `limit`; DataError names file, line or byte, and the cure."""
    chosen = _guessed(path) if form == "auto" else form
    with _opened(path) as file:
        if chosen == "word2vec-binary":
            yield from _binary(file, path, wanted, limit)
        else:
            yield from _text(file, path, wanted, limit, chosen == "word2vec")


def _guessed(path: Path) -> Format:
    """The format, by the beginning of the file."""
    with _opened(path) as file:
        first = file.readline(LONGEST_LINE)
        rest = file.read(2 * LONGEST_WORD)
    if first.startswith(_FASTTEXT_MODEL):
        raise DataError(f"{path}: this is a model of fastText (.bin); give its vectors as text (.vec)")
    header = _HEADER.fullmatch(first)
    if not header:
        return "glove"
    numbers = rest[rest.find(b" ") + 1 :][: min(64, 4 * int(header[2]))]
    return "word2vec" if _WRITTEN.fullmatch(numbers) else "word2vec-binary"


def _text(
    file: BinaryIO, path: Path, wanted: Callable[[str], bool], limit: int | None, has_header: bool
) -> Iterator[Entry]:
    count, dim, number, seen = None, 0, 0, 0
    if has_header:
        count, dim = _header(file, path)
        number = 1
    while (limit is None or seen < limit) and (line := file.readline(LONGEST_LINE)):
        number += 1
        line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        line = line.rstrip(b" \t\r\n")
        if not line:
            continue
        place, seen = f"{path}:{number}", seen + 1
        dim = dim or len(line.split()) - 1
        regular = 0 < dim == line.count(b" ") and b"\t" not in line
        cut = line.index(b" ") if regular else _end_of_word(line, dim, place, has_header)
        word = _word(line[:cut], place)
        if wanted(word):
            yield Entry(word, place, _finite(line[cut:].split(), word, place))
    if limit is None or seen < limit:
        _check_count(path, count, seen)


def _end_of_word(line: bytes, dim: int, place: str, has_header: bool) -> int:
    """Where the word ends in a line with tabs, or with blanks in the word; DataError if the width is another."""
    cells = line.rsplit(None, dim)
    before = cells[0].split()
    if dim < 1 or len(cells) <= dim or (len(before) > 1 and _is_number(before[-1])):
        width, said = len(line.split()) - 1, "its first line says so" if has_header else "as its first line has"
        cure = "is it cut short, or are these no word vectors?"
        raise DataError(f"{place}: {width} numbers in this line, but {dim} are expected ({said}); {cure}")
    return len(cells[0])


def _binary(file: BinaryIO, path: Path, wanted: Callable[[str], bool], limit: int | None) -> Iterator[Entry]:
    count, dim = _header(file, path)
    size, base, start, buffer = 4 * dim, file.tell(), 0, b""
    for number in range(min(count, count if limit is None else limit)):
        while (cut := buffer.find(b" ", start)) < 0 or len(buffer) <= cut + size:
            more = file.read(CHUNK)
            if cut - start > LONGEST_WORD or (cut < 0 and len(buffer) - start > LONGEST_WORD):
                raise DataError(f"{path}: byte {base + start}: there is no word here; is the first line right?")
            if not more:
                problem = f"the file ends within word {number + 1:,} of {count:,}, which begins at byte {base + start}"
                raise DataError(f"{path}: byte {base + len(buffer)}: {problem}; is it cut short? Get it again")
            base, start, buffer = base + start, 0, buffer[start:] + more
        spelt = buffer[start:cut].lstrip(b"\n")
        place = f"{path}: byte {base + cut - len(spelt)}"
        word = _word(spelt, place)
        start = cut + 1 + size
        if wanted(word):
            yield Entry(word, place, _finite(np.frombuffer(buffer, "<f4", dim, cut + 1), word, place))
    if (limit is None or limit > count) and (buffer[start:] + file.read(2)).strip(b"\r\n"):
        problem = f"the file has more than the {count:,} words that its first line states"
        raise DataError(f"{path}: byte {base + start}: {problem}")


def _header(file: BinaryIO, path: Path) -> tuple[int, int]:
    """How many words, how many numbers a word."""
    header = _HEADER.fullmatch(file.readline(LONGEST_WORD))
    if not header or not int(header[1]) or not int(header[2]):
        cure = "`format: glove` reads a file without this line"
        raise DataError(f"{path}:1: the first line must say how many words and how many numbers a word; {cure}")
    return int(header[1]), int(header[2])


def _check_count(path: Path, count: int | None, seen: int) -> None:
    if not seen:
        raise DataError(f"{path}: there is no vector in this file")
    if count is not None and count != seen:
        cure = f"is it whole? Correct the first line, or set `limit: {min(count, seen)}` to take those"
        raise DataError(f"{path}:1: the first line says {count:,} words, but {seen:,} follow; {cure}")


def _word(word: bytes, place: str) -> str:
    if not word:
        raise DataError(f"{place}: the word is empty; are these word vectors?")
    try:
        return word.decode("utf-8")
    except UnicodeDecodeError as error:
        cure = "convert the file, for instance with `iconv -f ENCODING -t UTF-8`"
        raise DataError(f"{place}: the word {word[:40]!r} is not UTF-8; {cure}") from error


def _finite(numbers: list[bytes] | np.ndarray, word: str, place: str) -> np.ndarray:
    """The numbers as float32; DataError if one is none, or is not finite."""
    try:
        with np.errstate(over="ignore"):
            row = np.array([float(number) for number in numbers]).astype("f4")
    except ValueError as error:
        wrong = next(number for number in numbers if not _is_number(number))
        raise DataError(f"{place}: {wrong.decode(errors='replace')!r} behind the word {word!r} is no number") from error
    if not np.isfinite(row).all():
        raise DataError(f"{place}: the vector of {word!r} holds NaN or infinity; correct or remove the word")
    return row


def _is_number(cell: bytes) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file open for reading, unpacked on the way if it is compressed with gzip; DataError if it cannot be read."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with gzip.open(raw) if packed else raw as file:
                yield io.BufferedReader(file, CHUNK)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be unpacked ({error}); `gzip -t` tells whether the file is whole") from error
    except FileNotFoundError as error:
        cure = "a run reads its vectors again whenever it is built; a bundle has no need of them"
        raise DataError(f"{path}: there is no such file; {cure}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
