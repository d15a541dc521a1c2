"""The base class of recurrent encoders: stacked layers, stateful training, incremental decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from seqpipe.nn.cells import Cell
from seqpipe.nn.dropout import LockedDropout
from seqpipe.nn.initial_state import InitialStateEncoder, InitialStateOption
from seqpipe.nn.kv_cache import CacheSlots, PrefixCache
from seqpipe.nn.loops import State
from seqpipe.nn.recurrent import along, continued, one_step, pick, ragged_rnn

Direction = Literal["forward", "backward", "both"]
Merge = Literal["concat", "sum", "mean"]


class Recurrent(InitialStateEncoder):
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
        initial: The states before the first token, as `seqpipe.nn.initial_state.InitialState` has them.
        sizes: What those are computed from, as seqpipe wires it.
    """

    returns: ClassVar = ("x", "state", "first")
    carried_state: Tensor | None = None  # (M, B, H) of the rows before, (M, 0, H) at initial states; None: not stateful

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
        initial: InitialStateOption = "zero",
        sizes: Mapping[str, int] = MappingProxyType({}),
    ):
        super().__init__()
        both = direction == "both"
        self.dim = hidden * (2 if both and merge == "concat" else 1)
        self.backward, self.merge = direction == "backward", merge
        widths = [dim] + [self.dim] * (layers - 1)
        self.layers = nn.ModuleList(make(width, hidden, bias=bias, bidirectional=both) for width in widths)
        self.dropout, self.locked_dropout = nn.Dropout(dropout), LockedDropout(locked_dropout)
        self.add_initial_state(initial, sizes, (layers, 2 if both else 1, self._states, hidden))

    def forward(
        self, x: Tensor, mask: Tensor, initial_label: Tensor | None = None, source_state: Tensor | None = None
    ) -> dict[str, Tensor]:  # (B, T, D), (B, T), (B, 1), (B, S) -> (B, T, D'), (B, D') twice
        if self.carried_state is not None and self.training:
            return self._forward_stateful(self.carried_state, x)
        lengths = mask.sum(1).clamp(min=1)  # (B,)
        starts = self.initial_states(x.shape[0], initial_label, source_state)
        for depth, (rnn, start) in enumerate(zip(self._layers, starts, strict=True)):
            x = self.locked_dropout(self.dropout(x) if depth else x)
            states, last = ragged_rnn(rnn, x, lengths, backward=self.backward, start=start)
            x = self._merged(states)
        ends = pick(states[:, :, -1], lengths[:, None] - 1)  # (B, 1, H)
        begins = states[:, :1, 0]
        both = {1: [ends if self.backward else begins], 2: [begins, ends]}[states.shape[2]]
        return {"x": x, "state": self._merged(last), "first": self._merged(torch.cat(both, 1))}

    def set_stateful(self, rows: int | None) -> None:
        """Carry states across the batches of training, for so many rows of one length (truncated BPTT); None stops."""
        weight = self._layers[0].weight_hh_l0
        assert isinstance(weight, Tensor)
        states, hidden = len(self.layers) * self._states, self._layers[0].hidden_size
        if rows is not None and self.initial is not None:
            rows = 0  # the initial states are computed with the first batch
        self.carried_state = None if rows is None else weight.new_zeros(states, rows, hidden)

    def _forward_stateful(self, state: Tensor, x: Tensor) -> dict[str, Tensor]:
        after: list[Tensor] = []
        if self.initial is not None and not state.shape[1]:
            state = self.initial(x.shape[0], None, None).flatten(0, 2).contiguous()
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
        """As `seqpipe.nn.kv_cache.IncrementalEncoder` has it; behind initial states, whether the row has any token."""
        marks = 0 if self.initial is None else 1
        return len(self.layers) * self._states + marks, self._layers[0].hidden_size

    @property
    def _states(self) -> int:
        first = self._layers[0]
        return first.states if isinstance(first, Cell) else 2 if first.mode == "LSTM" else 1

    @property
    def _layers(self) -> list[nn.RNNBase | Cell]:
        return cast("list[nn.RNNBase | Cell]", list(self.layers))

    def import_cache(self, cache: Tensor, initial_label: Tensor | None = None) -> State:  # (B, C, M, H) -> M × (B, H)
        last = nn.functional.pad(cache, (0, 0, 0, 0, 1, 0))[:, -1]
        if self.initial is not None:
            initial = self.initial(cache.shape[0], initial_label, None).flatten(0, 2).transpose(0, 1)  # (B, M - 1, H)
            last = torch.where(last[:, -1:] > 0, last[:, :-1], initial)
        return tuple(last[:, i].contiguous() for i in range(last.shape[1]))

    def export_cache(self, prefix: PrefixCache, state: State, slots: CacheSlots) -> Tensor:
        if self.initial is not None:
            state = (*state, torch.ones_like(state[0]))
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
            states = one_step(layer, x, now)
            x, after = states[0], [*after, *states]
        return x, tuple(after)

    def _by_layer(self, state: State) -> list[State]:
        return [state[i : i + self._states] for i in range(0, len(state), self._states)]

    def _merged(self, states: Tensor) -> Tensor:  # (…, directions, H) -> (…, D')
        if self.merge == "concat":
            return states.flatten(-2)
        return states.sum(-2) if self.merge == "sum" else states.mean(-2)
