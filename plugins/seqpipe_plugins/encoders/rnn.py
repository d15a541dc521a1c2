"""A simple recurrent network."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

from pydantic import PositiveInt
from torch import nn

from seqpipe.plugin import Direction, InitialStateOption, Merge, Probability, Recurrent


class RNN(Recurrent):
    """A simple recurrent network (Elman 1990).

    The state is h(t) = f(W x(t) + b + R h(t-1) + c), from h(0), the `initial_state`. x (B, T, D) becomes (B, T, D'),
    where D' is `hidden`, or twice that for two concatenated directions (Schuster and Paliwal 1997). Padding is never
    read. `state` (B, D') is the last state of the top layer: the forward state at the end of the text and the backward
    state at its beginning; `first` (B, D') is the first state of each direction.

    Args:
        hidden: Number of units in each direction.
        layers: Number of layers; the input of each is the merged output of the one below.
        direction: Reading direction.
        merge: How the states of both directions are combined.
        activation: The function f.
        bias: Whether there are the biases b and c.
        dropout: Dropout probability between two layers.
        locked_dropout: Variational dropout probability of a layer's input columns: one mask for all steps of a row.
        initial_state: The states before the first token: zero; learned parameters; or computed from v, which is the
            label in a field of the record ({column: FIELD}) or the state of another input ({source: NAME}), which the
            head then does not read: h(0) = tanh(W v + b) (Sutskever et al. 2014; Xu et al. 2015).
    """

    def __init__(
        self,
        dim: int,
        sizes: Mapping[str, int],
        *,
        hidden: PositiveInt = 128,
        layers: PositiveInt = 1,
        direction: Direction = "both",
        merge: Merge = "concat",
        activation: Literal["tanh", "relu"] = "tanh",
        bias: bool = True,
        dropout: Probability = 0.0,
        locked_dropout: Probability = 0.0,
        initial_state: InitialStateOption = "zero",
    ):
        make = partial(nn.RNN, nonlinearity=activation)
        super().__init__(
            make, dim, hidden, layers, direction, merge, bias, dropout, locked_dropout, initial_state, sizes
        )
