"""LSTM cells without some of their parts, or with full gate recurrence: the variants of Greff et al. (2017)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqpipe.nn.cells import Cell, Step, Weights
from seqpipe.nn.loops import State


@dataclass(frozen=True)
class LSTMParts:
    """Which parts an LSTM cell has; the defaults are those of a plain LSTM.

    Args:
        input_gate: Whether there is an input gate; otherwise i = 1.
        forget_gate: Whether there is a forget gate; otherwise f = 1.
        output_gate: Whether there is an output gate; otherwise o = 1.
        input_activation: Whether the block input has a tanh; otherwise it is linear.
        output_activation: Whether the cell has a tanh on its way out; otherwise it is linear.
        full_gate_recurrence: Whether each gate also reads the activations of all gates of the step before.
    """

    input_gate: bool = True
    forget_gate: bool = True
    output_gate: bool = True
    input_activation: bool = True
    output_activation: bool = True
    full_gate_recurrence: bool = False


class LSTMVariant(Cell):
    """An LSTM cell with `parts`, and if asked for with peepholes or a coupled forget gate; in export a Scan.

    W and R have blocks of H rows for i, f, g and o, as far as the cell has them. `weight_ch` (gates * H) holds the
    peepholes and `weight_gh` (gates * H, gates * H) the weights of full gate recurrence, both in the order i, f, o.
    With full gate recurrence the activations of the gates are states too, behind h and the cell.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        parts: LSTMParts,
        peephole: bool = False,
        coupled: bool = False,
        bias: bool = True,
        bidirectional: bool = False,
    ):
        has = {"i": parts.input_gate, "f": parts.forget_gate and not coupled, "o": parts.output_gate}
        gates = tuple(gate for gate, is_there in has.items() if is_there)
        width = len(gates) * hidden
        more: dict[str, tuple[int, ...]] = {}
        if peephole:
            more["weight_ch"] = (width,)
        if parts.full_gate_recurrence:
            more["weight_gh"] = (width, width)
        super().__init__(
            dim,
            hidden,
            gates=len(gates) + 1,
            states=2 + (len(gates) if parts.full_gate_recurrence else 0),
            bias=bias,
            bidirectional=bidirectional,
            more=more,
        )
        self.parts, self.peephole, self.coupled, self.gates = parts, peephole, coupled, gates

    def step(self, weights: Weights) -> Step:
        parts, gates, H = self.parts, self.gates, self.hidden_size
        blocks = [block for block in "ifgo" if block == "g" or block in gates]
        R, gate_recurrence = weights["weight_hh"], weights.get("weight_gh")
        peepholes: dict[str, Tensor] = {}
        if self.peephole:  # copies, because Scan takes no two views of one tensor
            vectors = weights["weight_ch"].split(H, 2)
            peepholes = {gate: vector.clone() for gate, vector in zip(gates, vectors, strict=True)}

        def step(state: State, inward: Tensor) -> State:
            h, cell, *previous_gates = state  # (n, B, H)
            z = dict(zip(blocks, torch.baddbmm(inward, h, R).split(H, 2), strict=True))
            if gate_recurrence is not None:
                recurrent = torch.bmm(torch.cat(previous_gates, 2), gate_recurrence).split(H, 2)
                z |= {gate: z[gate] + term for gate, term in zip(gates, recurrent, strict=True)}

            def opened(gate: str, cell: Tensor) -> Tensor:
                total = torch.addcmul(z[gate], peepholes[gate], cell) if gate in peepholes else z[gate]
                return total.sigmoid()

            activations = {gate: opened(gate, cell) for gate in gates if gate != "o"}
            added = z["g"].tanh() if parts.input_activation else z["g"]
            if "i" in activations:
                added = activations["i"] * added
            if self.coupled:
                cell = (1 - activations["i"]) * cell + added
            elif "f" in activations:
                cell = activations["f"] * cell + added
            else:
                cell = cell + added
            h = cell.tanh() if parts.output_activation else cell.clone()  # Scan takes no tensor twice
            if "o" in gates:
                activations["o"] = opened("o", cell)
                h = activations["o"] * h
            return (h, cell) if gate_recurrence is None else (h, cell, *activations.values())

        return step
