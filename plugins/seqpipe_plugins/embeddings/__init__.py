"""Embeddings: features to x (B, T, D), one file per component; here their shared code."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

WORD_GROUPS = 4  # of words of similar lengths


def uniform_embedding(size: int, dim: int) -> nn.Embedding:
    """Return uniformly distributed vectors of variance 1 / D; that of the padding is 0."""
    embedding = nn.Embedding(size, dim, padding_idx=0)
    bound = (3 / dim) ** 0.5
    nn.init.uniform_(embedding.weight, -bound, bound)
    with torch.no_grad():
        embedding.weight[0] = 0
    return embedding


def each_word_once(words: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:  # (N, C) -> (N, D)
    """Compute each distinct word of a batch once, in groups of similar length: many words recur, and most are short.

    Except on the CPU, compute all words at once: the host would wait for the number of words and the lengths.
    """
    if words.device.type != "cpu":
        return compute(words)
    distinct, copies = torch.unique(words, dim=0, return_inverse=True)  # (W, C), (N,)
    lengths = (distinct != 0).sum(1)
    order = lengths.argsort(stable=True)
    groups = order.tensor_split(min(WORD_GROUPS, len(order)))
    parts = [compute(distinct[rows, : max(1, int(lengths[rows[-1]]))]) for rows in groups]  # (W', D) each
    return torch.cat(parts)[order.argsort()[copies]]
