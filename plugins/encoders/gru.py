"""x and mask in, the hidden states of a gated recurrent unit out."""

from __future__ import annotations

from torch import nn

from seqpipe.nn.recurrent import Direction, Merge, Positive, Rate, Recurrent, Reset


class GRU(Recurrent):
    """A gated recurrent unit (Cho et al. 2014).

    With r = σ(W_r x(t) + b_r + R_r h(t-1) + c_r) and z likewise, the state is h(t) = z h(t-1) + (1 - z) n, where h(0)
    is 0. The reset gate r stands after the product, n = tanh(W_n x(t) + b_n + r (R_n h(t-1) + c_n)), as in PyTorch, or
    before it, n = tanh(W_n x(t) + b_n + R_n (r h(t-1)) + c_n), as in the paper. x (B, T, D) becomes (B, T, D'), where
    D' is `hidden`, of two directions concatenated twice that. Rows end where their mask ends: what stands in the
    padding is never read. `state` (B, D') is the top layer's last state, forward's at the row's end, backward's at its
    beginning; `first` (B, D') its first, at the other end.

    Args:
        hidden: Units in each direction.
        layers: Layers on top of each other; each reads the merged states of the one below.
        direction: Which way a text is read.
        merge: How the states of both directions become one.
        reset: Whether the reset gate stands before or after the product; after trains faster.
        bias: Whether the gates have biases.
        dropout: Probability that a number is silenced between two layers in training.
    """

    def __init__(
        self,
        dim: int,
        *,
        hidden: Positive = 128,
        layers: Positive = 1,
        direction: Direction = "both",
        merge: Merge = "concat",
        reset: Reset = "after",
        bias: bool = True,
        dropout: Rate = 0.0,
    ):
        super().__init__(nn.GRU, dim, hidden, layers, direction, merge, bias, dropout, reset)
