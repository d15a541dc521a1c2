"""Recurrent cells: RNN, GRU, LSTM and its variants, step by step and as one ONNX node."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.loops import State, scan

__all__ = ["CellStep", "CellWeights", "OnnxNode", "RecurrentCell", "recurrent_step", "split_columns"]
__all__ += ["LSTMParts", "LSTMVariant"]


@dataclass(frozen=True)
class OnnxNode:
    """ONNX node of a cell; `gates` lists the cell's gate for each gate of the node, in the node's order."""

    operator: str
    gates: tuple[int, ...]
    peepholes: tuple[int, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)


# PyTorch stacks a GRU's gates reset, update, new, an LSTM's input, forget, cell, output. ONNX has update, reset, new,
# and input, output, forget, cell.
LIBRARY: Mapping[str, OnnxNode] = {  # by an `nn.RNNBase`'s mode
    "RNN_TANH": OnnxNode("RNN", (0,)),
    "RNN_RELU": OnnxNode("RNN", (0,)),
    "GRU": OnnxNode("GRU", (1, 0, 2), attributes={"linear_before_reset": 1}),
    "LSTM": OnnxNode("LSTM", (0, 3, 1, 2)),
}


def suffixes(rnn: nn.Module) -> tuple[str, ...]:
    """Return the suffix of a layer's weights for each of its directions."""
    return ("", "_reverse") if rnn.bidirectional else ("",)


def weight_of(rnn: nn.Module, name: str, suffix: str = "", layer: int = 0) -> Tensor:
    """Return a weight of one layer and direction by its name in `nn.RNNBase`, such as `weight_ih`."""
    return getattr(rnn, f"{name}_l{layer}{suffix}")


def weights_of(rnn: nn.Module, suffix: str = "", layer: int = 0) -> list[Tensor]:
    """Return the weights (gates * H, D), (gates * H, H), and with biases (gates * H,) twice."""
    names = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if rnn.bias else ()))
    return [weight_of(rnn, name, suffix, layer) for name in names]


def count_states(rnn: nn.RNNBase | RecurrentCell) -> int:
    """Return the number of state tensors of a layer: h, and others of the cell."""
    return rnn.states if isinstance(rnn, RecurrentCell) else 2 if rnn.mode == "LSTM" else 1


def as_node(
    rnn: nn.Module, node: OnnxNode, x: Tensor, lengths: Tensor, backward: bool, start: Sequence[Tensor] = ()
) -> list[Tensor]:
    """Return the states (B, T, directions, H), 0 past the end, and the last (B, directions, H), for an LSTM also the
    cells.

    `start` has the initial states (directions, B, H); by default they are 0.

    Exporting a layer of PyTorch would fix the example's T in the graph.
    """
    B, T, _ = x.shape
    H: Any = rnn.hidden_size
    n = len(suffixes(rnn))
    each = zip(*([_reorder_gates(w, H, node.gates) for w in weights_of(rnn, s)] for s in suffixes(rnn)), strict=True)
    W, R, *biases = (torch.stack(directions) for directions in each)  # (n, gates * H, D), (…, H), (n, gates * H) twice
    rows, bias = x.transpose(0, 1), torch.cat(biases, 1) if biases else None
    inputs: list[Tensor | None] = [rows, W, R, bias, lengths.to(torch.int32)]
    if start or node.peepholes:
        inputs += start or (None, None)
    if node.peepholes:
        P = [_reorder_gates(weight_of(rnn, "weight_ch", suffix), H, node.peepholes) for suffix in suffixes(rnn)]
        inputs.append(torch.stack(P))
    direction = "bidirectional" if n == 2 else "reverse" if backward else "forward"
    attributes: dict[str, Any] = {"hidden_size": H, "direction": direction, **node.attributes}
    if node.operator == "RNN":
        attributes["activations"] = ["Relu" if rnn.mode == "RNN_RELU" else "Tanh"] * n
    shapes = [[T, n, B, H]] + [[n, B, H]] * (2 if node.operator == "LSTM" else 1)
    Y, *last = torch.onnx.ops.symbolic_multi_out(
        node.operator, inputs, attributes, dtypes=[x.dtype] * len(shapes), shapes=shapes, version=14
    )
    return [Y.permute(2, 0, 1, 3), *(state.transpose(0, 1) for state in last)]


