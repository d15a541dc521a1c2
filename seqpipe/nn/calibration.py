"""Temperatures and thresholds fitted on dev data, and calibration errors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LEAST, MOST = 0.05, 20.0  # range of temperatures
BINS = 15
EDGE = 1e-6  # distance of a threshold that accepts or rejects everything from a probability of 0 or 1


def softmax_temperature(logits: Tensor, label: Tensor) -> float:  # (N, L), (N,)
    """Return the T that maximises the likelihood of softmax(logits / T) (Guo et al. 2017); 1 without texts."""
    z = logits.double()
    right = z.gather(1, label[:, None])[:, 0]
    return _temperature(lambda sharpness: ((z * sharpness).softmax(1) * z).sum(1) - right, len(z))


def sigmoid_temperature(logits: Tensor, labels: Tensor) -> float:  # (N, L), (N, L) of 0 and 1
    """Return the T that maximises the labels' likelihood under sigmoid(logits / T); 1 without texts."""
    z = logits.double()
    return _temperature(lambda sharpness: ((z * sharpness).sigmoid() - labels) * z, len(z))


def _temperature(slope: Callable[[float], Tensor], texts: int) -> float:
    """Return 1 / s at the minimum of the loss, by bisection: the loss is convex in the sharpness s."""
    if not texts:
        return 1.0
    low, high = 1 / MOST, 1 / LEAST
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if slope(middle).sum() > 0 else (middle, high)
    return float((low * high) ** -0.5)


def f1_threshold(p: Tensor, right: Tensor) -> float | None:  # (N,), (N,) bool
    """Return the probability threshold with the greatest F1 (Lipton et al. 2014); None without positive labels."""
    ordered, order = p.double().sort(descending=True)
    taken = torch.arange(1, len(p) + 1, dtype=torch.double)  # number of positive decisions
    f1 = 2 * right[order].double().cumsum(0) / (taken + right.sum())
    return _between(f1, ordered) if right.any() else None


def refusal_threshold(confidence: Tensor, right: Tensor, outside: Tensor) -> float:  # (N,), (N,) bool, (N,) bool
    """Return the confidence threshold for out-of-scope answers with the greatest accuracy."""
    ordered, order = confidence.double().sort(descending=True)
    gain = (right[order].double() - outside[order].double()).cumsum(0)  # of answering the most confident
    return _between(gain, ordered)


def _between(worth: Tensor, ordered: Tensor) -> float:
    """Return the best cut of a descending row of probabilities, midway between two neighbours.

    Accepting none is worth 0; equal numbers stay together; of equally good cuts it is the lowest.
    """
    above, below = (ordered[:1] + EDGE).clamp(min=1), (ordered[-1:] - EDGE).clamp(max=0)
    before, after = torch.cat([above, ordered]), torch.cat([ordered, below])
    worth = torch.where(after < before, torch.cat([worth.new_zeros(1), worth]), -torch.inf)
    best = len(worth) - 1 - int(worth.flip(0).argmax())
    return float((before[best] + after[best]) / 2)


def calibration_error(p: Tensor, right: Tensor) -> float:  # (N,), (N,) bool
    """Return the expected calibration error over 15 bins (Guo et al. 2017)."""
    if not len(p):
        return 0.0
    p = p.double()
    bins = (p * BINS).ceil().long().clamp(1, BINS) - 1
    gaps = torch.zeros(BINS, dtype=torch.double).index_add(0, bins, p - right.double())
    return float(gaps.abs().sum() / len(p))
