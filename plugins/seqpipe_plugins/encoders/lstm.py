"""A long short-term memory, its variants, and a pyramid of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.cells import CellStep, CellWeights, LSTMParts, LSTMVariant, OnnxNode, RecurrentCell, split_columns
from seqpipe.nn.layers import Modules
from seqpipe.nn.loops import State
from seqpipe.nn.recurrent import Recurrent, RecurrentOptions, ragged_rnn
from seqpipe.plugin import Probability, UsageError


class LSTM(Recurrent):
    """A long short-term memory (Hochreiter and Schmidhuber 1997) with a forget gate (Gers et al. 2000).

    With [i, f, g, o] = W x(t) + b + R h(t-1) + c, the cell is c(t) = σ(f) c(t-1) + σ(i) tanh(g) and the state h(t) =
    σ(o) tanh(c(t)); both begin with `initial_state`. With peephole connections (Gers and Schmidhuber 2000) p_i c(t-1)
    is added to i, p_f c(t-1) to f, and p_o c(t) to o, elementwise. With full ones each gate reads all cells, P_i
    c(t-1), P_f c(t-1) and P_o c(t) with matrices P (H, H): a gate is then σ(W [h(t-1), x(t), c] + b), with one matrix
    over all three (Olah 2015). With coupled gates (Greff et al. 2017) there is no f: c(t) = (1 - σ(i)) c(t-1) + σ(i)
    tanh(g). The other variants of Greff et al. (2017) leave out a part, to show what it is worth, or add recurrence
    between the gates; their baseline has elementwise peepholes. x (B, T, D) becomes (B, T, D'), where D' is `hidden`,
    or twice that for two concatenated directions (Graves and Schmidhuber 2005). Padding is never read. `state` (B, D')
    is the last state of the top layer: the forward state at the end of the text and the backward state at its
    beginning; `first` (B, D') is the first state of each direction.

    Args:
        peephole: Whether the gates have peephole connections from the cell; true: from a unit's own cell; full: from
            all cells of the layer by full matrices, which makes the layer a Scan in the graph.
        coupled: Whether the forget gate is 1 minus the input gate, which saves a quarter of the weights.
        scan: Whether the graph has a Scan instead of an LSTM node: slower on the CPU, but runs on execution providers
            without a kernel for peepholes and coupled gates, such as CUDA.
        longest_dependency: Longest dependency in tokens, T: the biases of the forget and the input gate start at log u
            and -log u, each unit with its own u from U(1, T - 1), so that memory spans all these distances from the
            first step (Tallec and Ollivier 2018); null: random biases near 0.
        initial_state: The states before the first token: zero; learned parameters; or computed from v, which is the
            label in a field of the record ({column: FIELD}) or the state of another input ({source: NAME}), which the
            head then does not read: h(0) = tanh(W v + b), c(0) = W' v + b' (Sutskever et al. 2014; Xu et al. 2015).
    """

    def __init__(
        self,
        dim: int,
        sizes: Mapping[str, int],
        *,
        options: RecurrentOptions,
        peephole: bool | Literal["full"] = False,
        coupled: bool = False,
        scan: bool = False,
        longest_dependency: Annotated[int, Field(ge=3)] | None = None,
        parts: LSTMParts,
    ):
        if scan and (parts != LSTMParts() or peephole == "full"):
            raise UsageError("lstm.scan: left-out parts, full gate recurrence and full peepholes imply it; delete it")
        if scan and not (peephole or coupled):
            raise UsageError("lstm.scan: it is for peephole or coupled; providers have a kernel for the plain LSTM")
        if coupled and not (parts.input_gate and parts.forget_gate):
            fix = "remove input_gate: false and forget_gate: false"
            raise UsageError(f"lstm.coupled: the forget gate is 1 minus the input gate; {fix}")
        if not (parts.input_gate or parts.forget_gate or parts.output_gate):
            for name, is_set in {"peephole": peephole, "full_gate_recurrence": parts.full_gate_recurrence}.items():
                if is_set:
                    raise UsageError(f"lstm.{name}: it feeds the gates, but all three are left out; keep one")
        make: Callable[..., nn.RNNBase | RecurrentCell] = nn.LSTM
        if parts != LSTMParts() or peephole == "full":
            make = partial(LSTMVariant, parts=parts, peephole=peephole, coupled=coupled)
        elif peephole or coupled:
            make = partial(Variant, peephole=peephole, coupled=coupled, scan=scan)
        super().__init__(make, dim, sizes, options)
        gates = {-1: parts.input_gate, 1: parts.forget_gate and not coupled}  # the blocks before g
        self.initialize_for_distance([sign for sign, is_there in gates.items() if is_there], longest_dependency)


class Variant(LSTMVariant):
    """The cell with peepholes, or with coupled gates, or both; gates i, f, g, o as in PyTorch, coupled i, g, o.

    `weight_ch` holds p_i, p_f, p_o, coupled p_i, p_o. In export it is one node, and its step has fewer operators.
    """

    def __init__(self, dim: int, hidden: int, *, peephole: bool, coupled: bool, scan: bool = False, **more: bool):
        super().__init__(dim, hidden, parts=LSTMParts(), peephole=peephole, coupled=coupled, **more)
        gates = (0, 2, 0, 1) if coupled else (0, 3, 1, 2)  # the node has no coupled forget gate
        peepholes = (0, 1, 0) if coupled else (0, 2, 1)
        node = OnnxNode("LSTM", gates, peepholes if peephole else (), {"input_forget": int(coupled)})
        self.node = None if scan else node

    def step(self, weights: CellWeights) -> CellStep:
        R, H = weights["weight_hh"], self.hidden_size
        early = 1 if self.coupled else 2  # gates that read the previous cell: i, f
        P_early, P_o = split_columns(weights["weight_ch"], early * H) if self.peephole else (None, None)

        def step(state: State, inward: Tensor) -> State:
            h, cell = state  # (n, B, H)
            before, g, o = torch.baddbmm(inward, h, R).split([early * H, H, H], 2)
            if P_early is not None:
                before = torch.addcmul(before, P_early, cell.repeat(1, 1, early))
            i, *f = before.sigmoid().chunk(early, 2)
            cell = torch.addcmul(f[0] * cell, i, g.tanh()) if f else torch.lerp(cell, g.tanh(), i)
            o = o if P_o is None else torch.addcmul(o, P_o, cell)
            return o.sigmoid() * cell.tanh(), cell

        return step


class Pyramid(nn.Module):
    """A pyramidal bidirectional LSTM, whose layers halve the number of rows (Chan et al. 2016).

    Each layer reads pairs of rows below it, [r(2t); r(2t+1)], where zeros follow an odd last row: x (B, T, D) becomes
    (B, T', D'), where T' is T / 2^layers, rounded up, and D' is twice `hidden`. In the paper {use: lstm} comes first,
    which reads all rows. Later stages get the joined rows in place of tokens, so that attention to a sound has fewer
    places to choose from. `state` (B, D') is the last state of each direction of the top layer.

    Args:
        hidden: Number of units in each direction.
        layers: Number of layers.
        dropout: Dropout probability between two layers.
    """

    returns: ClassVar = ("x", "mask", "state")

    def __init__(self, dim: int, *, hidden: PositiveInt = 128, layers: PositiveInt = 3, dropout: Probability = 0.0):
        super().__init__()
        self.dim = 2 * hidden
        widths = [2 * dim, *[2 * self.dim] * (layers - 1)]
        self.layers = Modules(nn.LSTM(width, hidden, batch_first=True, bidirectional=True) for width in widths)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:  # (B, T, D), (B, T) -> (B, T', D'), (B, T')
        x, lengths = torch.where(mask[..., None], x, 0.0), mask.sum(1)
        last = x
        for depth, layer in enumerate(self.layers):
            x = torch.cat([x[:, ::2], F.pad(x, (0, 0, 0, 1))[:, 1::2]], 2)
            lengths = (lengths + 1) // 2
            states, last = ragged_rnn(layer, self.dropout(x) if depth else x, lengths.clamp(min=1))
            x = states.flatten(2)
        mask = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        return {"x": torch.where(mask[..., None], x, 0.0), "mask": mask, "state": last.flatten(1)}
