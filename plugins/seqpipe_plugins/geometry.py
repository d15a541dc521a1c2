"""Convex hulls and shortest round trips of points, and the scores of a pointer network's answers.

Points are (n, 2) or, many sets at a time, (B, n, 2). Positions count from 0; a closed sequence ends where it began.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

LONGEST_TOUR = 12  # points: an exact tour of more takes too much memory and time
_NUMBERS_PER_BLOCK = 4_000_000  # numbers processed at a time


def hulls(points: np.ndarray) -> list[list[int]]:
    """Return the closed convex hull of each set (B, n, 2), counter-clockwise from the smallest position.

    A corner lies on no line between two others; equal points are represented by the first of them.
    """
    size, corners = max(1, _NUMBERS_PER_BLOCK // points.shape[1] ** 3), []
    for begin in range(0, len(points), size):
        block = points[begin : begin + size]
        # Gift wrapping (Jarvis 1973) of all sets at once: the corner after i is the j without a point to the right of
        # the line from i to j, the farthest of several on one line. It is computed for every i, corner or not, so that
        # one array has all sets; the loop below then goes from corner to corner.
        to = block[:, None] - block[:, :, None]  # (B, n, n, 2) from i to j
        turn = cross(to[:, :, :, None], to[:, :, None])  # (B, n, n, n) > 0: k is to the left of i -> j
        distance = (to**2).sum(3)
        follows = (turn >= 0).all(3) & (distance > 0)  # (B, n, n)
        after = np.where(follows, distance, -1.0).argmax(2)  # (B, n) of equal ones the first
        lowest = np.lexsort((block[..., 1], block[..., 0]), axis=1)[:, 0]  # always a corner
        for first, row in zip(lowest.tolist(), after.tolist(), strict=True):
            walk = [first]
            while (corner := row[walk[-1]]) not in walk:
                walk.append(corner)
            cycle = walk[walk.index(corner) :]
            at = cycle.index(min(cycle))
            corners.append([*cycle[at:], *cycle[:at], min(cycle)])
    return corners


def tours(points: np.ndarray) -> list[list[int]]:
    """Return a shortest closed tour of each set (B, n, 2) from its first point (Held and Karp 1962).

    Its direction is the one whose second position is less than its last but one. At most LONGEST_TOUR points.
    """
    n = points.shape[1]
    if n > LONGEST_TOUR:
        raise ValueError(f"{n} points: an exact tour has at most {LONGEST_TOUR}")
    if n < 3:
        return [[*range(n), 0] for _ in points]
    size = max(1, _NUMBERS_PER_BLOCK // (n * 2**n))
    return [tour for first in range(0, len(points), size) for tour in _tours(points[first : first + size])]


def _tours(points: np.ndarray) -> list[list[int]]:
    # The dynamic programme of Held and Karp: the shortest path from the first point through a set of others to j is the
    # shortest, over the set's other points k, of the path through the set without j to k, followed by the step from k
    # to j. Sets are bit masks, so that every subset of a set has a smaller number and is done before it.
    B, n = points.shape[:2]
    m, rows = n - 1, np.arange(B)  # all paths begin at the first point
    far = np.sqrt(((points[:, None] - points[:, :, None]) ** 2).sum(3)).transpose(1, 2, 0)  # (n, n, B)
    least = np.full((2**m, m, B), np.inf)  # of paths through the points of a set that end at one of them
    before = np.zeros((2**m, m, B), np.int8)
    for j in range(m):
        least[1 << j, j] = far[0, j + 1]
    for chosen in range(1, 2**m):
        last = [j for j in range(m) if chosen >> j & 1]
        if len(last) > 1:
            ways = least[[chosen ^ (1 << j) for j in last]] + far[1:, [j + 1 for j in last]].transpose(1, 0, 2)
            before[chosen, last] = ways.argmin(1)  # (J, m, B) -> (J, B)
            least[chosen, last] = ways.min(1)
    full = 2**m - 1
    at = (least[full] + far[1:, 0]).argmin(0)  # (B,)
    unvisited, visits = np.full(B, full), []
    for _ in range(m):
        visits.append(at + 1)
        at, unvisited = before[unvisited, at, rows].astype(np.int64), unvisited ^ (1 << at)
    ways = np.stack(visits, 1)
    ways = np.where(ways[:, :1] < ways[:, -1:], ways, ways[:, ::-1])
    return [[0, *tour, 0] for tour in ways.tolist()]


def cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the third number of the cross product: positive if b is to the left of a."""
    return np.asarray(a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0])


