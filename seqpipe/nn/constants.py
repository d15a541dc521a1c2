"""Ids of the special tokens of every vocabulary, and the scores of what is impossible."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

PAD, UNK, BOS, EOS = 0, 1, 2, 3
MASKED_LOGIT = -1e4  # its exponential is exactly 0, and a sum of several stays finite in float32
LOG_ZERO = -1e9  # the log-probability of what cannot be; several still add up in float32


def logit_mask(size: int, banned: Sequence[int]) -> Tensor:  # (V,)
    """A bias of logits: MASKED_LOGIT for banned tokens, 0 for all others."""
    return torch.zeros(size).index_fill(0, torch.tensor(banned), MASKED_LOGIT)
