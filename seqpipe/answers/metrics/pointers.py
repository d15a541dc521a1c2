"""Positions of the reference and of an answer in, scores out: sequences, convex hulls and round trips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from seqpipe.answers.geometry import area, is_simple, length, opened, same_polygon


class Gold(Protocol):
    @property
    def pointers(self) -> Sequence[int]: ...
    @property
    def points(self) -> Sequence[Sequence[float]] | None: ...


class PointerCounter:
    """The share of answers that are the reference, and of its positions those that the answer has at the same place.

    What is in front of these depends on the task (Vinyals, Fortunato and Jaitly 2015):

    - hull: `hull_accuracy`, the share of answers that are the same polygon as the reference, wherever they begin and
      in whichever direction they go; `area_covered`, the mean of an answer's area over the reference's, of the answers
      that are polygons without crossing sides (the paper gives no area at all where more than 1 % are not); `valid`,
      the share of those.
    - tour: `optimality`, the mean of the reference's length over the answer's, 0 for what does not go through each
      point once; `tour_length` and `optimal_length`, the mean lengths of the answers that do and of all references;
      `valid`, the share of answers that do.
    """

    def __init__(self, task: str = "sequence") -> None:
        self.task = task
        self.records = self.exact = self.positions = self.placed = 0
        self.polygons = self.valid = 0
        self.areas = self.shares = self.lengths = self.best = 0.0

    def add(self, gold: Gold, predicted: Sequence[int]) -> None:
        """One record: the positions of the reference with its points, and those of the answer."""
        self.records += 1
        self.exact += [*gold.pointers] == [*predicted]
        self.positions += len(gold.pointers)
        self.placed += sum(one == other for one, other in zip(gold.pointers, predicted, strict=False))
        if gold.points is not None and self.task == "hull":
            self._hull(np.array(gold.points, float), gold.pointers, predicted)
        elif gold.points is not None and self.task == "tour":
            self._tour(np.array(gold.points, float), gold.pointers, predicted)

    def _hull(self, points: np.ndarray, right: Sequence[int], given: Sequence[int]) -> None:
        true, corners = points[opened(right)], points[opened(given)]
        self.polygons += same_polygon(true, corners)
        if is_simple(corners):
            self.valid += 1
            self.areas += area(corners) / (area(true) or 1.0)

    def _tour(self, points: np.ndarray, right: Sequence[int], given: Sequence[int]) -> None:
        shortest = length(points[opened(right)])
        self.best += shortest
        if len(given) == len(points) + 1 and given[0] == given[-1] and {*given} == {*range(len(points))}:
            gone = length(points[opened(given)])
            self.valid += 1
            self.lengths += gone
            self.shares += shortest / gone if gone else 1.0

    def result(self) -> dict[str, Any]:
        records, valid = max(1, self.records), max(1, self.valid)
        own = {
            "hull": {
                "hull_accuracy": self.polygons / records,
                "area_covered": self.areas / valid,
                "valid": self.valid / records,
            },
            "tour": {
                "optimality": self.shares / records,
                "tour_length": self.lengths / valid,
                "optimal_length": self.best / records,
                "valid": self.valid / records,
            },
        }
        same = {"exact_match": self.exact / records, "position_accuracy": self.placed / max(1, self.positions)}
        return own.get(self.task, {}) | same