def open_sequence(way: Sequence[int]) -> list[int]:
    """Return a sequence without its closing position, if it has one."""
    return [*way[:-1]] if len(way) > 1 and way[0] == way[-1] else [*way]


def area(corners: np.ndarray) -> float:
    """Return the area of the polygon with these corners (m, 2), by the shoelace formula; never negative."""
    return abs(float(cross(corners, np.roll(corners, -1, 0)).sum())) / 2


def length(corners: np.ndarray) -> float:
    """Return the length of the path through these points (m, 2) and back to the first."""
    return float(np.sqrt(((corners - np.roll(corners, -1, 0)) ** 2).sum(1)).sum())


def same_polygon(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether two rows of corners (m, 2) are one polygon, from any corner and in any direction."""
    if first.shape != second.shape or not len(first):
        return False
    ways = (second, second[::-1])
    return any(np.array_equal(first, np.roll(corners, shift, 0)) for corners in ways for shift in range(len(first)))


def is_simple(corners: np.ndarray) -> bool:
    """Return whether at least three different corners (m, 2) make a polygon whose sides meet only at its corners."""
    m = len(corners)
    if m < 3 or len(np.unique(corners, axis=0)) < m or not area(corners):
        return False
    ends = np.roll(corners, -1, 0)
    return not any(
        _meet(corners[i], ends[i], corners[j], ends[j]) for i in range(m) for j in range(i + 2, m) if (j + 1) % m != i
    )


def _meet(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> bool:
    """Return whether two lines from a to b and from c to d have a point in common."""
    ends = ((a, b, c), (a, b, d), (c, d, a), (c, d, b))
    sides = [float(np.sign(cross(q - p, r - p))) for p, q, r in ends]
    if sides[0] * sides[1] < 0 and sides[2] * sides[3] < 0:
        return True
    # An end of one line on the straight line of the other (side 0) is a common point if it is within the other.
    return any(
        not side and bool((np.minimum(p, q) <= r).all() and (r <= np.maximum(p, q)).all())
        for side, (p, q, r) in zip(sides, ends, strict=True)
    )


def hull_scores(gold: Sequence[Any], predicted: Sequence[Sequence[int]]) -> dict[str, float]:
    """Scores of convex hulls (Vinyals, Fortunato and Jaitly 2015).

    `hull_accuracy` is the share of answers that are the same polygon as the reference, wherever they begin and in
    whichever direction they go; `area_covered` the mean of an answer's area over the reference's, of the answers that
    are polygons without crossing sides (the paper gives no area at all where more than 1 % are not); `valid` the share
    of those.

    Args:
        gold: References with `pointers` and `points`.
        predicted: The positions of each answer.
    """
    equal, shares = 0, []
    for reference, answer in zip(gold, predicted, strict=True):
        points = np.array(reference.points, float)
        hull, corners = points[open_sequence(reference.pointers)], points[open_sequence(answer)]
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
        gold: References with `pointers` and `points`.
        predicted: The positions of each answer.
    """
    shares, lengths, best = 0.0, [], 0.0
    for reference, answer in zip(gold, predicted, strict=True):
        points = np.array(reference.points, float)
        shortest = length(points[open_sequence(reference.pointers)])
        best += shortest
        if len(answer) == len(points) + 1 and answer[0] == answer[-1] and {*answer} == {*range(len(points))}:
            lengths.append(length(points[open_sequence(answer)]))
            shares += shortest / lengths[-1] if lengths[-1] else 1.0
    return {
        "optimality": shares / len(gold),
        "tour_length": sum(lengths) / max(1, len(lengths)),
        "optimal_length": best / len(gold),
        "valid": len(lengths) / len(gold),
    }
