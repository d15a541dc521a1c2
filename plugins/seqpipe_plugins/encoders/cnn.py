"""A convolutional network with filters of several widths around each token."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.plugin import Probability


class CNN(nn.Module):
    """A convolution over tokens with filters of several widths (Kim 2014; Collobert et al. 2011).

    A filter of width w computes g(W · [x(t - (w-1)/2); …; x(t + w/2)] + b) for the window around token t (halves are
    rounded down). x (B, T, D) becomes (B, T, D'), where D' is `filters` times the number of widths. There is one window
    for each token, so that heads for tags can follow: neither a narrow convolution as in the paper (T - w + 1 windows)
    nor a wide one (T + w - 1). Beyond the text are zeros. With the head `label` and its `pool: max` this is the network
    of the paper.

    Args:
        filters: Number of filters of each width.
        widths: Window sizes of the filters, in tokens.
        activation: The function g.
        dropout: Dropout probability of the result.
    """

    def __init__(
        self,
        dim: int,
        *,
        filters: PositiveInt = 100,
        widths: Annotated[list[PositiveInt], Field(min_length=1)] = [3, 4, 5],  # noqa: B006 (never changed)
        activation: Literal["relu", "tanh"] = "relu",
        dropout: Probability = 0.0,
    ):
        super().__init__()
        self.dim, self.widths = filters * len(widths), widths
        self.convolutions = nn.ModuleList(nn.Conv1d(dim, filters, width) for width in widths)
        self.activation = nn.Tanh() if activation == "tanh" else nn.ReLU()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, T, D')
        x = torch.where(mask[..., None], x, 0.0).transpose(1, 2)  # (B, D, T)
        answers = [
            convolution(F.pad(x, ((width - 1) // 2, width // 2)))
            for width, convolution in zip(self.widths, self.convolutions, strict=True)
        ]
        x = self.dropout(self.activation(torch.cat(answers, 1).transpose(1, 2)))
        return torch.where(mask[..., None], x, 0.0)
