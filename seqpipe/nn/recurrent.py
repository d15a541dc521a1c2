"""Recurrent cells over ragged sequences: padded in PyTorch, one node or Scan a layer in export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seqpipe.nn.cells import Cell, recurrent_step
from seqpipe.nn.loops import State, scan
from seqpipe.nn.rnn_node import LIBRARY, as_node, suffixes, weights_of

_KERNELS: Mapping[str, Callable[..., Any]] = {  # by an `nn.RNNBase`'s mode: the library's own loop over time
    "RNN_TANH": torch.rnn_tanh,
    "RNN_RELU": torch.rnn_relu,
    "GRU": torch.gru,
    "LSTM": torch.lstm,
}


def ragged_rnn(
    rnn: nn.RNNBase | Cell, x: Tensor, lengths: Tensor, *, backward: bool = False, start: State = ()
) -> tuple[Tensor, Tensor]:
    """Runs one layer of an `nn.RNN`, `nn.GRU`, `nn.LSTM` or `Cell` over rows of their own lengths.

    Args:
        rnn: One layer, one or two directions, without `proj_size`.
        x: (B, T, D); what stands past a row's length is never read.
        lengths: (B,) int64, 1 to T.
        backward: Whether a layer of one direction reads each row from its end to its beginning.
        start: The initial states (directions, B, H): h(0), and those that the cell has besides; without them, 0.

    Returns:
        The hidden states (B, T, directions, H), 0 past the end; and the last that each direction makes
        (B, directions, H): forward's at the row's end, backward's at its beginning.
    """
    node = rnn.node if isinstance(rnn, Cell) else LIBRARY[rnn.mode]
    if torch.compiler.is_exporting() and node is not None:
        states, last, *_ = as_node(rnn, node, x, lengths, backward, start)
        return states, last
    if rounds(rnn, x):
        with torch.autocast(x.device.type, enabled=False):
            dtype = next(rnn.parameters()).dtype
            start = tuple(part.to(dtype) for part in start)
            return ragged_rnn(rnn, x.to(dtype), lengths, backward=backward, start=start)
    real = (torch.arange(x.shape[1], device=x.device)[None] < lengths[:, None])[..., None]  # (B, T, 1)
    x = torch.where(real, x, 0.0)
    turn = _reversed(lengths, x)
    ways = [backward or bool(suffix) for suffix in suffixes(rnn)]
    rows = [pick(x, turn) if turned else x for turned in ways]
    each_way = _stepped(rnn, rows, start) if isinstance(rnn, Cell) else _by_kernel(rnn, rows, start)
    ends = [pick(states, lengths[:, None] - 1) for states in each_way]  # (B, 1, H) each
    each = [pick(states, turn) if turned else states for states, turned in zip(each_way, ways, strict=True)]
    return torch.where(real[..., None], torch.stack(each, 2), 0.0), torch.cat(ends, 1)


def continued(rnn: nn.RNNBase | Cell, x: Tensor, lengths: Tensor, start: State) -> tuple[Tensor, State]:
    """One layer of one direction, forward, over rows of their own lengths, 0 too, from these states (B, H) each.

    The hidden states (B, T, H), and the states at each row's end.
    """
    node = rnn.node if isinstance(rnn, Cell) else LIBRARY[rnn.mode]
    if torch.compiler.is_exporting() and node is not None:
        states, *last = as_node(rnn, node, x, lengths, False, tuple(part[None] for part in start))
        none = (lengths == 0)[:, None]
        return states[:, :, 0], tuple(torch.where(none, old, end[:, 0]) for old, end in zip(start, last, strict=True))

    def step(now: State, rows: State) -> tuple[State, State]:
        state, real = one_step(rnn, rows[0], now), rows[1]
        after = tuple(torch.where(real, new, old) for new, old in zip(state, now, strict=True))
        return after, (after[0],)

    real = torch.arange(x.shape[1], device=x.device)[:, None] < lengths  # (T, B)
    ends, (states,) = scan(step, start, (x.transpose(0, 1).contiguous(), real[..., None]))
    return states.transpose(0, 1), ends


def along(rnn: nn.RNNBase | Cell, x: Tensor, start: State) -> tuple[Tensor, State]:
    """The same of whole rows (B, T, D) in training, by the library's own loop."""
    if rounds(rnn, x):
        with torch.autocast(x.device.type, enabled=False):
            return along(rnn, x.to(start[0].dtype), start)
    first = tuple(part[None] for part in start)
    if isinstance(rnn, Cell):
        states, ends = rnn.along(x.transpose(0, 1)[None], first)
        return states[0].transpose(0, 1), tuple(part[0] for part in ends)
    states, *last = _by_fused_kernel(rnn, x, first, "")
    return states, tuple(part[0] for part in last)


