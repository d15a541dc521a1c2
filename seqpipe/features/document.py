"""Records and tokenized texts: tokens as written, their offsets and ids.

Offsets count code points of the original text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from tokenizers import Tokenizer

from seqpipe.errors import DataError, attempts
from seqpipe.features.encoding import encode
from seqpipe.features.vocabulary import EOS, SPECIALS, UNK, normal, replace_surrogates, token_id

Record = Mapping[str, Any]
Arrays = dict[str, np.ndarray]
_MAX_WAITING_IDS = 1 << 16  # ids that are counted at a time
MASK_NAME = "mask"  # the name of the array (B, T) that is True for a token, False in the padding


@dataclass(frozen=True)
class Doc:
    """One tokenized text: the tokens as written, their offsets and ids.

    If tokens are pieces of words, `starts` has the first token of each word, and `places` the offsets of each word. For
    a pair, `second` is the position of the first token of the second text (see `join_pair`). Numeric input has `rows`
    (T, F) in place of tokens. For several sources, `parts` has the Doc of each. `columns` has the values of other
    fields of the record that stages ask for.
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
    def first(self) -> Doc:
        """Return the Doc of the first of several sources; this one if there is one source."""
        return self.parts[0] if self.parts else self

    @property
    def word_offsets(self) -> list[tuple[int, int]]:
        """Start and end of each word, which is one token or several pieces."""
        return self.offsets if self.places is None else self.places


class KeptRecord(dict[str, Any]):
    """A record with its Docs, by the `reading` of the source that made them, so that each is made once."""

    __slots__ = ("docs",)

    def __init__(self, record: Record):
        super().__init__(record)
        self.docs: dict[str, Doc] = {}

    def doc(self, reading: str) -> Doc | None:
        """Return the Doc of this reading; None if it is not made yet."""
        return self.docs.get(reading)


def first_docs(docs: Sequence[Doc]) -> list[Doc]:
    """Return the Doc of the first source of each Doc."""
    return [doc.first for doc in docs]


def word_offsets_of(docs: Sequence[Doc]) -> list[list[tuple[int, int]]]:
    """Return start and end of each word of each Doc."""
    return [doc.word_offsets for doc in docs]


def _move(places: Sequence[tuple[int, int]], by: int) -> list[tuple[int, int]]:
    return [(start + by, end + by) for start, end in places]


def join_pair(first: Doc, second: Doc) -> Doc:
    """Join two texts with a line feed, whose token is [EOS]; empty if both are."""
    text, shift = f"{first.text}\n{second.text}", len(first.text) + 1
    if not len(first) + len(second):
        return Doc(text, [], [], [], second=0)
    begin, between = len(first) + 1, (shift - 1, shift)
    starts, places = None, None
    if first.starts is not None and second.starts is not None:
        starts = [*first.starts, len(first), *(start + begin for start in second.starts)]
        places = [*(first.places or ()), between, *_move(second.places or (), shift)]
    words, offsets = [*first.words, "\n", *second.words], [*first.offsets, between, *_move(second.offsets, shift)]
    return Doc(text, words, offsets, [*first.ids, SPECIALS.index(EOS), *second.ids], starts, places, begin)


def join_docs(parts: Sequence[Doc]) -> Doc:
    """Join the Docs of several sources, one line each; without tokens if one of them has none."""
    text, words, offsets, shift = "\n".join(part.text for part in parts), [], [], 0
    for part in parts:
        words += part.words
        offsets += _move(part.offsets, shift)
        shift += len(part.text) + 1
    ids = [i for part in parts for i in part.ids] if all(map(len, parts)) else []
    return Doc(text, words, offsets, ids, parts=tuple(parts))


def padded(rows: Sequence[Sequence[int]]) -> Arrays:
    """Pad rows of token ids with 0 to `ids` (B, T), and return them with `mask`."""
    longest = max(map(len, rows))
    ids = np.array([[*row, *[0] * (longest - len(row))] for row in rows], np.int64)
    return {"ids": ids, MASK_NAME: ids > 0}


def location(record: Record) -> str:
    """Return the prefix of a message about a record: its file and line, if known."""
    return f"{record['where']}: " if "where" in record else ""


