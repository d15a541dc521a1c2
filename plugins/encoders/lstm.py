"""x and mask in, the hidden states of a long short-term memory out."""

from __future__ import annotations

from torch import nn

from seqpipe.nn.recurrent import Direction, Merge, Positive, Rate, Recurrent


class LSTM(Recurrent):
    """A long short-term memory (Hochreiter and Schmidhuber 1997) with a forget gate (Gers et al. 2000).

    With [i, f, g, o] = W x(t) + b + R h(t-1) + c, the cell is c(t) = σ(f) c(t-1) + σ(i) tanh(g) and the state h(t) =
    σ(o) tanh(c(t)); both begin with 0. x (B, T, D) becomes (B, T, D'), where D' is `hidden`, of two directions (Graves
    and Schmidhuber 2005) concatenated twice that. Rows end where their mask ends: what stands in the padding is never
    read. `state` (B, D') is the top layer's last state, forward's at the row's end, backward's at its beginning;
    `first` (B, D') its first, at the other end.

    Args:
        hidden: Units in each direction.
        layers: Layers on top of each other; each reads the merged states of the one below.
        direction: Which way a text is read.
        merge: How the states of both directions become one.
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
        bias: bool = True,
        dropout: Rate = 0.0,
    ):
        super().__init__(nn.LSTM, dim, hidden, layers, direction, merge, bias, dropout)
