"""x and mask in, the hidden states of a long short-term memory out."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor, nn

from seqpipe.nn.recurrent import ragged_lstm

Positive = Annotated[int, Field(gt=0)]


class LSTM(nn.Module):
    """A long short-term memory (Hochreiter and Schmidhuber 1997), in both directions (Graves and Schmidhuber 2005).

    Rows end where their mask ends: what stands in the padding is never read. `state` is the top layer's last state:
    forward's at the row's end, backward's at its beginning.

    Args:
        hidden: Units in each direction.
        layers: Layers on top of each other.
        bidirectional: Read backward as well as forward.
        dropout: Probability that a number is silenced between two layers in training.
    """

    returns: ClassVar = ("x", "state")

    def __init__(
        self,
        dim: int,
        *,
        hidden: Positive = 128,
        layers: Positive = 1,
        bidirectional: bool = True,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    ):
        super().__init__()
        self.dim = hidden * (1 + bidirectional)
        widths = [dim] + [self.dim] * (layers - 1)
        self.layers = nn.ModuleList(nn.LSTM(w, hidden, batch_first=True, bidirectional=bidirectional) for w in widths)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:  # (B, T, D), (B, T) -> (B, T, D'), (B, D')
        lengths = mask.sum(1).clamp(min=1)  # (B,)
        for depth, lstm in enumerate(self.layers):
            assert isinstance(lstm, nn.LSTM)
            x, state = ragged_lstm(lstm, self.dropout(x) if depth else x, lengths)
        return {"x": x, "state": state}
