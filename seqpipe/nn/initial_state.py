"""Initial states of recurrent layers: learned, or computed from a label or from the state of another source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from seqpipe.config.names import SOURCE_STATE
from seqpipe.errors import UsageError
from seqpipe.features.kinds.base import FeatureKind
from seqpipe.features.kinds.column import Column
from seqpipe.types import Means

LABEL = "initial_label"  # the feature that a label's states are computed from
Given = Annotated[
    dict[Literal["column", "source"], Annotated[str, Field(min_length=1)]],
    Field(min_length=1, max_length=1),
    Means("{column: FIELD} or {source: NAME}"),
]
InitialStateOption = Literal["zero", "learned"] | Given


def initial_features(option: InitialStateOption) -> dict[str, FeatureKind]:
    """The feature of an encoder whose initial state is that of a label; else none."""
    return {LABEL: Column(option["column"])} if isinstance(option, dict) and "column" in option else {}


def initial_source(option: InitialStateOption) -> str:
    """The source whose state an encoder starts from; "" if it starts otherwise."""
    return option.get("source", "") if isinstance(option, dict) else ""


def initial_state(option: InitialStateOption, sizes: Mapping[str, int], hidden: int, kinds: list[int]) -> Any:
    """The `InitialState` of an encoder, or None for zeros; the arguments are those of that class."""
    return None if option == "zero" else InitialState(option, sizes, hidden, kinds)


class InitialState(nn.Module):
    """The states (M, B, H) of all layers and directions before the first token.

    Learned states are M parameters of H numbers, the same for every row, trained by back-propagation and 0 before that.
    A state that is given is computed by a linear layer of its own, as in sequence-to-sequence models (Sutskever et al.
    2014; Bahdanau et al. 2015) and image captioning (Xu et al. 2015): h(0) = tanh(W v + b), and without the tanh each
    further state, such as the cell of an LSTM, c(0) = W' v + b'. v is the state of another source; for a label it is
    one-hot, so that W v is the label's embedding, and there is no b.

    Args:
        option: learned, {column: FIELD} or {source: NAME}.
        sizes: How many values the label has, or the width of the source's state.
        hidden: H.
        kinds: Of each of the M states which kind it is: 0 for h, others for the further states of a cell.
    """

    is_hidden: Tensor

    def __init__(self, option: InitialStateOption, sizes: Mapping[str, int], hidden: int, kinds: list[int]):
        super().__init__()
        self.shape = len(kinds), hidden
        width, bound = len(kinds) * hidden, hidden**-0.5
        self.states = nn.Parameter(torch.zeros(self.shape)) if option == "learned" else None
        self.labels = nn.Embedding(sizes[LABEL], width) if initial_features(option) else None
        if self.labels is not None:
            nn.init.uniform_(self.labels.weight, -bound, bound)
        self.linear = nn.Linear(sizes[SOURCE_STATE], width) if initial_source(option) else None
        self.register_buffer("is_hidden", torch.tensor(kinds)[:, None, None] == 0, persistent=False)  # (M, 1, 1)

    @property
    def rows(self) -> dict[str, tuple[str, ...]]:
        """As `seqpipe.config.members` has it: the rows of the embedding belong to the values of the label."""
        return {} if self.labels is None else {"labels.weight": (LABEL,)}

    def forward(self, rows: int, label: Tensor | None, source: Tensor | None) -> Tensor:
        """The states (M, B, H) of so many rows, of their labels (B, 1) or of the state (B, D) of another source."""
        if self.states is not None:
            return self.states[:, None].expand(-1, rows, -1)
        if self.labels is not None and label is not None:
            given = self.labels(label[:, 0])  # (B, M * H)
        elif self.linear is not None and source is not None:
            given = self.linear(source)
        else:
            missing = SOURCE_STATE if self.labels is None else LABEL
            raise UsageError(f"initial_state: it is computed from {missing!r}, which is not given here; pass it")
        states: Tensor = given.unflatten(1, self.shape).transpose(0, 1)
        return torch.where(self.is_hidden, states.tanh(), states)
