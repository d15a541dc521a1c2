"""Text embeddings by supervised contrastive learning: texts with the same label are near each other."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from seqpipe.nn.attention import AttentionScore
from seqpipe.plugin import Probability
from seqpipe_plugins.heads import PooledHead, Pooling

MIN_NORM = 1e-6  # minimum length of a vector: a zero vector has no direction


class VectorHead(PooledHead):
    """Sentence embeddings: the tokens are pooled into one vector, trained by a contrastive loss on labels.

    The supervised contrastive loss (Khosla et al. 2020, equation 2) over the texts of a batch, with z = v / |v|, P(i)
    the other texts with the label of i, and temperature τ: the mean over all i with such texts of -1 / |P(i)| sum over
    p in P(i) of log(exp(z_i · z_p / τ) / sum over a != i of exp(z_i · z_a / τ)). Only texts whose label occurs at least
    twice in the batch contribute: with many labels use a large `train.batch_tokens`.

    Args:
        pool: Pooling of the token vectors: their mean or maximum, the first or the last, their mean weighted by
            attention; or `state`, the vector that the encoder returns for the whole text.
        score: Attention score of a token (see `seqpipe.nn.attention.Attention`).
        width: Width of the vector, by a linear layer; null: that of the pooled vector, without a layer.
        dropout: Dropout probability of the pooled vector.
        normalize: Whether vectors have length 1, so that a dot product is the cosine similarity.
        temperature: τ; a lower value gives hard negatives more weight.
    """

    answer = "vector"
    batch_dependent: ClassVar = True

    def __init__(
        self,
        dim: int,
        *,
        pool: Pooling = "mean",
        score: AttentionScore = "additive",
        width: PositiveInt | None = None,
        dropout: Probability = 0.0,
        normalize: bool = True,
        temperature: PositiveFloat = 0.1,
    ):
        super().__init__(dim, width, pool=pool, score=score, hidden=None, dropout=dropout)
        self.normalize, self.temperature = normalize, temperature

    def loss(self, x: Tensor, mask: Tensor, label: Tensor, state: Tensor | None = None) -> Tensor:  # -> ()
        """Return the mean over texts that share their label, or 0: x (B, T, D), mask (B, T), label (B,)."""
        return contrastive_loss(self.read(x, mask, state, learning=True)[0], label, self.temperature)

    def decide(self, x: Tensor, mask: Tensor, state: Tensor | None = None) -> dict[str, Tensor]:
        """The vector of each text (B, D)."""
        pooled, attention = self.read(x, mask, state)
        return {"vector": unit(pooled) if self.normalize else pooled, **attention}


def contrastive_loss(vectors: Tensor, label: Tensor, temperature: float) -> Tensor:  # (B, D), (B,) -> ()
    """Return the supervised contrastive loss of the class `Vector`."""
    z, alike = unit(vectors), label[:, None] == label
    same = torch.eye(len(label), dtype=torch.bool, device=label.device)
    logits = torch.where(same, torch.finfo(z.dtype).min, z @ z.T / temperature)  # (B, B)
    others = alike & ~same  # P(i)
    count = others.sum(1)  # (B,)
    error = -torch.where(others, logits.log_softmax(1), 0.0).sum(1) / count.clamp(min=1)
    return error.sum() / (count > 0).sum().clamp(min=1)


def unit(vectors: Tensor) -> Tensor:  # (B, D) -> (B, D)
    """Vectors of length 1."""
    return vectors / vectors.square().sum(1, keepdim=True).clamp(min=MIN_NORM**2).sqrt()
