"""Records and the split text of one: tokens as written, where they stand, and their ids.

Offsets are code points of the text as given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from seqpipe.errors import DataError
from seqpipe.features.vocabulary import EOS, SPECIALS

Record = Mapping[str, Any]
Arrays = dict[str, np.ndarray]
MASK = "mask"  # the name of the array (B, T) that is True for a token, False in the padding


@dataclass(frozen=True)
class Doc:
    """One text, split: the tokens as written, where they stand, and their ids.

    Where tokens are pieces of words, `starts` says which token each word begins with, and `places` where it stands.
    Of a pair, `second` is the position of the first token of the second text (see `join_pair`). What is no text has
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
    def first(self) -> Doc:
        """The Doc of the first of several sources; this one where there is one source."""
        return self.parts[0] if self.parts else self

    @property
    def word_offsets(self) -> list[tuple[int, int]]:
        """Start and end of each word, which is a token, or several pieces."""
        return self.offsets if self.places is None else self.places


def join_pair(first: Doc, second: Doc) -> Doc:
    """Two texts as one, a line feed between them, whose token is the end of a text; nothing if both are empty."""
    text, shift = f"{first.text}\n{second.text}", len(first.text) + 1
    if not len(first) + len(second):
        return Doc(text, [], [], [], second=0)

    def shifted(places: Sequence[tuple[int, int]] | None) -> list[tuple[int, int]]:
        return [(a + shift, b + shift) for a, b in places or ()]

    begin, between = len(first) + 1, [(shift - 1, shift)]
    starts, places = None, None
    if first.starts is not None and second.starts is not None:
        starts = [*first.starts, len(first), *(start + begin for start in second.starts)]
        places = [*(first.places or ()), *between, *shifted(second.places)]
    words, offsets = [*first.words, "\n", *second.words], [*first.offsets, *between, *shifted(second.offsets)]
    return Doc(text, words, offsets, [*first.ids, SPECIALS.index(EOS), *second.ids], starts, places, begin)


def join_sources(parts: Sequence[Doc]) -> Doc:
    """The Docs of several sources as one, a line each; without tokens where one of them has none."""
    text, words, offsets, shift = "\n".join(part.text for part in parts), [], [], 0
    for part in parts:
        words += part.words
        offsets += [(a + shift, b + shift) for a, b in part.offsets]
        shift += len(part.text) + 1
    ids = [i for part in parts for i in part.ids] if all(map(len, parts)) else []
    return Doc(text, words, offsets, ids, parts=tuple(parts))


def padded(rows: Sequence[Sequence[int]]) -> Arrays:
    """Rows of token ids as `ids` (B, T), 0 behind the end of each, and `mask`."""
    longest = max(map(len, rows))
    ids = np.array([[*row, *[0] * (longest - len(row))] for row in rows], np.int64)
    return {"ids": ids, MASK: ids > 0}


def place_of(record: Record) -> str:
    """How a message about a record begins: with its place, if it has one."""
    return f"{record['where']}: " if "where" in record else ""


def field_names(record: Record) -> str:
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


def token_counts(docs: Iterable[Doc], size: int) -> tuple[list[int], int]:
    """How often each id occurs, and how many tokens the longest text has."""
    counts: Counter[int] = Counter()
    longest = 0
    for doc in docs:
        counts.update(doc.ids)
        longest = max(longest, len(doc))
    return [counts[i] for i in range(size)], longest


def words_of(doc: Doc, first: int, last: int) -> Doc:
    """The words of a single text from one to before another, as a Doc with the text that stands before them."""
    places = doc.word_offsets
    begin, end = places[first - 1][1] if first else 0, places[last - 1][1] if last else 0
    a, b = first, last
    if doc.starts is not None:
        bounds = [*doc.starts, len(doc)]
        a, b = bounds[first], bounds[last]

    def shifted(some: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        return [(start - begin, stop - begin) for start, stop in some]

    starts = None if doc.starts is None else [start - a for start in doc.starts[first:last]]
    return replace(
        doc,
        text=doc.text[begin:end],
        words=doc.words[a:b],
        offsets=shifted(doc.offsets[a:b]),
        ids=doc.ids[a:b],
        starts=starts,
        places=None if doc.places is None else shifted(doc.places[first:last]),
    )
