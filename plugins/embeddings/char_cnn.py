"""The characters of each word in, one vector a word out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe import Chars

Positive = Annotated[int, Field(gt=0)]

GROUPS = 4  # of words of like lengths


class CharCNN(nn.Module):
    """Convolves over the characters of each word and keeps each filter's largest answer.

    One width as in Ma and Hovy (2016), several as in Kim (2014). A window stands over each real character; what it sees beyond
    the word is silent. There is no nonlinearity but the maximum.

    Since a character's vector depends on nothing but the character, its part in a filter's answer is a number of a table, one
    table for each place in the window, (alphabet, D): the convolution is a sum of look-ups, and the tables are made once.

    Args:
        dim: Number of filters, shared evenly among the widths.
        char_dim: Width of a character's vector.
        widths: How many characters each kind of filter sees.
        dropout: Probability that a number of the result is silenced in training.
    """

    features: ClassVar = {"chars": Chars(longest=20)}

    def __init__(
        self,
        sizes: Mapping[str, int],
        *,
        dim: Positive = 50,
        char_dim: Positive = 30,
        widths: Annotated[list[Positive], Field(min_length=1)] = [3],  # noqa: B006 (never changed)
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    ):
        super().__init__()
        self.dim = dim
        self.chars = nn.Embedding(sizes["chars"], char_dim, padding_idx=0)
        bound = (3 / char_dim) ** 0.5
        nn.init.uniform_(self.chars.weight, -bound, bound)
        with torch.no_grad():
            self.chars.weight[0] = 0
        shares = [dim // len(widths) + (i < dim % len(widths)) for i in range(len(widths))]
        self.filters = nn.ModuleList(nn.Conv1d(char_dim, n, w) for n, w in zip(shares, widths, strict=True) if n)
        self.left = max((width - 1) // 2 for width in widths)
        self.right = max(width // 2 for width in widths)
        self.dropout = nn.Dropout(dropout)

    def forward(self, chars: Tensor) -> Tensor:  # (B, T, C) -> (B, T, D)
        tables, bias = self._tables()
        words = self._convolved(chars, tables, bias) if torch.compiler.is_exporting() else self._each_once(chars, tables, bias)
        x: Tensor = self.dropout(words)
        return x

    def _each_once(self, chars: Tensor, tables: list[Tensor], bias: Tensor) -> Tensor:
        """The same, a word that stands several times convolved once, words of like lengths together: several times faster."""
        words, copies = torch.unique(chars.flatten(0, 1), dim=0, return_inverse=True)  # (W, C), (B * T,)
        lengths = (words != 0).sum(1)
        order = lengths.argsort(stable=True)
        parts = []
        for rows in order.tensor_split(GROUPS):
            C = max(1, int(lengths[rows].max())) if len(rows) else 1
            parts.append(self._convolved(words[rows, :C], tables, bias))
        return torch.cat(parts)[order.argsort()[copies]].view(*chars.shape[:2], self.dim)

    def _convolved(self, chars: Tensor, tables: list[Tensor], bias: Tensor) -> Tensor:  # (…, C) -> (…, D)
        C = chars.shape[-1]
        padded = F.pad(chars, (self.left, self.right))  # (…, left + C + right)
        answers = bias
        for place, table in enumerate(tables):
            answers = answers + F.embedding(padded[..., place : place + C], table)  # (…, C, D)
        real = (chars != 0)[..., None]
        largest = answers.masked_fill(~real, -1e4).max(-2).values
        return torch.where(real.any(-2), largest, 0.0)

    def _tables(self) -> tuple[list[Tensor], Tensor]:
        """For each place in the widest window, (A, D): what a character there adds to each filter; and the biases (D,)."""
        weights = []
        for conv in self.filters:
            width = conv.kernel_size[0]
            before, after = self.left - (width - 1) // 2, self.right - width // 2
            weights.append(F.pad(conv.weight, (before, after)))  # (D', char_dim, W)
        stacked = torch.cat(weights)  # (D, char_dim, W)
        tables = [F.linear(self.chars.weight, weight) for weight in stacked.unbind(2)]
        return tables, torch.cat([conv.bias for conv in self.filters])
