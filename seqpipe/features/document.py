"""Records in, arrays out: the one piece of code that turns text into features, in training and at deployment alike.

Ids are the tokenizer's; 0 is padding everywhere. Offsets are code points of the text as given.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, Protocol, Self

import numpy as np
from tokenizers import Tokenizer

from seqpipe.errors import DataError
from seqpipe.features import word_pieces as subwords
from seqpipe.features.encoding import encode_batch
from seqpipe.features.vocabulary import EOS, SPECIALS, UNK, clean, special_id, token_id

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would fight the session runs for the cores

AXES = ("batch_size", "sequence_length")  # of what there is one a token
_SPECIAL_IDS = frozenset(range(len(SPECIALS))) - {SPECIALS.index(UNK)}
_CACHED, _CACHED_LENGTH = 100_000, 64  # words whose ids are kept, and the most characters of one
_CLOSERS = "[\"'\u201d\u2019)\\]\u300d\u300f\u300b\uff09]*+"
_SENTENCE_END = re.compile(
    rf"(?:(?<![.!?\u2026])[.!?\u2026]++{_CLOSERS}(?=\s)|[\u3002\uff01\uff1f]+{_CLOSERS}|\n\s*\n|\n(?=\S))"
)

Record = Mapping[str, Any]
Arrays = dict[str, np.ndarray]


class Feature(Protocol):
    """What a stage may declare in `features`: a closed set, because a runtime in any language has to make each."""

    @property
    def kind(self) -> str: ...
    @property
    def axes(self) -> tuple[str | int, ...]: ...  # a number where an axis is not free
    @property
    def size(self) -> int: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    def following(self, old: Feature | None) -> Feature: ...
    def learn(self, words: Iterable[str]) -> Feature: ...
    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray: ...
    def manifest(self) -> dict[str, Any]: ...


class Fixed:
    """A feature of positions, which has no names of its own and learns nothing."""

    names = ()

    def learn(self, words: Iterable[str]) -> Self:
        return self

    def following(self, old: Feature | None) -> Self:
        return self


@dataclass(frozen=True)
class Column(Fixed):
    """What stands in another field of the record, such as a label or a topic, (B, 1) int64: its place among `values`.

    Another value than these is an error.
    """

    field: str
    values: tuple[str, ...] = ()  # none yet: any will do
    kind = "column"
    axes = ("batch_size", 1)

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.values

    @property
    def size(self) -> int:
        return len(self.values)

    def fitted(self, docs: Iterable[Doc]) -> Self:
        """The same feature with the new values of these records behind its own, in order."""
        new = {doc.columns[self.field] for doc in docs} - {*self.values}
        return replace(self, values=(*self.values, *sorted(new)))

    def following(self, old: Feature | None) -> Self:
        """The same feature with the values of an older one."""
        return replace(self, values=old.values) if isinstance(old, Column) else self

    def value(self, given: str, at: str = "") -> str:
        """What was given, if it is one of the values; else DataError, prefixed with `at`."""
        if self.values and given not in self.values:
            known = ", ".join(map(repr, self.values[:20])) + ", …" * (len(self.values) > 20)
            raise DataError(f"{at}field {self.field!r} holds {given!r}; give one of what was learned: {known}")
        return given

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        return np.array([[self.values.index(doc.columns[self.field])] for doc in docs], np.int64)

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "field": self.field, "values": list(self.values)}


@dataclass(frozen=True)
class Doc:
    """One text, split: the tokens as written, where they stand, and their ids.

    Where tokens are pieces of words, `starts` says which token each word begins with, and `places` where it stands.
    Of a pair, `second` is the position of the first token of the second text (see `joined`). What is no text has
    `rows` of numbers (T, F) where a text has tokens. Of several sources, `parts` has the Doc of each. `columns` has
    what stands in other fields of the record that stages ask for.
    """

    text: str
    words: list[str]
    offsets: list[tuple[int, int]]
    ids: list[int]
    starts: list[int] | None = None
    places: list[tuple[int, int]] | None = None
    second: int | None = None
    rows: np.ndarray | None = field(default=None, compare=False, repr=False)
    parts: tuple[Doc, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def word_offsets(self) -> list[tuple[int, int]]:
        """Start and end of each word, which is a token, or several pieces."""
        return self.offsets if self.places is None else self.places


class Featurizer:
    """A tokenizer and the learned features of one pipeline: records become Docs, Docs become padded arrays.

    `lossless`: each token of a text counts, white space too, for language models.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        features: Mapping[str, Feature],
        field: str | Sequence[str] = "text",
        lossless: bool = False,
    ):
        self.tokenizer, self.features = tokenizer, dict(features)
        self.fields = (field,) if isinstance(field, str) else tuple(field)
        self.lossless = lossless
        self._unknown, self._splits_words = special_id(tokenizer, UNK), subwords.splits_words(tokenizer)
        self._known: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_known": {}}  # what is known of words already can be found again

    def docs(self, records: Sequence[Record]) -> list[Doc]:
        """Splits texts; words that are split already bypass splitting, never normalising or the vocabulary."""
        docs = self._split(records)
        columns = [feature for feature in self.features.values() if isinstance(feature, Column)]
        if not columns:
            return docs
        return [
            replace(doc, columns={one.field: one.value(self.text(record, one.field), at) for one in columns})
            for doc, record, at in zip(docs, records, map(place_of, records), strict=True)
        ]

    def _split(self, records: Sequence[Record]) -> list[Doc]:
        if self.pairs:
            halves = (self._whole([self.text(record, field) for record in records], records) for field in self.fields)
            return [joined(*pair) for pair in zip(*halves, strict=True)]
        unsplit = [record for record in records if not self.presplit(record)]
        whole = iter(self._whole([self.text(record) for record in unsplit], unsplit))
        return [self._from_words(record) if self.presplit(record) else next(whole) for record in records]

    @property
    def pairs(self) -> bool:
        """Whether a record has two texts, which are read as one."""
        return len(self.fields) == 2

    @property
    def field(self) -> str | list[str]:
        """The field that is the input, or the two of a pair, as a bundle says it."""
        return list(self.fields) if self.pairs else self.fields[0]

    def presplit(self, record: Record) -> bool:
        words = self.fields == ("text",) and record.get("words") is not None
        return words and not (self.lossless and isinstance(record.get("text"), str))

    def _whole(self, given: Sequence[str], records: Sequence[Record]) -> list[Doc]:
        """A Doc of each text of these records."""
        texts = [clean(text) for text in given]
        encodings = encode_batch(self.tokenizer, texts, lambda position: place_of(records[position]))
        docs = []
        for raw, text, encoding in zip(given, texts, encodings, strict=True):
            if self._splits_words and not self.lossless:
                docs.append(self._of_pieces(raw, text, subwords.of_text(encoding, text)))
            else:
                words = [text[a:b] for a, b in encoding.offsets]
                docs.append(Doc(raw, words, encoding.offsets, self._plain(encoding.ids)))
        return docs

    def collate(self, docs: Sequence[Doc]) -> Arrays:
        """Docs padded to the longest (at least one token): `ids` and `mask` (B, T), then every further feature."""
        lengths = np.array([len(doc) for doc in docs])
        longest = max(1, int(lengths.max(initial=1)))
        ids = np.zeros((len(docs), longest), np.int64)
        mask = np.arange(longest)[None] < lengths[:, None]
        ids[mask] = [i for doc in docs for i in doc.ids]
        arrays = {"ids": ids, "mask": mask}
        return arrays | {name: feature.array(docs, longest) for name, feature in self.features.items()}

    def axes(self, name: str) -> tuple[str | int, ...]:
        """What the axes of an array are called; a number is the size of one that is not free."""
        feature = self.features.get(name)
        return feature.axes if feature else AXES

    def manifest(self) -> dict[str, dict[str, Any]]:
        """Of each input of the graph what it is made by, its axes and its type."""
        made: dict[str, dict[str, Any]] = {
            name: {"axes": [*AXES], "dtype": dtype} for name, dtype in (("ids", "int64"), ("mask", "bool"))
        }
        for name, feature in self.features.items():
            made[name] = {**feature.manifest(), "axes": [*feature.axes], "dtype": "int64"}
        return made

    def text(self, record: Record, field: str | None = None) -> str:
        """The record's text in this field, else in the one that is the input; DataError if there is none."""
        field = field or self.fields[0]
        text = record.get(field)
        if not isinstance(text, str):
            told = f"field {field!r} must be a text, not {type(text).__name__}; the record has: {held_by(record)}"
            raise DataError(place_of(record) + told)
        return text

    def _from_words(self, record: Record) -> Doc:
        given = list(record["words"])
        words = [clean(word) for word in given]
        text = record.get("text")
        text = text if isinstance(text, str) else " ".join(given)
        places = locate(given, text, place_of(record))
        if self._splits_words:
            found = subwords.of_words(self.tokenizer, places, clean(text), place_of(record))
            return self._of_pieces(text, clean(text), found, places)
        known = self._known
        ids = [self._id(word) if (i := known.get(word)) is None else i for word in words]
        return Doc(text, words, places, ids)

    def _of_pieces(
        self, given: str, text: str, words: list[list[subwords.Piece]], places: list[tuple[int, int]] | None = None
    ) -> Doc:
        """A Doc of the pieces of each word; a word that was given and has no piece is an unknown one."""
        if places is None:
            places = [(pieces[0][1], pieces[-1][2]) for pieces in words]
        words = [pieces or [(self._unknown, *place)] for pieces, place in zip(words, places, strict=True)]
        starts = [0, *accumulate(map(len, words))][: len(words)]
        ids, offsets = [i for some in words for i, *_ in some], [(a, b) for some in words for _, a, b in some]
        return Doc(given, [text[a:b] for a, b in offsets], offsets, self._plain(ids), starts, places)

    def _plain(self, ids: list[int]) -> list[int]:
        """A text may hold "[EOS]", which means nothing there."""
        return ids if _SPECIAL_IDS.isdisjoint(ids) else [self._unknown if i in _SPECIAL_IDS else i for i in ids]

    def _id(self, word: str) -> int:
        found = token_id(self.tokenizer, word)
        if len(self._known) >= _CACHED:
            self._known.clear()
        made = self._unknown if found is None else found
        if len(word) <= _CACHED_LENGTH:
            self._known[word] = made
        return made


