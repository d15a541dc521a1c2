"""Vectors of n-grams of words and characters, as in fastText."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.loops import State, scan
from seqpipe.plugin import Ngrams as NgramIds
from seqpipe.plugin import Probability, UsageError, token_counts

INTERPOLATION = 0.25  # factor of the weight of an n-gram with the same frequency for every label

Lengths = Annotated[list[PositiveInt], Field(min_length=2, max_length=2)]


class NgramsEmbedding(nn.Module):
    """The weighted sum of the vectors of a token's n-grams: of the words that end with it, and of its characters.

    As in fastText (Joulin et al. 2017; Bojanowski et al. 2017), but only n-grams of the training data have a vector,
    the most frequent of them. By default each is weighted by its inverse document frequency, log((1 + N) / (1 + df)) +
    1, and the vectors of a text are divided by the length of the text's weights, for words and characters
    separately. So the encoder `bag` with `pool: sqrtn` returns the sum over a text's TF-IDF vector of length 1, as a
    linear SVM reads it (Wang and Manning 2012); without `binary`, repeated n-grams count once each for that length.

    With `nb` each weight is also multiplied by 1/4 plus the root mean square, over the labels, of the n-gram's
    log-count ratio: the naive-Bayes features of Wang and Manning (2012). It is best for short texts with two labels.

    By default the vectors begin at 0: with a linear head and the optimizer `sgd` the model is a linear classifier, and
    frequent n-grams learn first. They need a high rate: `lr: 30` of the embedding beside 1 of the optimizer.

    Args:
        dim: Width of the vectors.
        words: Longest n-gram of words; 0: none.
        chars: Shortest and longest n-gram of characters within a word and its two ends; null: none.
        binary: Whether an n-gram counts once in a text, however often it occurs: better for long texts.
        max_size: Maximum number of n-grams with a vector, those in most training texts.
        weighting: tfidf; nb, for labels of whole texts: tfidf times a measure of the differences of the n-gram's
            frequency between the labels; or none: all n-grams are equal, and a token's vector is the mean.
        labels: The field that has the labels, with weighting nb.
        dropout: Probability that an n-gram is left out in training.
        initial: The vectors before training: zeros, or normal: random with the expected length 1, so that the cosine of
            two tokens measures the n-grams that they share (see the encoder `compare`).
    """

    tokenwise: ClassVar = False
    rows: ClassVar = {"table.weight": ("ngrams",), "weights": None}
    weights: Tensor

    def __init__(
        self,
        sizes: Mapping[str, int],
        *,
        dim: PositiveInt = 64,
        words: NonNegativeInt = 2,
        chars: Lengths | None = [2, 5],  # noqa: B006 (never changed)
        binary: bool = False,
        max_size: PositiveInt = 100_000,
        weighting: Literal["tfidf", "nb", "none"] = "tfidf",
        labels: str = "label",
        dropout: Probability = 0.0,
        initial: Literal["zeros", "normal"] = "zeros",
    ):
        super().__init__()
        _refuse_lengths(words, chars)
        self.dim, self.words, self.dropout, self.weighting = dim, words, dropout, weighting
        self.table = nn.EmbeddingBag(sizes["ngrams"], dim, mode="sum", padding_idx=0)
        nn.init.normal_(self.table.weight, std=dim**-0.5 if initial == "normal" else 0.0)
        with torch.no_grad():
            self.table.weight[0] = 0  # of an n-gram that training has not seen
        self.register_buffer("weights", _weights(sizes["ngrams"], weighting))  # (V,)

    @staticmethod
    def features(options: Mapping[str, Any]) -> dict[str, NgramIds]:
        words, chars = options.get("words", 2), options.get("chars", [2, 5])
        _refuse_lengths(words, chars)
        lengths = (chars[0], chars[1]) if chars else None
        label = options.get("labels", "label") if options.get("weighting") == "nb" else None
        binary, max_size = options.get("binary", False), options.get("max_size", 100_000)
        return {"ngrams": NgramIds(words, lengths, binary, max_size, label=label)}

    def forward(self, ngrams: Tensor, mask: Tensor) -> Tensor:  # (B, T, K), (B, T) -> (B, T, D)
        weights = torch.where(mask[..., None], F.embedding(ngrams, self.weights[:, None])[..., 0], 0.0)
        # Divisors of the sum over each part: the length of the text's vector of weights, which is spread over its
        # tokens, or with weights of 1 the number of a token's n-grams.
        if self.weighting == "none":
            lengths = [weights.sum(2, keepdim=True).clamp(min=1)] * 2  # (B, T, 1) each
        else:
            squares = [part.square().sum((1, 2)) / mask.sum(1) for part in self._parts(weights)]
            lengths = [square.clamp(min=1e-12).sqrt()[:, None, None] for square in squares]  # (B, 1, 1) each
        if torch.compiler.is_exporting():
            parts = self._parts(ngrams)
            x = [self._in_turn(part, mask) / length for part, length in zip(parts, lengths, strict=True)]
            return torch.where(mask[..., None], x[0] + x[1], 0.0)
        divided = [part / length for part, length in zip(self._parts(weights), lengths, strict=True)]
        # Most of a batch is padding, so only real n-grams are looked up: one bag per token.
        divided_weights = torch.cat(divided, 2)
        present = divided_weights > 0
        numbers = present.sum(2).flatten()
        kept = F.dropout(divided_weights[present], self.dropout, self.training)
        bags = self.table(ngrams[present], numbers.cumsum(0) - numbers, per_sample_weights=kept)
        return bags.view(*ngrams.shape[:2], self.dim)

    def _parts(self, values: Tensor) -> tuple[Tensor, Tensor]:  # (B, T, K) -> of words, of characters
        return values[..., : self.words], values[..., self.words :]

    def _in_turn(self, ngrams: Tensor, mask: Tensor) -> Tensor:
        """Add one n-gram of every token per step: fastest in onnxruntime, since the sum stays in the cache."""
        table = self.table.weight * self.weights[:, None]

        def step(state: State, rows: State) -> tuple[State, State]:
            return (state[0] + F.embedding(rows[0], table),), ()

        zero = torch.zeros_like(mask, dtype=table.dtype)[..., None].expand(-1, -1, self.dim)
        none = torch.zeros_like(mask, dtype=ngrams.dtype)[..., None]  # a scan has at least one step
        (total,), _ = scan(step, (zero,), (torch.cat([none, ngrams], 2).permute(2, 0, 1).contiguous(),))
        return total


def _refuse_lengths(words: int, chars: list[int] | None) -> None:
    """Raise UsageError if there is no n-gram to read."""
    if not words and not chars:
        raise UsageError("ngrams: no n-grams at all; give words 1 or more, or chars such as [2, 5]")
    if chars and chars[0] > chars[1]:
        raise UsageError(f"ngrams.chars: the shortest, {chars[0]}, is longer than the longest, {chars[1]}; swap them")


def _weights(size: int, weighting: str) -> Tensor:  # (V,)
    """Return the weight of each n-gram; 0 for the padding."""
    counts = token_counts(size)
    if weighting == "none" or counts is None:
        weights = torch.ones(size)
        weights[0] = 0
        return weights
    by_label = torch.tensor(counts, dtype=torch.float64).view(-1, size)  # (L, V): texts, then those with each n-gram
    texts, documents = by_label.sum(0).split([1, size - 1])
    idf = torch.log((1 + texts) / (1 + documents)) + 1
    if weighting == "nb":
        # Log-count ratios of each label against the others (Wang and Manning 2012), each count raised by 1.
        inside = 1 + by_label[:, 1:]
        outside = 1 + documents - by_label[:, 1:]
        ratios = torch.log(inside / inside.sum(1, keepdim=True)) - torch.log(outside / outside.sum(1, keepdim=True))
        idf = idf * (ratios.square().mean(0).sqrt() + INTERPOLATION)
    return torch.cat([torch.zeros(1), idf.float()])
