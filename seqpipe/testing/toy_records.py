"""The toy records: short sentences with everything that a head may learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seqpipe.features.document import Record

LABELS = ("a", "b", "c")
WORDS = ("Ada", "met", "Bo", "in", "Oslo", ".", "née", "extraordinarily", "播放", "9", "x-y", "too")
_TAGS = {"Ada": "B-PER", "Bo": "B-PER", "Oslo": "B-LOC", "播放": "I-LOC"}
_LENGTHS = (1, 4, 2, 7, 3, 1, 9, 5, 2, 6, 3, 8)


def records() -> list[Record]:
    """Short sentences with everything a head may learn: tags, labels, a number, another text, an answer, an order."""
    toy_records: list[Record] = []
    for i, length in enumerate(_LENGTHS):
        words = word_list(i, length)
        tags = [_TAGS.get(word, "O") for word in words]
        target = " ".join(reversed(words))
        toy_records.append(
            {"text": " ".join(words), "words": words, "tags": tags, "label": LABELS[i % 3], "target": target}
            | {"labels": sorted({LABELS[i % 3], LABELS[i // 3 % 3]}), "score": i * 1.5 - 4, "where": f"toy:{i + 1}"}
            | {"numbers": number_rows(i, length), "pointers": [*range(length)][::-1]}
            | {"question": " ".join(word_list(i + 3, i % 3)), "context": " ".join(words), "answers": _answer(words, i)}
        )
    return toy_records


def _answer(words: Sequence[str], i: int) -> dict[str, Any]:
    """Some of the words, as SQuAD says it."""
    first = i % len(words)
    text = " ".join(words[first : first + 1 + i % 4])
    return {"text": [text], "answer_start": [len(" ".join(words[:first])) + (first > 0)]}


def number_rows(i: int, length: int) -> list[list[float]]:
    """As many rows of numbers as there are words."""
    return [[(i * 5 + j * 7) % 11 / 4.0, float(i - j), 1.0] for j in range(length)]


def word_list(i: int, length: int) -> list[str]:
    return [WORDS[(i * 5 + j * 7) % len(WORDS)] for j in range(length)]


def text_pair(i: int, tokens: int) -> Record:
    """Two texts and what parts them; the second of three is empty."""
    first = tokens - 1 if tokens == 3 else (tokens - 1) // 3
    words = word_list(i, max(1, tokens - 1))
    return {"question": " ".join(words[:first]), "context": " ".join(words[first:])}
