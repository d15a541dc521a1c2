"""Recurrent cells for which PyTorch has no kernel, and single steps of those for which it has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.loops import State, scan
from seqpipe.nn.rnn_node import Node, suffixes, weight_of

Weights = Mapping[str, Tensor]
Step = Callable[[State, Tensor], State]


class Cell(nn.Module, ABC):
    """One layer of a recurrent cell, in one direction or two, to be read by `seqpipe.nn.recurrent.ragged_rnn`.

    Weights have the names that `nn.RNNBase` gives them and begin like its own, uniform within 1 / √hidden. What the
    input adds to the gates, W x(t) + b + c, is made for all steps at once. A subclass has a `step`, which does the rest
    for both directions at once, and may have more weights than W, R, b and c. In export the cell is an ONNX Scan, or if
    it has a `node` that node.

    Args:
        dim: D, the width of what is read.
        hidden: H, units in each direction.
        gates: How many blocks of H rows W and R have.
        states: How many tensors (B, H) are kept from one step to the next; the first is what the layer returns.
        bias: Whether there are the biases b and c.
        bidirectional: Whether there is a second direction, with weights of its own.
        more: Shapes of further weights of each direction, by name.
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
        node: Node | None = None,
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
    def step(self, weights: Weights) -> Step:
        """A function of the states (n, B, H), n directions, and of the gates (n, B, gates * H) as the input has them.

        It returns the states after a token. `weights` has each by its name, of all directions: (n, H, gates * H) a
        matrix, which stands on the right of a product, (n, 1, …) a vector.
        """

    def forward(self, x: Tensor) -> Tensor:  # (n, T, B, D) -> (n, T, B, H), each direction from left to right
        n, _, B, _ = x.shape
        return self.along(x, tuple(x.new_zeros(n, B, self.hidden_size) for _ in range(self.states)))[0]

    def along(self, x: Tensor, start: State) -> tuple[Tensor, State]:
        """As `forward`, from these states (n, B, H); also those at the end."""
        weights = {name: self._stacked(name) for name in self.shapes}
        T, B = x.shape[1:3]
        rows = x.flatten(1, 2)  # (n, T * B, D)
        W = weights.pop("weight_ih")
        if self.bias:
            inward = torch.baddbmm(weights.pop("bias_ih") + weights.pop("bias_hh"), rows, W)
        else:
            inward = torch.bmm(rows, W)
        step = self.step(weights)

        def looped(state: State, rows: State) -> tuple[State, State]:
            after = step(state, rows[0])
            return after, after[:1]

        ends, (states,) = scan(looped, start, (inward.unflatten(1, (T, B)).transpose(0, 1),))
        return states.transpose(0, 1), ends

    def stepped(self, x: Tensor, state: State) -> State:  # (R, D), (R, H) each
        """The states after one more token, of a cell of one direction."""
        weights = {name: self._stacked(name) for name in self.shapes}
        inward = x @ weights.pop("weight_ih")[0]
        if self.bias:
            inward = inward + (weights.pop("bias_ih") + weights.pop("bias_hh"))[0]
        after = self.step(weights)(tuple(part[None] for part in state), inward[None])
        return tuple(part[0] for part in after)

    def _stacked(self, name: str) -> Tensor:  # (n, columns, rows) or (n, 1, …)
        each = torch.stack([weight_of(self, name, suffix) for suffix in suffixes(self)])
        return each.transpose(1, 2).contiguous() if each.dim() == 3 else each[:, None]


def apart(weight: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """The first so many columns of a weight (…, columns) and the others, as copies: Scan takes no two views of one."""
    return weight[..., :columns].clone(), weight[..., columns:].clone()


def recurrent_step(
    rnn: nn.RNNBase, x: Tensor, state: State, between: Callable[[Tensor], Tensor] = lambda x: x
) -> tuple[Tensor, State]:
    """One step of an `nn.RNN`, `nn.GRU` or `nn.LSTM`: x (R, D) and its state to output (R, H), state.

    A state has the hidden states (R, layers, H), and of an LSTM also the cells, as the second tensor. `between` is
    done to what one layer gives the next.
    """
    after: list[State] = []
    for layer in range(rnn.num_layers):
        if layer:
            x = between(x)
        before = tuple(part[:, layer] for part in state)  # (R, H) each
        weights = [weight_of(rnn, name, layer=layer) for name in ("weight_ih", "weight_hh")]
        none = torch.zeros_like(weights[0][:, 0])
        biases = [weight_of(rnn, name, layer=layer) if rnn.bias else none for name in ("bias_ih", "bias_hh")]
        after.append(_STEPS[rnn.mode](x, before, *weights, *biases))
        x = after[-1][0]
    return x, tuple(torch.stack(parts, 1) for parts in zip(*after, strict=True))


def _rnn(x: Tensor, before: State, *weights: Tensor) -> State:
    return (torch.tanh(_gates(x, before[0], *weights)),)


def _relu_rnn(x: Tensor, before: State, *weights: Tensor) -> State:
    return (torch.relu(_gates(x, before[0], *weights)),)


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
    """W x + b + U h + c; in a graph one product of joined weights."""
    if torch.compiler.is_exporting():
        return F.linear(torch.cat([x, h], 1), torch.cat([w, u], 1), b + c)
    return F.linear(x, w, b) + F.linear(h, u, c)


_STEPS: Mapping[str, Callable[..., State]] = {"RNN_TANH": _rnn, "RNN_RELU": _relu_rnn, "GRU": _gru, "LSTM": _lstm}
