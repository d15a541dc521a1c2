"""Ragged sequences in, the states of recurrent cells out: padded in PyTorch, one ONNX node with lengths in export."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def ragged_lstm(lstm: nn.LSTM, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Runs a batch-first LSTM of one layer over rows of their own lengths.

    Args:
        lstm: One layer, one or two directions, batch first.
        x: (B, T, D); what stands past a row's length is never read.
        lengths: (B,) int64, 1 to T.

    Returns:
        The hidden states (B, T, H), or (B, T, 2H) of two directions, 0 past the end; and the last ones (B, H) or (B,
        2H), forward's at the row's end, backward's at its beginning.
    """
    if torch.compiler.is_exporting():
        return _lstm_node(lstm, x, lengths)
    real = (torch.arange(x.shape[1], device=x.device)[None] < lengths[:, None])[..., None]  # (B, T, 1)
    x = torch.where(real, x, 0.0)
    states, last = _one_way(lstm, x, "", lengths)
    if lstm.bidirectional:
        turn = _turned(lengths, x)
        backward, first = _one_way(lstm, _pick(x, turn), "_reverse", lengths)
        states, last = torch.cat([states, _pick(backward, turn)], 2), torch.cat([last, first], 1)
    return torch.where(real, states, 0.0), last


def _one_way(lstm: nn.LSTM, x: Tensor, direction: str, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """One direction, left to right: states (B, T, H) and the one at each row's end (B, H).

    Padded rows of one direction go to the library's fused kernel, which is twice as fast as packed rows; what comes
    after a row's end cannot reach what came before.
    """
    weights = [getattr(lstm, f"{name}_l0{direction}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    zero = x.new_zeros(1, x.shape[0], lstm.hidden_size)
    states, _, _ = torch.lstm(x, (zero, zero), weights, True, 1, 0.0, lstm.training, False, True)
    return states, _pick(states, lengths[:, None] - 1)[:, 0]


def _turned(lengths: Tensor, x: Tensor) -> Tensor:
    """(B, T) positions that turn each row around within its length."""
    t = torch.arange(x.shape[1], device=x.device)[None]
    return torch.where(t < lengths[:, None], lengths[:, None] - 1 - t, t)


def _pick(x: Tensor, positions: Tensor) -> Tensor:  # (B, T, D), (B, N) -> (B, N, D)
    return x.gather(1, positions[..., None].expand(-1, -1, x.shape[2]))


def _lstm_node(lstm: nn.LSTM, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The same as one ONNX LSTM: `nn.LSTM` itself would bake the example's T into the graph."""
    B, T, _ = x.shape
    H, directions = lstm.hidden_size, ("", "_reverse")[: 1 + lstm.bidirectional]
    weights: list[Tensor] = [
        torch.stack([_as_onnx(getattr(lstm, f"{name}_l0{direction}"), H) for direction in directions])
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ]
    W, R, input_bias, hidden_bias = weights  # (directions, 4H, D), (directions, 4H, H), (directions, 4H) twice
    n = len(directions)
    Y, last, _ = torch.onnx.ops.symbolic_multi_out(
        "LSTM",
        (x.transpose(0, 1), W, R, torch.cat([input_bias, hidden_bias], 1), lengths.to(torch.int32)),
        {"hidden_size": H, "direction": "bidirectional" if n == 2 else "forward"},
        dtypes=(x.dtype,) * 3,
        shapes=([T, n, B, H], [n, B, H], [n, B, H]),
        version=14,
    )
    return Y.permute(2, 0, 1, 3).reshape(B, T, n * H), last.transpose(0, 1).reshape(B, n * H)


def _as_onnx(weight: Tensor, hidden: int) -> Tensor:
    """PyTorch stacks the gates input, forget, cell, output; ONNX input, output, forget, cell."""
    i, f, c, o = (weight[gate * hidden : (gate + 1) * hidden] for gate in range(4))  # `split` would not be folded
    return torch.cat([i, o, f, c])


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
