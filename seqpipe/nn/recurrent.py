"""Ragged sequences in, the states of recurrent cells out: padded in PyTorch, one ONNX node a layer in export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.loops import State, scan

Positive = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(ge=0, lt=1)]
Direction = Literal["forward", "backward", "both"]
Merge = Literal["concat", "sum", "mean"]
Reset = Literal["before", "after"]

_KERNELS: Mapping[str, Callable[..., Any]] = {  # by an `nn.RNNBase`'s mode: the library's own loop over time
    "RNN_TANH": torch.rnn_tanh,
    "RNN_RELU": torch.rnn_relu,
    "GRU": torch.gru,
    "LSTM": torch.lstm,
}
# PyTorch stacks a GRU's gates reset, update, new, an LSTM's input, forget, cell, output. ONNX wants update, reset, new,
# and input, output, forget, cell.
_ONNX_GATES: Mapping[str, tuple[int, ...]] = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 3, 1, 2)}


class Recurrent(nn.Module):
    """Layers of recurrent cells over rows of their own lengths: what the encoders `rnn`, `gru` and `lstm` share.

    `x` (B, T, D') holds the top layer's states, `state` and `first` (B, D') the last and the first that each of its
    directions makes: forward from a row's beginning to its end, backward from its end to its beginning. D' is `hidden`,
    of two directions concatenated twice that. What stands past a row's end is never read.

    Args:
        make: `nn.RNN`, `nn.GRU` or `nn.LSTM`, or a partial of one.
        dim: D, the width of the x that comes in.
        hidden: Units in each direction.
        layers: Layers on top of each other; each reads the merged states of the one below.
        direction: Which way a row is read.
        merge: How the states of two directions become one; of one direction they stay as they are.
        bias: Whether the cells have biases.
        dropout: Probability that a number is silenced between two layers in training.
        reset: Of an `nn.GRU`: whether its reset gate stands before or after the product with the recurrent weights.
    """

    returns: ClassVar = ("x", "state", "first")

    def __init__(
        self,
        make: Callable[..., nn.RNNBase],
        dim: int,
        hidden: int,
        layers: int,
        direction: Direction,
        merge: Merge,
        bias: bool,
        dropout: float,
        reset: Reset = "after",
    ):
        super().__init__()
        both = direction == "both"
        self.dim = hidden * (2 if both and merge == "concat" else 1)
        self.backward, self.merge, self.reset = direction == "backward", merge, reset
        widths = [dim] + [self.dim] * (layers - 1)
        self.layers = nn.ModuleList(make(w, hidden, bias=bias, batch_first=True, bidirectional=both) for w in widths)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:  # (B, T, D), (B, T) -> (B, T, D'), (B, D') twice
        lengths = mask.sum(1).clamp(min=1)  # (B,)
        for depth, rnn in enumerate(self.layers):
            assert isinstance(rnn, nn.RNNBase)
            x = self.dropout(x) if depth else x
            states, last = ragged_rnn(rnn, x, lengths, backward=self.backward, reset=self.reset)
            x = self._merged(states)
        ends = _pick(states[:, :, -1], lengths[:, None] - 1)  # (B, 1, H)
        begins = states[:, :1, 0]
        both = {1: [ends if self.backward else begins], 2: [begins, ends]}[states.shape[2]]
        return {"x": x, "state": self._merged(last), "first": self._merged(torch.cat(both, 1))}

    def _merged(self, states: Tensor) -> Tensor:  # (…, directions, H) -> (…, D')
        if self.merge == "concat":
            return states.flatten(-2)
        return states.sum(-2) if self.merge == "sum" else states.mean(-2)


def ragged_rnn(
    rnn: nn.RNNBase, x: Tensor, lengths: Tensor, *, backward: bool = False, reset: Reset = "after"
) -> tuple[Tensor, Tensor]:
    """Runs one layer of a batch-first `nn.RNN`, `nn.GRU` or `nn.LSTM` over rows of their own lengths.

    Args:
        rnn: One layer, one or two directions, batch first, without `proj_size`.
        x: (B, T, D); what stands past a row's length is never read.
        lengths: (B,) int64, 1 to T.
        backward: Whether a layer of one direction reads each row from its end to its beginning.
        reset: Of an `nn.GRU`: `after` as PyTorch computes it, `before` as Cho et al. (2014) do, with the same weights.

    Returns:
        The hidden states (B, T, directions, H), 0 past the end; and the last that each direction makes
        (B, directions, H): forward's at the row's end, backward's at its beginning.
    """
    if torch.compiler.is_exporting():
        return _node(rnn, x, lengths, backward, reset)
    real = (torch.arange(x.shape[1], device=x.device)[None] < lengths[:, None])[..., None]  # (B, T, 1)
    x = torch.where(real, x, 0.0)
    turn = _turned(lengths, x)
    states, last = [], []
    for suffix in _suffixes(rnn):
        turned = backward or bool(suffix)
        made = _one_way(rnn, _pick(x, turn) if turned else x, suffix, reset)
        last.append(_pick(made, lengths[:, None] - 1))  # (B, 1, H)
        states.append(_pick(made, turn) if turned else made)
    return torch.where(real[..., None], torch.stack(states, 2), 0.0), torch.cat(last, 1)


def _suffixes(rnn: nn.RNNBase) -> tuple[str, ...]:
    """What the names of a layer's weights end with, for each of its directions."""
    return ("", "_reverse") if rnn.bidirectional else ("",)


def _weights(rnn: nn.RNNBase, suffix: str) -> list[Tensor]:
    """(gates * H, D), (gates * H, H), and with biases (gates * H,) twice."""
    names = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if rnn.bias else ()))
    return [getattr(rnn, f"{name}_l0{suffix}") for name in names]


