"""Feature kind `pieces`: where each word begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqpipe.features.document import Doc
from seqpipe.features.kinds.base import BATCH, WORDS, FeatureKind


@dataclass(frozen=True)
class Pieces(FeatureKind):
    """The position + 1 of the first token of each word in the row of T; 0 padding.

    A word lasts until the next begins. Of a tokenizer whose tokens are words, every token begins one.
    """

    kind = "pieces"
    shape = "(B, N)"
    axes = (BATCH, WORDS)

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        starts = [range(len(doc)) if doc.starts is None else doc.starts for doc in docs]
        positions = np.zeros((len(docs), max([1, *map(len, starts)])), np.int64)
        for row, first_tokens in zip(positions, starts, strict=True):
            row[: len(first_tokens)] = np.array(first_tokens, np.int64) + 1
        return positions
