"""A single layer of self-attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from seqpipe.nn.attention import Attention, AttentionScore, attention_mask, needs_weights
from seqpipe.nn.layers import PositionOption, position_embeddings
from seqpipe.plugin import Probability, UsageError


class SelfAttention(nn.Module):
    """One layer of self-attention (Cheng et al. 2016; Vaswani et al. 2017), with any attention score.

    Each token is a query q, and all tokens of the text are keys k: x (B, T, D) becomes the mean of the keys, weighted
    by a softmax over the scores of q and k, (B, T, D). Padding has weight 0 and output 0. `dot` is q · k, `scaled-dot`
    q · k / √D, `bilinear` q · W k, `additive` v · tanh(W q + b + U k), `concat-tanh` the sum of tanh(W [q; k] + b),
    `multi-head` the scaled dot product after linear layers in each head; `key-only`, w · k, has the same weights for
    every q; `location` scores position t by w_t · [q; x_last] + b_t, a linear layer over q and the last token (Luong et
    al. 2015). With position embeddings the input is √D x + p(t): p(t)[2i] = sin(t / 10000^(2i / D)), p(t)[2i + 1] the
    cosine, or a learned table, whose last vector all later tokens have. `attention` (B, heads, T, T) has the weights,
    with queries in rows, and 0 in the padding. In training and dev scores, which need no weights, it may be empty.

    Args:
        score: Attention score of two tokens.
        heads: Number of heads of `multi-head`; a divisor of the width.
        units: Width of W q and U k in `additive` and `concat-tanh`.
        combine: Whether the result is a linear layer over [q; mean].
        residual: Whether there is a residual connection.
        positions: Position embeddings: sinusoidal, learned, or none.
        longest: Number of learned position vectors, and of positions of the score `location`, which refuses longer
            texts.
        scale: Whether x is multiplied by √D before positions are added; false if x already has unit variance.
        causal: Whether a token attends only to itself and to earlier tokens.
        dropout: Dropout probability of the weights.
    """

    length_cost: ClassVar = "quadratic"
    returns: ClassVar = ("x", "attention")
    explains: ClassVar = {"attention": "pairs"}

    def __init__(
        self,
        dim: int,
        *,
        score: AttentionScore = "multi-head",
        heads: PositiveInt = 1,
        units: PositiveInt = 128,
        combine: bool = False,
        residual: bool = False,
        positions: PositionOption = "none",
        longest: PositiveInt = 512,
        scale: bool = True,
        causal: bool = False,
        dropout: Probability = 0.0,
    ):
        super().__init__()
        self.dim, self.residual, self.causal = dim, residual, causal
        self.scale = dim**0.5 if scale else 1.0
        self.positions = position_embeddings(positions, dim, longest)
        if score == "location" and causal:
            raise UsageError("causal: the score location reads the last token; choose another score, or causal: false")
        self.max_tokens = longest if score == "location" else None
        self.attention = Attention(
            dim, dim, score=score, units=units, heads=heads, positions=longest, combine=combine, dropout=dropout
        )

    @staticmethod
    def context(options: Mapping[str, Any]) -> str:
        return "left" if options["causal"] else "both"

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:  # (B, T, D), (B, T) -> (B, T, D), (B, H, T, T)
        x = torch.where(mask[..., None], x, 0.0)
        if self.positions is not None:
            x = self.scale * x + self.positions(x)
        projected, seen = self.attention.project(x, mask), attention_mask(mask, self.causal)
        context, weights = self.attention.attend(x, projected, seen, weights=needs_weights())
        x = torch.where(mask[..., None], x + context if self.residual else context, 0.0)
        return {"x": x, "attention": torch.where(mask[:, None, :, None], weights, 0.0)}
