"""Feature kind `ngrams`: the n-grams of words that end at each token, and the n-grams of characters within it."""

from __future__ import annotations

import base64
import binascii
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
from tokenizers import Tokenizer

from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Doc
from seqpipe.features.encoding import FORMS, Form, unicode_form_of
from seqpipe.features.kinds.base import BATCH, TOKEN_AXIS, FeatureKind, WordsOf, unknown_kind
from seqpipe.features.splitting import splits_words
from seqpipe.features.vocabulary import FeatureSize
from seqpipe.files import file_lines

MOST_WORDS, MOST_CHARACTERS = 10, 20  # maximum lengths of an n-gram in a bundle
MOST_ENTRIES = 5_000_000  # names × (labels + 1): half of bundle.json's limit, since a name may be split in two ways
_MAX_CACHED_WORDS = 100_000  # words whose n-grams are cached
_TEXTS_PER_GROUP = 512  # texts whose n-grams are collected at a time
_MAX_WAITING_HASHES = 5_000_000  # hashes that are kept before they are counted
_MAX_WORD_LENGTH = 40  # code points of a word; the rest of a longer one is ignored
_FACTOR, _MASK = 0x9E3779B1, 0xFFFFFFFF  # of the hash: a polynomial modulo 2**32
_CHARACTERS_HASH, _WORDS_HASH = 1, 2  # initial values of the hash of an n-gram

Counted = tuple[np.ndarray, np.ndarray]  # hashes, ascending, and how many texts have each


