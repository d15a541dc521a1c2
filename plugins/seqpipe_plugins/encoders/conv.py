"""A stack of convolutions, whose receptive field grows with each layer."""

from __future__ import annotations

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

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
        self.layers = nn.ModuleList(nn.Conv1d(D, D * (1 + gated), width, dilation=step) for step in steps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, T, D')
        x = self.input(torch.where(mask[..., None], x, 0.0)).transpose(1, 2)  # (B, D', T)
        x = torch.where(mask[:, None], x, 0.0)
        for layer in [*self.layers] * self.iterations:
            assert isinstance(layer, nn.Conv1d)
            step, others = layer.dilation[0], layer.kernel_size[0] - 1
            left = others if self.causal else others // 2
            update = layer(F.pad(self.dropout(x), (left * step, (others - left) * step)))
            update = F.glu(update, 1) if self.gated else F.relu(update)
            x = torch.where(mask[:, None], x + update if self.residual else update, 0.0)
        return x.transpose(1, 2)