def _one_way(rnn: nn.RNNBase, x: Tensor, suffix: str, reset: Reset) -> Tensor:
    """One direction, left to right: (B, T, D) -> (B, T, H).

    Padded rows of one direction go to the library's fused kernel, of an LSTM twice as fast as packed rows; what comes
    after a row's end cannot reach what came before.
    """
    if rnn.mode == "GRU" and reset == "before":
        return _reset_before(x, _weights(rnn, suffix))
    zero = x.new_zeros(1, x.shape[0], rnn.hidden_size)
    start = (zero, zero) if rnn.mode == "LSTM" else zero
    kernel = _KERNELS[rnn.mode]
    states: Tensor = kernel(x, start, _weights(rnn, suffix), rnn.bias, 1, 0.0, rnn.training, False, True)[0]
    return states


def _reset_before(x: Tensor, weights: list[Tensor]) -> Tensor:
    """A GRU whose reset gate meets the state before the recurrent weights do: no kernel of the library computes it."""
    W, R, *biases = weights
    b, c = biases or (None, None)
    H = R.shape[1]
    inward = F.linear(x, W, b).transpose(0, 1)  # (T, B, 3H)
    (R_gates, R_new), (c_gates, c_new) = R.split(2 * H), (None, None) if c is None else c.split(2 * H)

    def step(state: State, rows: State) -> tuple[State, State]:
        (before,), (gates, new) = state, rows  # (B, H), (B, 2H), (B, H)
        r, z = torch.sigmoid(gates + F.linear(before, R_gates, c_gates)).chunk(2, 1)
        new = torch.tanh(new + F.linear(r * before, R_new, c_new))
        after = new + z * (before - new)
        return (after,), (after,)

    _, (states,) = scan(step, (x.new_zeros(x.shape[0], H),), inward.split(2 * H, 2))
    return states.transpose(0, 1)


def _turned(lengths: Tensor, x: Tensor) -> Tensor:
    """(B, T) positions that turn each row around within its length."""
    t = torch.arange(x.shape[1], device=x.device)[None]
    return torch.where(t < lengths[:, None], lengths[:, None] - 1 - t, t)


def _pick(x: Tensor, positions: Tensor) -> Tensor:  # (B, T, D), (B, N) -> (B, N, D)
    return x.gather(1, positions[..., None].expand(-1, -1, x.shape[2]))


def _node(rnn: nn.RNNBase, x: Tensor, lengths: Tensor, backward: bool, reset: Reset) -> tuple[Tensor, Tensor]:
    """The same as one ONNX node: PyTorch's own layer would bake the example's T into the graph."""
    B, T, _ = x.shape
    operator, _, activation = rnn.mode.partition("_")
    H, suffixes, gates = rnn.hidden_size, _suffixes(rnn), _ONNX_GATES[operator]
    n = len(suffixes)
    each = zip(*([_as_onnx(w, H, gates) for w in _weights(rnn, suffix)] for suffix in suffixes), strict=True)
    W, R, *biases = (torch.stack(directions) for directions in each)  # (n, gates * H, D), (…, H), (n, gates * H) twice
    attributes: dict[str, Any] = {
        "hidden_size": H,
        "direction": "bidirectional" if n == 2 else "reverse" if backward else "forward",
    }
    if operator == "RNN":
        attributes["activations"] = [activation.capitalize()] * n
    if operator == "GRU":
        attributes["linear_before_reset"] = int(reset == "after")
    state_shapes = [[n, B, H]] * (2 if operator == "LSTM" else 1)
    Y, last, *_ = torch.onnx.ops.symbolic_multi_out(
        operator,
        (x.transpose(0, 1), W, R, torch.cat(biases, 1) if biases else None, lengths.to(torch.int32)),
        attributes,
        dtypes=(x.dtype,) * (1 + len(state_shapes)),
        shapes=([T, n, B, H], *state_shapes),
        version=14,
    )
    return Y.permute(2, 0, 1, 3), last.transpose(0, 1)


def _as_onnx(weight: Tensor, hidden: int, gates: tuple[int, ...]) -> Tensor:
    """The same weights with the gates in ONNX's order."""
    return torch.cat([weight[gate * hidden : (gate + 1) * hidden] for gate in gates])  # `split` would not be folded


def gru_step(gru: nn.GRU, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One step of an `nn.GRU` (Cho et al. 2014): x (R, D) and state (R, layers, H) to output (R, H), state."""
    after = []
    for layer in range(gru.num_layers):
        before = state[:, layer]  # (R, H)
        inward = F.linear(x, getattr(gru, f"weight_ih_l{layer}"), getattr(gru, f"bias_ih_l{layer}"))  # (R, 3H)
        onward = F.linear(before, getattr(gru, f"weight_hh_l{layer}"), getattr(gru, f"bias_hh_l{layer}"))  # (R, 3H)
        (r, z, n), (hr, hz, hn) = inward.chunk(3, 1), onward.chunk(3, 1)
        z = torch.sigmoid(z + hz)
        n = torch.tanh(n + torch.sigmoid(r + hr) * hn)
        x = n + z * (before - n)
        after.append(x)
    return x, torch.stack(after, 1)