@dataclass(frozen=True)
class Ngrams(FeatureKind):
    """The n-grams of words that end at each token, in the first `words` places, then those of its characters.

    Numbers are positions + 1 in `hashes`, the hashes of n-grams seen in training; 0 is an unseen n-gram or padding
    (Bojanowski et al. 2017; Joulin et al. 2017, where n-grams share the rows of a hash table). Case is folded; with
    the tokenizer's `normalize`, words are in that Unicode normalization form. With `binary`, only the first occurrence
    of an n-gram in a text counts.

    With `label`, a field of the training records, n-grams are counted for each label separately. With `names_file`,
    which `read_names` reads, the n-grams are its names, and `counts` says which of its labels each has.
    """

    words: int = 2
    chars: tuple[int, int] | None = (2, 5)
    binary: bool = False
    max_size: int = field(default=100_000, compare=False)
    hashes: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    normalize: Form | None = None
    label: str | None = None
    names_file: Path | None = None
    _ids: dict[int, int] = field(default_factory=dict, repr=False, compare=False)
    _tables: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list, repr=False, compare=False)
    _rows: dict[str, tuple[int, bytes]] = field(default_factory=dict, repr=False, compare=False)
    kind = "ngrams"
    shape = "(B, T, K)"
    axes = (BATCH, TOKEN_AXIS, "ngram_count")
    shows_tokens = True

    @property
    def size(self) -> FeatureSize:
        return FeatureSize(len(self.hashes) + 1, self.counts or None, self.words)

    @property
    def names(self) -> tuple[str, ...]:
        return ("", *map(hex, self.hashes))

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.label,) if self.label else ()

    fitting_fields = fields

    def with_tokenizer(self, tokenizer: Tokenizer, words_of: WordsOf) -> Self:
        """Return the feature in the Unicode normalization form that the tokenizer applies first."""
        feature = replace(self, normalize=unicode_form_of(tokenizer), _rows={})
        return feature if self.names_file is None else feature.with_names(self.names_file, tokenizer, words_of)

    def with_names(self, path: Path, tokenizer: Tokenizer, words_of: WordsOf) -> Self:
        """Return the feature with the names of a file, as the tokenizer splits them, and as white space does."""
        if splits_words(tokenizer):
            raise UsageError(f"{path}: names are compared word by word; use the tokenizer words, chars or lexicon")
        names = read_names(path)
        labels = sorted(set[str]().union(*names.values()))
        if len(names) > (most := MOST_ENTRIES // (len(labels) + 1)):
            problem = f"{len(names):,} names are over the limit of {most:,} with so many labels ({len(labels)})"
            raise DataError(f"{path}: {problem}; list fewer of one of them")
        bits, labels_of, longest = {label: 1 << i for i, label in enumerate(labels)}, dict[int, int](), 0  # by hash
        remaining = iter(names)
        hash_of = lru_cache(_MAX_CACHED_WORDS)(lambda word: hash_of_word(self._normalize_word(word)))
        while group := [*islice(remaining, _TEXTS_PER_GROUP)]:
            for name, split in zip(group, words_of(group), strict=True):
                mask = sum(bits[label] for label in {*names[name]})
                for words in dict.fromkeys((tuple(split), tuple(name.split()))):
                    if not 0 < len(words) <= MOST_WORDS:
                        problem = f"{name[:100]!r} has {len(words)} words, not 1 to {MOST_WORDS}"
                        raise DataError(f"{path}: {problem}; remove it")
                    value, longest = _WORDS_HASH, max(longest, len(words))
                    for word in reversed(words):
                        value = (value * _FACTOR + hash_of(word)) & _MASK
                    labels_of[value] = labels_of.get(value, 0) | mask
        counts = list[int]()
        for bit in bits.values():
            has_label = [int(mask & bit > 0) for mask in labels_of.values()]
            counts += [sum(has_label), *has_label]
        return replace(self._with(labels_of, counts), words=longest)

    def fit(self, docs: Iterable[Doc]) -> Self:
        """Return the feature with the n-grams of these texts, by descending document frequency, after its own.

        `counts` begins with the number of texts, followed by how many of them have each n-gram; with `label` it has
        these numbers for each label in turn. The n-grams of a file of names are complete without texts.
        """
        if self.names_file is not None:
            return self
        texts: Counter[str] = Counter()
        recent: dict[str, list[np.ndarray]] = defaultdict(list)  # by label, the distinct hashes of recent texts
        counted: dict[str, Counted] = {}
        word_hashes: dict[str, tuple[int, np.ndarray]] = {}
        waiting, iterator = 0, iter(docs)
        while group := [*islice(iterator, _TEXTS_PER_GROUP)]:
            labels = [doc.columns[self.label] if self.label else "" for doc in group]
            texts.update(labels)
            hashes, bounds = self._distinct_hashes([[*map(self._normalize_word, d.words)] for d in group], word_hashes)
            if self.label:
                for label, start, end in zip(labels, bounds[:-1], bounds[1:], strict=True):
                    recent[label].append(hashes[start:end])
            else:
                recent[""].append(hashes)
            waiting += len(hashes)
            if waiting > _MAX_WAITING_HASHES:
                counted, waiting = _count(counted, recent), 0
                recent.clear()
        if self.label and len(texts) < 2:
            raise DataError(f"n-grams are compared between labels, but field {self.label!r} has fewer than 2 values")
        counted = _count(counted, recent)
        every, total = _sum([*counted.values()])
        by_total = every[np.lexsort((every, -total))]
        most = max(len(self.hashes), self.max_size)
        kept = np.array([*dict.fromkeys((*self.hashes, *by_total[:most].tolist()))][:most], np.uint32)
        counts = []
        for label in sorted(texts):
            known, numbers = counted[label]
            places = np.searchsorted(known, kept).clip(max=len(known) - 1)
            counts += [texts[label], *np.where(known[places] == kept, numbers[places], 0).tolist()]
        return replace(self._with(kept.tolist(), counts), label=None)

    def _distinct_hashes(
        self, texts: Sequence[Sequence[str]], word_hashes: dict[str, tuple[int, np.ndarray]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the distinct hashes of the n-grams of each text, one text after another, and their bounds.

        `of_word` is a cache of the hash of each word, and of those of its n-grams.
        """
        if len(word_hashes) >= _MAX_CACHED_WORDS:
            word_hashes.clear()
        if new := [*{word for words in texts for word in words} - word_hashes.keys()]:
            word_hashes |= zip(new, self._hashes_of_words(new), strict=True)
        every = np.array([word_hashes[word][0] for words in texts for word in words], np.uint32)
        number = np.repeat(np.arange(len(texts), dtype=np.uint64), [len(words) for words in texts])
        hashes, numbers = [np.zeros(0, np.uint32)], [np.zeros(0, np.uint64)]
        for n, ngram_hashes in enumerate(self._word_hashes(every), 1):
            is_inside = number[: len(ngram_hashes)] == number[n - 1 :]  # the last word is in the text of the first
            hashes.append(ngram_hashes[is_inside])
            numbers.append(number[: len(ngram_hashes)][is_inside])
        for i, words in enumerate(texts):
            within = [word_hashes[word][1] for word in {*words}]
            hashes += within
            numbers.append(np.full(sum(map(len, within)), i, np.uint64))
        keys = np.concatenate(numbers) << np.uint64(32) | np.concatenate(hashes)
        keys.sort()
        keys = keys[np.append(True, keys[1:] != keys[:-1])[: len(keys)]]
        bounds = np.searchsorted(keys, np.arange(len(texts) + 1, dtype=np.uint64) << np.uint64(32))
        return keys.astype(np.uint32), bounds

    def _hashes_of_words(self, words: Sequence[str]) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the hash of each word, and those of its character n-grams: the polynomials of `hash_of_word`."""
        points = [np.array([ord("<"), *fold_case(word), ord(">")], np.uint32) for word in words]
        lengths = np.array([*map(len, points)])
        width = int(lengths.max())
        table = np.zeros((len(words), width), np.uint32)  # (W, C)
        table[np.arange(width) < lengths[:, None]] = np.concatenate(points)
        rows, hashes = [np.zeros(0, np.int64)], [np.zeros(0, np.uint32)]
        low, high = self.chars or (1, 0)
        values: np.ndarray = np.full(table.shape, _CHARACTERS_HASH, np.uint32)
        for n in range(1, min(high, width) + 1):
            values = values[:, : width - n + 1] * np.uint32(_FACTOR) + table[:, n - 1 :]
            if n >= low:
                is_inside = np.arange(width - n + 1) <= lengths[:, None] - n
                rows.append(is_inside.nonzero()[0])
                hashes.append(values[is_inside])
        row = np.concatenate(rows)
        by_row = np.concatenate(hashes)[row.argsort(kind="stable")]
        bounds = np.bincount(row, minlength=len(words)).cumsum()
        for word, row_hashes in zip(words, np.split(by_row, bounds[:-1]), strict=True):
            yield hash_of_word(word), row_hashes.copy()

    def initialise_from(self, older: FeatureKind | None) -> Self:
        """Return the feature with the n-grams of an older one of the same lengths after its own."""
        if not isinstance(older, Ngrams) or self.names_file is not None:
            return self
        return self._with(dict.fromkeys((*self.hashes, *older.hashes)), ())

    def _with(self, hashes: Iterable[int], counts: Iterable[int]) -> Self:
        return replace(self, hashes=tuple(hashes), counts=tuple(counts), _ids={}, _tables=[], _rows={})

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        texts = [[self._rows.get(word) or self._row(word) for word in doc.words] for doc in docs]
        fewest = 0 if self.words else 8  # bytes: K is at least 1
        most = max([fewest, *(len(row) for rows in texts for _, row in rows)])
        empty, joined = bytes(most), bytearray()
        for rows in texts:
            joined += b"".join([row.ljust(most, b"\0") for _, row in rows])
            joined += empty * (longest - len(rows))
        array = np.zeros((len(docs), longest, self.words + most // 8), np.int64)
        array[:, :, self.words :] = np.frombuffer(joined, np.int64).reshape(len(docs), longest, most // 8)
        # The numbers of the n-grams that end at each word come first, shortest first. The hashes of all texts are
        # looked up at once, by bisection in the sorted table.
        words = np.zeros(array.shape[:2], np.uint32)
        lengths = np.array([[len(rows)] for rows in texts])
        for row, rows in zip(words, texts, strict=True):
            row[: len(rows)] = [word for word, _ in rows]
        if not self._tables:
            table = np.array(self.hashes or [0], np.uint32)  # at least one
            order = table.argsort(kind="stable")
            self._tables.append((table[order], order + 1 if self.hashes else order))
        known, numbers = self._tables[0]
        for n, hashes in enumerate(self._word_hashes(words), 1):
            positions = np.searchsorted(known, hashes).clip(max=len(known) - 1)
            is_known = (known[positions] == hashes) & (np.arange(n, longest + 1) <= lengths)
            array[:, n - 1 :, n - 1] = np.where(is_known, numbers[positions], 0)
        if self.binary:
            for ids in array:
                distinct, first = np.unique(ids, return_index=True)
                ids[:] = 0
                ids.flat[first] = distinct
        return array  # (B, T, K)

    def _word_hashes(self, words: np.ndarray) -> Iterator[np.ndarray]:  # (…, T) -> (…, T - n + 1) for each n
        """Yield the hashes of the word n-grams, in the order of their first words, for n from 1 up."""
        hashes = np.full((*words.shape[:-1], words.shape[-1] + 1), _WORDS_HASH, np.uint32)
        for n in range(min(self.words, words.shape[-1])):
            hashes = hashes[..., 1:] * np.uint32(_FACTOR) + words[..., : words.shape[-1] - n]
            yield hashes

    def _character_hashes(self, word: str) -> Iterator[int]:
        """Yield the hashes of the character n-grams of a word between `<` and `>`."""
        if self.chars is None:
            return
        low, high = self.chars
        points = [ord("<"), *fold_case(word), ord(">")]
        for start in range(len(points) - low + 1):
            value = _CHARACTERS_HASH
            for n, point in enumerate(points[start : start + high], 1):
                value = (value * _FACTOR + point) & _MASK
                if n >= low:
                    yield value

    def _row(self, word: str) -> tuple[int, bytes]:
        """Return a word's hash, and the ids of its known character n-grams."""
        get = self._numbers().get
        written = self._normalize_word(word)
        ids = [number for number in (get(h, 0) for h in self._character_hashes(written)) if number]
        if len(self._rows) >= _MAX_CACHED_WORDS:
            self._rows.clear()
        row = self._rows[word] = (hash_of_word(written), np.array(ids, np.int64).tobytes())
        return row  # another thread may clear the rows at any time

    def _normalize_word(self, word: str) -> str:
        return unicodedata.normalize(self.normalize, word) if self.normalize else word

    def _numbers(self) -> dict[int, int]:
        if not self._ids:
            self._ids.update({h: i for i, h in enumerate(self.hashes, 1)})
        return self._ids

    def manifest(self) -> dict[str, Any]:
        form = {"normalize": self.normalize} if self.normalize else {}
        return {
            "kind": self.kind,
            "words": self.words,
            "chars": None if self.chars is None else list(self.chars),
            "binary": self.binary,
            "hashes": _pack(self.hashes),
            "counts": _pack(self.counts),
            **form,
        }

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizers: Mapping[str, Any]) -> Self:
        chars = manifest["chars"]
        pair = None if chars is None else (int(chars[0]), int(chars[1]))
        hashes, counts = (_unpack(manifest[name]) for name in ("hashes", "counts"))
        binary, form = bool(manifest["binary"]), manifest.get("normalize")
        return cls(int(manifest["words"]), pair, binary, max(1, len(hashes)), hashes, counts, form)

    def out_of_bounds(self) -> str:
        if self.normalize is not None and self.normalize not in FORMS:
            return f"ngrams.normalize: {self.normalize!r} is not one of {', '.join(FORMS)}"
        low, high = self.chars or (1, 1)
        if not 0 <= self.words <= MOST_WORDS or not 1 <= low <= high <= MOST_CHARACTERS:
            return f"ngrams: words {self.words} are above {MOST_WORDS}, or chars {self.chars} above {MOST_CHARACTERS}"
        return ""


def read_names(path: Path) -> dict[str, list[str]]:
    """Return the labels of each name of a file: a line has a name and its labels, with tabs between them."""
    names: dict[str, list[str]] = {}
    for number, line in enumerate(file_lines(path), 1):
        name, *labels = map(str.strip, line.removeprefix("\ufeff").split("\t"))
        if line.strip() and not (name and labels and all(labels)):
            raise DataError(f"{path}:{number}: {line.strip()[:100]!r} must be a name, a tab and a label")
        names.setdefault(name, []).extend(labels)
    names.pop("", None)  # of empty lines
    if not names:
        raise DataError(f"{path}: there is no name; write a name, a tab and a label in each line")
    return names


def fold_case(word: str) -> list[int]:
    """Return the first code points of a word, each in lower case by itself."""
    return [ord(c) for c in "".join(map(str.lower, word[:_MAX_WORD_LENGTH]))]


def _count(counted: Mapping[str, Counted], recent: Mapping[str, Sequence[np.ndarray]]) -> dict[str, Counted]:
    """Return the counts of each label with those of more texts, of which the distinct hashes are given."""
    new = {label: np.unique(np.concatenate(texts), return_counts=True) for label, texts in recent.items()}
    return {label: _sum([part[label] for part in (counted, new) if label in part]) for label in {**counted, **new}}


def _sum(counted: Sequence[Counted]) -> Counted:
    """Return the distinct hashes, ascending, and the sum of the counts of each."""
    empty = np.zeros(0, np.uint32), np.zeros(0, np.int64)
    hashes, counts = (np.concatenate(part) for part in zip(empty, *counted, strict=True))
    distinct, places = np.unique(hashes, return_inverse=True)
    return distinct, np.bincount(places, counts, len(distinct)).astype(np.int64)


def hash_of_word(word: str) -> int:
    """Return a 32-bit hash: the polynomial of the code points with the final mix of MurmurHash3."""
    value = 0
    for point in fold_case(word):
        value = (value * _FACTOR + point) & _MASK
    value = ((value ^ value >> 16) * 0x85EBCA6B) & _MASK
    value = ((value ^ value >> 13) * 0xC2B2AE35) & _MASK
    return value ^ value >> 16


def _pack(numbers: Sequence[int]) -> str:
    """Encode numbers below 2**32 as base64 of little-endian bytes, four each."""
    return base64.b64encode(np.array(numbers, "<u4").tobytes()).decode("ascii")


def _unpack(text: str) -> tuple[int, ...]:
    """Decode the numbers; BundleError if the text is not base64 of such bytes."""
    try:
        return tuple(np.frombuffer(base64.b64decode(text, validate=True), "<u4").tolist())
    except (ValueError, binascii.Error) as error:
        raise unknown_kind(f"{Ngrams.kind!r} with damaged hashes or counts") from error
