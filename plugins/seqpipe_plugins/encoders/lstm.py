"""A long short-term memory, and its variants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from seqpipe.plugin import (
    CellStep,
    CellWeights,
    Direction,
    InitialStateOption,
    LSTMParts,
    LSTMVariant,
    Merge,
    OnnxNode,
    Probability,
    Recurrent,
    RecurrentCell,
    State,
    UsageError,
    split_columns,
)


class LSTM(Recurrent):
    """A long short-term memory (Hochreiter and Schmidhuber 1997) with a forget gate (Gers et al. 2000).

    With [i, f, g, o] = W x(t) + b + R h(t-1) + c, the cell is c(t) = σ(f) c(t-1) + σ(i) tanh(g) and the state h(t) =
    σ(o) tanh(c(t)); both begin with `initial_state`. With peephole connections (Gers and Schmidhuber 2000) p_i c(t-1)
    is added to i, p_f c(t-1) to f, and p_o c(t) to o, elementwise. With coupled gates (Greff et al. 2017) there is no
    f: c(t) = (1 - σ(i)) c(t-1) + σ(i) tanh(g). The other variants of Greff et al. (2017) leave out a part, to show what
    it is worth, or add recurrence between the gates; their baseline has peepholes. x (B, T, D) becomes (B, T, D'),
    where D' is `hidden`, or twice that for two concatenated directions (Graves and Schmidhuber 2005). Padding is never
    read. `state` (B, D') is the last state of the top layer: the forward state at the end of the text and the backward
    state at its beginning; `first` (B, D') is the first state of each direction.

    Args:
        hidden: Number of units in each direction.
        layers: Number of layers; the input of each is the merged output of the one below.
        direction: Reading direction.
        merge: How the states of both directions are combined.
        peephole: Whether the gates have peephole connections from the cell.
        coupled: Whether the forget gate is 1 minus the input gate, which saves a quarter of the weights.
        scan: Whether the graph has a Scan instead of an LSTM node: slower on the CPU, but runs on execution providers
            without a kernel for peepholes and coupled gates, such as CUDA.
        input_gate: Whether there is an input gate; false: σ(i) is 1. This and the five options below make the layer a
            Scan in the graph.
        forget_gate: Whether there is a forget gate; false: σ(f) is 1.
        output_gate: Whether there is an output gate; false: σ(o) is 1.
        input_activation: Whether g passes a tanh; false: it is linear.
        output_activation: Whether c(t) passes a tanh on its way to h(t); false: it is linear.
        full_gate_recurrence: Whether each gate also reads the activations of all gates of the step before.
        bias: Whether the gates have biases.
        dropout: Dropout probability between two layers.
        locked_dropout: Variational dropout probability of a layer's input columns: one mask for all steps of a row.
        initial_state: The states before the first token: zero; learned parameters; or computed from v, which is the
            label in a field of the record ({column: FIELD}) or the state of another input ({source: NAME}), which the
            head then does not read: h(0) = tanh(W v + b), c(0) = W' v + b' (Sutskever et al. 2014; Xu et al. 2015).
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
        peephole: bool = False,
        coupled: bool = False,
        scan: bool = False,
        input_gate: bool = True,
        forget_gate: bool = True,
        output_gate: bool = True,
        input_activation: bool = True,
        output_activation: bool = True,
        full_gate_recurrence: bool = False,
        bias: bool = True,
        dropout: Probability = 0.0,
        locked_dropout: Probability = 0.0,
        initial_state: InitialStateOption = "zero",
    ):
        parts = LSTMParts(
            input_gate, forget_gate, output_gate, input_activation, output_activation, full_gate_recurrence
        )
        _check_options(parts, peephole=peephole, coupled=coupled, scan=scan)
        make: Callable[..., nn.RNNBase | RecurrentCell] = nn.LSTM
        if parts != LSTMParts():
            make = partial(LSTMVariant, parts=parts, peephole=peephole, coupled=coupled)
        elif peephole or coupled:
            make = partial(Variant, peephole=peephole, coupled=coupled, scan=scan)
        super().__init__(
            make, dim, hidden, layers, direction, merge, bias, dropout, locked_dropout, initial_state, sizes
        )


def _check_options(parts: LSTMParts, *, peephole: bool, coupled: bool, scan: bool) -> None:
    """Raise UsageError for options that contradict each other or have no effect."""
    if scan and parts != LSTMParts():
        raise UsageError("lstm.scan: an LSTM with a part left out or full gate recurrence is always a Scan; remove it")
    if scan and not (peephole or coupled):
        raise UsageError("lstm.scan: it is for peephole or coupled; of the plain LSTM every provider has a kernel")
    if coupled and not (parts.input_gate and parts.forget_gate):
        raise UsageError(
            "lstm.coupled: the forget gate is 1 minus the input gate; remove input_gate: false and forget_gate: false"
        )
    if not (parts.input_gate or parts.forget_gate or parts.output_gate):
        for name, is_set in {"peephole": peephole, "full_gate_recurrence": parts.full_gate_recurrence}.items():
            if is_set:
                raise UsageError(f"lstm.{name}: it feeds the gates, and all three are left out; keep one of them")


class Variant(RecurrentCell):
    """The cell with peepholes, or with coupled gates, or both; gates i, f, g, o as PyTorch has them, coupled i, g, o.

    `weight_ch` holds p_i, p_f, p_o, coupled p_i, p_o.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        peephole: bool,
        coupled: bool,
        scan: bool = False,
        bias: bool = True,
        bidirectional: bool = False,
    ):
        gates = (0, 2, 0, 1) if coupled else (0, 3, 1, 2)  # the node skips the forget gate where it is coupled
        peepholes = (0, 1, 0) if coupled else (0, 2, 1)
        node = OnnxNode("LSTM", gates, peepholes if peephole else (), {"input_forget": int(coupled)})
        super().__init__(
            dim,
            hidden,
            gates=3 if coupled else 4,
            states=2,
            bias=bias,
            bidirectional=bidirectional,
            more={"weight_ch": ((2 if coupled else 3) * hidden,)} if peephole else None,
            node=None if scan else node,
        )
        self.peephole, self.coupled = peephole, coupled

    def step(self, weights: CellWeights) -> CellStep:
        R, H = weights["weight_hh"], self.hidden_size
        early = 1 if self.coupled else 2  # gates that see the cell as it was: i, f
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
