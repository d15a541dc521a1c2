"""Gated convolutions with residual connections."""

from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.plugin import UsageError


class GatedConv(nn.Module):
    """Adds to each token what a convolution says, as far as another lets it through (Dauphin et al. 2017).

    Args:
        hidden: Width of the result.
        width: How many tokens a layer sees; odd.
        layers: Layers on top of each other.
        dropout: Probability that a number is silenced in training, before each layer.
    """

    def __init__(
        self,
        dim: int,
        *,
        hidden: PositiveInt = 64,
        width: PositiveInt = 3,
        layers: PositiveInt = 1,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    ):
        super().__init__()
        if width % 2 == 0:
            raise UsageError(f"width: {width} is even, so no token stands in the middle; write {width + 1}")
        self.dim = hidden
        self.enter = nn.Linear(dim, hidden)
        self.layers = nn.ModuleList(nn.Conv1d(hidden, 2 * hidden, width, padding="same") for _ in range(layers))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, T, hidden)
        real = mask[..., None]
        x = self.enter(torch.where(real, x, 0.0))
        for layer in self.layers:
            silent = torch.where(real, self.dropout(x), 0.0)  # again: the layer before has a bias
            x = x + F.glu(layer(silent.transpose(1, 2)), 1).transpose(1, 2)  # value * sigmoid(gate)
        return x
