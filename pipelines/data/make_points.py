"""Points with their convex hulls and shortest round trips, and numbers with their order, the same bytes each time."""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

from dice import Dice

SEED = 20_261_203
SIZES = {"dev": 200, "test": 400}
POINTS = {"hull": (5, 10), "tour": (5, 8), "sort": (3, 12)}
TRAINING = {"hull": 8000, "tour": 8000, "sort": 4000}  # records of an epoch

Point = tuple[float, ...]


def hull(points: list[Point]) -> list[int]:
    """Its corners counter-clockwise from the smallest position, closed: Andrew's monotone chain."""
    order = sorted(range(len(points)), key=points.__getitem__)
    corners = _half(points, order)[:-1] + _half(points, order[::-1])[:-1]
    first = corners.index(min(corners))
    return [*corners[first:], *corners[:first], corners[first]]


def _half(points: list[Point], order: list[int]) -> list[int]:
    kept: list[int] = []
    for i in order:
        while len(kept) > 1 and _turn(points[kept[-2]], points[kept[-1]], points[i]) <= 0:
            kept.pop()
        kept.append(i)
    return kept


def _turn(a: Point, b: Point, c: Point) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def tour(points: list[Point]) -> list[int]:
    """The shortest way from the first point through all others and back (Held and Karp 1962)."""
    ways: dict[tuple[frozenset[int], int], tuple[float, list[int]]] = {
        (frozenset([i]), i): (math.dist(points[0], points[i]), [0, i]) for i in range(1, len(points))
    }
    for _ in range(len(points) - 2):
        longer: dict[tuple[frozenset[int], int], tuple[float, list[int]]] = {}
        for (seen, last), (length, way) in ways.items():
            for i in {*range(1, len(points))} - seen:
                found = (length + math.dist(points[last], points[i]), [*way, i])
                longer[seen | {i}, i] = min(longer.get((seen | {i}, i), found), found)
        ways = longer
    _, best = min((length + math.dist(points[last], points[0]), way) for (_, last), (length, way) in ways.items())
    return [0, *(best[1:] if best[1] < best[-1] else best[:0:-1]), 0]


def order(points: list[Point]) -> list[int]:
    """From the least to the greatest number."""
    return sorted(range(len(points)), key=points.__getitem__)


SOLVED: dict[str, Callable[[list[Point]], list[int]]] = {"hull": hull, "tour": tour, "sort": order}


def main() -> None:
    """Write two files and a recipe for each task."""
    parser = argparse.ArgumentParser(description="Write points and what is right for them.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    folder = parser.parse_args().out / "points"
    folder.mkdir(parents=True, exist_ok=True)
    dice = Dice(SEED)
    for task, (least, most) in POINTS.items():
        for file, size in SIZES.items():
            lines = []
            for _ in range(size):
                width = 1 if task == "sort" else 2
                count = least + dice.below(most - least + 1)
                points = [tuple(dice.below(10_000) / 10_000 for _ in range(width)) for _ in range(count)]
                numbers = " ".join(f"{number:.4f}" for point in points for number in point)
                lines.append(f"{numbers} output {' '.join(str(i + 1) for i in SOLVED[task](points))}\n")
            (folder / f"{task}.{file}.txt").write_text("".join(lines), encoding="utf-8", newline="\n")
        recipe = {"task": task, "points": [least, most], "records": TRAINING[task], "seed": SEED}
        (folder / f"{task}.train.json").write_text(f"{json.dumps(recipe)}\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
