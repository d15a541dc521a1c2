"""Split texts: words into subwords, texts into sentences, streams of text into chunks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, get_args

from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordLevel

from seqpipe.features.encoding import Alignment, Place, encode

# The pieces of each word of a text, for tokenizers that split words.

Piece = tuple[int, int, int]  # id, start, end


def splits_words(tokenizer: Tokenizer) -> bool:
    """Return whether a word may be several tokens: True for all models of the library but one."""
    return not isinstance(tokenizer.model, WordLevel)


def of_text(alignment: Alignment, encoding: Encoding, text: str) -> list[list[Piece]]:
    """Return the pieces of each word of the pre-tokenizer.

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
    """Return the pieces of each word; none if the normalizer deletes the word.

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
    """Group pieces by their word, without surrounding white space.

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


# Where the sentences and the lines of a text start and end.

_CLOSERS = "[\"'\u201d\u2019)\\]\u300d\u300f\u300b\uff09]*+"
_SENTENCE_END = re.compile(
    rf"(?:(?<![.!?\u2026])[.!?\u2026]++{_CLOSERS}(?=\s)|[\u3002\uff01\uff1f]+{_CLOSERS}|\n\s*\n|\n(?=\S))"
)
_LINE_END = re.compile(r"\n")


def sentences(text: str) -> list[tuple[int, int]]:
    """Return offsets of sentences, split after . ! ? … and a blank, after 。！？, at line ends, with closing quotes."""
    return _parts(_SENTENCE_END, text)


def lines(text: str) -> list[tuple[int, int]]:
    """Return start and end of each line that is not blank, with its line feed."""
    return _parts(_LINE_END, text)


def _parts(end: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    cuts = [0, *(match.end() for match in end.finditer(text)), len(text)]
    return [(a, b) for a, b in pairwise(cuts) if text[a:b].strip()]


# Cut a text that comes bit by bit into pieces: behind whole words, or behind any character.

Cut = Literal["character", "word"]
CUTS: tuple[Cut, ...] = get_args(Cut)


class TextPieces:
    """Splitter of a streamed text into chunks, which together are the text.

    What follows cannot change a word that white space stands behind. A piece ends before white space and the next one
    begins with it, since many tokenizers mark a word by what stands before it. Where every code point is a token of its
    own, a text may be cut anywhere.

    Args:
        cut: What a piece ends behind: a word, or any character.
    """

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self._rest = ""

    def feed(self, text: str) -> str:
        """Return the next chunk; "" if no further word is complete."""
        self._rest += text
        end = len(self._rest)
        if self.cut == "word":
            # A piece ends where the last white space behind a complete word begins, so that no blank stands at its end
            # and the next piece begins with one. The word at the very end of the text may still continue.
            word = len(self._rest.rstrip())
            if word == len(self._rest):
                while word and not self._rest[word - 1].isspace():
                    word -= 1
            end = len(self._rest[:word].rstrip())
        piece, self._rest = self._rest[:end], self._rest[end:]
        return piece

    def finish(self) -> str:
        """Return the remaining text at the end of the input."""
        piece, self._rest = self._rest, ""
        return piece


def smallest_pieces(text: str, cut: Cut) -> Iterator[str]:
    """Yield the chunks of a text that is fed character by character."""
    pieces = TextPieces(cut)
    for character in text:
        if piece := pieces.feed(character):
            yield piece
    if piece := pieces.finish():
        yield piece
