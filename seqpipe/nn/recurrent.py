"""Recurrent layers over ragged batches, their initial states, and recurrent encoders."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from seqpipe.config.members import SOURCE_STATE
from seqpipe.errors import UsageError
from seqpipe.features.kinds.base import FeatureKind
from seqpipe.features.kinds.text import Column
from seqpipe.nn.cells import (
    LIBRARY,
    RecurrentCell,
    as_node,
    count_states,
    recurrent_step,
    suffixes,
    weight_of,
    weights_of,
)
from seqpipe.nn.incremental import CacheSlots, PrefixCache
from seqpipe.nn.layers import LockedDropout, Modules
from seqpipe.nn.loops import State, scan
from seqpipe.types import Means, Probability

__all__ = ["Direction", "InitialStateEncoder", "InitialStateOption", "Recurrent", "RecurrentOptions"]
__all__ += ["TORCH_CELLS", "decoder_start_state", "ragged_rnn", "unroll_decoder"]

# Recurrent cells over ragged sequences: padded in PyTorch, one node or Scan per layer in export.

_KERNELS: Mapping[str, Callable[..., Any]] = {  # by an `nn.RNNBase`'s mode: the library's own loop over time
    "RNN_TANH": torch.rnn_tanh,
    "RNN_RELU": torch.rnn_relu,
    "GRU": torch.gru,
    "LSTM": torch.lstm,
}


def ragged_rnn(
    rnn: nn.RNNBase | RecurrentCell, x: Tensor, lengths: Tensor, *, backward: bool = False, start: State = ()
) -> tuple[Tensor, Tensor]:
    """Run one layer of an `nn.RNN`, `nn.GRU`, `nn.LSTM` or `RecurrentCell` over ragged rows.

    Args:
        rnn: One layer, one or two directions, without `proj_size`.
        x: (B, T, D); values past a row's length are never read.
        lengths: (B,) int64, 1 to T.
        backward: Whether a layer of one direction reads each row from its end to its beginning.
        start: The initial states (directions, B, H): h(0), and other states of the cell; by default 0.

    Returns:
        The hidden states (B, T, directions, H), 0 past the end; and the last of each direction (B, directions, H): the
        forward state at the row's end, the backward state at its beginning.
    """
    node = rnn.node if isinstance(rnn, RecurrentCell) else LIBRARY[rnn.mode]
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
    # (B, T) positions that reverse each row within its length.
    t = torch.arange(x.shape[1], device=x.device)[None]
    turn = torch.where(t < lengths[:, None], lengths[:, None] - 1 - t, t)
    ways = [backward or bool(suffix) for suffix in suffixes(rnn)]
    rows = [pick(x, turn) if turned else x for turned in ways]
    if not start:
        start = tuple(x.new_zeros(len(ways), x.shape[0], rnn.hidden_size) for _ in range(count_states(rnn)))
    if isinstance(rnn, RecurrentCell):
        # Our cells run all directions at once: (directions, T, B, D) to (directions, T, B, H).
        stacked = torch.stack([row.transpose(0, 1) for row in rows])
        each_way = list(rnn.along(stacked, start)[0].transpose(1, 2).unbind())
    else:
        # Padded rows of one direction use the library's fused kernel, for an LSTM twice as fast as packed rows; values
        # past a row's end cannot affect earlier ones, since every direction runs from left to right here.
        starts = [tuple(part[i : i + 1].to(x.dtype) for part in start) for i in range(len(rows))]
        triples = zip(rows, starts, suffixes(rnn), strict=True)
        each_way = [_by_fused_kernel(rnn, row, first, suffix)[0] for row, first, suffix in triples]
    ends = [pick(states, lengths[:, None] - 1) for states in each_way]  # (B, 1, H) each
    each = [pick(states, turn) if turned else states for states, turned in zip(each_way, ways, strict=True)]
    return torch.where(real[..., None], torch.stack(each, 2), 0.0), torch.cat(ends, 1)


def continue_rows(rnn: nn.RNNBase | RecurrentCell, x: Tensor, lengths: Tensor, start: State) -> tuple[Tensor, State]:
    """Run one layer of one direction forward over rows of any lengths, also 0, from these states (B, H) each.

    Return the hidden states (B, T, H), and the states at each row's end.
    """
    node = rnn.node if isinstance(rnn, RecurrentCell) else LIBRARY[rnn.mode]
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


def along(rnn: nn.RNNBase | RecurrentCell, x: Tensor, start: State) -> tuple[Tensor, State]:
    """Run whole rows (B, T, D) in training like `continue_rows`, with the library's own loop."""
    if rounds(rnn, x):
        with torch.autocast(x.device.type, enabled=False):
            return along(rnn, x.to(start[0].dtype), start)
    first = tuple(part[None] for part in start)
    if isinstance(rnn, RecurrentCell):
        states, ends = rnn.along(x.transpose(0, 1)[None], first)
        return states[0].transpose(0, 1), tuple(part[0] for part in ends)
    states, *last = _by_fused_kernel(rnn, x, first, "")
    return states, tuple(part[0] for part in last)


