"""Several sources as one: the first, with a vector of each other beside every position."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seqpipe.nn.multi_source_attention import Names, summary

_VECTORS = ("x", "other_x")  # names with a vector for each position; other_x is that of a neighbouring window


def join_sources(sources: Sequence[Names]) -> dict[str, Tensor]:
    """What the stages of the first source made, with [x_t; s_2; s_3; …] in place of x_t.

    s_i is the summary of source i: its state, or where none is as wide as x, the mean of x.
    """
    first, *others = sources
    context = summary(others)[:, None]  # (B, 1, D_2 + D_3 + …)
    joined = {name: first[name] for name in _VECTORS if name in first}  # (B, T, D_1)
    return {**first, **{name: torch.cat([x, context.expand(-1, x.shape[1], -1)], 2) for name, x in joined.items()}}
