"""Retrieval: the nearest of a fixed set of texts, by vectors of a bi-encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from seqpipe.nn.attention import AttentionScore
from seqpipe.nn.search import top_n
from seqpipe.plugin import Probability, Size, UsageError
from seqpipe_plugins.heads import Pooling
from seqpipe_plugins.heads.vector import VectorHead, unit

MAX_CANDIDATES = 100  # maximum number of candidates of an answer
MOST_BYTES = 1_900_000_000  # of the vectors of all candidates, which are part of the graph
ABSENT = -2.0  # below any cosine: the score of missing candidates


class Retrieval(VectorHead):
    """Retrieval: the tokens are pooled into one vector, and the answer is the candidate with the nearest one.

    One encoder reads both the text and the candidates (a bi-encoder with shared weights: Henderson et al. 2017;
    Karpukhin et al. 2020). The candidates are the texts of `data.candidates`, or those of the training records. In
    training each text stands in a batch with a candidate of its label, and all other texts and candidates of the batch
    are negatives, by the supervised contrastive loss of the head `vector` (Khosla et al. 2020, equation 2); where every
    candidate has a label of its own, that is the symmetric multiple negatives ranking loss. After each epoch the
    candidates are encoded into C (N, D), which is part of the graph: with v = pooled / |pooled|, the answer is the
    candidate with the greatest cosine in C v. Of equal ones the first in the file comes first.

    Args:
        pool: Pooling of the token vectors: their mean or maximum, the first or the last, their mean weighted by
            attention; or `state`, the vector that the encoder returns for the whole text.
        score: Attention score of a token (see `seqpipe.nn.attention.Attention`).
        width: Width of the vector, by a linear layer; null: that of the pooled vector, without a layer.
        dropout: Dropout probability of the pooled vector.
        temperature: τ of the loss; a lower value gives hard negatives more weight.
    """

    answer = "candidate"
    rows: ClassVar = {"vectors": None}
    vectors: Tensor

    def __init__(
        self,
        dim: int,
        labels: Sequence[str],
        *,
        pool: Pooling = "mean",
        score: AttentionScore = "additive",
        width: PositiveInt | None = None,
        dropout: Probability = 0.0,
        temperature: PositiveFloat = 0.05,
    ):
        super().__init__(dim, pool=pool, score=score, width=width, dropout=dropout, temperature=temperature)
        if (size := 4 * len(labels) * (width or dim)) > MOST_BYTES:
            vectors = f"the vectors of {len(labels):,} candidates have {size:,} bytes"
            raise UsageError(f"{vectors}, over the limit of {MOST_BYTES:,}; give fewer, or a smaller width")
        self.register_buffer("vectors", unit(torch.randn(len(labels), width or dim)))  # (N, D), until they are encoded

    @staticmethod
    def streaming_problem(options: Mapping[str, Any]) -> str:
        return "a query is looked up as a whole; use the head vector, and compare its vectors with the candidates'"

    def decide(
        self,
        x: Tensor,
        mask: Tensor,
        state: Tensor | None = None,
        *,
        k: Annotated[Size, Field(le=MAX_CANDIDATES)] = 5,
        threshold: Annotated[float, Field(ge=-1, le=1)] = -1.0,
    ) -> dict[str, Tensor]:
        """Return the k nearest candidates (B, K), padded with -1, their cosines, and the text's vector (B, D).

        Args:
            k: Number of nearest candidates in the answer.
            threshold: Candidates with a lower cosine similarity are no answer.
        """
        decision = super().decide(x, mask, state)
        scores = F.linear(decision["vector"], self.vectors)  # (B, N)
        # The number of candidates is fixed in the graph, but k is an input that may be greater: MOST absent ones follow
        # the candidates, and the first k of all ranked ones are selected.
        scores, nearest = top_n(F.pad(scores, (0, MAX_CANDIDATES), value=ABSENT), MAX_CANDIDATES)
        first = torch.arange(k, device=x.device)
        scores, nearest = scores.index_select(1, first), nearest.index_select(1, first)
        counts = (scores > ABSENT) & (scores.clamp(min=-1.0) >= threshold)  # rounding may give less than -1
        return {"nearest": torch.where(counts, nearest, -1), "scores": scores, **decision}

    def score(self, x: Tensor, mask: Tensor, nearest: Tensor, state: Tensor | None = None) -> Tensor:  # -> (B,)
        """Return the cosine of the first of these candidates (B, K)."""
        vector = super().decide(x, mask, state)["vector"]
        return (vector * self.vectors[nearest[:, 0].clamp(min=0)]).sum(1)

    def set_candidates(self, vectors: Tensor) -> None:
        """Takes the vectors (N, D) of the candidates."""
        self.vectors.copy_(vectors)
