"""Attention to several sources: one attention each, combined into one context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from seqpipe.errors import UsageError
from seqpipe.nn.attention import Attention, AttentionScore, GradientEstimator, HardAttention, ProjectedKeys
from seqpipe.nn.layers import Modules

__all__ = ["ProjectedSources", "SourceAttention", "SourceCombination", "StageOutputs"]
__all__ += ["join_masks", "summarize_sources"]

StageOutputs = Mapping[str, Tensor]  # outputs of a source's stages: x (B, S, D), mask (B, S), optional state (B, D) …
SourceCombination = Literal["concatenation", "hierarchy"]


class ProjectedSources(NamedTuple):
    """The projected keys and values of every source, and its mask (B, S)."""

    projected: tuple[ProjectedKeys, ...]
    masks: tuple[Tensor, ...]


class SourceAttention(nn.Module):
    """An attention to each source, and a combination of their contexts (Libovický and Helcl 2017).

    - `concatenation`: [c_1; c_2; …], the contexts side by side.
    - `hierarchy`: a second, additive attention over the contexts, e_i = v · tanh(W q + b + U_i c_i), and the sum of
      V_i c_i by its weights; V_i makes each as wide as `hidden`.

    Of one source both are its own attention.

    Args:
        hidden: Dq, the width of a query.
        dims: The width of each source's x.
        combine: Combination of the contexts.
        hard: Gradient estimator of `HardAttention`, or none for soft attention.
        score, units, heads, positions, dropout: Of each attention, as `Attention` has them.

    Raises:
        UsageError: if the widths or the heads do not fit the score, or several sources are to learn by `reinforce`.
    """

    def __init__(
        self,
        hidden: int,
        dims: Sequence[int],
        *,
        combine: SourceCombination = "concatenation",
        hard: GradientEstimator | Literal["none"] = "none",
        score: AttentionScore = "additive",
        units: int = 128,
        heads: int = 1,
        positions: int = 512,
        dropout: float = 0.0,
    ):
        super().__init__()
        several = len(dims) > 1
        if several and hard == "reinforce":
            raise UsageError("hard_attention: reinforce needs one source; choose straight-through")
        shared_options: dict[str, Any] = {"score": score, "units": units, "heads": heads, "positions": positions}
        self.attentions: Modules[Attention] = Modules(
            Attention(hidden, dim, dropout=dropout, **shared_options)
            if hard == "none"
            else HardAttention(hidden, dim, trained=hard, **shared_options)
            for dim in dims
        )
        widths = [attention.dim for attention in self.attentions]
        self.second: nn.Module | None = None
        self.dim = sum(widths)
        if several and combine == "hierarchy":
            self.second = _Hierarchy(hidden, widths, units)
            self.dim = hidden

    @property
    def drawing(self) -> HardAttention | None:
        """Return the attention of a single source, if it is trained by sampling positions."""
        only = self.attentions[0]
        return only if isinstance(only, HardAttention) and only.draws else None

    def project(self, sources: Sequence[StageOutputs]) -> ProjectedSources:
        """Project the keys and values that all queries share."""
        pairs = zip(self.attentions, sources, strict=True)
        projected = tuple(attention.project(source["x"], source["mask"]) for attention, source in pairs)
        if len(sources) > 1:
            projected = tuple(map(_transposed, projected))
        return ProjectedSources(projected, tuple(source["mask"] for source in sources))

    def attend(self, query: Tensor, parts: ProjectedSources, *, weights: bool = True) -> tuple[Tensor, Tensor]:
        """(B, N, Dq) -> the context (B, N, D) and the weights (B, H, N, S) of one source's heads.

        Without `weights` they may be (B, H, N, 0), as in `Attention.attend`.

        Of several sources they are the mean of the heads, (B, 1, N, S), those of all sources side by side. They sum to
        1: each source has an equal share, or in a hierarchy its weight.
        """
        projected, masks = parts
        if len(projected) > 1:
            projected = tuple(map(_transposed, projected))
        every = zip(self.attentions, projected, masks, strict=True)
        attended = [attention.attend(query, keys, mask, weights=weights) for attention, keys, mask in every]
        if len(attended) == 1:
            return attended[0]
        contexts = [context for context, _ in attended]
        means = [p.mean(1) for _, p in attended]  # three axes: `cat` of four reads strides in export
        if self.second is None:
            return torch.cat(contexts, 2), (torch.cat(means, 2) / len(attended))[:, None]
        context, shares = self.second(query, contexts)
        return context, torch.cat([share * mean for share, mean in zip(shares, means, strict=True)], 2)[:, None]


def _transposed(projected: ProjectedKeys) -> ProjectedKeys:
    """Transpose the keys: a loop would infer their number from the stride."""
    keys = projected.keys if projected.keys.dim() == 3 else projected.keys.transpose(2, 3).contiguous()
    return projected._replace(keys=keys)


class _Hierarchy(nn.Module):
    """The second attention, over the contexts of the sources."""

    def __init__(self, hidden: int, widths: Sequence[int], units: int):
        super().__init__()
        self.query = nn.Linear(hidden, units)
        self.keys = nn.ModuleList(nn.Linear(width, units, bias=False) for width in widths)
        self.values = nn.ModuleList(nn.Linear(width, hidden, bias=False) for width in widths)
        self.v = nn.Linear(units, 1, bias=False)

    def forward(self, query: Tensor, contexts: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(B, N, Dq), (B, N, Di) each -> the context (B, N, D) and the weight (B, N, 1) of each source."""
        queries = self.query(query)
        met = [self.v(torch.tanh(queries + key(c))) for key, c in zip(self.keys, contexts, strict=True)]
        shares = torch.cat(met, 2).softmax(2)  # (B, N, sources)
        values = torch.stack([value(c) for value, c in zip(self.values, contexts, strict=True)], 2)
        return (shares[:, :, None] @ values).flatten(2), shares.split(1, 2)


def join_masks(sources: Sequence[StageOutputs]) -> Tensor:
    """Return (B, S): the positions of all sources, concatenated."""
    return torch.cat([source["mask"] for source in sources], 1)


def summarize_sources(sources: Sequence[Any]) -> Tensor:
    """Return (B, D): the state of each source, or the mean of x if no state is as wide as x, concatenated."""
    return torch.cat([_summary(**{name: source.get(name) for name in ("x", "mask", "state")}) for source in sources], 1)


def _summary(x: Tensor, mask: Tensor, state: Tensor | None) -> Tensor:
    if state is not None and state.shape[-1] == x.shape[-1]:
        return state
    return torch.where(mask[..., None], x, 0.0).sum(1) / mask.sum(1, keepdim=True)


# Several sources as one: the first, with a vector of each other beside every position.

_VECTORS = ("x", "other_x")  # names with a vector for each position; other_x is that of a neighbouring window


def join_source_outputs(sources: Sequence[StageOutputs]) -> dict[str, Tensor]:
    """Return the stage outputs of the first source, with [x_t; s_2; s_3; …] in place of x_t.

    s_i is the summary of source i: its state, or where none is as wide as x, the mean of x.
    """
    first, *others = sources
    context = summarize_sources(others)[:, None]  # (B, 1, D_2 + D_3 + …)
    joined = {name: first[name] for name in _VECTORS if name in first}  # (B, T, D_1)
    return {**first, **{name: torch.cat([x, context.expand(-1, x.shape[1], -1)], 2) for name, x in joined.items()}}
