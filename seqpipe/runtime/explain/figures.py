"""Points and the way that an answer goes through them in, a figure of it out: marks and lines, placed in a square."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seqpipe.answers.base import AnswerKind, best_of
from seqpipe.answers.pointers import POLYGON
from seqpipe.features.document import Doc

Point = tuple[float, float]


@dataclass(frozen=True)
class Mark:
    """A point in the square: where it stands, from the upper left corner, its position, and whether the way begins."""

    x: float
    y: float
    label: str
    is_first: bool
    is_chosen: bool


@dataclass(frozen=True)
class Figure:
    """Points of one number or two, and the positions that an answer has of them.

    Args:
        points: Rows of numbers; of one number they stand on a line.
        way: Positions of them, in the order in which they were chosen.
        style: How the way is drawn: a line, or a polygon, which is filled.
    """

    points: tuple[tuple[float, ...], ...]
    way: tuple[int, ...]
    style: str

    @property
    def is_filled(self) -> bool:
        return self.style == POLYGON

    @property
    def title(self) -> str:
        what = "polygon" if self.is_filled else "way"
        return f"{len(self.points)} points and the {what} through {len({*self.way})} of them"

    def marks(self, side: float) -> list[Mark]:
        """Every point, in a square with sides of this length; one unit is as long in both directions."""
        places, chosen, first = self._placed(side), {*self.way}, self.way[:1]
        return [Mark(x, y, str(i), i in first, i in chosen) for i, (x, y) in enumerate(places)]

    def lines(self, side: float) -> list[Point]:
        """The way as a line from point to point, in the same square."""
        places = self._placed(side)
        return [places[at] for at in self.way]

    def _placed(self, side: float) -> list[Point]:
        plane = [(row[0], row[1] if len(row) > 1 else 0.0) for row in self.points]
        lows, highs = ([pick(axis) for axis in zip(*plane, strict=True)] for pick in (min, max))
        unit = max(highs[0] - lows[0], highs[1] - lows[1]) or 1.0
        middle = [(low + high) / 2 for low, high in zip(lows, highs, strict=True)]
        return [(side * (0.5 + (x - middle[0]) / unit), side * (0.5 - (y - middle[1]) / unit)) for x, y in plane]


def figure(kind: AnswerKind, doc: Doc, answer: Any) -> Figure | None:
    """The figure of an answer, its first one if it has several; None if its kind is not drawn.

    Rows of more than two numbers are none of the plane.
    """
    if kind.figure_style is None or doc.rows is None or doc.rows.shape[1] > 2:
        return None
    rows = tuple(tuple(float(f"{number:.7g}") for number in row) for row in doc.rows.tolist())  # what float32 holds
    return Figure(rows, tuple(best_of(answer)[kind.figure_key]), kind.figure_style)
