"""Random features for tracing and for comparisons, and two changes to them: other padding, and a row by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from seqpipe.features import vocabulary
from seqpipe.features.document import MASK, Arrays, Doc, join_sources
from seqpipe.features.sources import InputSource, MultiSource, NumericSource, TextSource, mask_of, masks
from seqpipe.features.splitting import splits_words
from seqpipe.training.artifacts import Artifacts

SIZES, LENGTHS = (1, 2, 3, 7, 33), (1, 2, 5, 31, 128)  # texts of a batch, and tokens of the longest
TOKENS = "sequence_length"  # what features call the axis of tokens, behind the name of one of several sources
MASKED_SHARE = 0.15  # of the tokens of a random text, where the vocabulary has a mask token
_LENGTH_STEP = 17  # tokens by which the examples of several sources differ


def random_batches(
    learned: Artifacts, seed: int, sizes: Sequence[int] = SIZES, lengths: Sequence[int] = LENGTHS
) -> Iterator[Arrays]:
    """Ragged batches of random words, of every size and length, the full length at least once in each."""
    random = np.random.default_rng(seed)
    for rows in sizes:
        for longest in lengths:
            counts = random.integers(1, longest + 1, rows)
            counts[0] = longest
            yield learned.featurizer.collate([random_doc(learned.featurizer, int(n), random) for n in counts])


def random_doc(source: InputSource, length: int, random: np.random.Generator, unlike: bool = False) -> Doc:
    """A text of `length` random tokens, or as many rows of random numbers.

    Of several sources the further ones have up to as many tokens; with `unlike`, as an example for export needs it, so
    many that no two axes have the same size.
    """
    if isinstance(source, MultiSource):
        lengths = [
            length + _LENGTH_STEP * i if unlike or not i else int(random.integers(1, length + 1))
            for i in range(len(source.sources))
        ]
        parts = zip(source.sources.values(), lengths, strict=True)
        return join_sources([random_doc(part, n, random) for part, n in parts])
    if isinstance(source, NumericSource):
        rows = random.normal(size=(length, source.width)).astype(np.float32)
        return Doc("", [row.tobytes().hex() for row in rows], [], [1] * length, rows=rows)
    return _random_text(source, length, random)


def _random_text(source: TextSource, length: int, random: np.random.Generator) -> Doc:
    """Random words with random ids, sentences of any length; in some texts the longest word is short.

    Of a tokenizer that splits words, some tokens continue a word. From 5 tokens on there are two sentences and two
    words: an example for export has no axis of 1.
    """
    words, begins = _random_words(length, random), np.ones(length, bool)
    if splits_words(source.tokenizer):
        begins = random.random(length) < random.choice([0.3, 0.7, 1.0])
        begins[[0, *range(2, min(length, 4))]] = True
    ids = random.integers(1, source.tokenizer.get_vocab_size(), length).tolist()
    mask_id = source.tokenizer.token_to_id(vocabulary.MASK)
    if mask_id is not None:  # one in a large vocabulary would hardly ever come
        ids = [mask_id if hidden else i for i, hidden in zip(ids, random.random(length) < MASKED_SHARE, strict=True)]
    for feature in source.features.values():
        words, ids = feature.example_tokens(words, ids, random)
    text, offsets = "", []
    for word, begin in zip(words, begins, strict=True):
        text += " " * bool(begin and text)
        offsets.append((len(text), len(text) + len(word)))
        text += word
    second = int(random.integers(1, length + 1)) if source.pairs else None
    columns: dict[str, str] = {}
    for feature in source.features.values():
        columns |= feature.example_fields(random.choice)
    if not splits_words(source.tokenizer):
        return Doc(text, words, offsets, ids, second=second, columns=columns)
    starts = np.flatnonzero(begins).tolist()
    ends = [*(start - 1 for start in starts[1:]), length - 1]
    places = [(offsets[first][0], offsets[last][1]) for first, last in zip(starts, ends, strict=True)]
    return Doc(text, words, offsets, ids, starts, places, second, columns=columns)


def _random_words(length: int, random: np.random.Generator) -> list[str]:
    letters = [chr(c) for c in range(97, 123)] + ["é", "播", "9", "-"]
    longest = random.integers(2, 25)
    words = ["".join(random.choice(letters, random.integers(1, longest))) for _ in range(length)]
    for i in np.flatnonzero(random.random(length) < random.choice([0.0, 0.1, 0.4])):
        words[i] = "."
    if length > 4:
        words[1] = "."
    return words


def with_other_padding(learned: Artifacts, feeds: Arrays) -> Arrays:
    """The same features with other ids and numbers in the padding of the tokens."""
    polluted = {}
    for name, array in feeds.items():
        if name != mask_of(name) and str(learned.featurizer.axes(name)[1]).endswith(TOKENS):
            array, outside = np.array(array), ~feeds[mask_of(name)]
            array[outside] = 1 if array.dtype.kind == "i" else np.nan
        polluted[name] = array
    return polluted


def shortest_row(learned: Artifacts, feeds: Arrays) -> tuple[int, Arrays]:
    """The position of the shortest row, and that row as a batch of one, every axis cut to what the row uses."""
    counts = {at: mask.sum(1) for at, mask in masks(feeds).items()}
    row = int(np.sum([*counts.values()], 0).argmin())
    axes = learned.featurizer.axes
    lengths = {name: int(counts[mask_of(name).removesuffix(MASK)][row]) for name in feeds}
    return row, {
        name: _without_padding(array[row : row + 1], axes(name), lengths[name]) for name, array in feeds.items()
    }


def _without_padding(array: np.ndarray, axes: Sequence[str | int], tokens: int) -> np.ndarray:
    """One row (1, …) without its padding."""
    for axis, name in enumerate(axes[1:], 1):
        if isinstance(name, int):
            continue
        remaining = tuple(i for i in range(array.ndim) if i != axis)
        used = int(np.flatnonzero(array.any(remaining)).max(initial=0)) + 1
        array = array.take(range(tokens if name.endswith(TOKENS) else used), axis)
    return array
