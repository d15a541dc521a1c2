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

    The tokenizer gets a word with the white space before it in the text: many tokenizers mark the first piece of a word
    by that. DataError, prefixed with `at`, if a word cannot be split.
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

    An empty piece, and a ▁ that the tokenizer inserted before the first letter of a word, have no characters: they
    belong to the next piece that has some, and are dropped after the last such piece.
    """
    numbers = [number or 0 for number in encoding.word_ids]  # None without a pre-tokenizer: one word
    words: list[list[Piece]] = [[] for _ in range(max([count, *(number + 1 for number in numbers)]))]
    places, begin, next_word = alignment.places(offsets, text), -1, -1  # start of the next piece with characters
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


# Offsets of the sentences and the lines of a text.

_CLOSERS = "[\"'\u201d\u2019)\\]\u300d\u300f\u300b\uff09]*+"
_SENTENCE_END = re.compile(
    rf"(?:(?<![.!?\u2026])[.!?\u2026]++{_CLOSERS}(?=\s)|[\u3002\uff01\uff1f]+{_CLOSERS}|\n\s*\n|\n(?=\S))"
)
_LINE_END = re.compile(r"\n")


def sentence_offsets(text: str) -> list[tuple[int, int]]:
    """Return offsets of sentences, split after . ! ? … and a space, after 。！？, at line ends, with closing quotes."""
    return _parts(_SENTENCE_END, text)


def line_offsets(text: str) -> list[tuple[int, int]]:
    """Return start and end of each line that is not blank, with its line feed."""
    return _parts(_LINE_END, text)


def _parts(end: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    cuts = [0, *(match.end() for match in end.finditer(text)), len(text)]
    return [(a, b) for a, b in pairwise(cuts) if text[a:b].strip()]


# Cut a streamed text into chunks: after whole words, or after any character.

Cut = Literal["character", "word"]
CUTS: tuple[Cut, ...] = get_args(Cut)


class TextChunks:
    """Splitter of a streamed text into chunks, which together are the text.

    Text that follows cannot change a word once white space follows the word. A chunk ends before white space and the
    next chunk begins with it, since many tokenizers mark a word by the white space before it. If every code point is a
    token, a text may be cut anywhere.

    Args:
        cut: The end of a chunk: a word, or any character.
    """

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self._rest = ""

    def feed(self, text: str) -> str:
        """Return the next chunk; "" if no further word is complete."""
        self._rest += text
        end = len(self._rest)
        if self.cut == "word":
            # A chunk ends before the last white space after a complete word, so that no chunk ends with white space and
            # the next chunk begins with it. The last word of the text may still continue.
            word = len(self._rest.rstrip())
            if word == len(self._rest):
                while word and not self._rest[word - 1].isspace():
                    word -= 1
            end = len(self._rest[:word].rstrip())
        chunk, self._rest = self._rest[:end], self._rest[end:]
        return chunk

    def finish(self) -> str:
        """Return the remaining text at the end of the input."""
        chunk, self._rest = self._rest, ""
        return chunk


def smallest_chunks(text: str, cut: Cut) -> Iterator[str]:
    """Yield the chunks of a text that is fed character by character."""
    chunks = TextChunks(cut)
    for character in text:
        if chunk := chunks.feed(character):
            yield chunk
    if chunk := chunks.finish():
        yield chunk
