"""Sentence vectors of word vectors: the lower half of hierarchical attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.attention import AttentionPool, AttentionScore
from seqpipe.nn.layers import MASKED_LOGIT
from seqpipe.nn.recurrent import TORCH_CELLS, Direction, ragged_rnn
from seqpipe.plugin import Probability, UsageError
from seqpipe.plugin import Sentences as SentenceTokens

SENTENCE_GROUPS = 4  # of sentences of similar lengths


class SentencesEncoder(nn.Module):
    """Encodes each sentence separately and pools its words into one vector (Yang et al. 2016).

    A recurrent network encodes the words of each sentence; its states h(t) are pooled by attention with the weights
    a(t) = softmax(v · tanh(U h(t) + b)) to s = Σ a(t) h(t). x (B, T, D) becomes (B, S, D') and the mask (B, S), where S
    is the number of sentences: later stages get sentences instead of words. A hierarchical attention network is this
    encoder, then {use: gru}, then a head with attention pooling. `word_attention` (B, T) is the weight of each word
    within its sentence; the weights of a sentence sum to 1. For other pools it is the share of each word: equal for
    `mean`, all for the `last` word, and for `max` the share of columns in which the word has the maximum. `state` (B,
    D') is the vector of the last sentence.

    Args:
        cell: The recurrent cell; none: the word vectors are pooled directly.
        hidden: Number of units in each direction.
        direction: Reading direction within a sentence.
        pool: Pooling of the states of a sentence: mean weighted by attention, mean, maximum, or the last state of each
            direction.
        score: Attention score of a word (see `seqpipe.nn.attention.Attention`).
        units: Number of units of the scores `additive` and `concat-tanh`.
        heads: Number of heads of the score `multi-head`.
        split: Where a sentence ends: after closing punctuation and at line breaks, or at line breaks only.
        dropout: Dropout probability of a sentence's vector.
    """

    returns: ClassVar = {"x": "", "mask": "", "state": "", "word_attention": "(B, T) float32"}

    def __init__(
        self,
        dim: int,
        *,
        cell: Literal["gru", "lstm", "rnn", "none"] = "gru",
        hidden: PositiveInt = 50,
        direction: Direction = "both",
        pool: Literal["attention", "mean", "max", "last"] = "attention",
        score: AttentionScore = "additive",
        units: PositiveInt = 100,
        heads: PositiveInt = 1,
        split: Literal["punctuation", "lines"] = "punctuation",
        dropout: Probability = 0.0,
    ):
        super().__init__()
        both, self.backward, self.pool = direction == "both", direction == "backward", pool
        self.cell = None if cell == "none" else TORCH_CELLS[cell](dim, hidden, batch_first=True, bidirectional=both)
        self.dim = dim if self.cell is None else hidden * (1 + both)
        self.attention = None
        if pool == "attention":
            try:
                self.attention = AttentionPool(self.dim, score=score, units=units, heads=heads)
            except UsageError as error:
                raise UsageError(f"sentences.{error}") from error
        self.dropout = nn.Dropout(dropout)

    @staticmethod
    def explains(options: Mapping[str, Any]) -> dict[str, str]:
        return {"word_attention": "words"} if options.get("pool", "attention") == "attention" else {}

    @staticmethod
    def features(options: Mapping[str, Any]) -> dict[str, SentenceTokens]:
        return {"sentences": SentenceTokens(split=options.get("split", "punctuation"))}

    def forward(self, x: Tensor, mask: Tensor, sentences: Tensor) -> dict[str, Tensor]:  # (B, T, D), (B, T), (B, S, W)
        B, S, W = sentences.shape
        # Each sentence is a row of indices into all words of the batch, so that the sentences of all texts form one
        # batch.
        rows = torch.arange(B, device=x.device)[:, None, None] * x.shape[1]
        places = (rows + (sentences - 1).clamp(min=0)).reshape(B * S, W)  # of each word among all words of the batch
        words = torch.where(mask[..., None], x, 0.0).flatten(0, 1)  # (B * T, D)
        by_length = x.device.type == "cpu" and not torch.compiler.is_exporting()
        make = self._pool_by_length if by_length else self._pool
        vectors, weights = make(words, places, (sentences > 0).reshape(B * S, W))
        real = (sentences > 0).any(2)  # (B, S)
        vectors = self.dropout(torch.where(real[..., None], vectors.reshape(B, S, self.dim), 0.0))
        last = (real.sum(1) - 1).clamp(min=0)[:, None, None].expand(-1, -1, self.dim)
        # Padding refers to some word, with the weight 0.
        by_word = torch.zeros_like(words[:, 0]).scatter_add(0, places.flatten(), weights.flatten())
        return {
            "x": vectors,
            "mask": real,
            "state": vectors.gather(1, last)[:, 0],
            "word_attention": by_word.reshape(mask.shape),
        }

    def _pool_by_length(self, words: Tensor, places: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Pool sentences in groups of similar length, without padding sentences: fastest in PyTorch on the CPU."""
        lengths = present.sum(1)
        order = lengths.argsort(stable=True)
        order = order[(lengths == 0).sum().clamp(max=len(order) - 1) :]
        vectors, weights = words.new_zeros(len(places), self.dim), words.new_zeros(places.shape)
        for rows in order.tensor_split(min(SENTENCE_GROUPS, len(order))):
            W = max(1, int(lengths[rows[-1]]))
            pooled, by_word = self._pool(words, places[rows, :W], present[rows, :W])
            vectors = vectors.index_copy(0, rows, pooled.to(vectors.dtype))  # autocast may change the dtype
            by_word = F.pad(by_word, (0, places.shape[1] - W))
            weights = weights.index_copy(0, rows, by_word.to(weights.dtype))
        return vectors, weights

    def _pool(self, words: Tensor, places: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:  # (N, D), (R, W), (R, W)
        """Return the vector of each sentence (R, D') and the weights of its words (R, W)."""
        states = F.embedding(places, words)  # (R, W, D)
        lengths = present.sum(1).clamp(min=1)
        t = torch.arange(places.shape[1], device=places.device)
        at_end = (present & (t == lengths[:, None] - 1)).to(states.dtype)  # (R, W)
        last = (at_end[:, None] @ states)[:, 0]
        if self.cell is not None:
            ways, ends = ragged_rnn(self.cell, states, lengths, backward=self.backward)
            states, last = ways.flatten(2), ends.flatten(1)
        if self.attention is not None:
            pooled, weights = self.attention(states, present)
            return pooled, weights
        if self.pool == "last":
            return last, at_end
        if self.pool == "mean":
            even = present.to(states.dtype) / lengths[:, None]
            return (even[:, None] @ states)[:, 0], even
        greatest, winners = torch.where(present[..., None], states, MASKED_LOGIT).max(1)  # (R, D')
        won = (winners[:, None] == t[:, None]).to(states.dtype).mean(2)  # (R, W)
        return greatest, torch.where(present, won, 0.0)
