"""Attention scores and weights, for pooling, encoders and decoders."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.config.signature import describe_type, mismatch_message
from seqpipe.errors import UsageError
from seqpipe.nn.layers import RealRows, feed_forward
from seqpipe.nn.loops import State

__all__ = ["Attention", "AttentionPool", "AttentionScore", "CoverageAttention", "Glimpse", "IntraDecoderAttention"]
__all__ += ["GradientEstimator", "ProjectedKeys", "attention_mask", "fused_attention", "needs_weights"]

AttentionScore = Literal[
    "dot", "scaled-dot", "additive", "bilinear", "key-only", "concat-tanh", "multi-head", "location"
]


# Values that are computed at a time of what grows with the square of the length: of an additive score, and of weights
# with dropout. glibc does not reuse the space of a large block for one of its size: in a loop, small blocks need less.
VALUES_PER_BLOCK, WEIGHTS_PER_BLOCK = 1 << 16, 1 << 20
GPU_VALUES_PER_BLOCK = 1 << 24  # a GPU needs few kernels, and its allocator does reuse blocks

_weights_needed: ContextVar[bool] = ContextVar("attention_weights", default=True)


@contextlib.contextmanager
def attention_weights(needed: bool) -> Iterator[None]:
    """Set inside the block whether stages return their attention weights (see `needs_weights`)."""
    token = _weights_needed.set(needed)
    try:
        yield
    finally:
        _weights_needed.reset(token)


def needs_weights() -> bool:
    """Return whether a stage must return the attention weights that it `explains`; False in training and dev scores.

    Without them `Attention.attend` needs memory in proportion to the length of a text, not to its square.
    """
    return _weights_needed.get() or torch.compiler.is_exporting()


class ProjectedKeys(NamedTuple):
    """Keys and values, projected once for all queries: `keys` as the score needs them, `values` (B, H, T, D / H)."""

    keys: Tensor
    values: Tensor


class Attention(nn.Module):
    """Weights a(q, k) over the positions of a text, which sum to 1, and the weighted mean of its vectors.

    The weights are a softmax over the positions of a score of the query q and a position's key k:

    - `dot`: q · k (Luong et al. 2015); widths are equal.
    - `scaled-dot`: q · k / √D (Vaswani et al. 2017); widths are equal.
    - `bilinear`: q · W k (Luong et al. 2015, "general").
    - `additive`: v · tanh(W q + b + U k) (Bahdanau et al. 2015).
    - `key-only`: w · k. It is also what w · [q; k], a linear layer over both, comes to: its term of q is the same at
      every position, so the softmax cancels it. The weights do not depend on q.
    - `concat-tanh`: the sum of tanh(W [q; k] + b) over its units.
    - `multi-head`: `heads` times a scaled dot of W q + b and U k, each over a share of the query's width, with values
      V k + c; then a linear layer over all heads (Vaswani et al. 2017). A bias of the keys would have no effect.
    - `location`: position t, from 0, has the score w_t · [q; k_last] + b_t, where k_last is the key of the last real
      position: a linear layer with an output for each of `positions` positions. The other keys are not compared
      (Luong et al. 2015, "location", where w_t reads q alone).

    Values at masked positions, even NaN, are never read; their weights are 0. A text without real positions has the
    context 0 (for `multi-head` and `combine` the output of their last layer for 0).

    A decoder projects the keys once and attends step by step, also in a `while_loop`:
    `projected = attention.project(keys, mask)`, then `attention.attend(query, projected, mask)`.

    Args:
        query_dim: Dq, the width of a query; None: one learned query for all texts.
        key_dim: Dk, the width of the keys.
        score: The score function.
        units: Width of W q and U k in `additive` and `concat-tanh`.
        heads: Number of heads of `multi-head`, a divisor of the query's width.
        positions: Number of outputs of `location`. All positions after the last share its output: a stage with this
            score refuses longer texts by its member `max_tokens`.
        combine: Whether a linear layer over [q; context] maps the context to the width of the query.
        dropout: Dropout probability of the weights.

    Raises:
        UsageError: if the widths or the heads do not match the score, or `location` has no query.
    """

    def __init__(
        self,
        query_dim: int | None,
        key_dim: int,
        *,
        score: AttentionScore = "additive",
        units: int = 128,
        heads: int = 1,
        positions: int = 512,
        combine: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__()
        width = key_dim if query_dim is None else query_dim
        if score not in get_args(AttentionScore):
            raise UsageError(f"score: {mismatch_message(describe_type(AttentionScore), score)}")
        if score == "location" and query_dim is None:
            raise UsageError("score: without a query, location reads only the last position; choose another score")
        if score in ("dot", "scaled-dot") and width != key_dim:
            fix = "choose bilinear or additive, or make the widths equal"
            raise UsageError(f"score: {score} needs queries as wide as keys, not {width} and {key_dim}; {fix}")
        if score != "multi-head" and heads != 1:
            raise UsageError(f"heads: the score {score} has one head, not {heads}; choose the score multi-head")
        if width % heads:
            fit = ", ".join(str(n) for n in range(1, min(width, 16) + 1) if not width % n)
            raise UsageError(f"heads: {heads} heads do not divide the width {width}; choose {fit}, or another width")
        many, summed = score == "multi-head", score in ("additive", "concat-tanh")
        inner = units if summed else 1 if score == "key-only" else width  # of query and key where they meet
        self.score, self.heads = score, heads
        self.query: nn.Module = nn.Identity()
        if query_dim is None and score != "key-only":
            self.query = _Learned(inner)
        elif many or summed:
            self.query = nn.Linear(width, inner)
        has_keys = score not in ("dot", "scaled-dot", "location")
        self.key = nn.Linear(key_dim, inner, bias=False) if has_keys else nn.Identity()
        self.location = nn.Linear(width + key_dim, positions) if score == "location" else None
        self.value = nn.Linear(key_dim, width) if many else nn.Identity()
        self.output = nn.Linear(width, width) if many else nn.Identity()
        self.v = nn.Linear(units, 1, bias=False) if score == "additive" else None
        self.dim = width if many or combine else key_dim  # of the context
        self.combine = nn.Linear(width + (width if many else key_dim), width) if combine else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, query: Tensor | None, keys: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, Dq), (B, T, Dk), (B, T) -> context (B, N, D), weights (B, N, T), the mean of several heads."""
        context, weights = self.attend(query, self.project(keys, mask), mask)
        return context, weights.mean(1)

    def project(self, keys: Tensor, mask: Tensor) -> ProjectedKeys:  # (B, T, Dk), (B, T)
        """Project the keys and values that all queries share."""
        keys = torch.where(mask[..., None], keys, 0.0)
        projected, values = self.key(keys), self._by_head(self.value(keys)).contiguous()
        if self.location is not None:
            last = (mask.sum(1) - 1).clamp(min=0)[:, None, None].expand(-1, -1, keys.shape[2])
            projected = keys.gather(1, last)  # (B, 1, Dk)
        elif self.v is None and self.score != "concat-tanh":
            projected = self._by_head(projected).transpose(2, 3).contiguous()  # (B, H, D / H, T)
        return ProjectedKeys(projected, values)

    def attend(
        self, query: Tensor | None, projected: ProjectedKeys, mask: Tensor, *, weights: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return the context (B, N, D) and the weights of each head (B, H, N, T).

        Args:
            query: (B, N, Dq); None if it is learned.
            projected: The result of `project`.
            mask: (B, T), or (B, N, T) if queries attend to different positions.
            weights: Whether the weights are returned. Without them, and where the score is a product, PyTorch's fused
                kernel computes the context, and the weights are (B, H, N, 0).
        """
        if weights or self.v is not None or self.score in ("concat-tanh", "location") or torch.compiler.is_exporting():
            p = self._weights(query, projected, mask)
            return self._context(query, self.dropout(p) @ projected.values), p
        if self.score == "key-only":  # a product with 1
            queries = projected.keys.new_ones(projected.keys.shape[0], 1, 1 if query is None else query.shape[1], 1)
        else:
            queries = self._queries(query).expand(projected.keys.shape[0], -1, -1, -1)
        dropout = self.dropout.p if self.training else 0.0
        context = fused_attention(queries, projected.keys.transpose(2, 3), projected.values, mask, dropout=dropout)
        return self._context(query, context), queries[..., :0]

    def _weights(self, query: Tensor | None, projected: ProjectedKeys, mask: Tensor) -> Tensor:  # (B, H, N, T)
        if self.location is None or query is None:
            return _softmax(self.scores(query, projected.keys), mask)
        # Texts of more positions are refused before they are read, by `max_tokens` of a stage; padding may be longer.
        t = torch.arange(mask.shape[-1], device=mask.device).clamp(max=self.location.out_features - 1)
        both = torch.cat([query, projected.keys.expand(-1, query.shape[1], -1)], 2)
        return _softmax(F.linear(both, self.location.weight[t], self.location.bias[t])[:, None], mask)

    def _context(self, query: Tensor | None, means: Tensor) -> Tensor:  # (B, H, N, d) of the values -> (B, N, D)
        context: Tensor = self.output(means.transpose(1, 2).flatten(2))
        return context if self.combine is None or query is None else self.combine(torch.cat([query, context], 2))

    def scores(self, query: Tensor | None, keys: Tensor) -> Tensor:  # (B, N, Dq) -> (B, H, N, T)
        """Return the attention scores of queries and `ProjectedKeys.keys`, before the softmax; not of `location`."""
        if self.score == "key-only":  # one for all queries
            return keys if query is None else keys.expand(-1, -1, query.shape[1], -1)
        if self.v is not None or self.score == "concat-tanh":
            return self._sum_units(self.query(query), keys)
        return self._queries(query) @ keys

    def _queries(self, query: Tensor | None) -> Tensor:  # (B, N, Dq) -> (B, H, N, D / H), scaled
        queries: Tensor = self.query(query)
        if self.score in ("scaled-dot", "multi-head"):
            queries = queries * (queries.shape[2] // self.heads) ** -0.5
        return self._by_head(queries)

    def project_qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project x (B, T, D) to scaled queries, keys and values of `multi-head`, (B, H, T, D / H); T = 1 for x (B, D).

        In a graph it is one product, with weights concatenated before any loop
        (`seqpipe.export.passes.loop_invariants`).
        """
        query, key, value = (cast("nn.Linear", layer) for layer in (self.query, self.key, self.value))
        weight = torch.cat([query.weight, key.weight, value.weight])
        bias = torch.cat([query.bias, torch.zeros_like(query.bias), value.bias])
        # With a factor of the queries alone onnxruntime computes the scores of one token 2.5 times slower.
        ones = torch.ones_like(query.bias)
        parts = F.linear(x, weight, bias) * torch.cat([ones * (len(ones) // self.heads) ** -0.5, ones, ones])
        if x.dim() == 3:
            queries, keys, values = parts.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        else:
            queries, keys, values = parts.unflatten(1, (3 * self.heads, 1, -1)).chunk(3, 1)
        return queries, keys, values

    def _sum_units(
        self, queries: Tensor, keys: Tensor, covered: Tensor | None = None, coverage: Tensor | None = None
    ) -> Tensor:  # (B, N, units), (B, T, units), (B, N, T), (units,) -> (B, 1, N, T)
        """Return the sum over units of v tanh(queries + keys + covered coverage)."""
        v = None if self.v is None else self.v.weight[0]
        if not torch.compiler.is_exporting():
            v = queries.new_ones(queries.shape[2]) if v is None else v
            return _AdditiveScores.apply(queries.expand(len(keys), -1, -1), keys, v, covered, coverage)[:, None]
        met = queries[:, :, None] + keys[:, None]
        if covered is not None and coverage is not None:
            met = met + F.linear(covered[..., None], coverage[:, None])
        met = torch.tanh(met)
        return (met.sum(3) if v is None else F.linear(met, v[None])[..., 0])[:, None]

    def _by_head(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, H, T, D / H)
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class _AdditiveScores(torch.autograd.Function):
    """Map queries (B, N, U), keys (B, T, U), v (U,), and with coverage c (B, N, T) and w (U,), to the scores (B, N, T).

    A score is v · tanh(q + k + w c). PyTorch would keep (B, N, T, U) for the gradient; here it is computed twice, a
    block at a time.
    """

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, v: Tensor, covered: Tensor | None, coverage: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(queries, keys, v, covered, coverage)
        blocks = _blocks(queries, keys)
        if len(blocks) == 1:
            hidden = _hidden(queries, keys, covered, coverage)
            return (hidden @ v.to(hidden.dtype)).to(queries.dtype)
        scores = queries.new_empty(*queries.shape[:2], keys.shape[1])
        for n, t in blocks:
            hidden = _hidden(queries[:, n], keys[:, t], None if covered is None else covered[:, n, t], coverage)
            scores[:, n, t] = hidden @ v.to(hidden.dtype)
        return scores

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, v, covered, coverage = ctx.saved_tensors
        (grad,) = grads
        learns_v, blocks = ctx.needs_input_grad[2], _blocks(queries, keys)
        if len(blocks) == 1:
            block = _block_gradients(grad, queries, keys, v, covered, coverage, learns_v)
            return block._replace(keys=block.keys * v.to(keys.dtype))
        to_queries, to_keys, to_v = (torch.zeros_like(x) for x in (queries, keys, v))
        to_covered = None if covered is None else torch.empty_like(covered)
        to_coverage = None if coverage is None else torch.zeros_like(coverage)
        for n, t in blocks:
            c = None if covered is None else covered[:, n, t]
            block = _block_gradients(grad[:, n, t], queries[:, n], keys[:, t], v, c, coverage, learns_v)
            to_queries[:, n] += block.queries
            to_keys[:, t] += block.keys
            if block.v is not None:
                to_v += block.v
            if to_covered is not None and block.covered is not None:
                to_covered[:, n, t] = block.covered
            if to_coverage is not None and block.coverage is not None:
                to_coverage += block.coverage
        return to_queries, to_keys * v.to(keys.dtype), to_v, to_covered, to_coverage


class _BlockGradients(NamedTuple):
    queries: Tensor
    keys: Tensor  # without the factor v
    v: Tensor | None
    covered: Tensor | None
    coverage: Tensor | None


def _block_gradients(
    grad: Tensor,
    queries: Tensor,
    keys: Tensor,
    v: Tensor,
    covered: Tensor | None,
    coverage: Tensor | None,
    learns_v: bool,
) -> _BlockGradients:
    """Return the gradients of the inputs from that of the scores (B, N, T)."""
    hidden = _hidden(queries, keys, covered, coverage)  # (B, N, T, U)
    g, factor, to_covered, to_coverage = grad.to(hidden.dtype), v.to(hidden.dtype), None, None
    to_v = g.flatten() @ hidden.flatten(0, 2) if learns_v else None
    slope = torch.addcmul(hidden.new_ones(()), hidden, hidden, value=-1, out=hidden)  # of tanh: 1 - tanh²
    to_queries = factor * (g[:, :, None] @ slope)[:, :, 0]
    if covered is not None and coverage is not None:
        to_covered = g * (slope @ (factor * coverage.to(factor.dtype)))
        to_coverage = factor * ((covered.to(g.dtype) * g).flatten() @ slope.flatten(0, 2))
    slope *= g[..., None]
    to_keys = slope[:, 0] if slope.shape[1] == 1 else slope.sum(1)
    return _BlockGradients(to_queries, to_keys, to_v, to_covered, to_coverage)


def _hidden(queries: Tensor, keys: Tensor, covered: Tensor | None, coverage: Tensor | None) -> Tensor:
    hidden = queries[:, :, None] + keys[:, None]  # (B, n, t, U)
    if covered is not None and coverage is not None:
        hidden = torch.addcmul(hidden, covered[..., None].to(hidden.dtype), coverage.to(hidden.dtype), out=hidden)
    return hidden.tanh_()


def _blocks(queries: Tensor, keys: Tensor) -> list[tuple[slice, slice]]:
    """Return blocks of queries (B, N, U) and keys (B, T, U) of about VALUES_PER_BLOCK together; more on a GPU."""
    N, T, size = queries.shape[1], keys.shape[1], keys[:, 0].numel()
    most = VALUES_PER_BLOCK if keys.device.type == "cpu" else GPU_VALUES_PER_BLOCK
    rows = max(1, most // (T * size))
    columns = max(1, most // (rows * size))
    return [(slice(n, n + rows), slice(t, t + columns)) for n in range(0, N, rows) for t in range(0, T, columns)]


def fused_attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *, causal: bool = False, dropout: float = 0.0
) -> Tensor:
    """Return softmax(Q K^T) V (B, H, N, e) by PyTorch's fused kernel, which keeps no weights; 0 without a position.

    The kernel of the CPU has no dropout of weights: these are computed for some of the queries at a time, and a second
    time for the gradient.

    Args:
        queries: (B, H, N, d), scaled.
        keys: (B, H, T, d).
        values: (B, H, T, e).
        mask: (B, T), or (B, N, T) if queries attend to different positions.
        causal: Whether query t attends to positions up to t only; real positions come first in the mask, which is not
            read then.
        dropout: Dropout probability of the weights.
    """
    size, width = values.shape[3], max(keys.shape[3], values.shape[3])
    queries, keys, values = (F.pad(x, (0, width - x.shape[3])) for x in (queries, keys, values))  # they are as wide
    real = None if causal else (mask[:, None] if mask.dim() == 2 else mask)[:, None]  # (B, 1, 1 or N, T)
    is_small = queries.shape[2] * keys[..., 0].numel() <= WEIGHTS_PER_BLOCK
    if not dropout or queries.is_cuda or is_small:
        return F.scaled_dot_product_attention(queries, keys, values, real, dropout, causal, scale=1.0)[..., :size]
    return _DroppedAttention.apply(queries, keys, values, real, dropout)[..., :size]


class _DroppedAttention(torch.autograd.Function):
    """softmax(Q K^T) V with dropout of weights, which are computed twice, for some queries at a time.

    Without a mask (B, 1, 1 or N, T) a query attends to positions up to its own. `checkpoint` would do the same, but it
    allocates between the blocks, which keeps their space from being used again.
    """

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, real: Tensor | None, dropout: float) -> Tensor:
        ctx.save_for_backward(queries, keys, values, real)
        ctx.dropout, ctx.random = dropout, torch.get_rng_state()
        context = torch.empty_like(queries)
        for rows, seen in _seen_by_rows(queries, keys, real):
            part = F.scaled_dot_product_attention(queries[:, :, rows], keys, values, seen, dropout, scale=1.0)
            context[:, :, rows] = part
        return context

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, real = ctx.saved_tensors
        each = tuple(torch.zeros_like(x) for x in (queries, keys, values))
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.random)
            for rows, seen in _seen_by_rows(queries, keys, real):
                inputs = [x.detach().requires_grad_() for x in (queries[:, :, rows], keys, values)]
                part, k, v = inputs
                context = F.scaled_dot_product_attention(part, k, v, seen, ctx.dropout, scale=1.0)
                to_queries, *others = torch.autograd.grad(context, inputs, grads[0][:, :, rows])
                each[0][:, :, rows] = to_queries
                for total, share in zip(each[1:], others, strict=True):
                    total += share
        return *each, None, None


def _seen_by_rows(queries: Tensor, keys: Tensor, real: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of queries, about WEIGHTS_PER_BLOCK each, and the mask of their keys, (B or 1, 1, 1 or n, T)."""
    t, size = torch.arange(keys.shape[2], device=keys.device), max(1, WEIGHTS_PER_BLOCK // keys[..., 0].numel())
    for first in range(0, queries.shape[2], size):
        rows = slice(first, first + size)
        if real is None:
            yield rows, (t <= t[rows, None])[None, None]
        else:
            yield rows, real if real.shape[2] == 1 else real[:, :, rows]


class CoverageAttention(Attention):
    """Additive attention with coverage (Tu et al. 2016; See, Liu and Manning 2017).

    A position's score is v · tanh(W q + b + U k + w c), where c is the sum of its weights at all earlier steps.

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
        scores = self._sum_units(self.query(query), projected.keys, covered, self.coverage.weight[:, 0])
        weights = _softmax(scores, mask)  # (B, 1, N, T)
        return self._context(query, weights @ projected.values), weights[:, 0]


class AttentionPool(nn.Module):
    """Attention pooling: the mean of a text's vectors, weighted by a learned query (`additive`: Yang et al. 2016).

    Their softmax(u · tanh(W h + b)) is `additive` with v for u, U for W and the learned query for b.

    Args:
        dim: D, the width of a vector.
        score: The score function, as in `Attention`, but for `location`.
        units: Width of W h in `additive` and `concat-tanh`.
        heads: Number of heads of `multi-head`, a divisor of the width.
    """

    def __init__(self, dim: int, *, score: AttentionScore = "additive", units: int = 128, heads: int = 1):
        super().__init__()
        self.attention = Attention(None, dim, score=score, units=units, heads=heads)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, D), (B, T) -> the pooled vector (B, D) and the weights (B, T), the mean of several heads."""
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


# Glimpse: a decoder's state attends to the positions that can still be chosen.


class Glimpse(nn.Module):
    """Glimpse at the candidates (Vinyals, Bengio and Kudlur 2016; Bello et al. 2017), by Transformer attention.

    For a state h it computes y = h + a(LN(h)), where a is multi-head attention to the positions, and then y + f(LN(y)).

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
        h = h + self.dropout(self.attention.attend(first(h), projected, seen, weights=False)[0])
        return h + self.dropout(self.feedforward(second(h)))


# Hard attention: each query attends to one position; and its gradient estimators.

GradientEstimator = Literal["straight-through", "reinforce"]
TIED = 1e-4  # relative difference of two weights below which another runtime may order them differently
DECAY, ENTROPY, EXPECTED = 0.9, 0.01, 0.5


class HardAttention(Attention):
    """Attention to one position at a time (Xu et al. 2015): the context is the value at the position of the greatest
    weight.

    Ties go to the first position, here and in onnxruntime; the returned weights are 1 there and 0 elsewhere. A text
    without real positions has the context 0. The choice of a position has no gradient; training uses one of two
    estimators:

    - `straight-through` (Bengio et al. 2013): the position is that of the greatest weight, and the gradient is that of
      the weighted mean.
    - `reinforce` (Williams 1992; Xu et al. 2015): the position is sampled from the weights or, for half of the queries,
      the context is the weighted mean. `auxiliary_loss` trains the weights by the likelihood of the true token.

    Args:
        query_dim: Dq, the width of a query.
        key_dim: Dk, the width of the keys.
        trained: The gradient estimator.
        score, units, positions: As in `Attention`; `multi-head` with one head.
        heads: Number of heads of `multi-head`: 1.

    Raises:
        UsageError: if there are several heads, or the widths do not match the score.
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
        positions: int = 512,
    ):
        if heads > 1:
            fix = "set heads: 1, or hard_attention: none"
            raise UsageError(f"hard_attention: it attends to one position and has one head, not {heads}; {fix}")
        super().__init__(query_dim, key_dim, score=score, units=units, heads=heads, positions=positions)
        self.draws = trained == "reinforce"
        if self.draws:
            self.register_buffer("average", torch.zeros(2))  # decaying sum of the rewards so far, and their weight

    def attend(
        self, query: Tensor | None, projected: ProjectedKeys, mask: Tensor, *, weights: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return the context (B, N, D) and the weights (B, 1, N, T), 1 at one position, whatever `weights` is.

        In training with `reinforce` the weights are the sampling distribution, negative at the sampled position, and
        all positive if the context is the weighted mean.
        """
        p = self._weights(query, projected, mask)
        if not self.training or not self.draws:
            chosen = first(p) + (p - p.detach()) if self.training else first(p)
            return self._context(query, chosen @ projected.values), chosen
        expected = torch.rand(p.shape[:3], device=p.device)[..., None] < EXPECTED  # (B, 1, N, 1)
        # True at one position of each row, sampled by its weight; nowhere in a row of zeros.
        noise = torch.empty_like(p).exponential_()
        places = torch.where(p > 0, p / noise, -1.0).argmax(-1, keepdim=True)
        drawn = ((torch.arange(p.shape[-1], device=p.device) == places) & (p > 0)) & ~expected
        means = torch.where(expected, p, drawn.to(p)) @ projected.values
        return self._context(query, means), torch.where(drawn, -p, p)

    def auxiliary_loss(self, weights: Tensor, log_p: Tensor, mask: Tensor) -> Tensor:
        """Return the auxiliary loss of `reinforce`: 0, with the gradient of -(log p - b) log a - λ H.

        log p is that of the true token, b its moving average over the steps with rate 0.1, a the weight of the position
        sampled for it, H the entropy of the weights, and λ is 0.01. Later tokens are not credited to a position: the
        gradient is exact if only one token reads a context, and has much less variance in any case.

        Args:
            weights: The weights of `attend`, (B, N, T).
            log_p: Log-probabilities of the true tokens, (B, N).
            mask: Mask of the true tokens, (B, N).
        """
        log_p, p = log_p.detach(), weights.abs()
        rows = RealRows(mask)
        new = torch.stack([rows.mean(rows.of(log_p)), torch.ones_like(log_p[0, 0])])
        self.average.mul_(DECAY).add_((1 - DECAY) * new)
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

    The state h(t) attends to h(1), …, h(t - 1) with the weights softmax(h(t) · W h(s)); the context is their weighted
    mean, 0 at the first token. A step stores the states so far in a tensor as long as the longest text, so that search
    can repeat and reorder its rows.

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
        """Return the context (R, H) of a state h (R, H) over the cached ones, and the cache with h."""
        states, t = kept
        times = torch.arange(states.shape[1], device=h.device)
        context = self._attend_states(h[:, None], states, times < t[:, None])[:, 0]
        return context, (torch.where((times == t[:, None])[..., None], h[:, None], states), t + 1)

    def forward(self, h: Tensor) -> Tensor:  # (B, N, H) -> (B, N, H)
        """Return the contexts of all states of a text at once."""
        times = torch.arange(h.shape[1], device=h.device)
        return self._attend_states(h, h, (times < times[:, None])[None])

    def _attend_states(self, h: Tensor, states: Tensor, before: Tensor) -> Tensor:  # (R, M, H), (R, N, H), (R, [M,] N)
        values = states[:, None]  # of one head
        keys = ProjectedKeys(values.transpose(2, 3), values)
        context, _ = self.attention.attend(self.query(h), keys, before, weights=False)
        return context