def _reorder_gates(weight: Tensor, hidden: int, gates: tuple[int, ...]) -> Tensor:
    """Return the weights with the gates in ONNX's order."""
    return torch.cat([weight[gate * hidden : (gate + 1) * hidden] for gate in gates])  # `split` would not be folded


# Recurrent cells without a kernel in PyTorch, and single steps of cells with one.

CellWeights = Mapping[str, Tensor]
CellStep = Callable[[State, Tensor], State]


class RecurrentCell(nn.Module, ABC):
    """One layer of a recurrent cell, in one direction or two, run by `seqpipe.nn.recurrent.ragged_rnn`.

    Weights have the names and the initialisation of `nn.RNNBase`, uniform within 1 / √hidden. The input's part of the
    gates, W x(t) + b + c, is computed for all steps at once. A subclass has a `step` for the rest, for both directions
    at once, and may have more weights than W, R, b and c. In export the cell is an ONNX Scan, or its `node`.

    Args:
        dim: D, the width of the input.
        hidden: H, units in each direction.
        gates: Number of blocks of H rows in W and R.
        states: Number of state tensors (B, H); the first is the output of the layer.
        bias: Whether there are the biases b and c.
        bidirectional: Whether there is a second direction, with its own weights.
        more: Shapes of other weights of each direction, by name.
        node: The ONNX node that computes the same.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        gates: int,
        states: int = 1,
        bias: bool = True,
        bidirectional: bool = False,
        more: Mapping[str, tuple[int, ...]] | None = None,
        node: OnnxNode | None = None,
    ):
        super().__init__()
        self.hidden_size, self.bias, self.bidirectional = hidden, bias, bidirectional
        self.states, self.node = states, node
        self.shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (gates * hidden, dim),
            "weight_hh": (gates * hidden, hidden),
        }
        if bias:
            self.shapes |= {"bias_ih": (gates * hidden,), "bias_hh": (gates * hidden,)}
        self.shapes |= more or {}
        for suffix in suffixes(self):
            for name, shape in self.shapes.items():
                weight = nn.init.uniform_(torch.empty(shape), -(hidden**-0.5), hidden**-0.5)
                self.register_parameter(f"{name}_l0{suffix}", nn.Parameter(weight))

    @abstractmethod
    def step(self, weights: CellWeights) -> CellStep:
        """Return a function from the states (n, B, H) and the input's part of the gates (n, B, gates * H) to new
        states.

        n is the number of directions. `weights` has the weights of all directions by name: a matrix (n, H, gates * H),
        the right operand of a product, or a vector (n, 1, …).
        """

    def along(self, x: Tensor, start: State) -> tuple[Tensor, State]:
        """Run x (n, T, B, D), each direction from left to right, from these states (n, B, H).

        Return the hidden states (n, T, B, H), and the last states.
        """
        weights = {name: self._stacked(name) for name in self.shapes}
        T, B = x.shape[1:3]
        rows = x.flatten(1, 2)  # (n, T * B, D)
        # The input's part of the gates does not depend on the state, so one product computes it for all steps; only
        # the products with the previous state remain in the loop.
        W = weights.pop("weight_ih")
        if self.bias:
            inward = torch.baddbmm(weights.pop("bias_ih") + weights.pop("bias_hh"), rows, W)
        else:
            inward = torch.bmm(rows, W)
        step = self.step(weights)

        def loop_step(state: State, rows: State) -> tuple[State, State]:
            after = step(state, rows[0])
            return after, after[:1]

        ends, (states,) = scan(loop_step, start, (inward.unflatten(1, (T, B)).transpose(0, 1),))
        return states.transpose(0, 1), ends

    def stepped(self, x: Tensor, state: State) -> State:  # (R, D), (R, H) each
        """Return the states after one more token, for a cell of one direction."""
        weights = {name: self._stacked(name) for name in self.shapes}
        inward = x @ weights.pop("weight_ih")[0]
        if self.bias:
            inward = inward + (weights.pop("bias_ih") + weights.pop("bias_hh"))[0]
        after = self.step(weights)(tuple(part[None] for part in state), inward[None])
        return tuple(part[0] for part in after)

    def _stacked(self, name: str) -> Tensor:  # (n, columns, rows) or (n, 1, …)
        each = torch.stack([weight_of(self, name, suffix) for suffix in suffixes(self)])
        return each.transpose(1, 2).contiguous() if each.dim() == 3 else each[:, None]


def split_columns(weight: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """Split the columns of a weight (…, columns) in two copies: Scan accepts no two views of one tensor."""
    return weight[..., :columns].clone(), weight[..., columns:].clone()


def recurrent_step(
    rnn: nn.RNNBase, x: Tensor, state: State, between: Callable[[Tensor], Tensor] = lambda x: x
) -> tuple[Tensor, State]:
    """Run one step of an `nn.RNN`, `nn.GRU` or `nn.LSTM`: x (R, D) and its state to output (R, H), state.

    A state has the hidden states (R, layers, H) and, for an LSTM, the cells as the second tensor. `between` is applied
    to the output of each layer except the last.
    """
    after: list[State] = []
    # The library's cells are one kernel besides the products on a GPU, but no step of a graph; and autocast would round
    # the state at each step.
    is_traced = torch.compiler.is_exporting()
    steps = _STEPS if is_traced or torch.is_autocast_enabled(x.device.type) else _CELLS
    for layer in range(rnn.num_layers):
        if layer:
            x = between(x)
        # (R, H) each; the gradient of an index is a tensor of zeros
        before = tuple(part[:, layer] if is_traced or part.shape[1] > 1 else part.squeeze(1) for part in state)
        weights = weights_of(rnn, layer=layer)
        if not rnn.bias:
            weights += [torch.zeros_like(weights[0][:, 0])] * 2
        after.append(steps[rnn.mode](x, before, *weights))
        x = after[-1][0]
    if len(after) == 1 and not is_traced:
        return x, tuple(part[:, None] for part in after[0])
    return x, tuple(torch.stack(parts, 1) for parts in zip(*after, strict=True))


def _rnn(activation: Callable[[Tensor], Tensor], x: Tensor, before: State, *weights: Tensor) -> State:  # Elman 1990
    return (activation(_gates(x, before[0], *weights)),)


def _gru(x: Tensor, before: State, w: Tensor, u: Tensor, b: Tensor, c: Tensor) -> State:  # Cho et al. 2014
    (r, z, n), (hr, hz, hn) = F.linear(x, w, b).chunk(3, 1), F.linear(before[0], u, c).chunk(3, 1)
    z = torch.sigmoid(z + hz)
    n = torch.tanh(n + torch.sigmoid(r + hr) * hn)
    return (n + z * (before[0] - n),)


def _lstm(x: Tensor, before: State, *weights: Tensor) -> State:  # Hochreiter and Schmidhuber 1997
    i, f, g, o = _gates(x, before[0], *weights).chunk(4, 1)
    cell = torch.sigmoid(f) * before[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def _gates(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return W x + b + U h + c; in a graph one product of concatenated weights."""
    if torch.compiler.is_exporting():
        return F.linear(torch.cat([x, h], 1), torch.cat([w, u], 1), b + c)
    return F.linear(x, w, b) + F.linear(h, u, c)


