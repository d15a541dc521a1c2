"""Token ids of every vocabulary, and the scores that stand for what cannot be."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

PAD, UNK, BOS, EOS = 0, 1, 2, 3
MASKED_LOGIT = -1e4  # its exponential is exactly 0, and a sum of several stays finite in float32
LOG_ZERO = -1e9  # the log-probability of what cannot be; several still add up in float32


def logit_mask(size: int, banned: Sequence[int]) -> Tensor:  # (V,)
    """What is added to logits: MASKED_LOGIT for the tokens that are banned, 0 for all others."""
    return torch.zeros(size).index_fill(0, torch.tensor(banned), MASKED_LOGIT)
