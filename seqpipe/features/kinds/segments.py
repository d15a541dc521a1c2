"""Feature kind `segments`: to which text of a pair each token belongs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqpipe.features.document import Doc
from seqpipe.features.kinds.base import FeatureKind


@dataclass(frozen=True)
class Segments(FeatureKind):
    """1 for each token of the first text of a pair and the separator behind it, 2 for each of the second; 0 padding."""

    kind = "segments"
    shape = "(B, T)"
    size = 3
    of_pairs = True

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        positions = np.arange(longest)
        firsts = np.array([[len(doc) if doc.second is None else doc.second] for doc in docs])
        lengths = np.array([[len(doc)] for doc in docs])
        return np.where(positions < firsts, 1, 2) * (positions < lengths)
