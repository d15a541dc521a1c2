"""Scores of embeddings: retrieval of texts with the same label, and the length of vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqpipe.answers.metrics.numbers import NumberCounter, ratio
from seqpipe.answers.types import Scores

BLOCK = 512  # vectors compared with all others at a time


class LengthCounter:
    """The mean length of vectors that nothing is known to compare with, and how many texts have none."""

    def __init__(self) -> None:
        self.lengths = NumberCounter()

    def add(self, gold: None, predicted: Sequence[float] | None) -> None:
        self.lengths.add(gold, None if predicted is None else float(np.linalg.norm(predicted)))

    def result(self) -> Scores:
        scores = self.lengths.result()
        return {"mean_length": scores.pop("mean_score"), **scores}


class VectorCounter:
    """How often the nearest other text by cosine has the same label.

    It keeps every vector, 4 bytes a number (100,000 texts of 256 numbers: 100 MB), and compares them block by block.
    """

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.vectors: list[np.ndarray] = []
        self.texts = 0

    def add(self, gold: str, predicted: Sequence[float] | None) -> None:
        """One record's label and vector; None for a text that has none, since it has no token: it finds none."""
        self.texts += 1
        if predicted is not None:
            vector = np.asarray(predicted, np.float64)
            self.vectors.append((vector / (np.linalg.norm(vector) or 1.0)).astype(np.float32))
            self.labels.append(gold)

    def result(self) -> Scores:
        right = 0
        if len(self.vectors) > 1:
            vectors, labels = np.stack(self.vectors), np.unique(self.labels, return_inverse=True)[1]
            for first in range(0, len(vectors), BLOCK):
                near = vectors[first : first + BLOCK] @ vectors.T  # (R, N)
                rows = np.arange(len(near))
                near[rows, first + rows] = -np.inf
                right += int((labels[near.argmax(1)] == labels[first : first + BLOCK]).sum())
        return {"precision_at_1": ratio(right, self.texts)}
