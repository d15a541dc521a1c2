"""All layers of a language model in, one vector a token out."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.errors import UsageError


class ELMo(nn.Module):
    """A mean of the layers of the encoder `bilm` before it, by learned weights (Peters et al. 2018, equation 1).

    x = γ Σ softmax(w)_j h_j over its layers h_0 … h_L, where γ is learned too. The task that comes behind finds out
    which layers serve it; the language model itself is taken from a run, and mostly stays as it is: `{use: bilm, …,
    init: ../runs/bilm, freeze: true}`.

    Args:
        layers: How many layers there are, of a `bilm` one more than its own `layers`.
        layer_norm: Whether each layer is brought to mean 0 and variance 1 at each token first.
        dropout: Probability that a number of x is silenced in training.
    """

    returns: ClassVar = ("x",)

    def __init__(
        self,
        dim: int,
        *,
        layers: Annotated[int, Field(ge=1)] = 3,
        layer_norm: bool = False,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    ):
        super().__init__()
        self.dim, self.layer_norm = dim, layer_norm
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(()))
        self.dropout = nn.Dropout(dropout)

    def forward(self, layers: Tensor, mask: Tensor) -> Tensor:  # (B, T, L, D), (B, T) -> (B, T, D)
        if layers.shape[2] != len(self.weights):
            told = f"there are {layers.shape[2]} layers, what they read included; set layers: {layers.shape[2]}"
            raise UsageError(f"elmo.layers: {told}")
        if self.layer_norm:
            layers = F.layer_norm(layers, (self.dim,))
        mean = (self.weights.softmax(0)[:, None] * layers).sum(2)
        x: Tensor = self.dropout(torch.where(mask[..., None], self.scale * mean, 0.0))
        return x
