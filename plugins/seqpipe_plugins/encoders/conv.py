"""Stacks of convolutions: one whose receptive field grows with each layer, and one that shortens the sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.layers import Modules
from seqpipe.plugin import Probability


class Conv(nn.Module):
    """Stacked convolutions, dilated (Kalchbrenner et al. 2016), gated (Dauphin et al. 2017) or both.

    Layer l computes c(t), a linear function of the `width` tokens around t with distances of 2^l (1 without dilation):
    with width 3, the receptive field of four layers is 31 tokens. Its output is ReLU(c(t)), or a(t) σ(b(t)) if gated,
    where c(t) = [a(t); b(t)]; with a residual connection (He et al. 2016) x(t) is added. A dilated stack that is
    iterated with the same weights is the network of Strubell et al. (2017). x (B, T, D) becomes (B, T, D'). Beyond the
    text, in every layer, are zeros. A window of even width has one token more to the right; a causal window has all its
    tokens to the left.

    Args:
        hidden: Width D'; null: that of x. If they differ, a linear layer projects x first.
        layers: Number of layers.
        width: Window size of a layer, in tokens.
        dilated: Whether the dilation doubles from layer to layer.
        gated: Whether layers are gated linear units.
        residual: Whether layers have residual connections.
        iterations: Number of times that the stack of layers is applied, with the same weights.
        causal: Whether the output for a token depends only on it and earlier tokens.
        dropout: Dropout probability of a layer's input.
    """

    def __init__(
        self,
        dim: int,
        *,
        hidden: PositiveInt | None = None,
        layers: PositiveInt = 4,
        width: PositiveInt = 3,
        dilated: bool = True,
        gated: bool = False,
        residual: bool = True,
        iterations: PositiveInt = 1,
        causal: bool = False,
        dropout: Probability = 0.0,
    ):
        super().__init__()
        self.dim = D = hidden or dim
        self.gated, self.residual, self.iterations, self.causal = gated, residual, iterations, causal
        self.input = nn.Identity() if dim == D else nn.Linear(dim, D)
        steps = [2**layer if dilated else 1 for layer in range(layers)]
        self.layers = Modules(nn.Conv1d(D, D * (1 + gated), width, dilation=step) for step in steps)
        self.dropout = nn.Dropout(dropout)

    @staticmethod
    def context(options: Mapping[str, Any]) -> str:
        return "left" if options["causal"] else "both"

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, T, D')
        x = self.input(torch.where(mask[..., None], x, 0.0)).transpose(1, 2)  # (B, D', T)
        x = torch.where(mask[:, None], x, 0.0)
        for layer in [*self.layers] * self.iterations:
            step, others = layer.dilation[0], layer.kernel_size[0] - 1
            left_padding = others if self.causal else others // 2
            update = layer(F.pad(self.dropout(x), (left_padding * step, (others - left_padding) * step)))
            update = F.glu(update, 1) if self.gated else F.relu(update)
            x = torch.where(mask[:, None], x + update if self.residual else update, 0.0)
        return x.transpose(1, 2)


class Subsample(nn.Module):
    """Strided convolutions over rows and columns, which shorten a long sequence of rows of numbers (Dong et al. 2018).

    Each layer has `filters` of 3 by 3, steps of 2 rows and 2 columns and ReLU; a linear layer maps what is at a row to
    D'. x (B, T, D) becomes (B, T', D'), where T' is T / 2^layers, rounded up: with two layers, a row for 40 ms of a
    sound whose frames are 10 ms apart. Columns are frequencies in increasing order, as of the embedding `mel`. Beyond
    the sound, in every layer, are zeros. Later stages get the shorter sequence in place of tokens.

    Args:
        hidden: Width D'.
        layers: Number of convolutions.
        filters: Number of filters of each.
        dropout: Dropout probability of the result.
    """

    returns: ClassVar = ("x", "mask")
    reads_columns: ClassVar = True

    def __init__(
        self,
        dim: int,
        *,
        hidden: PositiveInt = 128,
        layers: PositiveInt = 2,
        filters: PositiveInt = 32,
        dropout: Probability = 0.0,
    ):
        super().__init__()
        self.dim = hidden
        depths = [1, *[filters] * layers]
        self.layers = nn.ModuleList(nn.Conv2d(depth, filters, 3, stride=2, padding=1) for depth in depths[:-1])
        columns = -(-dim // 2**layers)
        self.output, self.dropout = nn.Linear(filters * columns, hidden), nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:  # (B, T, D), (B, T) -> (B, T', D'), (B, T')
        x, lengths = torch.where(mask[..., None], x, 0.0)[:, None], mask.sum(1)  # (B, 1, T, D)
        for layer in self.layers:
            x, lengths = F.relu(layer(x)), (lengths + 1) // 2
            mask = torch.arange(x.shape[2], device=x.device) < lengths[:, None]
            x = torch.where(mask[:, None, :, None], x, 0.0)
        x = self.dropout(self.output(x.transpose(1, 2).flatten(2)))
        return {"x": torch.where(mask[..., None], x, 0.0), "mask": mask}
