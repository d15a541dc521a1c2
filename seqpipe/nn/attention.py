"""Attention scores and weights, for pooling, encoders and decoders."""

from __future__ import annotations

from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.errors import UsageError
from seqpipe.nn.layers import feed_forward
from seqpipe.nn.loops import State

AttentionScore = Literal["dot", "scaled-dot", "additive", "bilinear", "concat", "concat-tanh", "multi-head"]


class ProjectedKeys(NamedTuple):
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
        score: AttentionScore = "additive",
        units: int = 128,
        heads: int = 1,
        combine: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__()
        width = key_dim if query_dim is None else query_dim
        if score in ("dot", "scaled-dot") and width != key_dim:
            fix = "choose bilinear or additive, or make the widths equal"
            raise UsageError(f"score: {score} needs queries as wide as keys, not {width} and {key_dim}; {fix}")
        if score != "multi-head" and heads != 1:
            raise UsageError(f"heads: the score {score} has one head, not {heads}; choose the score multi-head")
        if width % heads:
            fit = ", ".join(str(n) for n in range(1, min(width, 16) + 1) if not width % n)
            raise UsageError(f"heads: {heads} heads do not divide the width {width}; choose {fit}, or another width")
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

    def project(self, keys: Tensor, mask: Tensor) -> ProjectedKeys:  # (B, T, Dk), (B, T)
        """Project the keys and values that all queries share."""
        keys = torch.where(mask[..., None], keys, 0.0)
        projected, values = self.key(keys), self._by_head(self.value(keys)).contiguous()
        if self.v is None and self.score != "concat-tanh":
            projected = self._by_head(projected).transpose(2, 3).contiguous()  # (B, H, D / H, T)
        return ProjectedKeys(projected, values)

    def attend(self, query: Tensor | None, projected: ProjectedKeys, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The context (B, N, D) and the weights of each head (B, H, N, T).

        Args:
            query: (B, N, Dq); None if it is learned.
            projected: What `project` made of the keys.
            mask: (B, T), or (B, N, T) where each query may see other positions.
        """
        weights = self._weights(query, projected, mask)
        return self._context(query, projected, weights), weights

    def _weights(self, query: Tensor | None, projected: ProjectedKeys, mask: Tensor) -> Tensor:  # (B, H, N, T)
        return _softmax(self.scores(query, projected.keys), mask)

    def _context(self, query: Tensor | None, projected: ProjectedKeys, weights: Tensor) -> Tensor:  # (B, N, D)
        context: Tensor = self.output((self.dropout(weights) @ projected.values).transpose(1, 2).flatten(2))
        if self.combine is not None and query is not None:
            context = self.combine(torch.cat([query, context], 2))
        return context

    def scores(self, query: Tensor | None, keys: Tensor) -> Tensor:  # (B, N, Dq) -> (B, H, N, T)
        """The attention scores of queries and `ProjectedKeys.keys`, whose softmax the weights are."""
        if self.score == "concat":  # one for all queries
            return keys if query is None else keys.expand(-1, -1, query.shape[1], -1)
        queries: Tensor = self.query(query)
        if self.score in ("additive", "concat-tanh"):
            return self._summed(torch.tanh(queries[:, :, None] + keys[:, None]))
        if self.score in ("scaled-dot", "multi-head"):
            queries = queries * (queries.shape[2] // self.heads) ** -0.5
        return self._by_head(queries) @ keys

    def project_qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project x (B, T, D) to scaled queries, keys and values of `multi-head`, (B, H, T, D / H); T may be absent.

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
        self, query: Tensor, projected: ProjectedKeys, mask: Tensor, covered: Tensor
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

    def __init__(self, dim: int, *, score: AttentionScore = "additive", units: int = 128, heads: int = 1):
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


def attention_mask(mask: Tensor, causal: bool) -> Tensor:
    """Return the attention mask: (B, T), or causal (B, T, T): each token attends to itself and earlier ones."""
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


# A glimpse: a decoder's state attends to the positions that can still be chosen.


class Glimpse(nn.Module):
    """Glimpse at the candidates (Vinyals, Bengio and Kudlur 2016; Bello et al. 2017), by Transformer attention.

    Of a state h it makes y = h + a(LN(h)), a being attention of several heads to the positions, and then y + f(LN(y)).

    Args:
        hidden: H, the width of a state.
        dim: D, the width of a position's vector.
        heads: Heads of the attention; they divide H.
        dropout: Dropout probability of a, f and the hidden layer of f.
    """

    def __init__(self, hidden: int, dim: int, heads: int, dropout: float):
        super().__init__()
        self.attention = Attention(hidden, dim, score="multi-head", heads=heads)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
        self.feedforward = feed_forward(hidden, 2 * hidden, "relu", dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor, projected: ProjectedKeys, seen: Tensor) -> Tensor:  # (B, M, H), …, (B, M, T)
        first, second = self.norms
        h = h + self.dropout(self.attention.attend(first(h), projected, seen)[0])
        states: Tensor = h + self.dropout(self.feedforward(second(h)))
        return states


# Hard attention: each query attends to one position, and how that is trained.

GradientEstimator = Literal["straight-through", "reinforce"]
TIED = 1e-4  # two weights as near as that, as shares of the greater one, may stand either way round in another runtime
DECAY, ENTROPY, EXPECTED = 0.9, 0.01, 0.5


class HardAttention(Attention):
    """Attention to one position at a time (Xu et al. 2015): the context is the value at the position of most weight.

    Of several positions of most weight it is the first, here and in onnxruntime; the weights that come back are 1 there
    and 0 elsewhere. A text without any real position has the context 0. What position is best has no gradient; in
    training the weights learn by one of two estimates of it:

    - `straight-through` (Bengio et al. 2013): the position is that of most weight, and the gradient what it would be
      if the context were the mean by the weights.
    - `reinforce` (Williams 1992; Xu et al. 2015): the position is drawn from the weights, or, for half of the queries,
      the context is their mean. `auxiliary_loss` makes the weights learn from how likely the true token was.

    Args:
        query_dim: Dq, the width of a query.
        key_dim: Dk, the width of the keys.
        trained: How the weights learn.
        score: What says how well a query and a key match, as in `Attention`; `multi-head` with one head.
        units: Width of W q and U k in `additive` and `concat-tanh`.
        heads: Heads of `multi-head`: 1.

    Raises:
        UsageError: if there are several heads, or the widths do not fit the score.
    """

    average: Tensor

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        *,
        trained: GradientEstimator,
        score: AttentionScore = "additive",
        units: int = 128,
        heads: int = 1,
    ):
        if heads > 1:
            fix = "set heads: 1, or hard_attention: none"
            raise UsageError(f"hard_attention: it attends to one position and has one head, not {heads}; {fix}")
        super().__init__(query_dim, key_dim, score=score, units=units, heads=heads)
        self.draws = trained == "reinforce"
        if self.draws:
            self.register_buffer("average", torch.zeros(2))  # of the rewards so far, decaying: their sum, their weight

    def attend(self, query: Tensor | None, projected: ProjectedKeys, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The context (B, N, D) and the weights (B, 1, N, T), as `Attention` has them, 1 at one position.

        In training by `reinforce` the weights are those that were drawn from, with a minus at what was drawn, and
        without any where the context is their mean.
        """
        p = self._weights(query, projected, mask)
        if not self.training:
            chosen = first(p)
            return self._context(query, projected, chosen), chosen
        if not self.draws:
            chosen = first(p) + (p - p.detach())
            return self._context(query, projected, chosen), chosen
        expected = torch.rand(p.shape[:3], device=p.device)[..., None] < EXPECTED  # (B, 1, N, 1)
        # True at one position of each row, drawn by its weight; nowhere in a row of 0.
        noise = torch.empty_like(p).exponential_()
        places = torch.where(p > 0, p / noise, -1.0).argmax(-1, keepdim=True)
        drawn = ((torch.arange(p.shape[-1], device=p.device) == places) & (p > 0)) & ~expected
        return self._context(query, projected, torch.where(expected, p, drawn.to(p))), torch.where(drawn, -p, p)

    def auxiliary_loss(self, weights: Tensor, log_p: Tensor, mask: Tensor) -> Tensor:
        """The auxiliary loss of `reinforce`: 0, with the gradient of -(log p - b) log a - λ H.

        log p is that of the true token, b its average over the steps so far, by 0.1 of each new one; a is the weight
        of the position that was drawn for it, H the entropy of the weights, λ 0.01. Of what follows on a token nothing
        is credited to its position: the gradient is exact where a context is read by one token alone, and of much less
        variance anyhow.

        Args:
            weights: As `attend` gave them, (B, N, T).
            log_p: Log-probabilities of the true tokens, (B, N).
            mask: Which of them there are, (B, N).
        """
        log_p, p = log_p.detach(), weights.abs()
        self.average.mul_(DECAY).add_((1 - DECAY) * torch.stack([log_p[mask].mean(), torch.ones_like(log_p[0, 0])]))
        reward = log_p - self.average[0] / self.average[1]
        log_a = torch.where(weights < 0, p, 1.0).log().sum(2)  # (B, N)
        entropy = -(p * p.clamp_min(torch.finfo(p.dtype).tiny).log()).sum(2)
        each = torch.where((weights < 0).any(2) & mask, reward * log_a + ENTROPY * entropy, 0.0)
        aim = each.sum() / mask.sum()
        return aim.detach() - aim


def first(weights: Tensor) -> Tensor:  # (…, T) -> (…, T)
    """Return the one-hot argmax of each row, the first of equal values; 0 for a row of zeros."""
    near = (weights >= (1 - TIED) * weights.amax(-1, keepdim=True)) & (weights > 0)
    return (near & (near.long().cumsum(-1) == 1)).to(weights.dtype)


# Intra-attention: a decoder attends to its own earlier states.


class IntraDecoderAttention(nn.Module):
    """Intra-decoder attention (Paulus et al. 2018).

    The state h(t) attends to h(1), …, h(t - 1): a softmax over them of h(t) · W h(s), and their mean by these weights,
    which is 0 at the first token. Step by step the states so far are kept in a tensor as long as the longest text, so
    that search can repeat and reorder its rows.

    Args:
        dim: H, the width of a state.
    """

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim
        self.query = nn.Linear(dim, dim, bias=False)
        self.attention = Attention(dim, dim, score="dot")

    def start(self, like: Tensor, max_length: int) -> State:
        """Return an empty cache: states (B, N, H) and their number (B,), with rows and device of `like` (B, …)."""
        rows = like.shape[0]
        return (
            torch.zeros(rows, max_length, self.dim, device=like.device),
            torch.zeros(rows, dtype=torch.int64, device=like.device),
        )

    def step(self, h: Tensor, kept: State) -> tuple[Tensor, State]:
        """The context (R, H) of a state h (R, H) among the cached ones, and the cache with it."""
        states, t = kept
        times = torch.arange(states.shape[1], device=h.device)
        context = self._attended(h[:, None], states, times < t[:, None])[:, 0]
        return context, (torch.where((times == t[:, None])[..., None], h[:, None], states), t + 1)

    def forward(self, h: Tensor) -> Tensor:  # (B, N, H) -> (B, N, H)
        """The contexts of all states of a text at once."""
        times = torch.arange(h.shape[1], device=h.device)
        return self._attended(h, h, (times < times[:, None])[None])

    def _attended(
        self, h: Tensor, states: Tensor, before: Tensor
    ) -> Tensor:  # (R, M, H), (R, N, H), (R, N) or (R, M, N)
        values = states[:, None]  # of one head
        context, _ = self.attention.attend(self.query(h), ProjectedKeys(values.transpose(2, 3), values), before)
        return context
