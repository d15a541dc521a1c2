"""Cut a text that comes bit by bit into pieces: behind whole words, or behind any character."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

Cut = Literal["character", "word"]
CUTS: tuple[Cut, ...] = get_args(Cut)


class TextPieces:
    """The pieces of one text, which together are the text.

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
        """The next piece, "" where no further word is complete."""
        self._rest += text
        end = len(self._rest) if self.cut == "character" else _last_blank(self._rest)
        piece, self._rest = self._rest[:end], self._rest[end:]
        return piece

    def finish(self) -> str:
        """What is left once the text has ended."""
        piece, self._rest = self._rest, ""
        return piece


def smallest_pieces(text: str, cut: Cut) -> Iterator[str]:
    """The pieces of a text that comes character by character."""
    pieces = TextPieces(cut)
    for character in text:
        if piece := pieces.feed(character):
            yield piece
    if piece := pieces.finish():
        yield piece


def _last_blank(text: str) -> int:
    """Where the last white space behind a word begins; 0 if there is none."""
    word = len(text.rstrip())
    if word == len(text):  # the last word may be incomplete
        while word and not text[word - 1].isspace():
            word -= 1
    return len(text[:word].rstrip())
