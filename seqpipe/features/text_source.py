"""The source of a text, or of a pair of texts: one piece of code splits them in training and at deployment alike.

Ids are the tokenizer's; 0 is padding everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from seqpipe.errors import DataError
from seqpipe.features import word_pieces
from seqpipe.features.alignment import Alignment, sharing
from seqpipe.features.document import MASK, Arrays, Doc, Record, field_names, join_pair, locate, place_of
from seqpipe.features.encoding import encode_batch
from seqpipe.features.kinds.base import TOKEN_AXES, FeatureKind
from seqpipe.features.vocabulary import SPECIALS, UNK, clean, special_id, token_id

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would fight the session runs for the cores

_SPECIAL_IDS = frozenset(range(len(SPECIALS))) - {SPECIALS.index(UNK)}
_CACHED, _CACHED_LENGTH = 100_000, 64  # words whose ids are cached, and the most characters of one


class TextSource:
    """A tokenizer and the fitted features of one text: records become Docs, Docs become padded arrays.

    `lossless`: each token of a text counts, white space too, for language models.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        features: Mapping[str, FeatureKind],
        field: str | Sequence[str] = "text",
        lossless: bool = False,
    ):
        self.tokenizer, self.features = tokenizer, dict(features)
        self.fields = (field,) if isinstance(field, str) else tuple(field)
        self.lossless = lossless
        self._unknown, self._splits_words = special_id(tokenizer, UNK), word_pieces.splits_words(tokenizer)
        self._alignment = Alignment(tokenizer)
        self._known: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_known": {}}  # a cache

    def docs(self, records: Sequence[Record]) -> list[Doc]:
        """Splits texts; words that are split already bypass splitting, never normalising or the vocabulary."""
        docs = self._split(records)
        columns = [(field, feature) for feature in self.features.values() for field in feature.fields]
        if not columns:
            return docs
        return [
            replace(
                doc, columns={field: feature.value(self._column(record, field), place) for field, feature in columns}
            )
            for doc, record, place in zip(docs, records, map(place_of, records), strict=True)
        ]

    def _column(self, record: Record, field: str) -> str:
        """What another field of a record holds, a text or a whole number, as text."""
        value = record.get(field)
        return str(value) if type(value) is int else self.text(record, field)

    def _split(self, records: Sequence[Record]) -> list[Doc]:
        if self.pairs:
            halves = (self._whole([self.text(record, field) for record in records], records) for field in self.fields)
            return [join_pair(*pair) for pair in zip(*halves, strict=True)]
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

    def _whole(self, raw_texts: Sequence[str], records: Sequence[Record]) -> list[Doc]:
        """A Doc of each text of these records."""
        texts = [clean(text) for text in raw_texts]
        encodings = encode_batch(self.tokenizer, texts, lambda position: place_of(records[position]))
        docs = []
        for raw, text, encoding in zip(raw_texts, texts, encodings, strict=True):
            if self._splits_words and not self.lossless:
                docs.append(self._of_pieces(raw, text, word_pieces.of_text(self._alignment, encoding, text)))
            else:
                places = self._alignment.places(encoding.offsets, text)
                docs.append(self._of_tokens(raw, text, encoding.ids, places))
        return docs

    def _of_tokens(self, raw: str, text: str, ids: list[int], offsets: list[tuple[int, int]]) -> Doc:
        """A Doc of tokens; whole words that share a code point, such as 1 and 2 of ½ in NFKC, are one."""
        if self._alignment.forms and not self._splits_words:
            runs = sharing(offsets)
            places = [(offsets[first][0], offsets[last - 1][1]) for first, last in runs]
            ids = [
                ids[first] if last - first == 1 else self._id(text[a:b])
                for (first, last), (a, b) in zip(runs, places, strict=True)
            ]
            offsets = places
        return Doc(raw, [text[a:b] for a, b in offsets], offsets, self._plain(ids))

    def collate(self, docs: Sequence[Doc]) -> Arrays:
        """Docs padded to the longest (at least one token): `ids` and `mask` (B, T), then every further feature."""
        lengths = np.array([len(doc) for doc in docs])
        longest = max(1, int(lengths.max(initial=1)))
        ids = np.zeros((len(docs), longest), np.int64)
        mask = np.arange(longest)[None] < lengths[:, None]
        ids[mask] = [i for doc in docs for i in doc.ids]
        arrays = {"ids": ids, MASK: mask}
        return arrays | {name: feature.array(docs, longest) for name, feature in self.features.items()}

    def axes(self, name: str) -> tuple[str | int, ...]:
        """What the axes of an array are called; a number is the size of one that is not free."""
        feature = self.features.get(name)
        return feature.axes if feature else TOKEN_AXES

    def manifest(self) -> dict[str, dict[str, Any]]:
        """Of each input of the graph what it is made by, its axes and its type."""
        inputs: dict[str, dict[str, Any]] = {
            name: {"axes": [*TOKEN_AXES], "dtype": dtype} for name, dtype in (("ids", "int64"), (MASK, "bool"))
        }
        for name, feature in self.features.items():
            inputs[name] = {**feature.manifest(), "axes": [*feature.axes], "dtype": feature.dtype}
        return inputs

    def text(self, record: Record, field: str | None = None) -> str:
        """The record's text in this field, else in the one that is the input; DataError if there is none."""
        field = field or self.fields[0]
        text = record.get(field)
        if not isinstance(text, str):
            message = f"{place_of(record)}field {field!r} must be a text, not {type(text).__name__}"
            raise DataError(f"{message}; the record has: {field_names(record)}")
        return text

    def _from_words(self, record: Record) -> Doc:
        raw_words = list(record["words"])
        words = [clean(word) for word in raw_words]
        text = record.get("text")
        text = text if isinstance(text, str) else " ".join(raw_words)
        places = locate(raw_words, text, place_of(record))
        if self._splits_words:
            pieces = word_pieces.of_words(self._alignment, places, clean(text), place_of(record))
            return self._of_pieces(text, clean(text), pieces, places)
        known = self._known
        ids = [self._id(word) if (i := known.get(word)) is None else i for word in words]
        return Doc(text, words, places, ids)

    def _of_pieces(
        self, raw: str, text: str, words: list[list[word_pieces.Piece]], places: list[tuple[int, int]] | None = None
    ) -> Doc:
        """A Doc of the pieces of each word; a word at one of `places` that has no piece is an unknown one."""
        if places is None:
            places = [(pieces[0][1], pieces[-1][2]) for pieces in words]
        words = [pieces or [(self._unknown, *place)] for pieces, place in zip(words, places, strict=True)]
        starts = [0, *accumulate(map(len, words))][: len(words)]
        ids = [i for pieces in words for i, *_ in pieces]
        offsets = [(a, b) for pieces in words for _, a, b in pieces]
        return Doc(raw, [text[a:b] for a, b in offsets], offsets, self._plain(ids), starts, places)

    def _plain(self, ids: list[int]) -> list[int]:
        """A text may hold "[EOS]", which means nothing there."""
        return ids if _SPECIAL_IDS.isdisjoint(ids) else [self._unknown if i in _SPECIAL_IDS else i for i in ids]

    def _id(self, word: str) -> int:
        known_id = token_id(self.tokenizer, word)
        if len(self._known) >= _CACHED:
            self._known.clear()
        word_id = self._unknown if known_id is None else known_id
        if len(word) <= _CACHED_LENGTH:
            self._known[word] = word_id
        return word_id