def joined(first: Doc, second: Doc) -> Doc:
    """Two texts as one, a line feed between them, whose token is the end of a text; nothing if both are empty."""
    text, shift = f"{first.text}\n{second.text}", len(first.text) + 1
    if not len(first) + len(second):
        return Doc(text, [], [], [], second=0)

    def moved(places: Sequence[tuple[int, int]] | None) -> list[tuple[int, int]]:
        return [(a + shift, b + shift) for a, b in places or ()]

    at, between = len(first) + 1, [(shift - 1, shift)]
    starts, places = None, None
    if first.starts is not None and second.starts is not None:
        starts = [*first.starts, len(first), *(start + at for start in second.starts)]
        places = [*(first.places or ()), *between, *moved(second.places)]
    words, offsets = [*first.words, "\n", *second.words], [*first.offsets, *between, *moved(second.offsets)]
    return Doc(text, words, offsets, [*first.ids, SPECIALS.index(EOS), *second.ids], starts, places, at)


def place_of(record: Record) -> str:
    """How a message about a record begins: with its place, if it has one."""
    return f"{record['where']}: " if "where" in record else ""


def held_by(record: Record) -> str:
    """The names of a record's fields, as a message lists them."""
    return ", ".join(str(name) for name in record if name != "where") or "nothing"


def locate(words: Sequence[str], text: str, at: str = "") -> list[tuple[int, int]]:
    """Where each word stands in the text, in order; DataError, prefixed with `at`, if one does not."""
    offsets, position = [], 0
    for word in words:
        start = text.find(word, position)
        if start < 0:
            rest = text[position : position + 40]
            raise DataError(f"{at}word {word!r} does not stand in the text {rest!r}; leave `text` out")
        position = start + len(word)
        offsets.append((start, position))
    return offsets


def sentences(text: str) -> list[tuple[int, int]]:
    """Start and end of each sentence: after . ! ? … and a blank, after 。！？, at line ends; closing quotes belong."""
    cuts = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
    return [(a, b) for a, b in pairwise(cuts) if text[a:b].strip()]


def token_counts(docs: Iterable[Doc], size: int) -> tuple[list[int], int]:
    """How often each id occurs, and how many tokens the longest text has."""
    counts: Counter[int] = Counter()
    longest = 0
    for doc in docs:
        counts.update(doc.ids)
        longest = max(longest, len(doc))
    return [counts[i] for i in range(size)], longest
