"""Position embeddings, independent of the token."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from seqpipe.nn.layers import PositionEmbeddings as Vectors
from seqpipe.plugin import Probability


class Positions(nn.Module):
    """Sinusoidal or learned position embeddings; in a list, concatenated with the other embeddings.

    Sinusoidal (Vaswani et al. 2017): p(t)[2i] = sin(t / 10000^(2i / D)) and p(t)[2i + 1] the cosine of the same, from t
    = 0. Learned (Gehring et al. 2017): a table of `longest` vectors; all later tokens have the last one.

    Args:
        dim: D, the width of the vectors.
        positions: Whether position embeddings are sinusoidal, for any length, or learned.
        longest: Number of learned position vectors.
        dropout: Dropout probability of the vectors.
    """

    def __init__(
        self,
        *,
        dim: PositiveInt = 50,
        positions: Literal["sinusoidal", "learned"] = "sinusoidal",
        longest: PositiveInt = 512,
        dropout: Probability = 0.0,
    ):
        super().__init__()
        self.dim = dim
        self.vectors = Vectors(dim, learned=positions == "learned", longest=longest)
        self.dropout = nn.Dropout(dropout)

    def forward(self, mask: Tensor) -> Tensor:  # (B, T) -> (B, T, D)
        return self.dropout(torch.where(mask[..., None], self.vectors(mask), 0.0))
