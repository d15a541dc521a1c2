"""Learned vectors of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from seqpipe.nn.layers import UNK_ID, LockedDropout
from seqpipe.plugin import SPECIALS, Column, Probability, token_counts
from seqpipe_plugins.embeddings import uniform_embedding


@dataclass(frozen=True, kw_only=True)
class WordDropout:
    """The options of dropout that tables of word vectors share.

    Args:
        dropout: Dropout probability of the vectors.
        locked_dropout: Variational dropout probability of the vectors' columns: one mask for all steps of a row.
        word_dropout: Probability that a word is replaced by [UNK] in training.
        rare_dropout: The same probability for words that occur once in the training data.
    """

    dropout: Probability = 0.0
    locked_dropout: Probability = 0.0
    word_dropout: Probability = 0.0
    rare_dropout: Probability = 0.0


NO_DROPOUT = WordDropout()


class Lookup(nn.Module):
    """A learned vector for each token of the vocabulary.

    `table` (V, D) holds the vectors of all tokens.

    Word dropout (Iyyer et al. 2015; for words that occur once, Lample et al. 2016) replaces words by [UNK] in training,
    so that the vector of unknown words is trained. In a vocabulary without `counts` no word is rare.

    With `column`, a learned vector for the value of another field of the record, such as a label or a topic, is added
    to the vector of each token: the model is conditioned on that value.

    Args:
        dim: Width of the vectors.
        column: A categorical field of the record, such as its label.
    """

    returns: ClassVar = {"x": "", "table": "(V, D) float32"}
    rare: Tensor
    tokenwise: ClassVar = True
    rows: Mapping[str, tuple[str, ...]]

    def __init__(
        self,
        vocabulary: Sequence[str],
        sizes: Mapping[str, int],
        *,
        dim: PositiveInt = 100,
        column: str | None = None,
        options: WordDropout = NO_DROPOUT,
    ):
        super().__init__()
        self.dim, self.word_dropout, self.rare_dropout = dim, options.word_dropout, options.rare_dropout
        self.table = uniform_embedding(len(vocabulary), dim)
        self.values, self.rows = None, {"table.weight": ("vocabulary",)}
        if column is not None:
            self.rows = {**self.rows, "values.weight": ("column",)}
            self.values = nn.Embedding(sizes["column"], dim)
            bound = (3 / dim) ** 0.5
            nn.init.uniform_(self.values.weight, -bound, bound)
        self.dropout = nn.Sequential(nn.Dropout(options.dropout), LockedDropout(options.locked_dropout))
        counts = token_counts(vocabulary)
        rare = [False] * len(vocabulary) if counts is None else [count == 1 for count in counts]
        self.register_buffer("rare", torch.tensor(rare), persistent=False)  # (V,)

    @staticmethod
    def features(options: Mapping[str, Any]) -> dict[str, Column]:
        field = options.get("column")
        return {} if field is None else {"column": Column(field)}

    def forward(self, ids: Tensor, column: Tensor | None = None) -> dict[str, Tensor]:  # (B, T) -> (B, T, D), (V, D)
        x = self.look_up(ids)
        if self.values is not None and column is not None:
            x = x + self.values(column)  # (B, 1, D)
        return {"x": x, "table": self.table.weight}

    def look_up(self, ids: Tensor) -> Tensor:  # (B, T) -> (B, T, D)
        """Return the vector of each token; in training with word dropout and dropout."""
        if self.training and (self.word_dropout or self.rare_dropout):
            p = torch.where(self.rare[ids], max(self.word_dropout, self.rare_dropout), self.word_dropout)  # (B, T)
            ids = torch.where((torch.rand_like(p) < p) & (ids >= len(SPECIALS)), UNK_ID, ids)
        return self.dropout(self.table(ids))
