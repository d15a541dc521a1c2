"""Variational dropout: one mask of columns for all time steps of a row."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class LockedDropout(nn.Module):
    """Variational dropout (Gal and Ghahramani 2016): one mask of columns for all time steps of a row.

    Args:
        p: Dropout probability of a row's columns; the others are scaled by 1 / (1 - p).
    """

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, T, D)
        if not self.training or not self.p:
            return x
        return x * F.dropout(x.new_ones(x.shape[0], 1, x.shape[2]), self.p)
