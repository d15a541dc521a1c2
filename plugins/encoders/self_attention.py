"""A single layer of self-attention."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from seqpipe import Probability
from seqpipe.nn.attention import Attention, Score, visible
from seqpipe.nn.positions import Positions


class SelfAttention(nn.Module):
    """Self-attention alone (Cheng et al. 2016; Vaswani et al. 2017), by any of the scores that attention has.

    Each token asks, as a query q, all tokens of its text, as keys k: with weights that are a softmax over k of the
    score of q and k, x (B, T, D) becomes their mean, (B, T, D), 0 in the padding, which nobody attends to. `dot` is q ·
    k, `scaled-dot` q · k / √D, `bilinear` q · W k, `additive` v · tanh(W q + b + U k), `concat-tanh` the sum of tanh(W
    [q; k] + b), `multi-head` a scaled dot of linear layers in each head; `concat`, w · [q; k], has the same weights for
    every q, since a softmax takes away what q adds. Where there are positions, √D x + p(t) is read in the place of x:
    p(t)[2i] = sin(t / 10000^(2i / D)), p(t)[2i + 1] the cosine, or a learned table, of which every token past its end
    has the last vector. `attention` (B, heads, T, T) holds the weights, row by row what each token attended to, 0 where
    either is padding.

    Args:
        score: What says how well two tokens match.
        heads: Heads of `multi-head`; they divide the width.
        units: Width of W q and U k in `additive` and `concat-tanh`.
        combine: Whether a linear layer over [q; mean] makes the result.
        residual: Whether what was read is added to the result.
        positions: What tells a token's place: waves of fixed lengths, learned vectors, or nothing.
        longest: How many positions have a learned vector of their own.
        scale: Whether x is multiplied by √D before positions are added; false for x whose numbers are about 1 already.
        causal: Whether a token attends only to itself and to those before it.
        dropout: Dropout probability of the weights.
    """

    returns: ClassVar = ("x", "attention")
    explains: ClassVar = {"attention": "pairs"}

    def __init__(
        self,
        dim: int,
        *,
        score: Score = "multi-head",
        heads: PositiveInt = 1,
        units: PositiveInt = 128,
        combine: bool = False,
        residual: bool = False,
        positions: Literal["sinusoidal", "learned", "none"] = "none",
        longest: PositiveInt = 512,
        scale: bool = True,
        causal: bool = False,
        dropout: Probability = 0.0,
    ):
        super().__init__()
        self.dim, self.residual, self.causal = dim, residual, causal
        self.scale = dim**0.5 if scale else 1.0
        self.positions = (
            None if positions == "none" else Positions(dim, learned=positions == "learned", longest=longest)
        )
        self.attention = Attention(dim, dim, score=score, units=units, heads=heads, combine=combine, dropout=dropout)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:  # (B, T, D), (B, T) -> (B, T, D), (B, H, T, T)
        x = torch.where(mask[..., None], x, 0.0)
        if self.positions is not None:
            x = self.scale * x + self.positions(x)
        context, weights = self.attention.attend(x, self.attention.project(x, mask), visible(mask, self.causal))
        x = torch.where(mask[..., None], x + context if self.residual else context, 0.0)
        return {"x": x, "attention": torch.where(mask[:, None, :, None], weights, 0.0)}
