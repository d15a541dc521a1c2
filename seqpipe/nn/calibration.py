"""Temperatures and thresholds fitted on dev data, and calibration errors."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["GRID", "grid_temperature", "sigmoid_temperature", "softmax_temperature"]
__all__ += ["calibration_error", "f1_threshold", "refusal_threshold"]

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0  # range of temperatures
ECE_BINS = 15
GRID = tuple(2 ** (step / 2) for step in range(-5, 6))  # temperatures of losses, from 0.18 to 5.7
# Standard deviation of log T in a normal prior: a dev set of ten texts that are all right must not make scores of 1.
PRIOR = 1.0
OUTER_THRESHOLD_GAP = 1e-6  # distance of a threshold that accepts or rejects everything from a probability of 0 or 1


def softmax_temperature(logits: Tensor, label: Tensor) -> float:  # (N, L), (N,)
    """Return the T that maximises the likelihood of softmax(logits / T) (Guo et al. 2017) times the prior of T."""
    z = logits.double()
    right = z.gather(1, label[:, None])[:, 0]
    return _temperature(lambda sharpness: ((z * sharpness).softmax(1) * z).sum(1) - right)


def sigmoid_temperature(logits: Tensor, labels: Tensor) -> float:  # (N, L), (N, L) of 0 and 1
    """Return the T that maximises the labels' likelihood under sigmoid(logits / T) times the prior of T."""
    z = logits.double()
    return _temperature(lambda sharpness: ((z * sharpness).sigmoid() - labels) * z)


def _temperature(slope: Callable[[float], Tensor]) -> float:
    """Return 1 / s at the minimum of the loss, by bisection: the loss is convex in the sharpness s."""
    low, high = 1 / MAX_TEMPERATURE, 1 / MIN_TEMPERATURE
    for _ in range(60):
        middle = (low * high) ** 0.5
        rises = slope(middle).sum() + math.log(middle) / (middle * PRIOR**2) > 0
        low, high = (low, middle) if rises else (middle, high)
    return float((low * high) ** -0.5)


def grid_temperature(losses: Tensor) -> float:  # (N, G)
    """Return the T that minimises the sum of losses at the temperatures of GRID, under the prior of T.

    The minimum is that of a parabola in log T through the three best, or an end of GRID.
    """
    logs = torch.tensor(GRID, dtype=torch.double).log()
    total = losses.detach().cpu().double().sum(0) + logs**2 / (2 * PRIOR**2)
    best = int(total.argmin())
    if best in (0, len(GRID) - 1):
        return GRID[best]
    left, middle, right = total[best - 1 : best + 2].tolist()
    shift = (left - right) / (2 * (left - 2 * middle + right))
    return float((logs[best] + shift * (logs[1] - logs[0])).exp())


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


def _between(gain: Tensor, ordered: Tensor) -> float:
    """Return the best cut of a descending row of probabilities, midway between two neighbours.

    Accepting none is worth 0; equal numbers stay together; of equally good cuts it is the lowest.
    """
    above, below = (ordered[:1] + OUTER_THRESHOLD_GAP).clamp(min=1), (ordered[-1:] - OUTER_THRESHOLD_GAP).clamp(max=0)
    before, after = torch.cat([above, ordered]), torch.cat([ordered, below])
    gain = torch.where(after < before, torch.cat([gain.new_zeros(1), gain]), -torch.inf)
    best = len(gain) - 1 - int(gain.flip(0).argmax())
    return float((before[best] + after[best]) / 2)


def calibration_error(p: Tensor, right: Tensor) -> float:  # (N,), (N,) bool
    """Return the expected calibration error over 15 bins (Guo et al. 2017)."""
    if not len(p):
        return 0.0
    p = p.double()
    bins = (p * ECE_BINS).ceil().long().clamp(1, ECE_BINS) - 1
    gaps = torch.zeros(ECE_BINS, dtype=torch.double).index_add(0, bins, p - right.double())
    return float(gaps.abs().sum() / len(p))
