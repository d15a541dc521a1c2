"""Input sources: records to documents and arrays, for texts, numbers and several inputs."""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np
from tokenizers import Encoding, Tokenizer

from seqpipe.errors import DataError
from seqpipe.features import splitting
from seqpipe.features.document import (
    MASK_NAME,
    Arrays,
    Doc,
    KeptRecord,
    Record,
    field_names,
    join_docs,
    join_pair,
    locate_words,
    location,
)
from seqpipe.features.encoding import Alignment, encode_batch, group_shared
from seqpipe.features.kinds.base import BATCH, TOKEN_AXES, FeatureKind
from seqpipe.features.kinds.matrix import Matrix
from seqpipe.features.vocabulary import SPECIALS, UNK, replace_surrogates, special_id, token_id


class _FieldSource(ABC):
    """Shared code of sources of one field: features, the mask of their rows or tokens, Docs that records keep."""

    features: dict[str, FeatureKind]

    @cached_property
    @abstractmethod
    def reading(self) -> str:
        """A hash of all that a Doc depends on, besides its record."""

    @abstractmethod
    def _make_docs(self, records: Sequence[Record]) -> list[Doc]:
        """Make the Docs of records."""

    def docs(self, records: Sequence[Record]) -> list[Doc]:
        """Return the Doc of each record; of one that keeps its Docs it is made once."""
        if not any(isinstance(record, KeptRecord) for record in records):
            return self._make_docs(records)
        reading = self.reading
        docs = [record.doc(reading) if isinstance(record, KeptRecord) else None for record in records]
        places = [i for i, doc in enumerate(docs) if doc is None]
        for i, doc in zip(places, self._make_docs([records[i] for i in places]), strict=True):
            docs[i], record = doc, records[i]
            if isinstance(record, KeptRecord):
                record.docs[reading] = doc
        return cast(list[Doc], docs)

    def collate(self, docs: Sequence[Doc]) -> Arrays:
        """Pad Docs to the longest (at least one token or row): `mask` (B, T), then all features."""
        lengths = [len(doc) for doc in docs]
        longest = max([1, *lengths])
        mask = np.zeros((len(docs), longest), bool)
        for row, length in enumerate(lengths):
            mask[row, :length] = True
        return {MASK_NAME: mask, **{name: feature.array(docs, longest) for name, feature in self.features.items()}}

    def axes(self, name: str) -> tuple[str | int, ...]:
        """Return the names of the axes of an array; a number is the size of a fixed axis."""
        feature = self.features.get(name)
        return feature.axes if feature else TOKEN_AXES

    def manifest(self) -> dict[str, dict[str, Any]]:
        """Return the feature, axes and type of each input of the graph."""
        inputs: dict[str, dict[str, Any]] = {MASK_NAME: {"axes": [*TOKEN_AXES], "dtype": "bool"}}
        for name, feature in self.features.items():
            inputs[name] = {**feature.manifest(), "axes": [*feature.axes], "dtype": feature.dtype}
        return inputs


class NumericSource(_FieldSource):
    """A field of rows of numbers, or of one row; each row is used like a token.

    Attributes:
        known_rows: Rows (N, width) of records, of which random inputs are made; None: of normal numbers.
    """

    pairs = False

    def __init__(self, features: Mapping[str, FeatureKind], field: str):
        self.features, self.field, self.fields = dict(features), field, (field,)
        self.known_rows: np.ndarray | None = None

    @property
    def feature(self) -> FeatureKind:
        """The feature that reads the values: all features of a source read them in the same way."""
        return next(iter(self.features.values()), Matrix())

    @property
    def width(self) -> int:
        """Numbers in a row; 1 if no feature declares it."""
        return next((feature.size for feature in self.features.values()), 1)

    @cached_property
    def reading(self) -> str:
        # Lists, such as means, are fitted, and change no row.
        manifests = [feature.manifest() for feature in self.features.values()]
        return _hash(self.field, [{k: v for k, v in each.items() if not isinstance(v, list)} for each in manifests])

    def _make_docs(self, records: Sequence[Record]) -> list[Doc]:
        """Read the rows of each record; DataError if its feature cannot read them."""
        docs = []
        for rows in map(self._rows, records):
            numbers = [str(position) for position in range(len(rows))]
            text = " ".join(numbers)
            words = [row.astype("<f4").tobytes().hex() for row in rows]  # key of the random seed
            docs.append(Doc(text, words, locate_words(numbers, text), [1] * len(rows), rows=rows))
        return docs

    def _rows(self, record: Record) -> np.ndarray:
        if self.field not in record:
            fix = f"rename the field that contains the numbers to {self.field!r}"
            raise DataError(f"{location(record)}no field {self.field!r}; the record has: {field_names(record)}; {fix}")
        return self.feature.rows(record[self.field], f"{location(record)}field {self.field!r}")