_STEPS: Mapping[str, Callable[..., State]] = {
    "RNN_TANH": partial(_rnn, torch.tanh),
    "RNN_RELU": partial(_rnn, torch.relu),
    "GRU": _gru,
    "LSTM": _lstm,
}

_CELLS: Mapping[str, Callable[..., State]] = {
    "RNN_TANH": lambda x, before, *weights: (torch.rnn_tanh_cell(x, *before, *weights),),
    "RNN_RELU": lambda x, before, *weights: (torch.rnn_relu_cell(x, *before, *weights),),
    "GRU": lambda x, before, *weights: (torch.gru_cell(x, *before, *weights),),
    "LSTM": torch.lstm_cell,
}


# LSTM cells without some parts, or with full gate recurrence: the variants of Greff et al. (2017).


@dataclass(frozen=True)
class LSTMParts:
    """Parts of an LSTM cell; the defaults are those of a plain LSTM.

    Args:
        input_gate: Whether there is an input gate; false: σ(i) is 1. This and the five options below make the layer a
            Scan in the graph.
        forget_gate: Whether there is a forget gate; false: σ(f) is 1.
        output_gate: Whether there is an output gate; false: σ(o) is 1.
        input_activation: Whether g passes a tanh; false: it is linear.
        output_activation: Whether c(t) passes a tanh on its way to h(t); false: it is linear.
        full_gate_recurrence: Whether each gate also reads the activations of all gates of the step before.
    """

    input_gate: bool = True
    forget_gate: bool = True
    output_gate: bool = True
    input_activation: bool = True
    output_activation: bool = True
    full_gate_recurrence: bool = False


