"""Compare answers in pieces, with the graph's cache as input, with the answers to whole texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from seqpipe.answers.types import Answer
from seqpipe.export.example_inputs import random_doc
from seqpipe.export.parity.decisions import CLOSE, RELATIVE, TIE, DecisionParity, margins
from seqpipe.export.parity.trial_options import option_inputs
from seqpipe.features.document import Arrays, Doc, words_of
from seqpipe.runtime.cache_entries import next_inputs
from seqpipe.runtime.model import same_answer

LENGTHS = ((9, 4, 1, 6), (5, 7, 3, 12))  # of ragged batches
SIZES = (1, 2, 3)  # words of a piece
WHERE = "a text in pieces, with `past.…`, is not the text as a whole"


def compare_streams(parity: DecisionParity, seed: int) -> None:
    """Answer random texts piece by piece with the cache of the piece before, and add to the tally.

    Each piece is decided by PyTorch with the same `past.…` as well, and the answers in pieces, of the graph, are those
    of PyTorch to the whole texts, for which no cache is used.
    """
    random, source = np.random.default_rng(seed), parity.pipeline.artifacts.featurizer
    for lengths in LENGTHS:
        docs = [random_doc(source, length, random) for length in lengths]
        for size in SIZES:
            texts = _Texts(parity, docs)
            texts.answer(size)
            texts.add_to_tally()


def pieces_of(docs: Sequence[Doc], size: int) -> Iterable[list[Doc]]:
    """The next piece of each text until all have ended; every second text begins a piece later, so they are ragged.

    Texts have pieces of their own sizes, from `size` words on, and of none before they begin and after they end.
    """
    counts = [len(doc.word_offsets) for doc in docs]
    done, turn = [0] * len(docs), 0
    while done != counts:
        ends = [
            position if row % 2 > turn else min(count, position + size + row % 3)
            for row, (position, count) in enumerate(zip(done, counts, strict=True))
        ]
        yield [words_of(*piece) for piece in zip(docs, done, ends, strict=True)]
        done, turn = ends, turn + 1


class _Texts:
    """A batch of texts that is answered as a whole by PyTorch, and piece by piece by both."""

    def __init__(self, parity: DecisionParity, docs: Sequence[Doc]):
        self.parity, self.docs = parity, docs
        self.source = parity.pipeline.artifacts.featurizer
        (self.kind,) = parity.pipeline.artifacts.kind.parts.values()
        self.feeds = self.source.collate(docs)
        self.options = option_inputs(self.feeds, parity.options, {})
        self.whole = parity.torch_run(self.feeds | self.options)
        decisions = [name for name in self.kind.outputs if self.whole[name].dtype.kind == "i"]
        self.joined = {name: np.zeros_like(self.whole[name]) for name in decisions}  # of the pieces
        self.readers = [self.kind.piece_reader() for _ in docs]
        self.answers: list[list[Answer]] = [[] for _ in docs]
        self.done = [0] * len(docs)  # words
        self.other, self.off = np.zeros(len(docs), bool), np.zeros(len(docs), bool)  # decisions, and numbers

    def answer(self, size: int) -> None:
        """Run both on all pieces from `size` words on."""
        cache = self.parity.pipeline.cache
        past = {entry.input: entry.zeros(1, 0) for entry in cache}
        for pieces in pieces_of(self.docs, size):
            inputs = self.source.collate(pieces) | past | self.options
            expected, got = self.parity.torch_run(inputs), self.parity.onnx_run(inputs)
            past = next_inputs(cache, got)
            for row, piece in enumerate(pieces):
                if len(piece.word_offsets):
                    self._add(row, piece, *(_row(decision, row) for decision in (expected, got)))

    def _add(self, row: int, piece: Doc, expected: Arrays, got: Arrays) -> None:
        """One more piece of a text, as PyTorch and the graph decide it."""
        begin, end = self.done[row], self.done[row] + len(piece.word_offsets)
        self.done[row] = end
        self.other[row] |= any((got[name] != expected[name]).any() for name in self.joined)
        self.off[row] |= not self.other[row] and _is_off(expected, got)
        for name, array in self.joined.items():
            if self.kind.decided[name].shape.startswith("(B, T"):
                array[row, begin:end] = got[name][0, : end - begin]
            else:
                array[row] = got[name][0]
        (answer,) = self.kind.answers([piece], got)
        self.answers[row].append(self.readers[row].read(piece, got, answer))

    def add_to_tally(self) -> None:
        """Compare the pieces with the whole."""
        tally, B = self.parity.tally, len(self.docs)
        for name, array in self.joined.items():
            self.other |= (array != self.whole[name]).reshape(B, -1).any(1)
        tied = self.other
        if self.other.any():
            alternative = self.whole | self.joined
            tied = self.other & (margins(self.parity.pipeline, self.feeds, self.whole, alternative) < TIE)
        for row, answer in enumerate(self.kind.answers(self.docs, self.whole)):
            parts = self.readers[row].finish()
            if self.kind.tags_words:
                parts = [part for some in self.answers[row] for part in some] + parts
            self.off[row] |= not self.other[row] and not same_answer(parts, answer, CLOSE)
        different = self.off | (self.other & ~tied)
        tally.decisions, tally.ties = tally.decisions + B, tally.ties + int(tied.sum())
        tally.different += int(different.sum())
        if different.any():
            tally.where = tally.where or WHERE


def _row(decision: Arrays, row: int) -> Arrays:
    return {name: array[row : row + 1] for name, array in decision.items()}


def _is_off(expected: Arrays, got: Arrays) -> bool:
    """Whether the graph's numbers are not those of PyTorch."""
    pairs = ((expected[name], got[name]) for name in expected)
    return any(a.shape != b.shape or not (np.abs(a - b) <= CLOSE + RELATIVE * np.abs(a)).all() for a, b in pairs)
