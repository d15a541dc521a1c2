"""Attention scores and weights, for pooling, encoders and decoders."""

from __future__ import annotations

from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.errors import UsageError

Score = Literal["dot", "scaled-dot", "additive", "bilinear", "concat", "concat-tanh", "multi-head"]


class Projected(NamedTuple):
    """Keys and values, projected once for all queries: `keys` as the score needs them, `values` (B, H, T, D / H)."""

    keys: Tensor
    values: Tensor


class Attention(nn.Module):
    """Weights a(q, k) over the positions of a text, which sum to 1, and the mean of its vectors by these weights.

    The weights are a softmax over the positions of a score of the query q and a position's key k:

    - `dot`: q · k (Luong et al. 2015); widths are equal.
    - `scaled-dot`: q · k / √D (Vaswani et al. 2017); widths are equal.
    - `bilinear`: q · W k (Luong et al. 2015, "general").
    - `additive`: v · tanh(W q + b + U k) (Bahdanau et al. 2015).
    - `concat`: w · [q; k], a linear layer. What it makes of q is the same number at every position, which a softmax
      takes away again: the weights depend on the keys alone, and no weight of q is kept.
    - `concat-tanh`: the sum of tanh(W [q; k] + b) over its units.
    - `multi-head`: `heads` times a scaled dot of W q + b and U k, each over a share of the query's width, with values
      V k + c; then a linear layer over all heads (Vaswani et al. 2017). A bias of the keys would change no weight.

    Whatever stands at masked positions, NaN included, is never read; their weights are 0. A text without any real
    position has the context 0 (of `multi-head` and `combine` what their last layer makes of 0).

    A decoder projects the keys once and attends step by step, also in a `while_loop`:
    `projected = attention.project(keys, mask)`, then `attention.attend(query, projected, mask)`.

    Args:
        query_dim: Dq, the width of a query; None: there is one query, learned, the same for every text.
        key_dim: Dk, the width of the keys.
        score: What says how well a query and a key match.
        units: Width of W q and U k in `additive` and `concat-tanh`.
        heads: Heads of `multi-head`; they divide the query's width.
        combine: Whether a linear layer over [q; context] makes the context as wide as the query.
        dropout: Dropout probability of the weights.

    Raises:
        UsageError: if the widths or the heads do not fit the score.
    """

    def __init__(
        self,
        query_dim: int | None,
        key_dim: int,
        *,
        score: Score = "additive",
        units: int = 128,
        heads: int = 1,
        combine: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__()
        width = key_dim if query_dim is None else query_dim
        _refuse_unfit(score, width, key_dim, heads)
        many, summed = score == "multi-head", score in ("additive", "concat-tanh")
        inner = units if summed else 1 if score == "concat" else width  # of query and key where they meet
        self.score, self.heads = score, heads
        self.query: nn.Module = nn.Identity()
        if query_dim is None and score != "concat":
            self.query = _Learned(inner)
        elif many or summed:
            self.query = nn.Linear(width, inner)
        self.key = nn.Identity() if score in ("dot", "scaled-dot") else nn.Linear(key_dim, inner, bias=False)
        self.value = nn.Linear(key_dim, width) if many else nn.Identity()
        self.output = nn.Linear(width, width) if many else nn.Identity()
        self.v = nn.Linear(units, 1, bias=False) if score == "additive" else None
        self.dim = width if many or combine else key_dim  # of the context
        self.combine = nn.Linear(width + (width if many else key_dim), width) if combine else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, query: Tensor | None, keys: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, Dq), (B, T, Dk), (B, T) -> context (B, N, D), weights (B, N, T), of several heads their mean."""
        context, weights = self.attend(query, self.project(keys, mask), mask)
        return context, weights.mean(1)

    def project(self, keys: Tensor, mask: Tensor) -> Projected:  # (B, T, Dk), (B, T)
        """Project the keys and values that all queries share."""
        keys = torch.where(mask[..., None], keys, 0.0)
        projected, values = self.key(keys), self._by_head(self.value(keys)).contiguous()
        if self.v is None and self.score != "concat-tanh":
            projected = self._by_head(projected).transpose(2, 3).contiguous()  # (B, H, D / H, T)
        return Projected(projected, values)

    def attend(self, query: Tensor | None, projected: Projected, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The context (B, N, D) and the weights of each head (B, H, N, T).

        Args:
            query: (B, N, Dq); None if it is learned.
            projected: What `project` made of the keys.
            mask: (B, T), or (B, N, T) where each query may see other positions.
        """
        weights = self._weights(query, projected, mask)
        return self._context(query, projected, weights), weights

    def _weights(self, query: Tensor | None, projected: Projected, mask: Tensor) -> Tensor:  # (B, H, N, T)
        return _softmax(self.scores(query, projected.keys), mask)

    def _context(self, query: Tensor | None, projected: Projected, weights: Tensor) -> Tensor:  # (B, N, D)
        context: Tensor = self.output((self.dropout(weights) @ projected.values).transpose(1, 2).flatten(2))
        if self.combine is not None and query is not None:
            context = self.combine(torch.cat([query, context], 2))
        return context

    def scores(self, query: Tensor | None, keys: Tensor) -> Tensor:  # (B, N, Dq) -> (B, H, N, T)
        """The attention scores of queries and `Projected.keys`, whose softmax the weights are."""
        if self.score == "concat":  # one for all queries
            return keys if query is None else keys.expand(-1, -1, query.shape[1], -1)
        queries: Tensor = self.query(query)
        if self.score in ("additive", "concat-tanh"):
            return self._summed(torch.tanh(queries[:, :, None] + keys[:, None]))
        if self.score in ("scaled-dot", "multi-head"):
            queries = queries * (queries.shape[2] // self.heads) ** -0.5
        return self._by_head(queries) @ keys

    def project_qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of `multi-head`, x (B, T, D) to queries, which are scaled, keys and values, (B, H, T, D / H) each; or no T.

        In a graph one product, whose weights are joined before any loop (`seqpipe.export.passes.loop_invariants`).
        """
        query, key, value = (cast("nn.Linear", layer) for layer in (self.query, self.key, self.value))
        weight = torch.cat([query.weight, key.weight, value.weight])
        bias = torch.cat([query.bias, torch.zeros_like(query.bias), value.bias])
        parts = F.linear(x, weight, bias).unflatten(-1, (3, self.heads, -1))
        queries, keys, values = (parts.permute(2, 0, 3, 1, 4) if x.dim() == 3 else parts.transpose(0, 1)).unbind()
        return queries * queries.shape[-1] ** -0.5, keys, values

    def _summed(self, met: Tensor) -> Tensor:  # (B, N, T, units) -> (B, 1, N, T)
        return (met.sum(3) if self.v is None else self.v(met)[..., 0])[:, None]

    def _by_head(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, H, T, D / H)
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class CoverageAttention(Attention):
    """Additive attention with coverage (Tu et al. 2016; See, Liu and Manning 2017).

    A position's score is v · tanh(W q + b + U k + w c), c being the sum of the weights that it got at all steps before.

    Args:
        query_dim: Dq, the width of a query.
        key_dim: Dk, the width of the keys.
        units: Width of W q, U k and w c.
    """

    def __init__(self, query_dim: int, key_dim: int, *, units: int = 128):
        super().__init__(query_dim, key_dim, score="additive", units=units)
        self.coverage = nn.Linear(1, units, bias=False)

    def attend_covered(
        self, query: Tensor, projected: Projected, mask: Tensor, covered: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(B, N, Dq), the keys, (B, T), (B, N, T) -> the context (B, N, Dk) and the weights (B, N, T)."""
        met = self.query(query)[:, :, None] + projected.keys[:, None] + self.coverage(covered[..., None])
        weights = _softmax(self._summed(torch.tanh(met)), mask)  # (B, 1, N, T)
        return self._context(query, projected, weights), weights[:, 0]


class AttentionPool(nn.Module):
    """A text's vectors as one, their mean by the weights of a learned query (`additive`: Yang et al. 2016).

    What they write as softmax(u · tanh(W h + b)) is `additive` with v for u, U for W and the learned query for b.

    Args:
        dim: D, the width of a vector.
        score: What says how well the learned query and a position match, as in `Attention`.
        units: Width of W h in `additive` and `concat-tanh`.
        heads: Heads of `multi-head`; they divide the width.
    """

    def __init__(self, dim: int, *, score: Score = "additive", units: int = 128, heads: int = 1):
        super().__init__()
        self.attention = Attention(None, dim, score=score, units=units, heads=heads)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, D), (B, T) -> the pooled vector (B, D) and the weights (B, T), of several heads their mean."""
        context, weights = self.attention(None, x, mask)
        return context[:, 0], weights[:, 0]


def _softmax(scores: Tensor, mask: Tensor) -> Tensor:  # (B, H, N, T), (B, T) or (B, N, T) -> (B, H, N, T)
    real = (mask[:, None] if mask.dim() == 2 else mask)[:, None]  # (B, 1, 1 or N, T)
    lowest = torch.finfo(scores.dtype).min
    return torch.where(real, torch.where(real, scores, lowest).softmax(3), 0.0)


def visible(mask: Tensor, causal: bool) -> Tensor:
    """The attention mask: (B, T), or causal (B, T, T), in which each token sees itself and those before it."""
    if not causal:
        return mask
    t = torch.arange(mask.shape[1], device=mask.device)
    return mask[:, None] & (t[None] <= t[:, None])


class _Learned(nn.Module):
    """The same query for every text."""

    def __init__(self, width: int):
        super().__init__()
        self.vector = nn.Parameter(torch.empty(1, 1, width).uniform_(-1, 1) * width**-0.5)

    def forward(self, query: None) -> Tensor:  # () -> (1, 1, width)
        return self.vector


def _refuse_unfit(score: Score, width: int, key_dim: int, heads: int) -> None:
    if score in ("dot", "scaled-dot") and width != key_dim:
        cure = "choose bilinear or additive, or make the widths equal"
        raise UsageError(f"score: {score} needs queries as wide as keys, not {width} and {key_dim}; {cure}")
    if score != "multi-head" and heads != 1:
        raise UsageError(f"heads: the score {score} has one head, not {heads}; choose the score multi-head")
    if width % heads:
        fit = ", ".join(str(n) for n in range(1, min(width, 16) + 1) if not width % n)
        raise UsageError(f"heads: {heads} heads do not divide the width {width}; choose {fit}, or another width")