class LSTMVariant(RecurrentCell):
    """An LSTM cell with `parts`, and optionally with peepholes or a coupled forget gate; in export a Scan.

    W and R have blocks of H rows for those of i, f, g and o that the cell has. `weight_ch` has the peepholes, vectors
    (gates * H) or full matrices (gates * H, H), and `weight_gh` (gates * H, gates * H) the weights of full gate
    recurrence, both in the order i, f, o.
    With full gate recurrence the activations of the gates are states too, after h and the cell.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        parts: LSTMParts,
        peephole: bool | Literal["full"] = False,
        coupled: bool = False,
        bias: bool = True,
        bidirectional: bool = False,
    ):
        has = {"i": parts.input_gate, "f": parts.forget_gate and not coupled, "o": parts.output_gate}
        gates = tuple(gate for gate, is_there in has.items() if is_there)
        width = len(gates) * hidden
        more: dict[str, tuple[int, ...]] = {}
        if peephole:
            more["weight_ch"] = (width, hidden) if peephole == "full" else (width,)
        if parts.full_gate_recurrence:
            more["weight_gh"] = (width, width)
        states = 2 + (len(gates) if parts.full_gate_recurrence else 0)
        super().__init__(
            dim, hidden, gates=len(gates) + 1, states=states, bias=bias, bidirectional=bidirectional, more=more
        )
        self.parts, self.peephole, self.coupled, self.gates = parts, peephole, coupled, gates

    def step(self, weights: CellWeights) -> CellStep:
        parts, gates, H = self.parts, self.gates, self.hidden_size
        blocks = [block for block in "ifgo" if block == "g" or block in gates]
        R, gate_recurrence = weights["weight_hh"], weights.get("weight_gh")
        peepholes: dict[str, Tensor] = {}
        if self.peephole:  # (n, 1, H) or (n, H, H) each; copies, since Scan accepts no two views of one tensor
            peepholes = {gate: p.clone() for gate, p in zip(gates, weights["weight_ch"].split(H, 2), strict=True)}
        connect = torch.baddbmm if self.peephole == "full" else torch.addcmul

        def step(state: State, inward: Tensor) -> State:
            h, cell, *previous_gates = state  # (n, B, H)
            z = dict(zip(blocks, torch.baddbmm(inward, h, R).split(H, 2), strict=True))
            if gate_recurrence is not None:
                recurrent = torch.bmm(torch.cat(previous_gates, 2), gate_recurrence).split(H, 2)
                z |= {gate: z[gate] + term for gate, term in zip(gates, recurrent, strict=True)}

            def open_gate(gate: str, cell: Tensor) -> Tensor:
                total = connect(z[gate], cell, peepholes[gate]) if gate in peepholes else z[gate]
                return total.sigmoid()

            activations = {gate: open_gate(gate, cell) for gate in gates if gate != "o"}
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
                activations["o"] = open_gate("o", cell)
                h = activations["o"] * h
            return (h, cell) if gate_recurrence is None else (h, cell, *activations.values())

        return step
