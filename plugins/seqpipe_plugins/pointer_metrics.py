"""Scores of convex hulls and round trips that a pointer network answers with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .geometry import area, is_simple, length, opened, same_polygon


def hull_scores(gold: Sequence[Any], predicted: Sequence[Sequence[int]]) -> dict[str, float]:
    """Scores of convex hulls (Vinyals, Fortunato and Jaitly 2015).

    `hull_accuracy` is the share of answers that are the same polygon as the reference, wherever they begin and in
    whichever direction they go; `area_covered` the mean of an answer's area over the reference's, of the answers that
    are polygons without crossing sides (the paper gives no area at all where more than 1 % are not); `valid` the share
    of those.

    Args:
        gold: Each with `pointers` and `points`.
        predicted: The positions of each answer.
    """
    equal, shares = 0, []
    for reference, answer in zip(gold, predicted, strict=True):
        points = np.array(reference.points, float)
        hull, corners = points[opened(reference.pointers)], points[opened(answer)]
        equal += same_polygon(hull, corners)
        if is_simple(corners):
            shares.append(area(corners) / (area(hull) or 1.0))
    return {
        "hull_accuracy": equal / len(gold),
        "area_covered": sum(shares) / max(1, len(shares)),
        "valid": len(shares) / len(gold),
    }


def tour_scores(gold: Sequence[Any], predicted: Sequence[Sequence[int]]) -> dict[str, float]:
    """Scores of round trips (Vinyals, Fortunato and Jaitly 2015).

    `optimality` is the mean of the reference's length over the answer's, 0 for what does not go through each point
    once; `tour_length` and `optimal_length` are the mean lengths of the answers that do and of all references; `valid`
    is the share of answers that do.

    Args:
        gold: Each with `pointers` and `points`.
        predicted: The positions of each answer.
    """
    shares, lengths, best = 0.0, [], 0.0
    for reference, answer in zip(gold, predicted, strict=True):
        points = np.array(reference.points, float)
        shortest = length(points[opened(reference.pointers)])
        best += shortest
        if len(answer) == len(points) + 1 and answer[0] == answer[-1] and {*answer} == {*range(len(points))}:
            lengths.append(length(points[opened(answer)]))
            shares += shortest / lengths[-1] if lengths[-1] else 1.0
    return {
        "optimality": shares / len(gold),
        "tour_length": sum(lengths) / max(1, len(lengths)),
        "optimal_length": best / len(gold),
        "valid": len(lengths) / len(gold),
    }
