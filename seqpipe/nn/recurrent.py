"""Ragged sequences in, the states of recurrent cells out: padded in PyTorch, a node or Scan a layer in export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from seqpipe.nn.cells import Cell, recurrent_step
from seqpipe.nn.dropout import LockedDropout
from seqpipe.nn.kv_cache import CacheSlots, PrefixCache
from seqpipe.nn.loops import State, scan
from seqpipe.nn.rnn_node import LIBRARY, as_node, suffixes, weights_of

Positive = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(ge=0, lt=1)]
Direction = Literal["forward", "backward", "both"]
Merge = Literal["concat", "sum", "mean"]

_KERNELS: Mapping[str, Callable[..., Any]] = {  # by an `nn.RNNBase`'s mode: the library's own loop over time
    "RNN_TANH": torch.rnn_tanh,
    "RNN_RELU": torch.rnn_relu,
    "GRU": torch.gru,
    "LSTM": torch.lstm,
}


class Recurrent(nn.Module):
    """Layers of recurrent cells over rows of their own lengths: what the encoders `rnn`, `gru`, `lstm` … share.

    `x` (B, T, D') holds the top layer's states, `state` and `first` (B, D') the last and the first that each of its
    directions makes: forward from a row's beginning to its end, backward from its end to its beginning. D' is `hidden`,
    of two directions concatenated twice that. What stands past a row's end is never read.

    Args:
        make: `nn.RNN`, `nn.GRU`, `nn.LSTM` or a `Cell`, or a partial of one.
        dim: D, the width of the x that comes in.
        hidden: Units in each direction.
        layers: Layers on top of each other; each reads the merged states of the one below.
        direction: Which way a row is read.
        merge: How the states of two directions become one; of one direction they stay as they are.
        bias: Whether the cells have biases.
        dropout: Dropout probability between two layers.
        locked_dropout: Variational dropout probability of a layer's input columns: one mask for all steps of a row.
    """

    returns: ClassVar = ("x", "state", "first")
    carried_state: Tensor | None = None  # (M, B, H) states of the rows before; None: training begins with zeros

    def __init__(
        self,
        make: Callable[..., nn.RNNBase | Cell],
        dim: int,
        hidden: int,
        layers: int,
        direction: Direction,
        merge: Merge,
        bias: bool,
        dropout: float,
        locked_dropout: float = 0.0,
    ):
        super().__init__()
        both = direction == "both"
        self.dim = hidden * (2 if both and merge == "concat" else 1)
        self.backward, self.merge = direction == "backward", merge
        widths = [dim] + [self.dim] * (layers - 1)
        self.layers = nn.ModuleList(make(width, hidden, bias=bias, bidirectional=both) for width in widths)
        self.dropout, self.locked_dropout = nn.Dropout(dropout), LockedDropout(locked_dropout)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:  # (B, T, D), (B, T) -> (B, T, D'), (B, D') twice
        if self.carried_state is not None and self.training:
            return self._forward_stateful(self.carried_state, x)
        lengths = mask.sum(1).clamp(min=1)  # (B,)
        for depth, rnn in enumerate(self.layers):
            assert isinstance(rnn, nn.RNNBase | Cell)
            x = self.locked_dropout(self.dropout(x) if depth else x)
            states, last = ragged_rnn(rnn, x, lengths, backward=self.backward)
            x = self._merged(states)
        ends = _pick(states[:, :, -1], lengths[:, None] - 1)  # (B, 1, H)
        begins = states[:, :1, 0]
        both = {1: [ends if self.backward else begins], 2: [begins, ends]}[states.shape[2]]
        return {"x": x, "state": self._merged(last), "first": self._merged(torch.cat(both, 1))}

    def set_stateful(self, rows: int | None) -> None:
        """Carry states across the batches of training, for so many rows of one length (truncated BPTT); None stops."""
        weight = self._layers[0].weight_hh_l0
        assert isinstance(weight, Tensor)
        states, hidden = self.cache_shape
        self.carried_state = None if rows is None else weight.new_zeros(states, rows, hidden)

    def _forward_stateful(self, state: Tensor, x: Tensor) -> dict[str, Tensor]:
        after: list[Tensor] = []
        starts = self._by_layer(state.to(x.device).unbind())
        for depth, (layer, start) in enumerate(zip(self._layers, starts, strict=True)):
            x, ends = along(layer, self.locked_dropout(self.dropout(x) if depth else x), start)
            after += ends
        self.carried_state = torch.stack(after).detach().to(state.dtype)
        return {"x": x, "state": x[:, -1], "first": x[:, 0]}

    @staticmethod
    def causal_fix(options: Mapping[str, Any]) -> str:
        return "" if options["direction"] == "forward" else "direction: forward"

    @property
    def cache_shape(self) -> tuple[int, int]:
        """As `seqpipe.nn.kv_cache.Causal` has it."""
        return len(self.layers) * self._states, self._layers[0].hidden_size

    @property
    def _states(self) -> int:
        first = self._layers[0]
        return first.states if isinstance(first, Cell) else 2 if first.mode == "LSTM" else 1

    @property
    def _layers(self) -> list[nn.RNNBase | Cell]:
        return cast("list[nn.RNNBase | Cell]", list(self.layers))

    def import_cache(self, cache: Tensor) -> State:  # (B, C, M, H) -> M times (B, H)
        last = nn.functional.pad(cache, (0, 0, 0, 0, 1, 0))[:, -1]
        return tuple(last[:, i].contiguous() for i in range(self.cache_shape[0]))

    def export_cache(self, prefix: PrefixCache, state: State, slots: CacheSlots) -> Tensor:
        return torch.where(slots.unfinished[:, None, None, None], torch.stack(state, 1)[:, None], 0.0)

    def prefill(self, x: Tensor, mask: Tensor, prefix: PrefixCache) -> tuple[Tensor, State]:
        x, mask = nn.functional.pad(x, (0, 0, 0, 1)), nn.functional.pad(mask, (0, 1))  # a node takes no 0 steps
        lengths = mask.sum(1)
        after: list[Tensor] = []
        for layer, start in zip(self._layers, self._by_layer(prefix.memory), strict=True):
            x, last = continued(layer, x, lengths, start)
            after += last
        return x[:, :-1], tuple(after)

    def init_cache(self, prefix: PrefixCache, max_length: int) -> State:
        return prefix.memory

    def step(self, x: Tensor, t: Tensor, prefix: PrefixCache, state: State) -> tuple[Tensor, State]:
        after: list[Tensor] = []
        for layer, now in zip(self._layers, self._by_layer(state), strict=True):
            made = one_step(layer, x, now)
            x, after = made[0], [*after, *made]
        return x, tuple(after)

    def _by_layer(self, state: State) -> list[State]:
        return [state[i : i + self._states] for i in range(0, len(state), self._states)]

    def _merged(self, states: Tensor) -> Tensor:  # (…, directions, H) -> (…, D')
        if self.merge == "concat":
            return states.flatten(-2)
        return states.sum(-2) if self.merge == "sum" else states.mean(-2)


def ragged_rnn(rnn: nn.RNNBase | Cell, x: Tensor, lengths: Tensor, *, backward: bool = False) -> tuple[Tensor, Tensor]:
    """Runs one layer of an `nn.RNN`, `nn.GRU`, `nn.LSTM` or `Cell` over rows of their own lengths.

    Args:
        rnn: One layer, one or two directions, without `proj_size`.
        x: (B, T, D); what stands past a row's length is never read.
        lengths: (B,) int64, 1 to T.
        backward: Whether a layer of one direction reads each row from its end to its beginning.

    Returns:
        The hidden states (B, T, directions, H), 0 past the end; and the last that each direction makes
        (B, directions, H): forward's at the row's end, backward's at its beginning.
    """
    node = rnn.node if isinstance(rnn, Cell) else LIBRARY[rnn.mode]
    if torch.compiler.is_exporting() and node is not None:
        states, last, *_ = as_node(rnn, node, x, lengths, backward)
        return states, last
    if rounds(rnn, x):
        with torch.autocast(x.device.type, enabled=False):
            return ragged_rnn(rnn, x.to(next(rnn.parameters()).dtype), lengths, backward=backward)
    real = (torch.arange(x.shape[1], device=x.device)[None] < lengths[:, None])[..., None]  # (B, T, 1)
    x = torch.where(real, x, 0.0)
    turn = _turned(lengths, x)
    ways = [backward or bool(suffix) for suffix in suffixes(rnn)]
    rows = [_pick(x, turn) if turned else x for turned in ways]
    made = _stepped(rnn, rows) if isinstance(rnn, Cell) else _by_kernel(rnn, rows)
    ends = [_pick(states, lengths[:, None] - 1) for states in made]  # (B, 1, H) each
    each = [_pick(states, turn) if turned else states for states, turned in zip(made, ways, strict=True)]
    return torch.where(real[..., None], torch.stack(each, 2), 0.0), torch.cat(ends, 1)


def continued(rnn: nn.RNNBase | Cell, x: Tensor, lengths: Tensor, start: State) -> tuple[Tensor, State]:
    """One layer of one direction, forward, over rows of their own lengths, 0 too, from these states (B, H) each.

    The hidden states (B, T, H), and the states at each row's end.
    """
    node = rnn.node if isinstance(rnn, Cell) else LIBRARY[rnn.mode]
    if torch.compiler.is_exporting() and node is not None:
        states, *last = as_node(rnn, node, x, lengths, False, start)
        none = (lengths == 0)[:, None]
        return states[:, :, 0], tuple(torch.where(none, old, one[:, 0]) for old, one in zip(start, last, strict=True))

    def step(now: State, rows: State) -> tuple[State, State]:
        made, real = one_step(rnn, rows[0], now), rows[1]
        after = tuple(torch.where(real, new, old) for new, old in zip(made, now, strict=True))
        return after, (after[0],)

    real = torch.arange(x.shape[1], device=x.device)[:, None] < lengths  # (T, B)
    ends, (made,) = scan(step, start, (x.transpose(0, 1).contiguous(), real[..., None]))
    return made.transpose(0, 1), ends


def along(rnn: nn.RNNBase | Cell, x: Tensor, start: State) -> tuple[Tensor, State]:
    """The same of whole rows (B, T, D) in training, by the library's own loop."""
    if rounds(rnn, x):
        with torch.autocast(x.device.type, enabled=False):
            return along(rnn, x.to(start[0].dtype), start)
    first = tuple(part[None] for part in start)
    if isinstance(rnn, Cell):
        states, ends = rnn.along(x.transpose(0, 1)[None], first)
        return states[0].transpose(0, 1), tuple(part[0] for part in ends)
    made, *last = _by_fused_kernel(rnn, x, first, "")
    return made, tuple(part[0] for part in last)


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


def _by_kernel(rnn: nn.RNNBase, rows: list[Tensor]) -> list[Tensor]:
    """Each direction from left to right: (B, T, D) -> (B, T, H).

    Padded rows of one direction go to the library's fused kernel, of an LSTM twice as fast as packed rows; what comes
    after a row's end cannot reach what came before.
    """
    zero = rows[0].new_zeros(1, rows[0].shape[0], rnn.hidden_size)
    start = (zero, zero) if rnn.mode == "LSTM" else (zero,)
    return [_by_fused_kernel(rnn, x, start, s)[0] for x, s in zip(rows, suffixes(rnn), strict=True)]


def _by_fused_kernel(rnn: nn.RNNBase, x: Tensor, start: State, suffix: str) -> State:
    """One direction from states (1, B, H): (B, T, H), and the states at the end."""
    settings = (rnn.bias, 1, 0.0, rnn.training, False, True)  # … one layer, no dropout, …, one direction, batch first
    first = start if rnn.mode == "LSTM" else start[0]
    made: State = _KERNELS[rnn.mode](x, first, weights_of(rnn, suffix), *settings)
    return made


def _stepped(cell: Cell, rows: list[Tensor]) -> list[Tensor]:
    """The same of a cell that steps in all its directions at once."""
    states: Tensor = cell(torch.stack([row.transpose(0, 1) for row in rows]))  # (directions, T, B, H)
    return list(states.transpose(1, 2).unbind())


def _turned(lengths: Tensor, x: Tensor) -> Tensor:
    """(B, T) positions that turn each row around within its length."""
    t = torch.arange(x.shape[1], device=x.device)[None]
    return torch.where(t < lengths[:, None], lengths[:, None] - 1 - t, t)


def _pick(x: Tensor, positions: Tensor) -> Tensor:  # (B, T, D), (B, N) -> (B, N, D)
    return x.gather(1, positions[..., None].expand(-1, -1, x.shape[2]))
