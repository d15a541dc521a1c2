"""The pixels of a picture, one row of pixels after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from seqpipe.plugin import Image as Pixels

Side = Annotated[int, Field(ge=1, le=4096)]


class Image(nn.Module):
    """The pixels of a picture, resized to H rows of W pixels; for a source without a tokenizer.

    The record's field `field` is a PNG or JPEG file or an array of numbers from 0 to 255. x (B, H, W · C) has the C
    channels of each pixel side by side. An encoder such as `lenet` or `resnet` makes a sequence of places of it, so
    that any head works on pictures; without one the rows of pixels are the sequence.

    Args:
        height: H, rows of pixels.
        width: W, pixels of a row.
        colour: Whether there are three channels, red, green and blue; else one, grey.
        normalise: Whether each channel is standardised with its mean and standard deviation in the training data.
    """

    rows: ClassVar[dict[str, tuple[str, ...]]] = {}  # no parameter has rows of a vocabulary

    def __init__(
        self,
        sizes: Mapping[str, int],
        *,
        height: Side = 32,
        width: Side = 32,
        colour: bool = False,
        normalise: bool = True,
    ):
        super().__init__()
        self.dim = sizes["image"]

    @staticmethod
    def features(options: Mapping[str, Any]) -> dict[str, Pixels]:
        channels = 3 if options.get("colour", False) else 1
        height, width, normalise = options.get("height", 32), options.get("width", 32), options.get("normalise", True)
        return {"image": Pixels(height, width, channels, normalise=normalise)}

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:  # (B, H, W C), (B, H) -> (B, H, W C)
        return torch.where(mask[..., None], image, 0.0)
