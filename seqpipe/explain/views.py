"""Attention weights as rows of shaded text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqpipe.runtime.explanation import Explanation, WordWeights

Mark = tuple[int, int, float, float]  # start, end, weight, shade


@dataclass(frozen=True)
class Fragment:
    """A part of the text: its weight (None: no token) and its shade, 0 to 1."""

    text: str
    weight: float | None = None
    shade: float = 0.0


@dataclass(frozen=True)
class TextRow:
    """A separate part of the text: a sentence with its weight, or the whole text without one."""

    fragments: tuple[Fragment, ...]
    weight: float | None = None
    share: float = 0.0  # of the greatest weight of a sentence


@dataclass(frozen=True)
class View:
    """One copy of the text, shaded by an attention over words, with bars of one over sentences; or one of the two."""

    words: WordWeights | None
    sentences: WordWeights | None

    @property
    def title(self) -> str:
        places = " and ".join(f"each {a.over.removesuffix('s')}" for a in (self.words, self.sentences) if a)
        return f"{'Importance' if self.words and self.words.measure else 'Weight'} of {places} of the input"

    @property
    def stages(self) -> str:
        """Names of the attentions, from the YAML keys of their stages."""
        return ", ".join(a.name for a in (self.words, self.sentences) if a)

    @property
    def legend(self) -> str:
        """Meaning of the shades and bars."""
        if self.words and self.words.measure:
            return f"drop of the {self.words.measure} without the word; blue with a dotted line: rise"
        if self.words and self.sentences:
            return "colour: weight of the word × √ weight of its sentence; bar: weight of the sentence"
        return "colour: weight of the word" if self.words else "bar: weight of the sentence"

    def rows(self, text: str) -> list[TextRow]:
        """Return the whole text as rows of fragments; every code point is in exactly one fragment."""
        cuts = [0, len(text)]
        weights: list[float | None] = [None]
        if self.sentences and self.sentences.places:
            cuts = [0, *(start for start, _ in self.sentences.places[1:]), len(text)]
            weights = self.sentences.weights.tolist()
        # Each word's part of the text; tokens that share a code point are merged, with the sum of their weights.
        marks: list[Mark] = []
        if self.words is not None and self.words.places:
            # A word counts as much as its sentence: shades (N,) are weights scaled by the root of the sentence's
            # weight, as in Yang et al. (2016), so that a word of an unimportant sentence does not look important.
            starts = [start for start, _ in self.words.places]
            rows = np.searchsorted(cuts[1:-1], starts, side="right")
            factors = np.sqrt([1.0 if w is None else max(w, 0.0) for w in weights])[rows]
            shades = self.words.weights * factors
            shades = shades / max(float(abs(shades).max()), 1e-12)
            for (a, b), weight, shade in zip(
                self.words.places, self.words.weights.tolist(), shades.tolist(), strict=True
            ):
                if marks and a < marks[-1][1]:
                    first, last, before, deeper = marks.pop()
                    a, b, weight, shade = first, max(b, last), weight + before, max(shade, deeper)
                if a < b:
                    marks.append((a, b, weight, shade))
        most = max((w for w in weights if w), default=0.0)
        return [
            TextRow(tuple(_fragments(text, a, b, marks)), w, w / most if w and most else 0.0)
            for a, b, w in zip(cuts, cuts[1:], weights, strict=False)
        ]


def _fragments(text: str, start: int, end: int, marked: Sequence[Mark]) -> list[Fragment]:
    """Return the text from start to end in fragments."""
    fragments: list[Fragment] = []
    at = start
    for a, b, weight, shade in marked:
        if start <= a < end:
            fragments += [Fragment(text[at:a])] if at < a else []
            at = min(b, end)
            fragments.append(Fragment(text[a:at], weight, shade))
    return [*fragments, Fragment(text[at:end])] if at < end else fragments


def views(explanation: Explanation) -> list[View]:
    """Return the views of a text: each attention over words, with the one over sentences if there is one."""
    words = [a for a in explanation.attentions if a.over == "words" and a.grid is None]
    sentences = [a for a in explanation.attentions if a.over == "sentences"]
    if not words:
        return [View(None, attention) for attention in sentences]
    first = sentences[0] if sentences else None
    return [View(attention, first) for attention in words] + [View(None, attention) for attention in sentences[1:]]
