"""The pixels of a picture, one row of pixels after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from seqpipe.plugin import Image as Pixels

_PROPERTIES = ("height", "width", "normalise", "background", "maximum")
Side = Annotated[int, Field(ge=1, le=4096)]


class ImageEmbedding(nn.Module):
    """The pixels of a picture, resized to H rows of W pixels; for a source without a tokenizer.

    The record's field `field` is a PNG or JPEG file or an array of numbers from 0 to `maximum`. x (B, H, W · C) has
    the C channels of each pixel side by side. An encoder such as `lenet` or `resnet` makes a sequence of places of it,
    so that any head works on pictures; without one the rows of pixels are the sequence.

    Args:
        height: H, rows of pixels.
        width: W, pixels of a row.
        colour: Whether there are three channels, red, green and blue; else one, grey.
        normalise: Whether each channel is standardised with its mean and standard deviation in the training data.
        background: Grey level, from 0 to 255, behind what is transparent.
        maximum: The number of white in an array of pixels, 255 or 1.
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
        background: Annotated[int, Field(ge=0, le=255)] = 255,
        maximum: Literal[1, 255] = 255,
    ):
        super().__init__()
        self.dim = sizes["image"]

    @staticmethod
    def features(options: Mapping[str, Any]) -> dict[str, Pixels]:
        given = {"background": 255, **{name: options[name] for name in _PROPERTIES if name in options}}
        return {"image": Pixels(channels=3 if options.get("colour", False) else 1, **given)}

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:  # (B, H, W C), (B, H) -> (B, H, W C)
        return torch.where(mask[..., None], image, 0.0)
