"""A simple recurrent network."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

from torch import nn

from seqpipe.nn.recurrent import Recurrent, RecurrentOptions


class RNN(Recurrent):
    """A simple recurrent network (Elman 1990).

    The state is h(t) = f(W x(t) + b + R h(t-1) + c), from h(0), the `initial_state`. x (B, T, D) becomes (B, T, D'),
    where D' is `hidden`, or twice that for two concatenated directions (Schuster and Paliwal 1997). Padding is never
    read. `state` (B, D') is the last state of the top layer: the forward state at the end of the text and the backward
    state at its beginning; `first` (B, D') is the first state of each direction.

    Args:
        activation: The function f.
        bias: Whether there are the biases b and c.
    """

    def __init__(
        self,
        dim: int,
        sizes: Mapping[str, int],
        *,
        options: RecurrentOptions,
        activation: Literal["tanh", "relu"] = "tanh",
    ):
        make = partial(nn.RNN, nonlinearity=activation)
        super().__init__(make, dim, sizes, options)
