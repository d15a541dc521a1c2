"""Position embeddings: sinusoidal or learned."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BASE = 10_000  # the longest wave is so many times the shortest


class Positions(nn.Module):
    """A vector for each position of a text, the same for every text.

    Sinusoidal (Vaswani et al. 2017): p(t)[2i] = sin(t / 10000^(2i / D)) and p(t)[2i + 1] the cosine of the same, from t
    = 0, for a text of any length. Learned (Gehring et al. 2017): a table; a position past its end has its last vector,
    in PyTorch and in the graph alike.

    Args:
        dim: D, the width of a vector.
        learned: Whether the vectors are learned.
        longest: How many positions a table has.
    """

    rates: Tensor

    def __init__(self, dim: int, *, learned: bool, longest: int):
        super().__init__()
        self.longest = longest
        self.table = nn.Parameter(torch.randn(longest, dim) * dim**-0.5) if learned else None
        rates = float(BASE) ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        self.dim = dim
        self.register_buffer("rates", rates.float(), persistent=False)  # (D / 2,) radians a position

    def forward(self, x: Tensor) -> Tensor:  # (B, T, …) -> (T, D)
        return self.at(torch.arange(x.shape[1], device=x.device))

    def at(self, t: Tensor) -> Tensor:  # (…) int64 -> (…, D)
        """The vectors of these positions."""
        if self.table is not None:
            return nn.functional.embedding(t.clamp(max=self.longest - 1), self.table)
        angles = t[..., None] * self.rates
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)[..., : self.dim]
