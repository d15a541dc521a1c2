"""Where the sentences and the lines of a text start and end."""

from __future__ import annotations

import re
from itertools import pairwise

_CLOSERS = "[\"'\u201d\u2019)\\]\u300d\u300f\u300b\uff09]*+"
_SENTENCE_END = re.compile(
    rf"(?:(?<![.!?\u2026])[.!?\u2026]++{_CLOSERS}(?=\s)|[\u3002\uff01\uff1f]+{_CLOSERS}|\n\s*\n|\n(?=\S))"
)
_LINE_END = re.compile(r"\n")


def sentences(text: str) -> list[tuple[int, int]]:
    """Start and end of each sentence: after . ! ? … and a blank, after 。！？, at line ends; closing quotes belong."""
    return _parts(_SENTENCE_END, text)


def lines(text: str) -> list[tuple[int, int]]:
    """Start and end of each line that holds more than white space; its line feed belongs to it."""
    return _parts(_LINE_END, text)


def _parts(end: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    cuts = [0, *(match.end() for match in end.finditer(text)), len(text)]
    return [(a, b) for a, b in pairwise(cuts) if text[a:b].strip()]
