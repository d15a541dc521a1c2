"""A bag of words: one vector for the whole text, independent of the order of its words."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from seqpipe.plugin import Probability, UsageError


class Bag(nn.Module):
    """The sum, mean or maximum of a text's vectors, at each token: a baseline without word order.

    `sqrtn` is the sum divided by the square root of the number of tokens: for orthogonal vectors of
    equal length, it has the length of one of them.

    Layers of a deep averaging network (Iyyer et al. 2015), h = g(W h + b), may follow. The vector is returned as
    `state` (B, D'), and as x (B, T, D') at every token, so that any head of whole texts with any pooling can follow; in
    the padding x is 0.

    Args:
        pool: Pooling of the token vectors.
        hidden: Width D' of the hidden layers; null: no hidden layers, and D' is that of x.
        layers: Number of hidden layers.
        activation: The function g.
        dropout: Dropout probability of the pooled vector and of each layer's output.
    """

    returns: ClassVar = ("x", "state")
    context: ClassVar = "same"

    def __init__(
        self,
        dim: int,
        *,
        pool: Literal["sum", "mean", "sqrtn", "max"] = "mean",
        hidden: PositiveInt | None = None,
        layers: PositiveInt = 1,
        activation: Literal["relu", "tanh"] = "relu",
        dropout: Probability = 0.0,
    ):
        super().__init__()
        if hidden is None and layers != 1:
            raise UsageError(f"bag.layers: {layers} layers have no width; set hidden, or delete layers")
        if hidden is None and activation != "relu":
            raise UsageError("bag.activation: it is of the hidden layers; set hidden, or delete activation")
        self.pool, self.dim = pool, hidden or dim
        steps: list[nn.Module] = [nn.Dropout(dropout)]
        for layer in range(layers if hidden else 0):
            g = nn.Tanh() if activation == "tanh" else nn.ReLU()
            steps += [nn.Linear(self.dim if layer else dim, self.dim), g, nn.Dropout(dropout)]
        self.layers = nn.Sequential(*steps)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:  # (B, T, D), (B, T) -> (B, T, D'), (B, D')
        state = self.layers(self._pool(x, mask[..., None]))
        return {"x": torch.where(mask[..., None], state[:, None], 0.0), "state": state}

    def _pool(self, x: Tensor, real: Tensor) -> Tensor:  # (B, T, D), (B, T, 1) -> (B, D)
        if self.pool == "max":
            return torch.where(real.any(1), torch.where(real, x, torch.finfo(x.dtype).min).amax(1), 0.0)
        total = torch.where(real, x, 0.0).sum(1)
        if self.pool == "sum":
            return total
        tokens = real.sum(1).clamp(min=1)
        return total / (tokens.sqrt() if self.pool == "sqrtn" else tokens)
