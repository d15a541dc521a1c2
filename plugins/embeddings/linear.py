"""Vectors of rows of numbers: pre-computed features of images or sound, measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from seqpipe import Matrix, Probability


class Linear(nn.Module):
    """x = W r + b of each row r of numbers; for a source without a tokenizer, whose `field` holds them.

    Numbers are normalised by the means and deviations of the training data before, or taken as they are. A record's
    field holds a list of rows, as of regions of an image or of frames of a recording (attended to like words: Xu et
    al. 2015), or one row.

    Args:
        dim: Width of a row's vector.
        normalise: Whether numbers are normalised before.
        dropout: Dropout probability.
    """

    rows: ClassVar[dict[str, tuple[str, ...]]] = {}  # none of a vocabulary

    def __init__(
        self,
        sizes: Mapping[str, int],
        *,
        dim: PositiveInt = 128,
        normalise: bool = True,
        dropout: Probability = 0.0,
    ):
        super().__init__()
        self.dim = dim
        self.linear = nn.Linear(sizes["matrix"], dim)
        self.dropout = nn.Dropout(dropout)

    @staticmethod
    def features(options: Mapping[str, Any]) -> dict[str, Matrix]:
        return {"matrix": Matrix(normalise=options.get("normalise", True))}

    def forward(self, matrix: Tensor, mask: Tensor) -> Tensor:  # (B, T, F), (B, T) -> (B, T, D)
        x: Tensor = self.dropout(self.linear(torch.where(mask[..., None], matrix, 0.0)))
        return x
