"""A glimpse: a decoder's state attends to the positions that can still be chosen."""

from __future__ import annotations

from torch import Tensor, nn

from seqpipe.nn.attention import Attention, Projected
from seqpipe.nn.feedforward import feed_forward


class Glimpse(nn.Module):
    """A glimpse at what can be chosen (Vinyals, Bengio and Kudlur 2016; Bello et al. 2017), as a Transformer looks.

    Of a state h it makes y = h + a(LN(h)), a being attention of several heads to the positions, and then y + f(LN(y)).

    Args:
        hidden: H, the width of a state.
        dim: D, the width of a position's vector.
        heads: Heads of the attention; they divide H.
        dropout: Dropout probability of a, f and the hidden layer of f.
    """

    def __init__(self, hidden: int, dim: int, heads: int, dropout: float):
        super().__init__()
        self.attention = Attention(hidden, dim, score="multi-head", heads=heads)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
        self.feedforward = feed_forward(hidden, 2 * hidden, "relu", dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor, projected: Projected, seen: Tensor) -> Tensor:  # (B, M, H), …, (B, M, T)
        first, second = self.norms
        h = h + self.dropout(self.attention.attend(first(h), projected, seen)[0])
        states: Tensor = h + self.dropout(self.feedforward(second(h)))
        return states
