"""A GPT in plain PyTorch, after nanoGPT, to compare training with."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class PlainGpt(nn.Module):
    """Learned positions, pre-norm layers, tied output weights."""

    def __init__(self, size: int, width: int, depth: int, heads: int, context: int):
        super().__init__()
        self.words, self.places, self.heads = nn.Embedding(size, width), nn.Embedding(context, width), heads

        def layer() -> nn.ModuleDict:
            inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            joined, mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
            norms = {"first": nn.LayerNorm(width), "second": nn.LayerNorm(width)}
            return nn.ModuleDict({**norms, "joined": joined, "mix": mix, "inner": inner})

        self.layers, self.norm = nn.ModuleList(layer() for _ in range(depth)), nn.LayerNorm(width)

    def loss(self, ids: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            split = (
                part.unflatten(2, (self.heads, -1)).transpose(1, 2)
                for part in layer["joined"](layer["first"](x)).chunk(3, 2)
            )
            x = x + layer["mix"](F.scaled_dot_product_attention(*split, is_causal=True).transpose(1, 2).flatten(2))
            x = x + layer["inner"](layer["second"](x))
        return F.cross_entropy(F.linear(self.norm(x), self.words.weight).flatten(0, 1), following.flatten())