def one_step(rnn: nn.RNNBase | RecurrentCell, x: Tensor, state: State) -> State:  # (R, D), (R, H) each
    """Return the states of one layer of one direction after one more token."""
    if isinstance(rnn, RecurrentCell):
        return rnn.stepped(x, state)
    _, after = recurrent_step(rnn, x, tuple(part[:, None] for part in state))
    return tuple(part[:, 0] for part in after)


def rounds(rnn: nn.RNNBase | RecurrentCell, x: Tensor) -> bool:
    """Return whether autocast must be disabled: outside the GPU kernels it rounds the state at each step.

    Few CPUs have kernels for bf16.
    """
    return torch.is_autocast_enabled(x.device.type) and not (x.is_cuda and isinstance(rnn, nn.RNNBase))


TORCH_CELLS: Mapping[str, type[nn.RNN | nn.LSTM | nn.GRU]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


def decoder_start_state(bridge: nn.Linear, state: Tensor, rnn: nn.RNNBase) -> State:
    """Return the decoder's initial state, tanh(W s + b) of a source's s (B, D): (B, layers, H); two for an LSTM."""
    parts = torch.tanh(bridge(state)).unflatten(1, (-1, rnn.num_layers, rnn.hidden_size))
    return tuple(part.contiguous() for part in parts.unbind(1))


def unroll_decoder(rnn: nn.RNNBase, x: Tensor, start: State) -> Tensor:
    """Return the top layer's states (B, N, H) of the library's layers over x (B, N, D), from `decoder_start_state`."""
    if rounds(rnn, x):
        with torch.autocast(x.device.type, enabled=False):
            return unroll_decoder(rnn, x.float(), tuple(part.float() for part in start))
    first = tuple(part.transpose(0, 1).contiguous() for part in start)  # (layers, B, H) each
    return rnn(x, first if len(first) > 1 else first[0])[0]


def _by_fused_kernel(rnn: nn.RNNBase, x: Tensor, start: State, suffix: str) -> State:
    """Run one direction from states (1, B, H); return (B, T, H) and the last states."""
    settings = (rnn.bias, 1, 0.0, rnn.training, False, True)  # … one layer, no dropout, …, one direction, batch first
    first = start if rnn.mode == "LSTM" else start[0]
    return _KERNELS[rnn.mode](x, first, weights_of(rnn, suffix), *settings)


def pick(x: Tensor, positions: Tensor) -> Tensor:  # (B, T, D), (B, N) -> (B, N, D)
    return x.gather(1, positions[..., None].expand(-1, -1, x.shape[2]))


# Initial states of recurrent layers: learned, or computed from a label or from the state of another source.

LABEL_FEATURE = "initial_label"  # the feature of the label that initial states are computed from
Given = Annotated[
    dict[Literal["column", "source"], Annotated[str, Field(min_length=1)]],
    Field(min_length=1, max_length=1),
    Means("{column: FIELD} or {source: NAME}"),
]
InitialStateOption = Literal["zero", "learned"] | Given


class InitialState(nn.Module):
    """The states of all layers and directions before the first token.

    Learned states are parameters shared by all rows, trained by back-propagation and initially 0. Computed states use a
    linear layer, as in sequence-to-sequence models (Sutskever et al. 2014; Bahdanau et al.
    2015) and image captioning (Xu et al. 2015): h(0) = tanh(W v + b), and without the tanh each other state, such as
    the cell of an LSTM, c(0) = W' v + b'. v is the state of another source; for a label it is one-hot, so W v is the
    label's embedding, and there is no b.

    Args:
        option: learned, {column: FIELD} or {source: NAME}.
        sizes: Number of values of the label, or width of the source's state.
        shape: Layers, directions, states of one layer and direction with h as the first, and H.
    """

    is_hidden: Tensor

    def __init__(self, option: InitialStateOption, sizes: Mapping[str, int], shape: tuple[int, int, int, int]):
        super().__init__()
        self.shape, width = shape, math.prod(shape)
        self.states = nn.Parameter(torch.zeros(shape)) if option == "learned" else None
        kind, _ = _origin(option)
        self.labels = nn.Embedding(sizes[LABEL_FEATURE], width) if kind == "column" else None
        self.linear = nn.Linear(sizes[SOURCE_STATE], width) if kind == "source" else None
        self.register_buffer("is_hidden", torch.arange(shape[2])[:, None] == 0, persistent=False)  # (S, 1)

    def forward(self, rows: int, label: Tensor | None, source: Tensor | None) -> Tensor:
        """Return the states (layers, directions, S, B, H) of B rows, from labels (B, 1) or a source's state (B, D)."""
        if self.states is not None:
            return self.states[..., None, :].expand(-1, -1, -1, rows, -1)
        if self.labels is not None and label is not None:
            projected = self.labels(label[:, 0])  # (B, layers * directions * S * H)
        elif self.linear is not None and source is not None:
            projected = self.linear(source)
        else:
            missing = SOURCE_STATE if self.labels is None else LABEL_FEATURE
            raise UsageError(f"initial_state: it is computed from {missing!r}, which is missing; pass it")
        states: Tensor = projected.unflatten(1, self.shape)
        return torch.where(self.is_hidden, states.tanh(), states).permute(1, 2, 3, 0, 4)


class InitialStateEncoder(nn.Module):
    """An encoder with the option `initial_state`: its declarations, and the initial states of its layers."""

    initial: InitialState | None  # None: zeros

    @staticmethod
    def features(options: Mapping[str, Any]) -> dict[str, FeatureKind]:
        kind, name = _origin(options.get("initial_state"))
        return {LABEL_FEATURE: Column(name)} if kind == "column" else {}

    @staticmethod
    def state_source(options: Mapping[str, Any]) -> str:
        kind, name = _origin(options.get("initial_state"))
        return name if kind == "source" else ""

    @property
    def rows(self) -> dict[str, tuple[str, ...]]:
        given_by_label = self.initial is not None and self.initial.labels is not None
        return {"initial.labels.weight": (LABEL_FEATURE,)} if given_by_label else {}

    def add_initial_state(
        self, option: InitialStateOption, sizes: Mapping[str, int], shape: tuple[int, int, int, int]
    ) -> None:
        """Add the `InitialState` of these arguments; none for zeros."""
        self._layer_count = shape[0]
        self.initial = None if option == "zero" else InitialState(option, sizes, shape)

    def initial_states(self, rows: int, label: Tensor | None, source: Tensor | None) -> list[State]:
        """Return the initial states (directions, B, H) of each layer; none if they are 0."""
        if self.initial is None:
            return [()] * self._layer_count
        states = self.initial(rows, label, source)
        return [tuple(state.contiguous() for state in layer.unbind(1)) for layer in states]


def _origin(option: Any) -> tuple[str, str]:
    """Return `column` or `source`, from which the states are computed, and its name; "" twice if neither."""
    if not isinstance(option, dict):
        return "", ""
    ((kind, name),) = option.items()
    return kind, name


# The base class of recurrent encoders: stacked layers, stateful training, incremental decoding.

Direction = Literal["forward", "backward", "both"]
Merge = Literal["concat", "sum", "mean"]


@dataclass(frozen=True, kw_only=True)
class RecurrentOptions:
    """Options that all recurrent encoders share.

    Args:
        hidden: Number of units in each direction.
        layers: Number of layers; the input of each is the merged output of the one below.
        direction: Reading direction.
        merge: How the states of both directions are combined.
        bias: Whether the gates have biases.
        dropout: Dropout probability between two layers.
        locked_dropout: Variational dropout probability of a layer's input columns: one mask for all steps of a row.
        initial_state: The states before the first token: zero; learned parameters; or computed from v, which is the
            label in a field of the record ({column: FIELD}) or the state of another input ({source: NAME}), which the
            head then does not read: h(0) = tanh(W v + b) (Sutskever et al. 2014; Xu et al. 2015).
    """

    hidden: PositiveInt = 128
    layers: PositiveInt = 1
    direction: Direction = "both"
    merge: Merge = "concat"
    bias: bool = True
    dropout: Probability = 0.0
    locked_dropout: Probability = 0.0
    initial_state: InitialStateOption = "zero"


class Recurrent(InitialStateEncoder):
    """Layers of recurrent cells over ragged rows: the base class of the encoders `rnn`, `gru`, `lstm` ….

    `x` (B, T, D') has the top layer's states, `state` and `first` (B, D') the last and the first of each direction:
    forward from a row's beginning to its end, backward from its end to its beginning. D' is `hidden`, or twice that for
    two concatenated directions. Values past a row's end are never read.

    Args:
        make: `nn.RNN`, `nn.GRU`, `nn.LSTM` or a `RecurrentCell`, or a partial of one.
        dim: D, the width of the input.
        sizes: Sizes for initial states, as wired by seqpipe.
        options: Options of the encoder.
    """

    returns: ClassVar = ("x", "state", "first")
    carried_state: Tensor | None = None  # (M, B, H) of the rows before, (M, 0, H) at initial states; None: not stateful

    def __init__(
        self,
        make: Callable[..., nn.RNNBase | RecurrentCell],
        dim: int,
        sizes: Mapping[str, int],
        options: RecurrentOptions,
    ):
        super().__init__()
        hidden, layers, merge = options.hidden, options.layers, options.merge
        both = options.direction == "both"
        if options.dropout and layers == 1:
            raise UsageError("dropout: it is between two layers, and layers is 1; raise layers, or use locked_dropout")
        if merge != RecurrentOptions.merge and not both:
            raise UsageError(f"merge: direction: {options.direction} has one state to merge; delete one of the two")
        self.dim = hidden * (2 if both and merge == "concat" else 1)
        self.backward, self.merge = options.direction == "backward", merge
        widths = [dim] + [self.dim] * (layers - 1)
        self.layers = Modules(make(width, hidden, bias=options.bias, bidirectional=both) for width in widths)
        self.dropout, self.locked_dropout = nn.Dropout(options.dropout), LockedDropout(options.locked_dropout)
        self._states = count_states(self.layers[0])
        self.add_initial_state(options.initial_state, sizes, (layers, 2 if both else 1, self._states, hidden))

    def initialize_for_distance(self, signs: Sequence[int], longest: int | None) -> None:
        """Initialise the gates for dependencies of up to `longest` tokens (Tallec and Ollivier 2018); None: unchanged.

        Each unit draws u from U(1, longest - 1), the number of tokens that it remembers. The bias of a gate is log u
        times its sign: 1 for a gate that keeps the state, -1 for an input gate, 0 for blocks of H rows left unchanged.
        """
        if longest is None:
            return
        for layer, suffix in ((each, suffix) for each in self.layers for suffix in suffixes(each)):
            if not layer.bias:
                raise UsageError("longest_dependency: it initialises the biases of the gates; delete bias: false")
            log_time = torch.empty(layer.hidden_size).uniform_(1, longest - 1).log()
            with torch.no_grad():
                for block, sign in enumerate(signs):
                    rows = slice(block * len(log_time), (block + 1) * len(log_time))
                    if sign:
                        weight_of(layer, "bias_ih", suffix)[rows] = sign * log_time
                        weight_of(layer, "bias_hh", suffix)[rows] = 0.0

    def forward(
        self, x: Tensor, mask: Tensor, initial_label: Tensor | None = None, source_state: Tensor | None = None
    ) -> dict[str, Tensor]:  # (B, T, D), (B, T), (B, 1), (B, S) -> (B, T, D'), (B, D') twice
        if self.carried_state is not None and self.training:
            # Truncated BPTT: rows have full length, so the library's own loop is used, and the last states are detached
            # and carried to the next batch.
            carried, after = self.carried_state, list[Tensor]()
            if self.initial is not None and not carried.shape[1]:
                carried = self.initial(x.shape[0], None, None).flatten(0, 2).contiguous()
            carried_by_layer = self._by_layer(carried.to(x.device).unbind())
            for depth, (rnn, before) in enumerate(zip(self.layers, carried_by_layer, strict=True)):
                x, layer_ends = along(rnn, self.locked_dropout(self.dropout(x) if depth else x), before)
                after += layer_ends
            self.carried_state = torch.stack(after).detach().to(carried.dtype)
            return {"x": x, "state": x[:, -1], "first": x[:, 0]}
        lengths = mask.sum(1).clamp(min=1)  # (B,)
        starts = self.initial_states(x.shape[0], initial_label, source_state)
        for depth, (rnn, start) in enumerate(zip(self.layers, starts, strict=True)):
            x = self.locked_dropout(self.dropout(x) if depth else x)
            states, last = ragged_rnn(rnn, x, lengths, backward=self.backward, start=start)
            x = self._merge(states)
        ends = pick(states[:, :, -1], lengths[:, None] - 1)  # (B, 1, H)
        begins = states[:, :1, 0]
        both = {1: [ends if self.backward else begins], 2: [begins, ends]}[states.shape[2]]
        return {"x": x, "state": self._merge(last), "first": self._merge(torch.cat(both, 1))}

    def set_stateful(self, rows: int | None) -> None:
        """Carry states across training batches of this many rows of one length (truncated BPTT); None stops."""
        weight: Tensor = self.layers[0].weight_hh_l0
        states, hidden = len(self.layers) * self._states, self.layers[0].hidden_size
        if rows is not None and self.initial is not None:
            rows = 0  # the initial states are computed with the first batch
        self.carried_state = None if rows is None else weight.new_zeros(states, rows, hidden)

    @staticmethod
    def context(options: Mapping[str, Any]) -> str:
        return {"forward": "left", "backward": "right"}.get(options["direction"], "both")

    @staticmethod
    def causal_fix(options: Mapping[str, Any]) -> str:
        return "" if options["direction"] == "forward" else "direction: forward"

    @property
    def cache_shape(self) -> tuple[int, int]:
        """Shape of the cache of one row; with initial states it includes a flag whether the row has any token."""
        marks = 0 if self.initial is None else 1
        return len(self.layers) * self._states + marks, self.layers[0].hidden_size

    def import_cache(self, cache: Tensor, initial_label: Tensor | None = None) -> State:  # (B, C, M, H) -> M × (B, H)
        last = nn.functional.pad(cache, (0, 0, 0, 0, 1, 0))[:, -1]
        if self.initial is not None:
            initial = self.initial(cache.shape[0], initial_label, None).flatten(0, 2).transpose(0, 1)  # (B, M - 1, H)
            last = torch.where(last[:, -1:] > 0, last[:, :-1], initial)
        return tuple(last[:, i].contiguous() for i in range(last.shape[1]))

    def export_cache(self, prefix: PrefixCache, slots: CacheSlots) -> Tensor:
        state = prefix.memory
        if self.initial is not None:
            state = (*state, torch.ones_like(state[0]))
        return torch.where(slots.unfinished[:, None, None, None], torch.stack(state, 1)[:, None], 0.0)

    def prefill(self, x: Tensor, mask: Tensor, prefix: PrefixCache) -> tuple[Tensor, State]:
        x, mask = nn.functional.pad(x, (0, 0, 0, 1)), nn.functional.pad(mask, (0, 1))  # a node needs at least one step
        lengths = mask.sum(1)
        after: list[Tensor] = []
        for layer, start in zip(self.layers, self._by_layer(prefix.memory), strict=True):
            x, last = continue_rows(layer, x, lengths, start)
            after += last
        return x[:, :-1], tuple(after)

    def init_cache(self, prefix: PrefixCache) -> State:
        return prefix.memory

    def extend_memory(self, memory: State, state: State) -> State:
        return state

    def step(self, x: Tensor, t: Tensor, prefix: PrefixCache, state: State) -> tuple[Tensor, State]:
        after: list[Tensor] = []
        for layer, layer_state in zip(self.layers, self._by_layer(state), strict=True):
            states = one_step(layer, x, layer_state)
            x, after = states[0], [*after, *states]
        return x, tuple(after)

    def _by_layer(self, state: State) -> list[State]:
        return [state[i : i + self._states] for i in range(0, len(state), self._states)]

    def _merge(self, states: Tensor) -> Tensor:  # (…, directions, H) -> (…, D')
        if self.merge == "concat":
            return states.flatten(-2)
        return states.sum(-2) if self.merge == "sum" else states.mean(-2)