def _hash(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


# The source of a text, or of a pair of texts: the same code splits them in training and in deployment.
#
# Ids are the tokenizer's; 0 is padding everywhere.

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would compete with session runs for cores

_SPECIAL_IDS = frozenset(range(len(SPECIALS))) - {SPECIALS.index(UNK)}
MOST_DOCS = 100  # whose rows are kept
_MAX_CACHED_WORDS, _MAX_CACHED_LENGTH = 100_000, 64  # words whose ids are cached, and the most characters of one


class TextSource(_FieldSource):
    """A tokenizer and the fitted features of one text: records become Docs, Docs become padded arrays.

    `lossless`: tokens of white space count too, for language models and converted checkpoints. `raw`: a text is read as
    `transformers` reads it, with the library's own offsets, and words are joined by spaces.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        features: Mapping[str, FeatureKind],
        field: str | Sequence[str] = "text",
        lossless: bool = False,
        raw: bool = False,
    ):
        self.tokenizer, self.features = tokenizer, dict(features)
        self.fields = (field,) if isinstance(field, str) else tuple(field)
        self.pairs = len(self.fields) == 2  # a record has two texts, which are joined
        self.lossless, self.raw = lossless, raw
        self._joins_words = any(feature.joins_words for feature in self.features.values())
        self._unknown, self._splits_words = special_id(tokenizer, UNK), splitting.splits_words(tokenizer)
        self._alignment = Alignment(tokenizer)
        # A feature that is replaced later gets a head's tokenizer, and reads no other field.
        self._columns = [(field, feature) for feature in self.features.values() for field in feature.fields]
        self._known: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_known": {}}  # a cache

    @cached_property
    def reading(self) -> str:
        columns = [field for field, _ in self._columns]
        return _hash(self.field, [self.tokenizer.to_str(), self.lossless, self.raw, columns, self._joins_words])

    def words(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the words of each text."""
        return [doc.words for doc in self.docs([{"text": text} for text in texts])]

    def _make_docs(self, records: Sequence[Record]) -> list[Doc]:
        """Tokenize texts; pre-tokenized words bypass splitting, but not normalisation or the vocabulary."""
        if self.pairs:
            halves = (self._to_docs([self.text(record, field) for record in records], records) for field in self.fields)
            docs = [join_pair(*pair) for pair in zip(*halves, strict=True)]
        else:
            unsplit = [record for record in records if not self.is_presplit(record)]
            whole = iter(self._to_docs([self.text(record) for record in unsplit], unsplit))
            docs = [self._doc_of_words(record) if self.is_presplit(record) else next(whole) for record in records]
        if not self._columns:
            return docs
        with_columns = []
        for doc, record in zip(docs, records, strict=True):
            values = {}
            for field, feature in self._columns:
                # A column is a text or a whole number, which becomes its digits.
                value = record.get(field)
                text = str(value) if type(value) is int else self.text(record, field)
                values[field] = feature.value(text, location(record))
            with_columns.append(replace(doc, columns=values))
        return with_columns

    def _doc_of_words(self, record: Record) -> Doc:
        """Return the Doc of a record that has words."""
        raw_words = list(record["words"])
        text = record.get("text")
        text = text if isinstance(text, str) else " ".join(raw_words)
        places, clean = locate_words(raw_words, text, location(record)), replace_surrogates(text)
        if self._splits_words:
            pieces = splitting.of_words(self._alignment, places, clean, location(record))
            return self._piece_doc(text, clean, pieces, places)
        words = raw_words if clean == text else [replace_surrogates(word) for word in raw_words]
        known = self._known
        return Doc(text, words, places, [self._id(word) if (i := known.get(word)) is None else i for word in words])

    @property
    def field(self) -> str | list[str]:
        """Return the field of the input, or the two of a pair, in the format of a bundle."""
        return list(self.fields) if self.pairs else self.fields[0]

    def is_presplit(self, record: Record) -> bool:
        words = self.fields == ("text",) and record.get("words") is not None
        return words and not (self.lossless and (self.raw or isinstance(record.get("text"), str)))

    def _to_docs(self, raw_texts: Sequence[str], records: Sequence[Record]) -> list[Doc]:
        """Return a Doc for each text of these records."""
        texts = [replace_surrogates(text) for text in raw_texts]
        encodings = encode_batch(self.tokenizer, texts, lambda position: location(records[position]))
        docs = []
        for raw, text, encoding in zip(raw_texts, texts, encodings, strict=True):
            if self._splits_words and not self.lossless:
                docs.append(self._piece_doc(raw, text, splitting.of_text(self._alignment, encoding, text)))
                continue
            if self.raw:
                docs.append(self._raw_doc(raw, text, encoding))
                continue
            ids, offsets = encoding.ids, self._alignment.places(encoding.offsets, text)
            if self._alignment.forms and not self._splits_words:
                # Whole words that share a code point, such as 1 and 2 of ½ in NFKC, are one token: they cannot have
                # separate offsets.
                runs = group_shared(offsets)
                places = [(offsets[first][0], offsets[last - 1][1]) for first, last in runs]
                ids = [
                    ids[first] if last - first == 1 else self._id(text[a:b])
                    for (first, last), (a, b) in zip(runs, places, strict=True)
                ]
                offsets = places
            docs.append(Doc(raw, [text[a:b] for a, b in offsets], offsets, self._replace_special(ids)))
        return docs

    def _raw_doc(self, raw: str, text: str, encoding: Encoding) -> Doc:
        """Return a Doc of all tokens of a text; with a feature that joins them to words, these as in `transformers`.

        A token continues a word if it is not as long as its text, as `##ing` is, where the tokenizer marks pieces so;
        of other tokenizers if no blank stands before it or at its beginning.
        """
        offsets = encoding.offsets
        doc = Doc(raw, [text[a:b] for a, b in offsets], offsets, self._replace_special(encoding.ids))
        if not self._joins_words:
            return doc
        if getattr(self.tokenizer.model, "continuing_subword_prefix", None):
            lengths = zip(encoding.tokens, encoding.ids, offsets, strict=True)
            continues = [len(token) != b - a and i != self._unknown for token, i, (a, b) in lengths]
        else:
            pairs = zip(encoding.ids, offsets, strict=True)
            continues = [a > 0 and " " not in text[a - 1 : a + 1] and i != self._unknown for i, (a, _) in pairs]
        starts = [i for i in range(len(offsets)) if i == 0 or not continues[i]]
        places = [(offsets[a][0], offsets[b - 1][1]) for a, b in pairwise([*starts, len(offsets)])]
        return replace(doc, starts=starts, places=places)

    def collate(self, docs: Sequence[Doc]) -> Arrays:
        """Pad Docs to the longest (at least one token): `ids` and `mask` (B, T), then all other features."""
        arrays = super().collate(docs)
        ids = np.zeros(arrays[MASK_NAME].shape, np.int64)
        for row, doc in enumerate(docs):
            ids[row, : len(doc)] = doc.ids
        return {"ids": ids, **arrays}

    def manifest(self) -> dict[str, dict[str, Any]]:
        return {"ids": {"axes": [*TOKEN_AXES], "dtype": "int64"}, **super().manifest()}

    def text(self, record: Record, field: str | None = None) -> str:
        """Return the record's text in this field, by default the input's; DataError if there is none."""
        field = field or self.fields[0]
        text = record.get(field)
        if text is None and self.raw and field == "text" and record.get("words") is not None:
            return " ".join(record["words"])
        if not isinstance(text, str):
            message, fix = f"field {field!r} must be a text, not {type(text).__name__}", ""
            if field not in record:
                message, fix = f"no field {field!r}", f"; rename the field that contains the text to {field!r}"
            raise DataError(f"{location(record)}{message}; the record has: {field_names(record)}{fix}")
        return text

    def _piece_doc(
        self, raw: str, text: str, words: list[list[splitting.Piece]], places: list[tuple[int, int]] | None = None
    ) -> Doc:
        """Return a Doc of the pieces of each word; a word at one of `places` without a piece is unknown."""
        if places is None:
            places = [(pieces[0][1], pieces[-1][2]) for pieces in words]
        words = [pieces or [(self._unknown, *place)] for pieces, place in zip(words, places, strict=True)]
        starts = [0, *accumulate(map(len, words))][: len(words)]
        ids = [i for pieces in words for i, *_ in pieces]
        offsets = [(a, b) for pieces in words for _, a, b in pieces]
        return Doc(raw, [text[a:b] for a, b in offsets], offsets, self._replace_special(ids), starts, places)

    def _replace_special(self, ids: list[int]) -> list[int]:
        """Replace the ids of special tokens by that of [UNK]: "[EOS]" in a text has no meaning."""
        return ids if _SPECIAL_IDS.isdisjoint(ids) else [self._unknown if i in _SPECIAL_IDS else i for i in ids]

    def _id(self, word: str) -> int:
        known_id = token_id(self.tokenizer, word)
        if len(self._known) >= _MAX_CACHED_WORDS:
            self._known.clear()
        word_id = self._unknown if known_id is None else known_id
        if len(word) <= _MAX_CACHED_LENGTH:
            self._known[word] = word_id
        return word_id


# Several named sources as one.


class MultiSource:
    """Sources by name: arrays and axes are called `<source>.<name>`, except the batch axis."""

    pairs = False

    def __init__(self, sources: Mapping[str, TextSource | NumericSource]):
        self.sources = dict(sources)

    @property
    def features(self) -> dict[str, FeatureKind]:
        return {
            f"{prefix}.{name}": feature
            for prefix, source in self.sources.items()
            for name, feature in source.features.items()
        }

    @property
    def field(self) -> dict[str, Any]:
        """Return the field of each source, or the two of a pair, in the format of a bundle."""
        return {name: source.field for name, source in self.sources.items()}

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(field for source in self.sources.values() for field in source.fields))

    def docs(self, records: Sequence[Record]) -> list[Doc]:
        """Return one Doc per record from the Docs of all sources; it is empty if one of them is."""
        columns = [source.docs(records) for source in self.sources.values()]
        return [join_docs(parts) for parts in zip(*columns, strict=True)]

    def collate(self, docs: Sequence[Doc]) -> Arrays:
        arrays: Arrays = {}
        for number, (prefix, source) in enumerate(self.sources.items()):
            parts = source.collate([doc.parts[number] for doc in docs])
            arrays |= {f"{prefix}.{name}": array for name, array in parts.items()}
        return arrays

    def axes(self, name: str) -> tuple[str | int, ...]:
        source, _, name_there = name.partition(".")
        return tuple(_axis_of(source, axis) for axis in self.sources[source].axes(name_there))

    def manifest(self) -> dict[str, dict[str, Any]]:
        inputs = {}
        for prefix, source in self.sources.items():
            for name, entry in source.manifest().items():
                inputs[f"{prefix}.{name}"] = {**entry, "axes": [_axis_of(prefix, axis) for axis in entry["axes"]]}
        return inputs