def field_names(record: Record) -> str:
    """Return the names of a record's fields for a message."""
    return ", ".join(str(name) for name in record if name != "where") or "nothing"


def locate_words(words: Sequence[str], text: str, at: str = "") -> list[tuple[int, int]]:
    """Return the offsets of the words in the text, in order; DataError, prefixed with `at`, if one is missing."""
    if all(words) and text.split(" ") == words:  # the usual text of words: no word has a space
        places, end = [], -1
        for word in words:
            start = end + 1
            end = start + len(word)
            places.append((start, end))
        return places
    offsets, position = [], 0
    for word in words:
        start = text.find(word, position)
        if start < 0:
            remaining = text[position : position + 40]
            raise DataError(f"{at}word {word!r} is not in the text {remaining!r}; leave `text` out")
        position = start + len(word)
        offsets.append((start, position))
    return offsets


def places_of_words(rows: Sequence[tuple[Sequence[str], str]]) -> list[list[tuple[int, int]]]:
    """Return the offsets of the words of each row in its text, as `locate_words`."""
    return [locate_words(words, text) for words, text in rows]


class TokenCounter:
    """Counts the occurrences of each id below `size`, and the tokens of the longest text."""

    def __init__(self, size: int):
        self._counts, self._waiting, self.longest = np.zeros(size, np.int64), list[int](), 0

    def add(self, doc: Doc) -> None:
        self._waiting += doc.ids
        self.longest = max(self.longest, len(doc))
        if len(self._waiting) > _MAX_WAITING_IDS:
            self._count()

    def _count(self) -> None:
        size = len(self._counts)
        self._counts += np.bincount(np.array(self._waiting, np.int64), minlength=size)[:size]
        self._waiting = []

    def counts(self) -> list[int]:
        """Return the number of occurrences of each id so far."""
        self._count()
        return self._counts.tolist()


def words_of(doc: Doc, first: int, last: int) -> Doc:
    """Return a range of the words of a single text, as a Doc with the preceding text."""
    places = doc.word_offsets
    begin, end = places[first - 1][1] if first else 0, places[last - 1][1] if last else 0
    bounds = [*(range(len(doc)) if doc.starts is None else doc.starts), len(doc)]
    a, b = bounds[first], bounds[last]
    return replace(
        doc,
        text=doc.text[begin:end],
        words=doc.words[a:b],
        offsets=_move(doc.offsets[a:b], -begin),
        ids=doc.ids[a:b],
        starts=None if doc.starts is None else [start - a for start in doc.starts[first:last]],
        places=None if doc.places is None else _move(doc.places[first:last], -begin),
    )


def first_tokens(doc: Doc, count: int) -> Doc:
    """Return the Doc of the same text with only its first `count` tokens; a word that is cut ends there."""
    if len(doc) <= count:
        return doc
    offsets, starts, places = doc.offsets[:count], doc.starts, doc.places
    if starts is not None and places is not None:
        starts = [start for start in starts if start < count]
        places = [*places[: len(starts) - 1], (places[len(starts) - 1][0], offsets[-1][1])]
    return replace(doc, words=doc.words[:count], offsets=offsets, ids=doc.ids[:count], starts=starts, places=places)


@dataclass(frozen=True)
class ExtendedVocabulary:
    """The V tokens of a target tokenizer, then ids V, V + 1, … for unknown words of a source, in their order.

    Words that are spelt alike have the same id (See, Liu and Manning 2017). A source token keeps its id if source and
    target share a tokenizer; else it has that of the token as written, normalised by the target tokenizer.
    """

    tokenizer: Tokenizer  # of the target
    same: bool  # whether the source has the same one

    def read(self, doc: Doc) -> tuple[list[int], list[str]]:
        """Return each token's id, and the unknown words, as written, in the order of their ids."""
        ids = doc.ids if self.same else [token_id(self.tokenizer, word) or 0 for word in doc.words]
        V, new = self.tokenizer.get_vocab_size(), dict[str, int]()
        pairs = zip(ids, doc.words, strict=True)
        return [i if i >= len(SPECIALS) else V + new.setdefault(word, len(new)) for i, word in pairs], [*new]

    def written(self, text: str, doc: Doc, place: str = "") -> list[int]:
        """Return the ids of a target text for this source.

        A word missing from the vocabulary has the id of the source's word that is spelt alike, else of the first one
        that the target tokenizer normalises alike, else that of [UNK].
        """
        _, new = self.read(doc)
        encoding = encode(self.tokenizer, text, place)
        V, positions = self.tokenizer.get_vocab_size(), {word: i for i, word in enumerate(new)}
        normalised = {normal(self.tokenizer, word): i for word, i in reversed(positions.items())}
        ids = []
        for i, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if i < len(SPECIALS):
                word = text[start:end]
                position = positions.get(word, normalised.get(normal(self.tokenizer, word)))
                i = SPECIALS.index(UNK) if position is None else V + position
            ids.append(i)
        return ids


