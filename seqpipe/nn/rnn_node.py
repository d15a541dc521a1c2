"""A layer of recurrent cells over ragged rows as one ONNX node: RNN, GRU or LSTM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Node:
    """How a cell is written as a node: for each gate of the node in its order, which of the cell's gates it is."""

    operator: str
    gates: tuple[int, ...]
    peepholes: tuple[int, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)


# PyTorch stacks a GRU's gates reset, update, new, an LSTM's input, forget, cell, output. ONNX wants update, reset, new,
# and input, output, forget, cell.
LIBRARY: Mapping[str, Node] = {  # by an `nn.RNNBase`'s mode
    "RNN_TANH": Node("RNN", (0,)),
    "RNN_RELU": Node("RNN", (0,)),
    "GRU": Node("GRU", (1, 0, 2), attributes={"linear_before_reset": 1}),
    "LSTM": Node("LSTM", (0, 3, 1, 2)),
}
_STATES = {"RNN": 1, "GRU": 1, "LSTM": 2}


def suffixes(rnn: nn.Module) -> tuple[str, ...]:
    """The suffix of a layer's weights for each of its directions."""
    return ("", "_reverse") if rnn.bidirectional else ("",)


def weight_of(rnn: nn.Module, name: str, suffix: str = "", layer: int = 0) -> Tensor:
    """A weight of one layer and direction, by the name that `nn.RNNBase` gives it, such as `weight_ih`."""
    return getattr(rnn, f"{name}_l{layer}{suffix}")


def weights_of(rnn: nn.Module, suffix: str) -> list[Tensor]:
    """(gates * H, D), (gates * H, H), and with biases (gates * H,) twice."""
    names = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if rnn.bias else ()))
    return [weight_of(rnn, name, suffix) for name in names]


def as_node(
    rnn: nn.Module, node: Node, x: Tensor, lengths: Tensor, backward: bool, start: Sequence[Tensor] = ()
) -> list[Tensor]:
    """The states (B, T, directions, H), 0 past the end, and the last (B, directions, H), of an LSTM the cells too.

    `start` holds the states (directions, B, H) that it begins with; without it they are 0.

    A layer of PyTorch's own, exported as it is, would bake the example's T into the graph.
    """
    B, T, _ = x.shape
    H: Any = rnn.hidden_size
    n = len(suffixes(rnn))
    each = zip(*([_as_onnx(w, H, node.gates) for w in weights_of(rnn, s)] for s in suffixes(rnn)), strict=True)
    W, R, *biases = (torch.stack(directions) for directions in each)  # (n, gates * H, D), (…, H), (n, gates * H) twice
    inputs: list[Tensor | None] = [
        x.transpose(0, 1),
        W,
        R,
        torch.cat(biases, 1) if biases else None,
        lengths.to(torch.int32),
    ]
    first: list[Tensor | None] = [*start] or [None, None]
    if start:
        inputs += first
    if node.peepholes:
        P = [_as_onnx(weight_of(rnn, "weight_ch", suffix), H, node.peepholes) for suffix in suffixes(rnn)]
        inputs += [*([] if start else first), torch.stack(P)]
    attributes: dict[str, Any] = {
        "hidden_size": H,
        "direction": "bidirectional" if n == 2 else "reverse" if backward else "forward",
        **node.attributes,
    }
    if node.operator == "RNN":
        attributes["activations"] = ["Relu" if rnn.mode == "RNN_RELU" else "Tanh"] * n
    state_shapes = [[n, B, H]] * _STATES[node.operator]
    Y, *last = torch.onnx.ops.symbolic_multi_out(
        node.operator,
        inputs,
        attributes,
        dtypes=(x.dtype,) * (1 + len(state_shapes)),
        shapes=([T, n, B, H], *state_shapes),
        version=14,
    )
    return [Y.permute(2, 0, 1, 3), *(state.transpose(0, 1) for state in last)]


def _as_onnx(weight: Tensor, hidden: int, gates: tuple[int, ...]) -> Tensor:
    """The same weights with the gates in ONNX's order."""
    return torch.cat([weight[gate * hidden : (gate + 1) * hidden] for gate in gates])  # `split` would not be folded