def one_step(rnn: nn.RNNBase | Cell, x: Tensor, state: State) -> State:  # (R, D), (R, H) each
    """The states of one layer of one direction after one more token."""
    if isinstance(rnn, Cell):
        return rnn.stepped(x, state)
    _, after = recurrent_step(rnn, x, tuple(part[:, None] for part in state))
    return tuple(part[:, 0] for part in after)


def rounds(rnn: nn.RNNBase | Cell, x: Tensor) -> bool:
    """Whether autocast has to be left for it: elsewhere than in a GPU's own kernels the state is rounded at each step.

    Few processors have the kernels in bf16 at all.
    """
    return torch.is_autocast_enabled(x.device.type) and not (x.is_cuda and isinstance(rnn, nn.RNNBase))


CELLS: Mapping[str, type[nn.RNN | nn.LSTM | nn.GRU]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


def first_state(bridge: nn.Linear, state: Tensor, rnn: nn.RNNBase) -> State:
    """Where a decoder's layers start, tanh(W s + b) of a source's s (B, D): (B, layers, H), of an LSTM two of them."""
    parts = torch.tanh(bridge(state)).unflatten(1, (-1, rnn.num_layers, rnn.hidden_size))
    return tuple(part.contiguous() for part in parts.unbind(1))


def unrolled(rnn: nn.RNNBase, x: Tensor, start: State) -> Tensor:
    """The top layer's states (B, N, H) of the library's layers over x (B, N, D), begun as `first_state` has it."""
    if rounds(rnn, x):
        with torch.autocast(x.device.type, enabled=False):
            return unrolled(rnn, x.float(), tuple(part.float() for part in start))
    first = tuple(part.transpose(0, 1).contiguous() for part in start)  # (layers, B, H) each
    h: Tensor = rnn(x, first if len(first) > 1 else first[0])[0]
    return h


def _by_kernel(rnn: nn.RNNBase, rows: list[Tensor], start: State) -> list[Tensor]:
    """Each direction from left to right: (B, T, D) -> (B, T, H), from states (directions, B, H) or from zeros.

    Padded rows of one direction go to the library's fused kernel, of an LSTM twice as fast as packed rows; what comes
    after a row's end cannot reach what came before.
    """
    if start:
        starts = [tuple(part[i : i + 1].to(rows[0].dtype) for part in start) for i in range(len(rows))]
    else:
        zero = rows[0].new_zeros(1, rows[0].shape[0], rnn.hidden_size)
        starts = [(zero, zero) if rnn.mode == "LSTM" else (zero,)] * len(rows)
    triples = zip(rows, starts, suffixes(rnn), strict=True)
    return [_by_fused_kernel(rnn, x, first, suffix)[0] for x, first, suffix in triples]


def _by_fused_kernel(rnn: nn.RNNBase, x: Tensor, start: State, suffix: str) -> State:
    """One direction from states (1, B, H): (B, T, H), and the states at the end."""
    settings = (rnn.bias, 1, 0.0, rnn.training, False, True)  # … one layer, no dropout, …, one direction, batch first
    first = start if rnn.mode == "LSTM" else start[0]
    states: State = _KERNELS[rnn.mode](x, first, weights_of(rnn, suffix), *settings)
    return states


def _stepped(cell: Cell, rows: list[Tensor], start: State) -> list[Tensor]:
    """The same of a cell that steps in all its directions at once."""
    x = torch.stack([row.transpose(0, 1) for row in rows])  # (directions, T, B, D)
    states: Tensor = cell.along(x, start)[0] if start else cell(x)  # (directions, T, B, H)
    return list(states.transpose(1, 2).unbind())


def _reversed(lengths: Tensor, x: Tensor) -> Tensor:
    """(B, T) positions that turn each row around within its length."""
    t = torch.arange(x.shape[1], device=x.device)[None]
    return torch.where(t < lengths[:, None], lengths[:, None] - 1 - t, t)


def pick(x: Tensor, positions: Tensor) -> Tensor:  # (B, T, D), (B, N) -> (B, N, D)
    return x.gather(1, positions[..., None].expand(-1, -1, x.shape[2]))
