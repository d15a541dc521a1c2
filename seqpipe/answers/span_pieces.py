"""The spans of a text that is read in pieces, each as soon as no later word can continue it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from seqpipe.answers import tagging_schemes as schemes
from seqpipe.answers.base import probability
from seqpipe.answers.pieces import PieceReader
from seqpipe.answers.types import Answer
from seqpipe.features.document import Arrays, Doc

STOPS = "stops"  # the output (B,): what `closes` of the last word of the piece before lacks


@dataclass
class _Span:
    """A span that may be incomplete: its label, its place in the whole text, and the log-probabilities of its ends."""

    label: str
    start: int
    end: int
    opens: float
    closes: float


class SpanPieces(PieceReader):
    """The same spans with the same scores as of the whole text: `opens` and `closes` of a piece count from its first.

    Args:
        labels: The tags.
    """

    outputs: ClassVar = (STOPS,)

    def __init__(self, labels: Sequence[str]):
        super().__init__()
        self.labels = labels
        self._before, self._open = schemes.OUTSIDE, None  # type: schemes.Role, _Span | None
        self._sum = 0.0  # of the log-probabilities of all tags so far; in float64, since a text may be long
        self._text, self._shift = "", 0  # what was read from the open span on, and where that stands

    def read(self, doc: Doc, decision: Arrays, answer: Answer) -> list[dict[str, Any]]:
        begin, self._text = self._shift + len(self._text), self._text + doc.text
        tags, opens, closes = (decision[name][0].tolist() for name in ("tags", "opens", "closes"))
        if self._open:
            self._open.closes += float(decision[STOPS][0])
        spans, self.tags = [], []
        for i, (start, end) in enumerate(doc.word_offsets):
            role = schemes.role_of(self.labels[tags[i]])
            begins = schemes.opens(self._before, role)
            if begins or role == schemes.OUTSIDE:
                spans += self._closed()
            if begins:
                self._open = _Span(role[1], begin + start, 0, opens[i] - self._sum, 0.0)
            if self._open:
                self._open.end, self._open.closes = begin + end, self._sum + closes[i]
            if schemes.closes(role):
                spans += self._closed()
            self.tags.append("O" if role == schemes.OUTSIDE else f"{'B' if begins else 'I'}-{role[1]}")
            self._before = role
        self._sum += closes[len(doc.word_offsets) - 1]  # nothing continues the last word yet, so that this is the sum
        kept = self._open.start if self._open else self._shift + len(self._text)
        self._text, self._shift = self._text[kept - self._shift :], kept
        return spans

    def finish(self) -> list[dict[str, Any]]:
        return self._closed()

    def _closed(self) -> list[dict[str, Any]]:
        """The open span, if there is one, as an answer has it."""
        span, self._open = self._open, None
        if span is None:
            return []
        word = self._text[span.start - self._shift : span.end - self._shift]
        score = probability(np.exp(span.opens + span.closes))
        return [{"entity_group": span.label, "score": score, "word": word, "start": span.start, "end": span.end}]