def _axis_of(source: str, axis: str | int) -> str | int:
    return axis if isinstance(axis, int) or axis == BATCH else f"{source}_{axis}"


# Construction of the input source of a pipeline from a bundle's description, and its properties.

InputSource = TextSource | NumericSource | MultiSource


def source_from(
    field: Any,
    features: Mapping[str, FeatureKind],
    tokenizers: Mapping[str, Tokenizer],
    lossless: bool = False,
    raw: bool = False,
) -> InputSource:
    """Return the input source that a bundle or a run describes by its field, features and tokenizers.

    `lossless`, `raw`: see TextSource; of several sources none is.

    Raises:
        ValueError: if a field is neither a name nor two.
    """
    if isinstance(field, Mapping):
        lossless = lossless and len(field) == 1
        parts = {name: _single(name, part, features, tokenizers.get(name), lossless) for name, part in field.items()}
        return MultiSource(parts)
    return _single("", field, features, tokenizers.get(""), lossless, raw)


def _single(
    name: str,
    field: Any,
    features: Mapping[str, FeatureKind],
    tokenizer: Tokenizer | None,
    lossless: bool = False,
    raw: bool = False,
) -> TextSource | NumericSource:
    prefix = f"{name}." if name else ""
    features = {full.removeprefix(prefix): feature for full, feature in features.items() if full.startswith(prefix)}
    fields = field if isinstance(field, list) else [field]
    if len(fields) not in (1, 2) or not all(isinstance(part, str) for part in fields):
        raise ValueError(f"field {field!r}, which is neither one name nor two")
    if tokenizer is not None:
        return TextSource(tokenizer, features, fields, lossless, raw)
    if len(fields) > 1 or not all(feature.reads_numbers for feature in features.values()):
        raise ValueError(f"source {name!r}, which has no tokenizer and is not a field of numbers")
    if len({(feature.kind, feature.size) for feature in features.values()}) > 1:
        raise ValueError(f"source {name!r}, whose features read its numbers in different ways")
    return NumericSource(features, fields[0])


