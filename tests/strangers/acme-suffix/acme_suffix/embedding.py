"""Characters in, a vector for a word's ending and its shape out."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from seqpipe.plugin import Chars


class Suffix(nn.Module):
    """Sums what a word's last n characters, its first one, and the characters anywhere in it say.

    Each of the n places from the end has vectors of its own, also for "the word is shorter". What a capital, a digit
    or a hyphen means is learned: by the first character, and by the maximum over all characters.

    Args:
        n: How many characters of the ending count.
        dim: Width of the vectors.
        dropout: Dropout probability of the vectors.
    """

    features: ClassVar = {"chars": Chars(longest=20)}  # of a longer word, the last 10 are there
    places: Tensor
    tables: Tensor

    def __init__(
        self,
        sizes: Mapping[str, int],
        *,
        n: Annotated[int, Field(ge=1, le=10)] = 3,
        dim: PositiveInt = 30,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    ):
        super().__init__()
        self.dim = dim
        size = sizes["chars"]
        self.ending = nn.Embedding(n * size, dim)  # a table for each place, one below the other
        self.beginning = nn.Embedding(size, dim)
        self.anywhere = nn.Embedding(size, dim)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("places", torch.arange(n), persistent=False)  # counted from the end
        self.register_buffer("tables", torch.arange(n) * size, persistent=False)

    def forward(self, chars: Tensor) -> Tensor:  # (B, T, C) -> (B, T, D)
        real = chars != 0
        ending = self.ending(self._last(chars) + self.tables).sum(2)
        anywhere = torch.where(real[..., None], self.anywhere(chars), -1e4).amax(2)
        return self.dropout(ending + self.beginning(chars[:, :, 0]) + anywhere)

    def _last(self, chars: Tensor) -> Tensor:  # (B, T, C) -> (B, T, n): the last character first, 0 before the word
        at = (chars != 0).sum(2, keepdim=True) - 1 - self.places
        return torch.where(at >= 0, chars.gather(2, at.clamp(min=0)), 0)
