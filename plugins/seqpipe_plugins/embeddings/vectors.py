"""Pretrained word vectors from a file of word2vec, GloVe or fastText.

A line of word2vec's text format, of GloVe and of fastText's .vec is a word and its numbers; word2vec and fastText have
a first line with the number of words and of numbers per word. word2vec's binary format has that line too, then each
word, a space, and its numbers as little-endian float32.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.plugin import SPECIALS, DataError, token_counts

from .lookup import NO_DROPOUT, Lookup, WordDropout

Format = Literal["auto", "word2vec", "word2vec-binary", "glove"]

LONGEST_LINE, LONGEST_WORD = 10_000_000, 10_000  # bytes
CHUNK_BYTES = 1 << 18
_HEADER = re.compile(rb"(?:\xef\xbb\xbf)?(\d{1,18}) (\d{1,9})[ \t]*\r?\n")
_WRITTEN = re.compile(rb"[-+.0-9eEnaif \t\r]+(\n[^\0-\x08\x0b\x0c\x0e-\x1f]*)?")  # numbers as text, then more text
_FASTTEXT_MODEL = (793712314).to_bytes(4, "little")


class Vectors(Lookup):
    """Pretrained word vectors: word2vec (Mikolov et al. 2013), GloVe (Pennington et al. 2014), fastText
    (Bojanowski et al. 2017).

    The file is streamed, and only the words of the vocabulary are kept. They are part of the weights of checkpoints and
    bundles, so a bundle does not need the file. Words are compared after the tokenizer's normalization: in lower case
    with its `lowercase`. Words without a vector, and [UNK], are initialised at random with the average length of the
    file's vectors.

    Args:
        path: The file, also compressed with gzip.
        format: Format of the file; auto detects it.
        limit: Maximum number of words to read, from the beginning; null: all.
        case: Whether a word without a vector gets the vector of the first word that differs only in case.
        train: Whether the vectors are fine-tuned; otherwise they are frozen.
        missing: Words without a vector are trained, or stay random or zero if `train` is false.
        scale: Factor of all vectors.
    """

    returns: ClassVar = {"x": ""}  # no table, since parts of it may be frozen

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        path: Path,
        format: Format = "auto",
        limit: PositiveInt | None = None,
        case: Literal["exact", "fold"] = "exact",
        train: bool = False,
        missing: Literal["trained", "random", "zero"] = "trained",
        scale: PositiveFloat = 1.0,
        options: WordDropout = NO_DROPOUT,
    ):
        rows_by_id = _matching_rows(vocabulary, path, format, limit, case == "fold")
        rows = scale * np.stack([*rows_by_id.values()])  # (found, D)
        super().__init__(vocabulary, {}, dim=rows.shape[1], options=options)
        words, counts = len(vocabulary) - len(SPECIALS), token_counts(vocabulary)
        covered = len(rows_by_id)
        self.coverage = f"{covered:,} of {words:,} words ({covered / words:.1%}) have a vector in {path.name}"
        if counts is not None:
            share = sum(counts[i] for i in rows_by_id) / max(1, sum(counts[len(SPECIALS) :]))
            self.coverage += f"; these are {share:.1%} of the known words in the training texts"
        with torch.no_grad():
            weight = self.table.weight  # (V, D), uniform within (3 / D) ** 0.5: a standard deviation of D ** -0.5
            weight.mul_(0.0 if missing == "zero" else float(rows.std()) * self.dim**0.5)
            weight[list(rows_by_id)] = torch.from_numpy(rows)
        if not train:
            learned = [i for i in range(1, len(vocabulary)) if i not in rows_by_id] if missing == "trained" else []
            self.register_module("table", FrozenRows(weight.detach(), learned))

    def forward(self, ids: Tensor) -> dict[str, Tensor]:  # type: ignore[override]  # (B, T) -> (B, T, D)
        return {"x": self.look_up(ids)}

    def messages(self) -> list[str]:
        """Return the coverage: the number of vocabulary words that have a vector in the file."""
        return [self.coverage]

    @staticmethod
    def join_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the state of such an embedding with one table of all words, whichever are learned."""
        if "table.place" not in state:
            return dict(state)
        place, weight = state["table.place"], state["table.weight"]
        if "table.learned.weight" not in state:
            return {"table.weight": weight}
        return {"table.weight": torch.where(place[:, None] > 0, state["table.learned.weight"][place], weight)}

    def split_state(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the state of this embedding from one with such a table."""
        if not isinstance(self.table, FrozenRows):
            return dict(state)
        weight, place = state["table.weight"], self.table.place
        parts = {"table.place": place, "table.weight": torch.where(place[:, None] > 0, 0.0, weight)}
        learned = F.pad(weight[place > 0], (0, 0, 1, 0))  # (1 + learned, D), in the order of `place`
        return parts if self.table.learned is None else parts | {"table.learned.weight": learned}


class FrozenRows(nn.Module):
    """A table (V, D) of which only some rows are trained; the state dict has all of them."""

    weight: Tensor
    place: Tensor

    def __init__(self, weight: Tensor, learned: Sequence[int]):
        super().__init__()
        place = torch.zeros(len(weight), dtype=torch.int64)  # (V,), 0 for rows that are not learned
        place[list(learned)] = torch.arange(1, len(learned) + 1)
        self.register_buffer("weight", torch.where(place[:, None] > 0, 0.0, weight))  # (V, D)
        self.register_buffer("place", place)
        self.learned = None
        if learned:
            rows = F.pad(weight[list(learned)], (0, 0, 1, 0))  # (1 + learned, D)
            self.learned = nn.Embedding.from_pretrained(rows, freeze=False, padding_idx=0)

    def forward(self, ids: Tensor) -> Tensor:  # (B, T) -> (B, T, D)
        x = F.embedding(ids, self.weight)
        return x if self.learned is None else x + self.learned(self.place[ids])


def _matching_rows(
    vocabulary: Sequence[str], path: Path, form: Format, limit: int | None, fold: bool
) -> dict[int, np.ndarray]:
    """Return the file's vector of each id that has one; for words that differ in case, the first in the file."""
    exact = {word: i for i, word in enumerate(vocabulary) if i >= len(SPECIALS)}
    folded: dict[str, list[int]] = {}
    for word, i in exact.items() if fold else ():
        folded.setdefault(word.casefold(), []).append(i)
    places: dict[str, str] = {}
    same_case: dict[int, np.ndarray] = {}
    folded_case: dict[int, np.ndarray] = {}
    for word, place, row in entries(path, lambda word: word in exact or word.casefold() in folded, form, limit):
        if word in places:
            first = places[word].removeprefix(str(path)).lstrip(": ")
            where = first if first.startswith("byte") else f"line {first}"
            raise DataError(f"{place}: the word {word!r} has a vector already ({where}); remove one of the two")
        places[word] = place
        if word in exact:
            same_case[exact[word]] = row
        for i in folded.get(word.casefold(), ()):
            folded_case.setdefault(i, row)
    if not (same_case or folded_case):
        fix = "check that both have the same language and case (the tokenizer's `lowercase`, `case: fold`)"
        raise DataError(f"{path}: no word of the vocabulary ({len(exact):,} words) is in this file; {fix}")
    return dict(sorted((folded_case | same_case).items()))


class Entry(NamedTuple):
    """A word, its place in the file, and its numbers (D,)."""

    word: str
    place: str
    numbers: np.ndarray


def entries(path: Path, wanted: Callable[[str], bool], form: Format, limit: int | None) -> Iterator[Entry]:
    """Yield the entries of wanted words among the first `limit`; DataError names file, line or byte, and the fix."""
    if form == "auto":
        with _open_vectors(path) as file:
            first = file.readline(LONGEST_LINE)
            sample = file.read(2 * LONGEST_WORD)
        if first.startswith(_FASTTEXT_MODEL):
            raise DataError(f"{path}: this is a fastText model (.bin); use its vectors as text (.vec)")
        # GloVe has no line with sizes. Both formats of word2vec have one, and differ after the first word: the text has
        # digits there, the binary file the bytes of float32, some of which are not characters of numbers.
        header = _HEADER.fullmatch(first)
        numbers = sample[sample.find(b" ") + 1 :][: min(64, 4 * int(header[2]))] if header else b""
        form = "glove" if not header else "word2vec" if _WRITTEN.fullmatch(numbers) else "word2vec-binary"
    with _open_vectors(path) as file:
        if form == "word2vec-binary":
            yield from _binary(file, path, wanted, limit)
        else:
            yield from _text(file, path, wanted, limit, form == "word2vec")


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
        # A line with as many spaces as numbers has one word before the first space: the fast path of nearly all lines.
        # Only lines with tabs, or with spaces in the word, are split from the right.
        regular = 0 < dim == line.count(b" ") and b"\t" not in line
        cut = line.index(b" ") if regular else _end_of_word(line, dim, place, has_header)
        word = _word(line[:cut], place)
        if wanted(word):
            yield Entry(word, place, _finite(line[cut:].split(), word, place))
    if limit is None or seen < limit:
        if not seen:
            raise DataError(f"{path}: this file has no vectors")
        if count is not None and count != seen:
            fix = f"check that it is complete, correct the first line, or set `limit: {min(count, seen)}`"
            raise DataError(f"{path}:1: the first line says {count:,} words, but {seen:,} follow; {fix}")


def _end_of_word(line: bytes, dim: int, place: str, has_header: bool) -> int:
    """Return the end of the word in a line with tabs, or with spaces in the word; DataError if the width differs."""
    cells = line.rsplit(None, dim)
    before = cells[0].split()
    if dim < 1 or len(cells) <= dim or (len(before) > 1 and _is_number(before[-1])):
        width, said = len(line.split()) - 1, "from its first line" if has_header else "as in its first line"
        fix = "check that the file is complete and has word vectors"
        raise DataError(f"{place}: {width} numbers in this line, but {dim} are expected ({said}); {fix}")
    return len(cells[0])


def _binary(file: BinaryIO, path: Path, wanted: Callable[[str], bool], limit: int | None) -> Iterator[Entry]:
    count, dim = _header(file, path)
    size, base, start, buffer = 4 * dim, file.tell(), 0, b""
    for number in range(min(count, count if limit is None else limit)):
        # The numbers' bytes may include spaces and newlines: only the first space after `start` ends a word, and the
        # next word begins a fixed number of bytes after it. `base` is the offset of the buffer in the file.
        while (cut := buffer.find(b" ", start)) < 0 or len(buffer) <= cut + size:
            more = file.read(CHUNK_BYTES)
            if cut - start > LONGEST_WORD or (cut < 0 and len(buffer) - start > LONGEST_WORD):
                raise DataError(f"{path}: byte {base + start}: there is no word here; check the first line")
            if not more:
                problem = f"the file ends within word {number + 1:,} of {count:,}, which begins at byte {base + start}"
                raise DataError(f"{path}: byte {base + len(buffer)}: {problem}; download it again")
            base, start, buffer = base + start, 0, buffer[start:] + more
        spelt = buffer[start:cut].lstrip(b"\n")
        place = f"{path}: byte {base + cut - len(spelt)}"
        word = _word(spelt, place)
        start = cut + 1 + size
        if wanted(word):
            yield Entry(word, place, _finite(np.frombuffer(buffer, "<f4", dim, cut + 1), word, place))
    if (limit is None or limit > count) and (buffer[start:] + file.read(2)).strip(b"\r\n"):
        problem = f"the file has more than the {count:,} words of its first line"
        raise DataError(f"{path}: byte {base + start}: {problem}; download it again")


def _header(file: BinaryIO, path: Path) -> tuple[int, int]:
    """Read the number of words, and of numbers per word."""
    header = _HEADER.fullmatch(file.readline(LONGEST_WORD))
    if not header or not int(header[1]) or not int(header[2]):
        fix = "`format: glove` reads a file without this line"
        raise DataError(f"{path}:1: the first line must have the number of words and of numbers per word; {fix}")
    return int(header[1]), int(header[2])


def _word(word: bytes, place: str) -> str:
    if not word:
        raise DataError(f"{place}: the word is empty; check that these are word vectors")
    try:
        return word.decode("utf-8")
    except UnicodeDecodeError as error:
        fix = "convert the file, for instance with `iconv -f ENCODING -t UTF-8`"
        raise DataError(f"{place}: the word {word[:40]!r} is not UTF-8; {fix}") from error


def _finite(numbers: list[bytes] | np.ndarray, word: str, place: str) -> np.ndarray:
    """Return the numbers as float32; DataError if one is not a number, or not finite."""
    try:
        with np.errstate(over="ignore"):
            row = np.array([float(number) for number in numbers]).astype("f4")
    except ValueError as error:
        wrong = next(number for number in numbers if not _is_number(number))
        raise DataError(f"{place}: {wrong.decode(errors='replace')!r} after {word!r} is not a number") from error
    if not np.isfinite(row).all():
        raise DataError(f"{place}: the vector of {word!r} has NaN or infinity; correct or remove the word")
    return row


def _is_number(cell: bytes) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


@contextmanager
def _open_vectors(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, and decompress it if it is gzipped; DataError if it cannot be read."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with gzip.open(raw) if packed else raw as file:
                yield io.BufferedReader(file, CHUNK_BYTES)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be decompressed ({error}); check the file with `gzip -t`") from error
    except FileNotFoundError as error:
        fix = "a run reads its vectors whenever it is built; a bundle does not need them"
        raise DataError(f"{path}: no such file; {fix}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
