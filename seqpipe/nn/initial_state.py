"""Initial states of recurrent layers: learned, or computed from a label or from the state of another source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from seqpipe.config.names import SOURCE_STATE
from seqpipe.errors import UsageError
from seqpipe.features.kinds.base import FeatureKind
from seqpipe.features.kinds.column import Column
from seqpipe.nn.loops import State
from seqpipe.types import Means

LABEL = "initial_label"  # the feature that a label's states are computed from
Given = Annotated[
    dict[Literal["column", "source"], Annotated[str, Field(min_length=1)]],
    Field(min_length=1, max_length=1),
    Means("{column: FIELD} or {source: NAME}"),
]
InitialStateOption = Literal["zero", "learned"] | Given


class InitialState(nn.Module):
    """The states of all layers and directions before the first token.

    Learned states are parameters, the same for every row, trained by back-propagation and 0 before that. States that
    are given are computed by a linear layer, as in sequence-to-sequence models (Sutskever et al. 2014; Bahdanau et al.
    2015) and image captioning (Xu et al. 2015): h(0) = tanh(W v + b), and without the tanh each further state, such as
    the cell of an LSTM, c(0) = W' v + b'. v is the state of another source; for a label it is one-hot, so that W v is
    the label's embedding, and there is no b.

    Args:
        option: learned, {column: FIELD} or {source: NAME}.
        sizes: How many values the label has, or the width of the source's state.
        shape: Layers, directions, states of one layer and direction with h as the first, and H.
    """

    is_hidden: Tensor

    def __init__(self, option: InitialStateOption, sizes: Mapping[str, int], shape: tuple[int, int, int, int]):
        super().__init__()
        self.shape, width = shape, math.prod(shape)
        self.states = nn.Parameter(torch.zeros(shape)) if option == "learned" else None
        kind, _ = _origin(option)
        self.labels = nn.Embedding(sizes[LABEL], width) if kind == "column" else None
        self.linear = nn.Linear(sizes[SOURCE_STATE], width) if kind == "source" else None
        self.register_buffer("is_hidden", torch.arange(shape[2])[:, None] == 0, persistent=False)  # (S, 1)

    def forward(self, rows: int, label: Tensor | None, source: Tensor | None) -> Tensor:
        """The states (layers, directions, S, B, H) of B rows, of labels (B, 1) or of another source's state (B, D)."""
        if self.states is not None:
            return self.states[..., None, :].expand(-1, -1, -1, rows, -1)
        if self.labels is not None and label is not None:
            projected = self.labels(label[:, 0])  # (B, layers * directions * S * H)
        elif self.linear is not None and source is not None:
            projected = self.linear(source)
        else:
            missing = SOURCE_STATE if self.labels is None else LABEL
            raise UsageError(f"initial_state: it is computed from {missing!r}, which is not given here; pass it")
        states: Tensor = projected.unflatten(1, self.shape)
        return torch.where(self.is_hidden, states.tanh(), states).permute(1, 2, 3, 0, 4)


class InitialStateEncoder(nn.Module):
    """An encoder with the option `initial_state`: what it declares, and the states that its layers start from."""

    initial: InitialState | None  # None: zeros

    @staticmethod
    def features(options: Mapping[str, Any]) -> dict[str, FeatureKind]:
        kind, name = _origin(options.get("initial_state"))
        return {LABEL: Column(name)} if kind == "column" else {}

    @staticmethod
    def state_source(options: Mapping[str, Any]) -> str:
        kind, name = _origin(options.get("initial_state"))
        return name if kind == "source" else ""

    @property
    def rows(self) -> dict[str, tuple[str, ...]]:
        given_by_label = self.initial is not None and self.initial.labels is not None
        return {"initial.labels.weight": (LABEL,)} if given_by_label else {}

    def add_initial_state(
        self, option: InitialStateOption, sizes: Mapping[str, int], shape: tuple[int, int, int, int]
    ) -> None:
        """Add the `InitialState` of these arguments, for zeros none."""
        self._layer_count = shape[0]
        self.initial = None if option == "zero" else InitialState(option, sizes, shape)

    def initial_states(self, rows: int, label: Tensor | None, source: Tensor | None) -> list[State]:
        """The initial states (directions, B, H) of each layer; none where they are 0."""
        if self.initial is None:
            return [()] * self._layer_count
        states = self.initial(rows, label, source)
        return [tuple(state.contiguous() for state in layer.unbind(1)) for layer in states]


def _origin(option: Any) -> tuple[str, str]:
    """`column` or `source`, by which the states are given, and its name; twice "" if they are not."""
    if not isinstance(option, dict):
        return "", ""
    ((kind, name),) = option.items()
    return kind, name
