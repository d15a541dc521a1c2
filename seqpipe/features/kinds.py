"""What a stage declares in, arrays out: the closed set of features that a runtime in any language can make."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from tokenizers import Tokenizer

from seqpipe.errors import BundleError, DataError
from seqpipe.features.copy import Copy
from seqpipe.features.document import Column, Doc, Feature, Fixed, sentences
from seqpipe.features.vocabulary import PAD, UNK

Split = Literal["punctuation", "lines"]

_CONSTANT = 1e-7  # of a column: a smaller deviation, beside its mean, is rounding
_CACHED = 100_000  # words whose rows are kept


@dataclass(frozen=True)
class Chars:
    """The code points of each token as written, (B, T, C) int64: 0 padding, 1 a code point not in the alphabet.

    C is the longest token of the batch, at most `longest`; of a longer one the first and last halves are kept.
    """

    longest: int = 20
    alphabet: str = ""
    _rows: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    _ids: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    kind = "chars"
    axes = ("batch_size", "sequence_length", "word_length")

    def learn(self, words: Iterable[str]) -> Chars:
        """The same feature with the new characters of these words behind its alphabet, in order of code points."""
        new = sorted(set().union(*words) - {*self.alphabet})
        return replace(self, alphabet=self.alphabet + "".join(new), _rows={}, _ids={})

    def following(self, old: Feature | None) -> Chars:
        """The same feature with the characters of an older one behind its alphabet."""
        new = [c for c in old.alphabet if c not in self.alphabet] if isinstance(old, Chars) else []
        return replace(self, alphabet=self.alphabet + "".join(new), _rows={}, _ids={})

    @property
    def names(self) -> tuple[str, ...]:
        return (PAD, UNK, *self.alphabet)

    @property
    def size(self) -> int:
        return len(self.names)

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        empty = bytes(8 * self.longest)
        rows: list[bytes] = []
        for doc in docs:
            rows += [self._rows.get(word) or self._row(word) for word in doc.words]
            rows += [empty] * (longest - len(doc.words))
        table = np.frombuffer(b"".join(rows), np.int64).reshape(len(docs), longest, self.longest)
        used = int(np.flatnonzero(table.any((0, 1))).max(initial=0)) + 1
        return table[:, :, :used]  # (B, T, C)

    def _row(self, word: str) -> bytes:
        if not self._ids:
            self._ids.update({c: i for i, c in enumerate(self.alphabet, 2)})
        if len(self._rows) >= _CACHED:
            self._rows.clear()
        half = self.longest // 2
        kept = word if len(word) <= self.longest else word[: self.longest - half] + word[len(word) - half :]
        row = np.zeros(self.longest, np.int64)
        row[: len(kept)] = [self._ids.get(c, 1) for c in kept]
        made = self._rows[word] = row.tobytes()  # another thread may clear the rows at any time
        return made

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "longest": self.longest, "alphabet": self.alphabet}


@dataclass(frozen=True)
class Sentences(Fixed):
    """Which tokens make which sentence, (B, S, W) int64: the position + 1 of each token in its row of T; 0 padding.

    A sentence without tokens is none, but a text has at least one. `split` says where a sentence ends: after its
    closing mark and at line ends (`punctuation`), or at line ends alone (`lines`).
    """

    split: Split = "punctuation"
    kind = "sentences"
    axes = ("batch_size", "sentence_count", "sentence_length")
    size = 0  # positions have no vocabulary

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        counts = [self.counts(doc) for doc in docs]
        S = max(map(len, counts), default=1)
        W = max([1, *(int(count.max()) for count in counts)])
        made = np.zeros((len(docs), S, W), np.int64)
        for row, count in zip(made, counts, strict=True):
            row[: len(count)][np.arange(W) < count[:, None]] = np.arange(1, count.sum() + 1)
        return made

    def counts(self, doc: Doc) -> np.ndarray:
        """How many tokens each sentence has: a token belongs to the sentence in which it begins."""
        ends = [end for _, end in _SPLITS[self.split](doc.text)]
        starts = [start for start, _ in doc.offsets]
        counts = np.bincount(np.searchsorted(ends[:-1], starts, "right"), minlength=1)
        return counts[counts > 0] if len(doc) else counts

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "split": self.split}


@dataclass(frozen=True)
class Pieces(Fixed):
    """Where each word begins, (B, N) int64: the position + 1 of its first token in the row of T; 0 padding.

    A word lasts until the next begins. Of a tokenizer whose tokens are words, every token begins one.
    """

    kind = "pieces"
    axes = ("batch_size", "word_count")
    size = 0  # positions have no vocabulary

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        starts = [range(len(doc)) if doc.starts is None else doc.starts for doc in docs]
        made = np.zeros((len(docs), max([1, *map(len, starts)])), np.int64)
        for row, some in zip(made, starts, strict=True):
            row[: len(some)] = np.array(some, np.int64) + 1
        return made

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind}


@dataclass(frozen=True)
class Segments(Fixed):
    """Of which text of a pair each token is, (B, T) int64: 1 the first and the separator behind it, 2 the second."""

    kind = "segments"
    axes = ("batch_size", "sequence_length")
    size = 3

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        at = np.arange(longest)
        firsts = np.array([[len(doc) if doc.second is None else doc.second] for doc in docs])
        lengths = np.array([[len(doc)] for doc in docs])
        return np.where(at < firsts, 1, 2) * (at < lengths)

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind}


@dataclass(frozen=True)
class Matrix(Fixed):
    """Rows of numbers, (B, T, F) float32, each less its column's mean in training data, divided by its deviation there.

    A column that is the same everywhere is divided by 1. Without `normalise` numbers are as they are: means of 0,
    deviations of 1. Padding is 0. Only for a source that has no tokenizer.
    """

    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()
    normalise: bool = True
    kind = "matrix"

    @property
    def size(self) -> int:
        """F."""
        return len(self.means)

    @property
    def axes(self) -> tuple[str | int, ...]:
        return ("batch_size", "sequence_length", self.size)

    def following(self, old: Feature | None) -> Matrix:
        """An older one as it is: numbers keep their meaning."""
        return old if isinstance(old, Matrix) else self

    def fitted(self, docs: Iterable[Doc]) -> Matrix:
        """The same feature with the means and deviations of these rows, if it has none; DataError for unlike widths."""
        if self.means:
            return self
        width: int | None = None
        some = []
        for doc in docs:
            if doc.rows is not None and len(doc.rows):
                width = width or doc.rows.shape[1]
                if doc.rows.shape[1] != width:
                    raise DataError(f"a record has rows of {doc.rows.shape[1]} numbers, others of {width}")
                some.append(doc.rows.astype(np.float64))
        if not some:
            raise DataError("no record has a row of numbers")
        if not self.normalise:
            return replace(self, means=(0.0,) * (width or 0), deviations=(1.0,) * (width or 0))
        rows = np.concatenate(some)
        deviations = rows.std(0)
        deviations[deviations < _CONSTANT * np.maximum(1.0, np.abs(rows.mean(0)))] = 1.0
        return replace(self, means=tuple(rows.mean(0).tolist()), deviations=tuple(deviations.tolist()))

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        made = np.zeros((len(docs), longest, self.size), np.float32)
        for row, doc in zip(made, docs, strict=True):
            if doc.rows is not None and len(doc):
                row[: len(doc)] = (doc.rows.astype(np.float64) - self.means) / self.deviations
        return made

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "means": list(self.means), "deviations": list(self.deviations)}


def feature_from(manifest: Mapping[str, Any], tokenizers: Mapping[str, Tokenizer] | None = None) -> Feature:
    """The learned feature that a bundle or a run describes; `tokenizers` are those of heads that write, by file."""
    kind = manifest.get("kind")
    if kind == "chars":
        return Chars(int(manifest["longest"]), str(manifest["alphabet"]))
    if kind == "sentences" and manifest["split"] in get_args(Split):
        return Sentences(manifest["split"])
    if kind == "pieces":
        return Pieces()
    if kind == "segments":
        return Segments()
    if kind == "matrix" and len(manifest["means"]) == len(manifest["deviations"]):
        return Matrix(tuple(map(float, manifest["means"])), tuple(map(float, manifest["deviations"])))
    if kind == "column":
        return Column(str(manifest["field"]), tuple(map(str, manifest["values"])))
    if kind == "copy":
        return Copy(bool(manifest["same"]), manifest["tokenizer"], (tokenizers or {})[manifest["tokenizer"]])
    told = f"{kind!r} with split {manifest['split']!r}" if kind == "sentences" else f"{kind!r}"
    raise BundleError(f"feature kind {told} is not known to this version; update seqpipe")


def lines(text: str) -> list[tuple[int, int]]:
    """Start and end of each line that holds more than white space; its line feed belongs to it."""
    cuts = [0, *(match.end() for match in re.finditer(r"\n", text)), len(text)]
    return [(a, b) for a, b in pairwise(cuts) if text[a:b].strip()]


_SPLITS: Mapping[Split, Callable[[str], list[tuple[int, int]]]] = {"punctuation": sentences, "lines": lines}
