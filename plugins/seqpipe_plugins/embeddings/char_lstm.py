"""Word vectors from characters, by a bidirectional LSTM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from seqpipe.nn.recurrent import ragged_rnn
from seqpipe.plugin import Chars, Probability, UsageError
from seqpipe_plugins.embeddings import each_word_once, uniform_embedding


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
        self.chars = uniform_embedding(sizes["chars"], char_dim)
        self.lstm = nn.LSTM(char_dim, dim // 2, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, chars: Tensor) -> Tensor:  # (B, T, C) -> (B, T, D)
        words = chars.flatten(0, 1)  # (B * T, C)
        states = self._read(words) if torch.compiler.is_exporting() else each_word_once(words, self._read)
        x = torch.where((chars != 0).any(2, keepdim=True), states.unflatten(0, chars.shape[:2]), 0.0)
        return self.dropout(x)

    def _read(self, words: Tensor) -> Tensor:  # (W, C) -> (W, D)
        lengths = (words != 0).sum(1).clamp(min=1)
        _, last = ragged_rnn(self.lstm, self.chars(words), lengths)
        return last.flatten(1)
