"""A gated recurrent unit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from seqpipe.nn.cells import CellStep, CellWeights, OnnxNode, RecurrentCell, split_columns
from seqpipe.nn.loops import State
from seqpipe.nn.recurrent import Recurrent, RecurrentOptions
from seqpipe.plugin import UsageError


class GRU(Recurrent):
    """A gated recurrent unit (Cho et al. 2014).

    With r = σ(W_r x(t) + b_r + R_r h(t-1) + c_r) and z likewise, the state is h(t) = z h(t-1) + (1 - z) n, where h(0)
    is given by `initial_state`. The reset gate r is applied after the product, n = tanh(W_n x(t) + b_n + r (R_n h(t-1)
    + c_n)), as in PyTorch, or before it, n = tanh(W_n x(t) + b_n + R_n (r h(t-1)) + c_n), as in the paper. x (B, T, D)
    becomes (B, T, D'), where D' is `hidden`, or twice that for two concatenated directions. Padding is never read.
    `state` (B, D') is the last state of the top layer: the forward state at the end of the text and the backward state
    at its beginning; `first` (B, D') is the first state of each direction.

    Args:
        reset: Whether the reset gate is applied before the product, as in the paper and in textbooks, or after it,
            which trains faster.
        scan: Whether the graph has a Scan instead of a GRU node: slower on the CPU, but runs on execution providers
            without a kernel for `reset: before`, such as CUDA.
        longest_dependency: Longest dependency in tokens, T: the bias of the update gate starts at log u, each unit
            with its own u from U(1, T - 1), so that memory spans all these distances from the first step (Tallec and
            Ollivier 2018); null: random biases near 0.
    """

    def __init__(
        self,
        dim: int,
        sizes: Mapping[str, int],
        *,
        options: RecurrentOptions,
        reset: Literal["before", "after"] = "after",
        scan: bool = False,
        longest_dependency: Annotated[int, Field(ge=3)] | None = None,
    ):
        if scan and reset == "after":
            raise UsageError("gru.scan: it is for reset: before; every provider can run reset: after; delete it")
        make = nn.GRU if reset == "after" else partial(ResetBefore, scan=scan)
        super().__init__(make, dim, sizes, options)
        self.initialize_for_distance((0, 1), longest_dependency)


class ResetBefore(RecurrentCell):
    """The cell whose reset gate is applied before the recurrent weights; gates r, z, n in PyTorch's order."""

    def __init__(self, dim: int, hidden: int, *, scan: bool = False, bias: bool = True, bidirectional: bool = False):
        node = None if scan else OnnxNode("GRU", (1, 0, 2), attributes={"linear_before_reset": 0})
        super().__init__(dim, hidden, gates=3, bias=bias, bidirectional=bidirectional, node=node)

    def step(self, weights: CellWeights) -> CellStep:
        R_gates, R_new = split_columns(weights["weight_hh"], 2 * self.hidden_size)

        def step(state: State, inward: Tensor) -> State:
            (before,) = state  # (n, B, H)
            gates, new = inward.split([2 * self.hidden_size, self.hidden_size], 2)
            r, z = torch.baddbmm(gates, before, R_gates).sigmoid().chunk(2, 2)
            new = torch.baddbmm(new, r * before, R_new).tanh()
            return (new + z * (before - new),)

        return step
