"""Token ids of every vocabulary, and the scores that stand for what cannot be."""

from __future__ import annotations

PAD, UNK, BOS, EOS = 0, 1, 2, 3
MASKED_LOGIT = -1e4  # its probability is exactly 0, and a sum of several stays finite in float32
LOG_ZERO = -1e9  # the log-probability of what cannot be; several still add up in float32
