"""Constants, dropout, positions, feed-forward layers and the stitching of windows, which components share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["BOS_ID", "EOS_ID", "LOG_ZERO", "MASKED_LOGIT", "PAD_ID", "UNK_ID", "logit_mask"]
__all__ += ["RealRows", "TokenWindows", "whole_batch"]
__all__ += ["LockedDropout", "PositionEmbeddings", "PositionOption", "RMSNorm", "ResidualLayer", "position_embeddings"]
__all__ += ["ACTIVATIONS", "GatedFeedForward", "Modules", "feed_forward", "linear_from"]

# Ids of the special tokens of every vocabulary, and scores of impossible items.

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3
MASKED_LOGIT = -1e4  # its exponential is exactly 0, and a sum of several stays finite in float32
LOG_ZERO = -1e9  # the log-probability of impossible items; sums of several are finite in float32


def logit_mask(size: int, banned: Sequence[int]) -> Tensor:  # (V,)
    """Return a bias of logits: MASKED_LOGIT for banned tokens, 0 for all others."""
    return torch.zeros(size).index_fill(0, torch.tensor(banned), MASKED_LOGIT)


IGNORED_ID = -100  # a target that `F.cross_entropy` ignores


class RealRows(NamedTuple):
    """The rows of the real positions in tensors (B, T, …), for the loss of a token.

    On the CPU these M rows are selected. On another device the host would wait for M at each step, so that all B T rows
    stay, and `ids` and `mean` ignore the padding, whose values must be finite.
    """

    mask: Tensor  # (B, T)

    def of(self, x: Tensor) -> Tensor:  # (B, T, …) -> (M, …)
        return x[self.mask] if self._are_selected else x.flatten(0, 1)

    def ids(self, ids: Tensor) -> Tensor:  # (B, T) -> (M,)
        """Return the targets of `F.cross_entropy`."""
        return ids[self.mask] if self._are_selected else torch.where(self.mask, ids, IGNORED_ID).flatten()

    def mean(self, values: Tensor) -> Tensor:  # (M,) -> ()
        if self._are_selected:
            return values.mean()
        return torch.where(self.mask.flatten(), values, 0.0).sum() / self.mask.sum()

    @property
    def _are_selected(self) -> bool:
        return self.mask.device.type == "cpu"


M_co = TypeVar("M_co", covariant=True)


class Modules(nn.ModuleList, Generic[M_co]):
    """A `ModuleList` that knows the type of its modules."""

    def __init__(self, modules: Iterable[M_co]):
        super().__init__(cast("Iterable[nn.Module]", modules))

    def __iter__(self) -> Iterator[M_co]:  # type: ignore[override]  # the type may be a protocol
        return cast("Iterator[M_co]", super().__iter__())

    def __getitem__(self, number: Any) -> Any:
        return super().__getitem__(number)


# Rows of a batch that several processes divide.

_merge: ContextVar[Callable[[Tensor], Tensor] | None] = ContextVar("merge", default=None)


def whole_batch(rows: Tensor) -> Tensor:  # (B', …) -> (B, …)
    """Return the rows of a whole batch of training, of which this process may have a part; no gradient reaches them."""
    merge = _merge.get()
    return rows if merge is None else merge(rows.detach())


@contextmanager
def merged_batch(merge: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let `whole_batch` merge the rows of several processes, all of which run this block."""
    token = _merge.set(merge)
    try:
        yield
    finally:
        _merge.reset(token)


# Variational dropout: one mask of columns for all time steps of a row.


class LockedDropout(nn.Module):
    """Variational dropout (Gal and Ghahramani 2016): one mask of columns for all time steps of a row.

    Args:
        p: Dropout probability of a row's columns; the others are scaled by 1 / (1 - p).
    """

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, T, D)
        if not self.training or not self.p:
            return x
        return x * F.dropout(x.new_ones(x.shape[0], 1, x.shape[2]), self.p)


# Position embeddings: sinusoidal or learned.

PositionOption = Literal["sinusoidal", "learned", "none"]
BASE = 10_000  # ratio of the longest to the shortest wavelength


class PositionEmbeddings(nn.Module):
    """A vector for each position of a text, the same for every text.

    Sinusoidal (Vaswani et al. 2017): p(t)[2i] = sin(t / 10000^(2i / D)) and p(t)[2i + 1] the cosine of the same, from t
    = 0, for a text of any length. Learned (Gehring et al. 2017): a table; a position past its end has its last vector,
    in PyTorch and in the graph alike.

    Args:
        dim: D, the width of a vector.
        learned: Whether the vectors are learned.
        longest: Number of positions of a table.
    """

    rates: Tensor

    def __init__(self, dim: int, *, learned: bool, longest: int):
        super().__init__()
        self.longest = longest
        self.table = nn.Parameter(torch.randn(longest, dim) * dim**-0.5) if learned else None
        rates = float(BASE) ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        self.dim = dim
        self.register_buffer("rates", rates.float(), persistent=False)  # (D / 2,) radians a position

    def forward(self, x: Tensor) -> Tensor:  # (B, T, …) -> (T, D)
        return self.at(torch.arange(x.shape[1], device=x.device))

    def at(self, t: Tensor) -> Tensor:  # (…) int64 -> (…, D)
        """Return the vectors of these positions."""
        if self.table is not None:
            return nn.functional.embedding(t.clamp(max=self.longest - 1), self.table)
        angles = t[..., None] * self.rates
        vectors = torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)
        return vectors[..., : self.dim] if self.dim % 2 else vectors


