"""Vectors in, vectors of the same width out, each by itself: the feed-forward network of a Transformer's layer."""

from __future__ import annotations

from torch import nn

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


def feed_forward(dim: int, inner: int, activation: str, dropout: float) -> nn.Sequential:
    """f(x) = W2 g(W1 x + b1) + b2 with `inner` units between (Vaswani et al. 2017); dropout of g in training."""
    g = ACTIVATIONS[activation]()
    return nn.Sequential(nn.Linear(dim, inner), g, nn.Dropout(dropout), nn.Linear(inner, dim))
