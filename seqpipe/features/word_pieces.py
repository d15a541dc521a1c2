"""The pieces of each word of a text, for tokenizers that split words."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordLevel

from seqpipe.features.alignment import Alignment, Place
from seqpipe.features.encoding import encode

Piece = tuple[int, int, int]  # id, start, end


def splits_words(tokenizer: Tokenizer) -> bool:
    """Whether a word may be several tokens: every model of the library but one."""
    return not isinstance(tokenizer.model, WordLevel)


def of_text(alignment: Alignment, encoding: Encoding, text: str) -> list[list[Piece]]:
    """The pieces of each word, words being what the pre-tokenizer made.

    Words that share a code point, such as 1 and 2 of ½ in NFKC, are one.
    """
    words: list[list[Piece]] = []
    for pieces in _by_word(alignment, encoding, encoding.offsets, text, 0):
        if pieces and words and pieces[0][1] < words[-1][-1][2]:
            words[-1] += pieces
        elif pieces:
            words.append(pieces)
    return words


def of_words(alignment: Alignment, places: Sequence[Place], text: str, at: str = "") -> list[list[Piece]]:
    """The pieces of the word at each place, none of a word of which the normalizer leaves nothing.

    The tokenizer gets a word with the white space that stands before it in the text: many mark the first piece of a
    word by that. DataError, prefixed with `at`, if they cannot be split.
    """
    begins, previous = [], 0
    for begin, end in places:
        while begin > previous and text[begin - 1].isspace():
            begin -= 1
        begins.append(begin)
        previous = end
    words = [text[begin:end] for begin, (_, end) in zip(begins, places, strict=True)]
    encoding = encode(alignment.tokenizer, words, at)
    shifts = [begins[word or 0] for word in encoding.word_ids]
    offsets = [(start + shift, end + shift) for (start, end), shift in zip(encoding.offsets, shifts, strict=True)]
    return _by_word(alignment, encoding, offsets, text, len(places))


def _by_word(
    alignment: Alignment, encoding: Encoding, offsets: list[Place], text: str, count: int
) -> list[list[Piece]]:
    """Pieces by the number of their word, white space around them cut off.

    A piece of which nothing is left, and a ▁ that the tokenizer put before a word and placed at its first letter, have
    no characters: they belong to the next piece that has some. Behind the last of these they are left out.
    """
    numbers = [number or 0 for number in encoding.word_ids]  # none without a pre-tokenizer: all is one word
    words: list[list[Piece]] = [[] for _ in range(max([count, *(number + 1 for number in numbers)]))]
    places, begin, next_word = alignment.places(offsets, text), -1, -1  # where the next piece with characters begins
    for i, (start, end), word in zip(reversed(encoding.ids), reversed(places), reversed(numbers), strict=True):
        while start < end and text[start].isspace():
            start += 1
        while start < end and text[end - 1].isspace():
            end -= 1
        if start < end and not (i == alignment.mark and start == begin):
            begin, next_word = start, word
            words[word].append((i, start, end))
        elif next_word >= 0:
            words[next_word].append((i, begin, begin))
    return [pieces[::-1] for pieces in words]
