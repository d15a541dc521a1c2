"""A nested LSTM: its cell is an LSTM itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from pydantic import PositiveInt
from torch import Tensor

from seqpipe.nn.cells import CellStep, CellWeights, RecurrentCell
from seqpipe.nn.loops import State
from seqpipe.nn.recurrent import Recurrent, RecurrentOptions


class NestedLSTM(Recurrent):
    """A nested long short-term memory (Moniz and Krueger 2017).

    As in the encoder `lstm`, [i, f, g, o] = W x(t) + b + R h(t-1) + c and h(t) = σ(o) tanh(c(t)). But the cell c(t) is
    the output of an inner LSTM, whose input is x' = σ(i) tanh(g) and whose last state is h' = σ(f) c(t-1): with [i',
    f', g', o'] = W' x' + R' h' + b', its cell is c'(t) = σ(f') c'(t-1) + σ(i') tanh(g'), and c(t) = σ(o') tanh(c'(t)).
    With a greater depth, c' is the output of a third LSTM, and so on. All states begin with `initial_state`. x (B, T,
    D) becomes (B, T, D'), where D' is `hidden`, or twice that for two concatenated directions. Padding is never read.
    `state` (B, D') is the last state of the top layer: the forward state at the end of the text and the backward state
    at its beginning; `first` (B, D') is the first state of each direction.

    Args:
        hidden: Number of units in each direction, the same in every nested LSTM.
        depth: Number of nested LSTMs; 1 is the encoder `lstm`.
        initial_state: The states before the first token: zero; learned parameters; or computed from v, which is the
            label in a field of the record ({column: FIELD}) or the state of another input ({source: NAME}), which the
            head then does not read: h(0) = tanh(W v + b), all other states W' v + b' (Sutskever et al. 2014; Xu et al.
            2015).
    """

    def __init__(self, dim: int, sizes: Mapping[str, int], *, options: RecurrentOptions, depth: PositiveInt = 2):
        make = partial(Nested, depth=depth)
        super().__init__(make, dim, sizes, options)


class Nested(RecurrentCell):
    """The cell; gates i, f, g, o. `inner_1` is [W' R'], `inner_bias_1` is b', and so on inwards."""

    def __init__(self, dim: int, hidden: int, *, depth: int, bias: bool = True, bidirectional: bool = False):
        more: dict[str, tuple[int, ...]] = {}
        for k in range(1, depth):
            more |= {f"inner_{k}": (4 * hidden, 2 * hidden)} | ({f"inner_bias_{k}": (4 * hidden,)} if bias else {})
        super().__init__(dim, hidden, gates=4, states=1 + depth, bias=bias, bidirectional=bidirectional, more=more)

    def step(self, weights: CellWeights) -> CellStep:
        R = weights["weight_hh"]

        def step(state: State, inward: Tensor) -> State:
            h, cell, *inner = state
            i, f, g, o = torch.baddbmm(inward, h, R).chunk(4, 2)
            cells = self._next_cells(f.sigmoid() * cell, i.sigmoid() * g.tanh(), inner, weights)
            return o.sigmoid() * cells[0].tanh(), *cells

        return step

    def _next_cells(self, kept: Tensor, let_in: Tensor, inner: list[Tensor], weights: CellWeights) -> State:
        """Return the cell and all inner cells from the products of the forget gate and the input gate."""
        if not inner:
            return (kept + let_in,)
        k = self.states - 1 - len(inner)
        read, W = torch.cat([let_in, kept], 2), weights[f"inner_{k}"]  # (n, B, 2H), (n, 2H, 4H)
        gates = torch.baddbmm(weights[f"inner_bias_{k}"], read, W) if self.bias else torch.bmm(read, W)
        i, f, g, o = gates.chunk(4, 2)
        within = self._next_cells(f.sigmoid() * inner[0], i.sigmoid() * g.tanh(), inner[1:], weights)
        return o.sigmoid() * within[0].tanh(), *within