def target_ids(
    writer: Tokenizer | ExtendedVocabulary,
    texts: Sequence[str | DataError],
    docs: Sequence[Doc],
    records: Sequence[Record],
) -> list[list[int] | DataError]:
    """Return the ids of the target text of each record, or the error about it; an error in place of a text stays."""

    def ids(record: Record, doc: Doc, text: str) -> list[int]:
        clean, place = replace_surrogates(text), location(record)
        if isinstance(writer, ExtendedVocabulary):
            return writer.written(clean, doc, place)
        return list(encode(writer, clean, place).ids)

    return attempts(ids, records, docs, texts)


Overlaps = Literal["error", "longest", "first"]
OVERLAP_FIX = "correct or remove one of the spans, or set data.overlaps to longest or first"
DROPPED = "dropped_spans"  # field of a record: the number of its spans that are dropped


def resolve_overlaps(records: Iterable[Record], rule: Overlaps) -> Iterator[Record]:
    """Yield the records without overlapping `spans`, or raise DataError; `dropped_spans` counts dropped spans."""
    for record in records:
        spans: Any = record.get("spans")
        # A field of this name in other people's data may not have spans.
        has_spans = isinstance(spans, list) and all(
            isinstance(span, dict) and {"start", "end", "label"} <= span.keys() for span in spans
        )
        if not has_spans:
            yield record
            continue
        kept = select_spans([(span["start"], span["end"]) for span in spans], rule)
        if len(kept) == len(spans):
            yield record
        elif rule == "error":
            ordered = sorted(spans, key=lambda span: (span["start"], span["end"]))
            a, b = next((a, b) for a, b in pairwise(ordered) if b["start"] < a["end"])
            pair = " and ".join(f"{s['start']}-{s['end']} {s['label']}" for s in (a, b))
            raise DataError.at(record, f"the spans {pair} overlap; {OVERLAP_FIX}")
        else:
            yield {**record, "spans": [spans[i] for i in kept], DROPPED: len(spans) - len(kept)}


def select_spans(places: Sequence[tuple[int, int]], rule: Overlaps) -> list[int]:
    """Return the indices of the spans to keep, in text order: longest first, or first by start."""

    def rank(i: int) -> tuple[int, int, int]:
        start, end = places[i]
        return (start - end if rule == "longest" else 0, start, i)

    kept: list[int] = []
    for i in sorted(range(len(places)), key=rank):
        if all(places[i][1] <= places[j][0] or places[j][1] <= places[i][0] for j in kept):
            kept.append(i)
    return sorted(kept, key=lambda i: places[i])


@dataclass
class DroppedSpans:
    """Counts of the spans of records, and of those that were dropped since they overlap others."""

    rule: Overlaps
    dropped: int = 0
    count: int = 0  # of all spans, dropped or not
    first: str = ""  # place of the first record with a dropped span

    def add(self, records: Sequence[Record]) -> None:
        """Count the spans of records."""
        for record in records:
            spans = record.get("spans")
            self.count += len(spans) if isinstance(spans, list) else 0
            if dropped := record.get(DROPPED):
                self.dropped, self.count = self.dropped + dropped, self.count + dropped
                self.first = self.first or str(record.get("where", "no file and line known"))

    def messages(self) -> Iterator[str]:
        """Yield a message about the dropped spans, if any."""
        if self.dropped:
            message = f"{self.dropped:,} of {self.count:,} spans overlap others, and are dropped"
            yield f"{message} (data.overlaps: {self.rule}); the first: {self.first}"
