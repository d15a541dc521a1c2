"""Feature kinds of texts: characters, columns, copies, pieces, segments, sentences."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
from tokenizers import Tokenizer

from seqpipe.errors import DataError
from seqpipe.features.document import Doc, ExtendedVocabulary
from seqpipe.features.encoding import FORMS, Form, unicode_form_of
from seqpipe.features.kinds.base import BATCH, SENTENCE_AXIS, TOKEN_AXIS, WORD_AXIS, FeatureKind, WordsOf, unknown_kind
from seqpipe.features.splitting import line_offsets, sentence_offsets
from seqpipe.features.vocabulary import PAD, SPECIALS, UNK

# Feature kind `chars`: the characters of each token.

MOST_CHARACTERS = 10_000  # maximum length of a token in a bundle
_MAX_CACHED_WORDS = 100_000  # words whose rows are cached


@dataclass(frozen=True)
class Chars(FeatureKind):
    """The code points of each token as written: 0 padding, 1 a code point not in the alphabet.

    C is the length of the longest token of the batch, at most `longest`; of a longer token the first and last code
    points are read, half of each. With the tokenizer's `normalize`, tokens are in that Unicode normalization form.
    """

    longest: int = 20
    alphabet: str = ""
    normalize: Form | None = None
    _rows: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    _ids: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    kind = "chars"
    shape = "(B, T, C)"
    axes = (BATCH, TOKEN_AXIS, "word_length")
    shows_tokens = True

    def with_tokenizer(self, tokenizer: Tokenizer, words_of: WordsOf) -> Self:
        """Return the feature in the Unicode normalization form that the tokenizer applies first."""
        return replace(self, normalize=unicode_form_of(tokenizer), _rows={}, _ids={})

    def fit(self, docs: Iterable[Doc]) -> Self:
        """Return the feature with the new characters of these texts after its alphabet, in code point order."""
        characters: set[str] = set()
        for doc in docs:
            characters.update(*map(self._normalize_word, doc.words))
        return self._extend(sorted(characters - {*self.alphabet}))

    def initialise_from(self, older: FeatureKind | None) -> Self:
        """Return the feature with the characters of an older one after its alphabet."""
        characters = older.alphabet if isinstance(older, Chars) else ""
        return self._extend([c for c in characters if c not in self.alphabet])

    def _extend(self, characters: Iterable[str]) -> Self:
        return replace(self, alphabet=self.alphabet + "".join(characters), _rows={}, _ids={})

    @property
    def names(self) -> tuple[str, ...]:
        return (PAD, UNK, *self.alphabet)

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
        if len(self._rows) >= _MAX_CACHED_WORDS:
            self._rows.clear()
        half, written = self.longest // 2, self._normalize_word(word)
        short = written
        if len(written) > self.longest:
            short = written[: self.longest - half] + written[len(written) - half :]
        ids = np.zeros(self.longest, np.int64)
        ids[: len(short)] = [self._ids.get(c, 1) for c in short]
        row = self._rows[word] = ids.tobytes()  # another thread may clear the rows at any time
        return row

    def _normalize_word(self, word: str) -> str:
        return unicodedata.normalize(self.normalize, word) if self.normalize else word

    def manifest(self) -> dict[str, Any]:
        form = {"normalize": self.normalize} if self.normalize else {}
        return {"kind": self.kind, "longest": self.longest, "alphabet": self.alphabet, **form}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizers: Mapping[str, Any]) -> Self:
        return cls(int(manifest["longest"]), str(manifest["alphabet"]), manifest.get("normalize"))

    def out_of_bounds(self) -> str:
        if self.normalize is not None and self.normalize not in FORMS:
            return f"chars.normalize: {self.normalize!r} is not one of {', '.join(FORMS)}"
        if 1 <= self.longest <= MOST_CHARACTERS:
            return ""
        return f"chars.longest: {self.longest} is not between 1 and {MOST_CHARACTERS:,}"


# Feature kind `column`: the value of another field of the record.

_SHOWN_VALUES = 20  # values in a message


@dataclass(frozen=True)
class Column(FeatureKind):
    """The position in `values` of the value of another field of the record, such as a label or a topic.

    Any other value is an error.
    """

    field: str
    values: tuple[str, ...] = ()  # before fitting: any value is valid
    kind = "column"
    shape = "(B, 1)"
    axes = (BATCH, 1)
    of_whole_text = True

    @property
    def names(self) -> tuple[str, ...]:
        return self.values

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.field,)

    def unfitted(self) -> Self:
        return replace(self, values=())

    def fit(self, docs: Iterable[Doc]) -> Self:
        """Return the feature with the new values of these records after its own, in order."""
        new = {doc.columns[self.field] for doc in docs} - {*self.values}
        return replace(self, values=(*self.values, *sorted(new)))

    def initialise_from(self, older: FeatureKind | None) -> Self:
        """Return the feature with the values of an older one."""
        return replace(self, values=older.values) if isinstance(older, Column) else self

    def value(self, text: str, place: str = "") -> str:
        if self.values and text not in self.values:
            known = ", ".join(map(repr, self.values[:_SHOWN_VALUES])) + ", …" * (len(self.values) > _SHOWN_VALUES)
            raise DataError(f"{place}field {self.field!r} is {text!r}; use a value of the training data: {known}")
        return text

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        return np.array([[self.values.index(doc.columns[self.field])] for doc in docs], np.int64)

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "field": self.field, "values": list(self.values)}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizers: Mapping[str, Any]) -> Self:
        return cls(str(manifest["field"]), tuple(map(str, manifest["values"])))

    def example_fields(self, choose: Callable[[Sequence[str]], Any]) -> dict[str, str]:
        return {self.field: str(choose(self.values))}


# Feature kind `copy`: a source's tokens as ids of a copying head.


@dataclass(frozen=True)
class Copy(FeatureKind):
    """Each token of a source as an id that a head may generate: of the V target tokens, or of a word missing from them.

    Missing words have the ids V, V + 1, … of `ExtendedVocabulary`. Padding is 0.

    Args:
        same: Whether source and target share a tokenizer.
        file: The target tokenizer's file in a bundle.
        tokenizer: The target tokenizer; None before fitting.
    """

    same: bool = False
    file: str = ""
    tokenizer: Tokenizer | None = field(default=None, compare=False, repr=False)
    kind = "copy"
    shape = "(B, T)"
    shows_tokens = True
    copies_tokens = True

    def with_target_tokenizer(self, same: bool, file: str, tokenizer: Tokenizer) -> Self:
        return replace(self, same=same, file=file, tokenizer=tokenizer)

    @property
    def vocabulary(self) -> ExtendedVocabulary:
        """The tokens that the head may generate."""
        if self.tokenizer is None:
            raise ValueError("a feature `copy` has no array before the head's target tokenizer is fitted")
        return ExtendedVocabulary(self.tokenizer, self.same)

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        ids, vocabulary = np.zeros((len(docs), longest), np.int64), self.vocabulary
        for row, doc in zip(ids, docs, strict=True):
            row[: len(doc)] = vocabulary.read(doc)[0]
        return ids

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "same": self.same, "tokenizer": self.file}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizers: Mapping[str, Tokenizer]) -> Self:
        file = manifest["tokenizer"]
        return cls(bool(manifest["same"]), file, tokenizers[file])

    def example_tokens(
        self, words: list[str], ids: list[int], random: np.random.Generator
    ) -> tuple[list[str], list[int]]:
        """Return words and ids, none, half or all of them in the target vocabulary; the others can only be copied."""
        known = random.random(len(words)) < random.choice([0.0, 0.5, 1.0])
        tokens, unknown = sorted(self.vocabulary.tokenizer.get_vocab()), SPECIALS.index(UNK)
        words = [str(random.choice(tokens)) if is_known else word for word, is_known in zip(words, known, strict=True)]
        return words, [i if is_known or not self.same else unknown for i, is_known in zip(ids, known, strict=True)]


# Feature kind `pieces`: the first token of each word.


@dataclass(frozen=True)
class Pieces(FeatureKind):
    """The position + 1 of the first token of each word in the row of T; 0 padding.

    A word ends before the next begins. For a tokenizer whose tokens are words, every token begins one. `joins_words`:
    the words are those of `transformers` in a converted checkpoint (`TextSource`).
    """

    joins_words: bool = False
    kind = "pieces"
    shape = "(B, N)"
    axes = (BATCH, WORD_AXIS)

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        starts = [range(len(doc)) if doc.starts is None else doc.starts for doc in docs]
        positions = np.zeros((len(docs), max([1, *map(len, starts)])), np.int64)
        for row, first_tokens in zip(positions, starts, strict=True):
            row[: len(first_tokens)] = np.array(first_tokens, np.int64) + 1
        return positions

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, **({"joins_words": True} if self.joins_words else {})}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizers: Mapping[str, Any]) -> Self:
        return cls(bool(manifest.get("joins_words")))


# Feature kind `segments`: the text of a pair that each token belongs to.


@dataclass(frozen=True)
class Segments(FeatureKind):
    """1 for each token of the first text of a pair and the separator after it, 2 for each of the second; 0 padding."""

    kind = "segments"
    shape = "(B, T)"
    size = 3
    of_pairs = True

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        positions = np.arange(longest)
        firsts = np.array([[len(doc) if doc.second is None else doc.second] for doc in docs])
        lengths = np.array([[len(doc)] for doc in docs])
        return np.where(positions < firsts, 1, 2) * (positions < lengths)


# Feature kind `sentences`: the tokens of each sentence.

Split = Literal["punctuation", "lines"]
_SPLITS = {"punctuation": sentence_offsets, "lines": line_offsets}


@dataclass(frozen=True)
class Sentences(FeatureKind):
    """The position + 1 of each token of a sentence in its row of T; 0 padding.

    Sentences without tokens are skipped, but a text has at least one sentence. `split` is the rule for the end of a
    sentence: after its closing mark and at line ends (`punctuation`), or at line ends only (`lines`).
    """

    split: Split = "punctuation"
    kind = "sentences"
    shape = "(B, S, W)"
    axes = (BATCH, SENTENCE_AXIS, "sentence_length")

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        counts = [self.counts(doc) for doc in docs]
        S = max(map(len, counts), default=1)
        W = max([1, *(int(count.max()) for count in counts)])
        positions = np.zeros((len(docs), S, W), np.int64)
        for row, count in zip(positions, counts, strict=True):
            row[: len(count)][np.arange(W) < count[:, None]] = np.arange(1, count.sum() + 1)
        return positions

    def counts(self, doc: Doc) -> np.ndarray:
        """Return the number of tokens of each sentence; a token belongs to the sentence in which it begins."""
        ends = [end for _, end in _SPLITS[self.split](doc.text)]
        starts = [start for start, _ in doc.offsets]
        counts = np.bincount(np.searchsorted(ends[:-1], starts, "right"), minlength=1)
        return counts[counts > 0] if len(doc) else counts

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "split": self.split}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizers: Mapping[str, Any]) -> Self:
        if manifest["split"] not in (*_SPLITS,):
            raise unknown_kind(f"{cls.kind!r} with split {manifest['split']!r}")
        return cls(manifest["split"])
