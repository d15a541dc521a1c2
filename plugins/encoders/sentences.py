"""Sentence vectors of word vectors: the lower half of hierarchical attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe import Probability
from seqpipe import Sentences as SentencesOfWords
from seqpipe.errors import UsageError
from seqpipe.nn.attention import AttentionPool, Score
from seqpipe.nn.constants import MASKED_LOGIT
from seqpipe.nn.recurrent import ragged_rnn
from seqpipe.nn.recurrent_encoder import Direction

CELLS: Mapping[str, Callable[..., nn.RNNBase]] = {"gru": nn.GRU, "lstm": nn.LSTM, "rnn": nn.RNN}
GROUPS = 4  # of sentences of like lengths


class Sentences(nn.Module):
    """Reads each sentence by itself and makes one vector of it (Yang et al. 2016).

    The words of a sentence go through a recurrent cell, which begins anew with each sentence; its states h(t) are
    pooled, by attention with the weights a(t) = softmax(v · tanh(U h(t) + b)), into s = Σ a(t) h(t). x (B, T, D)
    becomes (B, S, D') and the mask (B, S), S being the number of sentences: stages behind it see sentences where they
    saw words. Hierarchical attention is this encoder, then {use: gru}, then a head that pools by attention.
    `word_attention` (B, T) has for each word its weight within its sentence: they sum to 1 in each; of other pools, it
    is the share that each word has: evenly of `mean`, all of `last`, and of `max` the share of places that it wins.
    `state` (B, D') is the last sentence's vector.

    Args:
        cell: The recurrent cell, or none: words are pooled as they come.
        hidden: Units in each direction of the cell.
        direction: Which way a sentence is read.
        pool: What is made of the states of a sentence: their mean by attention, their plain mean, the greatest number
            of each place, or the last state that each direction makes.
        score: What says how much a word matters, as everywhere in attention.
        units: Units of the scores additive and concat-tanh.
        heads: Heads of the score multi-head.
        split: Where a sentence ends: after its closing mark and at line ends, or at line ends alone.
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
        score: Score = "additive",
        units: PositiveInt = 100,
        heads: PositiveInt = 1,
        split: Literal["punctuation", "lines"] = "punctuation",
        dropout: Probability = 0.0,
    ):
        super().__init__()
        both, self.backward, self.pool = direction == "both", direction == "backward", pool
        self.cell = None if cell == "none" else CELLS[cell](dim, hidden, batch_first=True, bidirectional=both)
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
    def features(options: Mapping[str, Any]) -> dict[str, SentencesOfWords]:
        return {"sentences": SentencesOfWords(split=options.get("split", "punctuation"))}

    def forward(self, x: Tensor, mask: Tensor, sentences: Tensor) -> dict[str, Tensor]:  # (B, T, D), (B, T), (B, S, W)
        B, S, W = sentences.shape
        rows = torch.arange(B, device=x.device)[:, None, None] * x.shape[1]
        places = (rows + (sentences - 1).clamp(min=0)).reshape(B * S, W)  # of each word among all words of the batch
        words = torch.where(mask[..., None], x, 0.0).flatten(0, 1)  # (B * T, D)
        make = self._pooled if torch.compiler.is_exporting() else self._pooled_by_length
        vectors, weights = make(words, places, (sentences > 0).reshape(B * S, W))
        real = (sentences > 0).any(2)  # (B, S)
        vectors = self.dropout(torch.where(real[..., None], vectors.reshape(B, S, self.dim), 0.0))
        last = (real.sum(1) - 1).clamp(min=0)[:, None, None].expand(-1, -1, self.dim)
        # What is no word points to some word, with the weight 0.
        by_word = torch.zeros_like(words[:, 0]).scatter_add(0, places.flatten(), weights.flatten())
        return {
            "x": vectors,
            "mask": real,
            "state": vectors.gather(1, last)[:, 0],
            "word_attention": by_word.reshape(mask.shape),
        }

    def _pooled_by_length(self, words: Tensor, places: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Sentences of similar lengths together, without padding sentences: fastest in PyTorch."""
        lengths = present.sum(1)
        order = lengths.argsort(stable=True)
        order = order[(lengths == 0).sum().clamp(max=len(order) - 1) :]
        vectors, weights = words.new_zeros(len(places), self.dim), words.new_zeros(places.shape)
        for rows in order.tensor_split(min(GROUPS, len(order))):
            W = max(1, int(lengths[rows[-1]]))
            pooled, by_word = self._pooled(words, places[rows, :W], present[rows, :W])
            vectors = vectors.index_copy(0, rows, pooled.to(vectors.dtype))  # under autocast it may be another
            by_word = F.pad(by_word, (0, places.shape[1] - W))
            weights = weights.index_copy(0, rows, by_word.to(weights.dtype))
        return vectors, weights

    def _pooled(
        self, words: Tensor, places: Tensor, present: Tensor
    ) -> tuple[Tensor, Tensor]:  # (N, D), (R, W), (R, W)
        """The vector of each sentence (R, D') and the weights of its words (R, W)."""
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
