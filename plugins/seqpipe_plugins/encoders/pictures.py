"""Convolutional networks over a picture, which give a sequence of places."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.plugin import Probability, UsageError

Filters = Annotated[list[PositiveInt], Field(min_length=1)]


class Pictures(nn.Module, ABC):
    """Makes places (B, P, D') of the rows of a picture (B, H, W · C), whose pixels have C channels side by side.

    Rows of padding, which pictures of one size do not have, are zero in the input of every layer.
    """

    returns: ClassVar = {"x": "", "mask": "", "state": ""}
    batch_dependent: ClassVar = True  # batch normalization
    reads_columns: ClassVar = True
    norm: nn.Module
    rows: ClassVar[dict[str, tuple[str, ...]]] = {}  # no parameter has rows of a vocabulary

    def __init__(self, dim: int, sizes: Mapping[str, int], positions: bool, dropout: float):
        super().__init__()
        self.channels, self.positions, self.dropout = sizes.get("channels", 1), positions, nn.Dropout(dropout)
        if dim % self.channels:
            fix = "put the encoder directly after the embedding `image`"
            raise UsageError(f"rows of {dim} numbers are no pixels of {self.channels} channels; {fix}")
        self.planes = self.channels + 2 * positions  # channels of the first layer

    @staticmethod
    @abstractmethod
    def grid(options: Mapping[str, Any], height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of places of a picture of `height` rows and `width` columns of pixels."""

    @abstractmethod
    def layers(self, x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features (B, D', R, S) of pixels (B, C, H, W), and 1 for each real place, 0 in the padding."""

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:  # (B, H, W C), (B, H) -> (B, P, D')
        x = torch.where(mask[..., None], x, 0.0).unflatten(2, (-1, self.channels)).permute(0, 3, 1, 2)  # (B, C, H, W)
        real = torch.zeros_like(x[:, :1]) + mask[:, None, :, None].to(x.dtype)  # (B, 1, H, W)
        if self.positions:
            # The row and the column of each pixel in widths of the picture, the same at every height.
            x = torch.cat([x, *(real.cumsum(axis) * real / x.shape[3] for axis in (2, 3))], 1)
        x, real = self.layers(x, real)
        places = real.flatten(1)  # (B, P)
        x = self.dropout(self.norm(x.flatten(2).transpose(1, 2), places[..., None]))  # (B, P, D')
        state = x.sum(1) / places.sum(1, keepdim=True).clamp(min=1)
        return {"x": x, "mask": places > 0, "state": state}


class PlaceNorm(nn.Module):
    """Batch normalization of the real places of a batch (Ioffe and Szegedy 2015); 0 in the padding.

    Without it, features of different pictures hardly differ at first, and a decoder learns captions that no picture
    matters for. An answer depends on no other picture: in evaluation means and variances are those of training.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, dim: int, momentum: float = 0.1, epsilon: float = 1e-5):
        super().__init__()
        self.momentum, self.epsilon = momentum, epsilon
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("variance", torch.ones(dim))

    def forward(self, x: Tensor, real: Tensor) -> Tensor:  # (B, P, D), (B, P, 1)
        mean, variance = self.mean, self.variance
        if self.training:
            count = real.sum().clamp(min=1)
            mean = (x * real).sum((0, 1)) / count
            variance = ((x - mean).square() * real).sum((0, 1)) / count
            with torch.no_grad():
                self.mean.lerp_(mean, self.momentum)
                self.variance.lerp_(variance, self.momentum)
        return ((x - mean) * (variance + self.epsilon).rsqrt() * self.weight + self.bias) * real


class LeNet(Pictures):
    """Convolutions, each followed by a mean over squares of two rows and two columns (LeCun et al. 1998).

    A layer computes g(w * x + b) with windows of `size` pixels, beyond the picture zeros, and then the mean of each
    square (sub-sampling). After L layers there are R = H / 2^L rows and S = W / 2^L columns of places, rounded up: x
    (B, H, W · C) of the embedding `image` becomes (B, P, D') and the mask (B, P), where P = R · S is in the order of
    rows, and D' is the last number of `filters`. So any head works on a picture, and attention is over its places (Xu
    et al. 2015). Places are normalized with the means and variances of training (batch normalization). `state` (B, D')
    is the mean of the places. `grid(options, height, width)` returns R and S.

    Args:
        filters: Number of filters of each layer.
        size: Rows and columns of the window of a filter; odd.
        activation: The function g.
        positions: Whether the row and the column of each pixel are two further channels (CoordConv, Liu et al. 2018):
            what is left or above is seen by a head that attends to places.
        dropout: Dropout probability of the result.
    """

    def __init__(
        self,
        dim: int,
        sizes: Mapping[str, int],
        *,
        filters: Filters = [16, 32],  # noqa: B006 (never changed)
        size: Literal[1, 3, 5, 7] = 5,
        activation: Literal["tanh", "relu"] = "tanh",
        positions: bool = False,
        dropout: Probability = 0.0,
    ):
        super().__init__(dim, sizes, positions, dropout)
        widths = zip([self.planes, *filters], filters, strict=False)
        self.convolutions = nn.ModuleList(nn.Conv2d(before, after, size, padding="same") for before, after in widths)
        self.activation = nn.Tanh() if activation == "tanh" else nn.ReLU()
        self.dim, self.norm = filters[-1], PlaceNorm(filters[-1])

    @staticmethod
    def grid(options: Mapping[str, Any], height: int, width: int) -> tuple[int, int]:
        return _halve(height, width, len(options.get("filters", (16, 32))))

    def layers(self, x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        for convolution in self.convolutions:
            x = self.activation(convolution(x)) * real
            # A square at the edge may have one row or one column.
            further = (0, x.shape[3] % 2, 0, 1)
            share = F.avg_pool2d(F.pad(real, further), 2)
            x = F.avg_pool2d(F.pad(x, further), 2) / share.clamp(min=0.25)
            real = (share > 0).to(x.dtype)
        return x, real


class ResNet(Pictures):
    """A small residual network (He et al. 2016): groups of blocks x + F(x), each with half the rows and columns.

    F has two convolutions with windows of 3 × 3 pixels, each followed by normalization; ReLU follows the first and the
    sum. The first block of each group but the first has a stride of 2, and a linear map in place of x. Channels are
    normalized at each place (layer normalization, Ba et al. 2016), the places of the result as in `lenet`. With G
    groups there are R = H / 2^(G - 1) rows and S = W / 2^(G - 1) columns of places, rounded up: x (B, H, W · C) of the
    embedding `image` becomes (B, P, D') and the mask (B, P), where P = R · S is in the order of rows, and D' is the
    last number of `filters`. `state` (B, D') is the mean of the places. `grid(options, height, width)` returns R and S.

    Args:
        filters: Number of filters of the convolutions of each group.
        blocks: Number of blocks of a group.
        positions: Whether the row and the column of each pixel are two further channels (CoordConv, Liu et al. 2018):
            what is left or above is seen by a head that attends to places.
        dropout: Dropout probability of the result.
    """

    def __init__(
        self,
        dim: int,
        sizes: Mapping[str, int],
        *,
        filters: Filters = [16, 32, 64],  # noqa: B006 (never changed)
        blocks: PositiveInt = 1,
        positions: bool = False,
        dropout: Probability = 0.0,
    ):
        super().__init__(dim, sizes, positions, dropout)
        self.first = nn.Conv2d(self.planes, filters[0], 3, padding=1)
        groups = [(filters[0], filters[0], 1), *((before, after, 2) for before, after in pairwise(filters))]
        self.blocks = nn.ModuleList(
            _Block(before if i == 0 else after, after, stride if i == 0 else 1)
            for before, after, stride in groups
            for i in range(blocks)
        )
        self.dim, self.norm = filters[-1], PlaceNorm(filters[-1])

    @staticmethod
    def grid(options: Mapping[str, Any], height: int, width: int) -> tuple[int, int]:
        return _halve(height, width, len(options.get("filters", (16, 32, 64))) - 1)

    def layers(self, x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.first(x)) * real
        for block in self.blocks:
            x, real = block(x, real)
        return x, real


class _Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.stride = stride
        self.convolutions = nn.ModuleList(
            [nn.Conv2d(before, after, 3, stride, padding=1), nn.Conv2d(after, after, 3, padding=1)]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(after), nn.LayerNorm(after)])
        # Its input has the stride: oneDNN 3.12 (torch 2.13) ends the process in the gradient of a window of 1 x 1 with
        # a stride, for channels in the last place, on processors without AVX-512.
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:  # (B, C, H, W), (B, 1, H, W)
        if self.stride > 1:
            real = F.max_pool2d(real, 1, self.stride)
        y = x
        for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            y = norm(convolution(y).movedim(1, 3)).movedim(3, 1)
            y = F.relu(y) * real if number == 0 else y
        return F.relu(y + self.shortcut(x[:, :, :: self.stride, :: self.stride])) * real, real


def _halve(height: int, width: int, times: int) -> tuple[int, int]:
    for _ in range(times):
        height, width = -(-height // 2), -(-width // 2)
    return height, width
