"""Compare answers in pieces, with the graph's cache as input, with the answers to whole texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from seqpipe.answers.types import Answer
from seqpipe.export.example_inputs import random_doc
from seqpipe.export.parity.decisions import CLOSE, RELATIVE, TIE, DecisionParity, margins
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
            _compare(parity, docs, [*pieces_of(docs, size)])


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


def _compare(parity: DecisionParity, docs: Sequence[Doc], pieces: Sequence[Sequence[Doc]]) -> None:
    pipeline, tally, B = parity.pipeline, parity.tally, len(docs)
    source, (kind,) = pipeline.artifacts.featurizer, pipeline.artifacts.kind.parts.values()
    feeds = source.collate(docs)
    whole = parity.torch_run(feeds)
    joined = {name: np.zeros_like(whole[name]) for name in kind.outputs if whole[name].dtype.kind == "i"}
    readers, answers = [kind.piece_reader() for _ in docs], [list[Answer]() for _ in docs]
    past = {entry.input: entry.zeros(1, 0) for entry in pipeline.cache}
    done, other, off = np.zeros(B, int), np.zeros(B, bool), np.zeros(B, bool)
    for some in pieces:
        inputs = source.collate(some) | past
        expected, got = parity.torch_run(inputs), parity.onnx_run(inputs)
        past = next_inputs(pipeline.cache, got)
        for row, doc in enumerate(some):
            count = len(doc.word_offsets)
            if not count:
                continue
            alone = {name: array[row : row + 1] for name, array in got.items()}
            other[row] |= any((alone[name] != expected[name][row]).any() for name in joined)
            off[row] |= not other[row] and _is_off(
                {name: array[row : row + 1] for name, array in expected.items()}, alone
            )
            for name, array in joined.items():
                if kind.decided[name].shape.startswith("(B, T"):
                    array[row, done[row] : done[row] + count] = alone[name][0, :count]
                else:
                    array[row] = alone[name][0]
            (answer,) = kind.answers([doc], alone)
            answers[row].append(readers[row].read(doc, alone, answer))
            done[row] += count
    other |= np.any([(joined[name] != whole[name]).reshape(B, -1).any(1) for name in joined] or [other], 0)
    tied = other & (margins(pipeline, feeds, whole, {**whole, **joined}) < TIE) if other.any() else other
    for row, answer in enumerate(kind.answers(docs, whole)):
        last = readers[row].finish()
        parts = [part for some in answers[row] for part in some] + last if isinstance(last, list) else last
        off[row] |= not other[row] and not same_answer(parts, answer, CLOSE)
    different = off | (other & ~tied)
    tally.decisions, tally.ties = tally.decisions + B, tally.ties + int(tied.sum())
    tally.different += int(different.sum())
    if different.any():
        tally.where = tally.where or WHERE


def _is_off(expected: Arrays, got: Arrays) -> bool:
    """Whether the graph's numbers are not those of PyTorch."""
    pairs = ((expected[name], got[name]) for name in expected)
    return any(a.shape != b.shape or not (np.abs(a - b) <= CLOSE + RELATIVE * np.abs(a)).all() for a, b in pairs)
