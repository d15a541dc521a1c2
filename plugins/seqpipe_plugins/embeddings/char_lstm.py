"""Word vectors from characters, by a bidirectional LSTM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from seqpipe.plugin import Chars, Probability, UsageError, ragged_rnn

GROUPS = 4  # of words of similar lengths


class CharLSTM(nn.Module):
    """A bidirectional LSTM over the characters of each word (Ling et al. 2015; Lample et al. 2016).

    The vector of a word is the concatenation of the last states of a forward and a backward LSTM. In the padding it is
    0.

    Args:
        dim: Width of a word's vector, half of it from each direction.
        char_dim: Width of a character's vector.
        dropout: Dropout probability of the result.
    """

    features: ClassVar = {"chars": Chars(longest=20)}
    tokenwise: ClassVar = True
    rows: ClassVar = {"chars.weight": ("chars",)}

    def __init__(
        self, sizes: Mapping[str, int], *, dim: PositiveInt = 50, char_dim: PositiveInt = 30, dropout: Probability = 0.0
    ):
        super().__init__()
        if dim % 2:
            raise UsageError(f"char-lstm.dim: {dim} is odd, but each of two directions has half; use {dim + 1}")
        self.dim = dim
        self.chars = nn.Embedding(sizes["chars"], char_dim, padding_idx=0)
        bound = (3 / char_dim) ** 0.5
        nn.init.uniform_(self.chars.weight, -bound, bound)
        with torch.no_grad():
            self.chars.weight[0] = 0
        self.lstm = nn.LSTM(char_dim, dim // 2, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, chars: Tensor) -> Tensor:  # (B, T, C) -> (B, T, D)
        words = chars.flatten(0, 1)  # (B * T, C)
        states = self._read(words) if torch.compiler.is_exporting() else self._each_word_once(words)
        x = torch.where((chars != 0).any(2, keepdim=True), states.unflatten(0, chars.shape[:2]), 0.0)
        dropped: Tensor = self.dropout(x)
        return dropped

    def _each_word_once(self, words: Tensor) -> Tensor:
        """Compute each distinct word of the batch once, in groups of similar length: fastest in PyTorch."""
        distinct, copies = torch.unique(words, dim=0, return_inverse=True)  # (W, C), (B * T,)
        order = (distinct != 0).sum(1).argsort(stable=True)
        parts = []
        for rows in order.tensor_split(min(GROUPS, len(order))):
            C = max(1, int((distinct[rows[-1]] != 0).sum()))
            parts.append(self._read(distinct[rows, :C]))
        return torch.cat(parts)[order.argsort()[copies]]

    def _read(self, words: Tensor) -> Tensor:  # (W, C) -> (W, D)
        lengths = (words != 0).sum(1).clamp(min=1)
        _, last = ragged_rnn(self.lstm, self.chars(words), lengths)
        return last.flatten(1)
