"""The feed-forward networks and the norm of a Transformer's layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


def feed_forward(dim: int, inner: int, activation: str, dropout: float) -> nn.Sequential:
    """f(x) = W2 g(W1 x + b1) + b2 with `inner` units between (Vaswani et al. 2017); dropout of g in training."""
    g = ACTIVATIONS[activation]()
    return nn.Sequential(nn.Linear(dim, inner), g, nn.Dropout(dropout), nn.Linear(inner, dim))


class Gated(nn.Module):
    """W2 (g(W1 x) * W3 x) (Shazeer 2020); dropout of what W2 reads in training."""

    def __init__(self, gate: nn.Linear, up: nn.Linear, down: nn.Linear, activation: nn.Module, dropout: float = 0.0):
        super().__init__()
        self.gate, self.up, self.down, self.activation = gate, up, down, activation
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down(self.dropout(self.activation(self.gate(x)) * self.up(x)))
        return output


class RMSNorm(nn.Module):
    """x over the root of the mean of its squares, times a weight (Zhang and Sennrich 2019)."""

    def __init__(self, weight: Tensor, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(weight), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps))


def linear_of(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """The layer of these weights."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    return layer