def position_embeddings(option: PositionOption, dim: int, longest: int) -> PositionEmbeddings | None:
    """Return the position embeddings of a stage's option; None for none."""
    return None if option == "none" else PositionEmbeddings(dim, learned=option == "learned", longest=longest)


# The residual connections, feed-forward networks and norms of a Transformer's layer.

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


def attention_bias(seen: Tensor) -> Tensor:
    """Return the bias of attention scores: 0 at visible positions, else LOG_ZERO."""
    return torch.where(seen, 0.0, LOG_ZERO)


class ResidualLayer(nn.Module):
    """A layer of several sublayers f, each with a norm and a residual connection.

    Pre-norm: x + f(norm(x)). Post-norm: norm(x + f(x)) (Xiong et al. 2020 compare the two).
    """

    norms: nn.ModuleList
    dropout: nn.Dropout
    pre_norm: bool

    def before(self, number: int, x: Tensor) -> Tensor:
        """Return the input of a sublayer."""
        return self.norms[number](x) if self.pre_norm else x

    def after(self, number: int, x: Tensor, update: Tensor) -> Tensor:
        """Return x after a sublayer with this output."""
        x = x + self.dropout(update)
        return x if self.pre_norm else self.norms[number](x)


def feed_forward(dim: int, inner: int, activation: str, dropout: float) -> nn.Sequential:
    """f(x) = W2 g(W1 x + b1) + b2 with `inner` units between (Vaswani et al. 2017); dropout of g in training."""
    g = ACTIVATIONS[activation]()
    return nn.Sequential(nn.Linear(dim, inner), g, nn.Dropout(dropout), nn.Linear(inner, dim))


class GatedFeedForward(nn.Module):
    """W2 (g(W1 x) * W3 x) (Shazeer 2020); dropout of what W2 reads in training."""

    def __init__(self, gate: nn.Linear, up: nn.Linear, down: nn.Linear, activation: nn.Module, dropout: float = 0.0):
        super().__init__()
        self.gate, self.up, self.down, self.activation = gate, up, down, activation
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.dropout(self.activation(self.gate(x)) * self.up(x)))


class RMSNorm(nn.Module):
    """x over the root of the mean of its squares, times a weight (Zhang and Sennrich 2019)."""

    def __init__(self, weight: Tensor, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(weight), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps))


def linear_from(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """The layer of these weights."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    return layer


# Stitching the tags of overlapping windows of a long text: the permitted tags at the seams.
#
# Each token is decided by one window, and near a seam, where the deciding window changes, a neighbour also contains it.
# A span may cross a seam only if the tags agree in three readings of the text: by each token's own window, and with the
# tokens near a seam read by the window on its left, and by the one on its right.

Readings = tuple[Tensor, Tensor, Tensor]


class TokenWindows(NamedTuple):
    """Index of the window that decides each token, and of its overlapping neighbour (or itself), (B, T) int64 each."""

    window: Tensor
    neighbour: Tensor

    def limited(
        self, scores: Tensor, neighbour_scores: Tensor, span_continues: Tensor, path: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return the scores of tags (B, T, L) by each token's own window, lowered for tags that are not permitted.

        Args:
            scores: The scores by each token's own window, (B, T, L).
            neighbour_scores: Those by the neighbour that holds it too, (B, T, L).
            span_continues: As `permitted` has it; of more than L tags those behind are for the padding.
            path: The tags (3 B, T) of the rows (3 B, T, L) of all three readings, one below the other.
        """
        # The three readings: each token by its own window, and tokens near a seam by the window left or right of it.
        by_left = torch.where((self.neighbour < self.window)[..., None], neighbour_scores, scores)
        by_right = torch.where((self.neighbour > self.window)[..., None], neighbour_scores, scores)
        first, left, right = path(torch.cat([scores, by_left, by_right])).unflatten(0, (3, -1)).unbind()
        may = self.permitted((first, left, right), span_continues)[..., : scores.shape[2]]
        return torch.where(may, scores, scores + MASKED_LOGIT)

    def permitted(self, tags: Readings, span_continues: Tensor) -> Tensor:
        """Return the permitted tags, (B, T, L) bool: none that continues a span across a seam without agreement.

        Args:
            tags: The tags of each reading, (B, T) int64, those of the padding included: they continue no span.
            span_continues: Whether the column's tag continues the span in which the row's tag stands, (L, L) bool.
        """
        path, left, right = tags
        inside, *others = (
            _behind(span_continues.flatten()[reading[:, :-1] * span_continues.shape[0] + reading[:, 1:]])
            for reading in tags
        )
        cut = (inside != others[0]) | (inside != others[1])  # only some of the readings continue
        doubtful = (path != left) | (path != right) | cut | F.pad(cut[:, 1:], (0, 1))
        lower = torch.minimum(self.window, self.neighbour)  # tokens that are not in both windows are doubtful too
        doubtful |= (self.window == self.neighbour) | (inside & _behind(lower[:, 1:] != lower[:, :-1]))
        span = (~inside).long().cumsum(1)  # (B, T) numbers spans, and tokens outside of spans
        doubts = torch.zeros_like(F.pad(span, (1, 0))).scatter_add(1, span, doubtful.long())  # (B, 1 + T)
        agreed = inside & (doubts.gather(1, span) == 0)
        seam = _behind(self.window[:, 1:] != self.window[:, :-1])
        stays = path[..., None] == torch.arange(span_continues.shape[0], device=path.device)
        return ~seam[..., None] | ~span_continues.any(0) | (agreed[..., None] & stays)


def _behind(pairs: Tensor) -> Tensor:
    """Move a value of each pair of neighbours (B, T - 1) to the second one (B, T); False at the first token."""
    return F.pad(pairs, (1, 0))