def sources_of(source: InputSource) -> Mapping[str, TextSource | NumericSource]:
    """Return the sources by name; a single source has the name ""."""
    return source.sources if isinstance(source, MultiSource) else {"": source}


def keep_rows(source: InputSource, docs: Sequence[Doc]) -> None:
    """Keep the rows of at most `MOST_DOCS` Docs: each numeric source makes random inputs of them."""
    chosen = [doc for doc in docs[:: len(docs) // MOST_DOCS + 1] if len(doc)]
    for place, part in enumerate(sources_of(source).values()):
        if isinstance(part, NumericSource):
            rows = [(doc.parts or (doc,))[place].rows for doc in chosen]
            part.known_rows = np.concatenate([each for each in rows if each is not None]) if rows else None


def tokenizers_of(source: InputSource) -> dict[str, Tokenizer]:
    """Return the tokenizer of each text source, by its name."""
    return {name: part.tokenizer for name, part in sources_of(source).items() if isinstance(part, TextSource)}


def tokenizer_file_of(source: str) -> str:
    """Return the file of a source's tokenizer; a single source has the name ""."""
    return f"tokenizer.{source}.json" if source else "tokenizer.json"


def columns(source: InputSource) -> tuple[str, ...]:
    """Fields of a record that features read besides the input."""
    return tuple(dict.fromkeys(field for feature in source.features.values() for field in feature.fields))


def read_fields(source: InputSource) -> tuple[str, ...]:
    """All fields of a record that are read, with texts and numbers last."""
    return tuple(dict.fromkeys([*columns(source), *source.fields]))


def _numeric_sources(source: InputSource) -> list[NumericSource]:
    return [part for part in sources_of(source).values() if isinstance(part, NumericSource)]


def numeric_fields(source: InputSource) -> tuple[str, ...]:
    """The fields of a record that contain rows of numbers."""
    return tuple(part.field for part in _numeric_sources(source))


def media_fields(source: InputSource) -> dict[str, str]:
    """Return the fields of a record that contain a picture or a sound, with their feature kind."""
    return {field: feature.kind for field, feature in media_features(source).items()}


def media_features(source: InputSource) -> dict[str, FeatureKind]:
    """Return the feature of each of the `media_fields`."""
    return {part.field: part.feature for part in _numeric_sources(source) if part.feature.is_media}


def limit_media(source: InputSource, pixels: int, samples: int) -> None:
    """Make a source refuse pictures of more pixels, and sounds of more samples after resampling."""
    for part in _numeric_sources(source):
        part.features = {name: feature.limited(pixels, samples) for name, feature in part.features.items()}


def one_text(source: InputSource) -> bool:
    """Return whether a record needs only a single text."""
    return isinstance(source, TextSource) and not source.pairs and not columns(source)


def masks(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mask of each source, by the prefix of its names: "", or `<source>.`."""
    names = [name for name in feeds if name == MASK_NAME or name.endswith(f".{MASK_NAME}")]
    return {name.removesuffix(MASK_NAME): feeds[name] for name in names}


def mask_of(name: str) -> str:
    """Return the name of the mask of a feature."""
    source, dot, _ = name.rpartition(".")
    return f"{source}{dot}{MASK_NAME}"
