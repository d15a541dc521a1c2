"""Vectors of rows of numbers: pre-computed features of images or sound, measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from seqpipe.plugin import Matrix, Probability


class LinearEmbedding(nn.Module):
    """A linear layer over rows of numbers, x = W r + b; for a source without a tokenizer.

    The record's field `field` is a list of rows, such as the regions of an image or the frames of a recording (attended
    to like words: Xu et al. 2015), or one row. By default each column is standardised with the mean and standard
    deviation of the training data.

    Args:
        dim: Output width.
        normalise: Whether each column is standardised.
        dropout: Dropout probability.
    """

    rows: ClassVar[dict[str, tuple[str, ...]]] = {}  # no parameter has rows of a vocabulary

    def __init__(
        self, sizes: Mapping[str, int], *, dim: PositiveInt = 128, normalise: bool = True, dropout: Probability = 0.0
    ):
        super().__init__()
        self.dim = dim
        self.linear = nn.Linear(sizes["matrix"], dim)
        self.dropout = nn.Dropout(dropout)

    @staticmethod
    def features(options: Mapping[str, Any]) -> dict[str, Matrix]:
        return {"matrix": Matrix(normalise=options.get("normalise", True))}

    def forward(self, matrix: Tensor, mask: Tensor) -> Tensor:  # (B, T, F), (B, T) -> (B, T, D)
        return self.dropout(self.linear(torch.where(mask[..., None], matrix, 0.0)))
