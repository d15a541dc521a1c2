"""Reader of points and positions, one line a record; or of a recipe, which generates records from a seed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveInt

from seqpipe.plugin import JSON_DECODER, DataError, did_you_mean

from ..geometry import LONGEST_TOUR, hulls, tours
from . import LineReader, Record, file_lines

OUTPUT = "output"
RECIPE = ".json"
_KEYS = ("task", "points", "records", "seed")
_POINTS_RECIPE = '{"task": "hull", "points": [5, 10], "records": 20000, "seed": 1}'
_TASKS = {"hull": (2, 3, 200), "tour": (2, 3, LONGEST_TOUR), "sort": (1, 1, 10_000)}  # width, fewest and most points
_LIMITS = {"records": (1, 1_000_000), "seed": (0, 2**63)}
_DIGITS = 6
_LARGEST = float(np.finfo(np.float32).max)
_RECORDS_PER_BLOCK = 1024  # records that are generated together


class Points(LineReader):
    """Reads points and pointers (Vinyals et al. 2015), one record a line: `x1 y1 x2 y2 … output i1 i2 …`.

    A record has `points`, a list of rows of numbers, and `pointers`, the positions after `output`, which count from 1
    in the file and from 0 in the record; a closed sequence repeats its first position at the end in both.

    A file whose name ends in .json describes data to generate: `{"task": "hull", "points": [5, 10], "records": 20000,
    "seed": 1}` is 20,000 records of 5 to 10 points (or a fixed number), uniformly distributed in the unit square, with
    the answer of the task: `hull`, the corners of the convex hull, counter-clockwise from the smallest position,
    closed; `tour`, a shortest round trip from the first point, in the direction with the smaller second position,
    closed (at most 12 points); `sort`, rows of one number in ascending order. The training file has different records
    in every epoch, determined by the seed and the number of the epoch.

    Args:
        width: Number of values in a row.
    """

    fields = ("points", "pointers", "where")

    def __init__(self, *, width: PositiveInt = 2, encoding: str = "utf-8"):
        super().__init__(encoding=encoding)
        self.width = width

    def read(self, path: Path) -> Iterator[Record]:
        """The records of a UTF-8 file, or those of the first epoch of a recipe; DataError names file, line and fix."""
        return self.epoch(path, 0) if self.changes(path) else super().read(path)

    def changes(self, path: Path) -> bool:
        """Return whether a file is a recipe, which has different records in every epoch."""
        return Path(path).suffix == RECIPE

    def epoch(self, path: Path, number: int) -> Iterator[Record]:
        """The records of a recipe in one epoch; epochs count from 0."""
        recipe = _read_recipe(path, self.width)
        random = np.random.default_rng((recipe["seed"], number, 0x706F696E74))
        for first in range(0, recipe["records"], _RECORDS_PER_BLOCK):
            records = _generate(recipe, min(_RECORDS_PER_BLOCK, recipe["records"] - first), random)
            for count, (points, pointers) in enumerate(records, first + 1):
                where = f"{path}:1: epoch {number + 1}, record {count}"
                yield {"points": points, "pointers": pointers, "where": where}

    def parse(self, line: str, where: str) -> Record:
        words = line.split()
        if words.count(OUTPUT) != 1:
            problem = f"the word `{OUTPUT}` is in this line {words.count(OUTPUT)} times"
            raise DataError(f"{where}: {problem}; write the points, `{OUTPUT}` once, and positions from 1 on")
        at = words.index(OUTPUT)
        numbers = [_number(word, where) for word in words[:at]]
        if not numbers or len(numbers) % self.width:
            problem = f"{len(numbers)} numbers are not points of {self.width} each"
            raise DataError(f"{where}: {problem}; complete the line, or set the reader's option `width`")
        points = [numbers[i : i + self.width] for i in range(0, at, self.width)]
        pointers = []
        for word in words[at + 1 :]:
            position = int(word) if word.isdecimal() and word.isascii() and len(word) < 10 else 0
            if not 1 <= position <= len(points):
                problem = f"{word[:40]!r} is not a position among {len(points)} points, which count from 1"
                raise DataError(f"{where}: {problem}; correct it")
            pointers.append(position - 1)
        return {"points": points, "pointers": pointers}


def _number(word: str, where: str) -> float:
    try:
        number = float(word)
    except ValueError as error:
        raise DataError(f"{where}: {word[:40]!r} is not a number; correct it") from error
    if not abs(number) <= _LARGEST:
        raise DataError(f"{where}: {word[:40]!r} is not finite in float32; leave the record out")
    return number


def _read_recipe(path: Path, width: int) -> dict[str, Any]:
    """Return the recipe in a file, its points as a pair of limits; DataError for an invalid one."""
    text = "".join(file_lines(path))
    try:
        recipe = JSON_DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        raise DataError(f"{path}:{line}: this is not a recipe ({error}); write one such as {_POINTS_RECIPE}") from error

    def fault(key: str, problem: str) -> DataError:
        line = text.partition(f'"{key}"')[0].count("\n") + 1 if f'"{key}"' in text else 1
        return DataError(f"{path}:{line}: {problem}")

    if not isinstance(recipe, Mapping):
        raise fault("", f"a recipe is an object such as {_POINTS_RECIPE}")
    for key in (*recipe, *_KEYS):
        if key not in _KEYS:
            raise fault(key, f"a recipe has no {key!r}{did_you_mean(key, _KEYS)}")
        if key not in recipe:
            raise fault(key, f"the recipe has no {key!r}; write one such as {_POINTS_RECIPE}")
    task, points = str(recipe["task"]), recipe["points"]
    if task not in _TASKS:
        raise fault("task", f"no task {task!r}{did_you_mean(task, _TASKS)}: {', '.join(_TASKS)}")
    task_width, fewest, most = _TASKS[task]
    if task_width != width:
        problem = f"the rows of the task {task} have {task_width} numbers"
        raise fault("task", f"{problem}; set the reader's option width: {task_width}")
    for key, (least, highest) in _LIMITS.items():
        if type(recipe[key]) is not int or not least <= recipe[key] <= highest:
            raise fault(key, f"{key} is {recipe[key]!r}; write a whole number from {least:,} to {highest:,}")
    sizes = points if isinstance(points, list) else [points, points]
    if len(sizes) != 2 or not all(type(n) is int for n in sizes) or not fewest <= sizes[0] <= sizes[1] <= most:
        problem = f"points is {points!r}; a {task} has from {fewest} to {most} points"
        raise fault("points", f"{problem}: write their number, or [fewest, most]")
    return {**recipe, "points": sizes}


def _generate(
    recipe: Mapping[str, Any], count: int, random: np.random.Generator
) -> Iterator[tuple[list[list[float]], list[int]]]:
    """Return the points of that many records, each with the positions that are the answer."""
    task, (least, most) = recipe["task"], recipe["points"]
    sizes = random.integers(least, most + 1, count)
    points = np.round(random.random((count, most, _TASKS[task][0])), _DIGITS)
    answers: dict[int, list[int]] = {}
    for size in np.unique(sizes).tolist():
        rows = np.flatnonzero(sizes == size)
        block = points[rows, :size]
        if task == "sort":
            positions = block[..., 0].argsort(axis=1, kind="stable").tolist()
        else:
            positions = hulls(block) if task == "hull" else tours(block)
        answers |= dict(zip(rows.tolist(), positions, strict=True))
    return ((points[row, :size].tolist(), answers[row]) for row, size in enumerate(sizes.tolist()))
