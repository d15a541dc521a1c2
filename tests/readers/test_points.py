"""Files of points, good and bad, and recipes that make them."""

import itertools
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_files import data_error

from seqpipe.errors import DataError, UsageError
from seqpipe_plugins.geometry import hulls, tours
from seqpipe_plugins.readers.points import Points

RECIPE: dict[str, Any] = {"task": "hull", "points": [5, 8], "records": 50, "seed": 3}


def recipe(folder: Path, **changes: Any) -> Path:
    path = folder / "recipe.json"
    keys = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in (RECIPE | changes).items())
    path.write_text(f"{{\n{keys}\n}}\n")
    return path


def write(folder: Path, text: str) -> Path:
    path = folder / "points.txt"
    path.write_text(text)
    return path


def test_a_line_is_points_and_positions_that_count_from_0(tmp_path: Path) -> None:
    path = write(tmp_path, "0.1 0.2 0.3 0.4 -5e-1 6 output 1 3 2 1\n\n1 2 output 1\n")
    assert list(Points().read(path)) == [
        {"points": [[0.1, 0.2], [0.3, 0.4], [-0.5, 6]], "pointers": [0, 2, 1, 0], "where": f"{path}:1"},
        {"points": [[1, 2]], "pointers": [0], "where": f"{path}:3"},
    ]


def test_rows_have_as_many_numbers_as_the_option_width(tmp_path: Path) -> None:
    (record,) = Points(width=1).read(write(tmp_path, "3 1 2 output 2 3 1\n"))
    assert (record["points"], record["pointers"]) == ([[3], [1], [2]], [1, 2, 0])


BAD_LINES = [
    ("0.1 0.2 0.3 output 1", "3 numbers are not points of 2 each"),
    ("output 1", "0 numbers"),
    ("0.1 0.2 1 2", "`output` is in this line 0 times"),
    ("0.1 0.2 output 1 output 1", "2 times"),
    ("0.1 x output 1", "'x' is not a number"),
    *((f"0.1 {number} output 1", f"'{number}' is not finite") for number in ("nan", "inf", "1e39")),
    ("0.1 0.2 output 2", "'2' is not a position among 1 points"),
    *((f"0.1 0.2 output {position}", f"'{position}' is not a position") for position in ("0", "-1", "1.0", "²")),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES)
def test_a_bad_line_is_an_error_with_its_place(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path, f"1 2 output 1\n{line}\n")
    with data_error(f"{path}:2", message):
        list(Points().read(path))


@pytest.mark.parametrize("task", ["hull", "tour", "sort"])
def test_a_recipe_gives_points_and_their_solutions(tmp_path: Path, task: str) -> None:
    records = list(Points(width=1 if task == "sort" else 2).read(recipe(tmp_path, task=task)))
    assert len(records) == 50
    assert {len(record["points"]) for record in records} == {5, 6, 7, 8}
    solve = {"hull": lambda p: hulls(p)[0], "tour": lambda p: tours(p)[0], "sort": sort_by_size}[task]
    for record in records:
        points = np.array(record["points"])
        assert points.min() >= 0
        assert points.max() <= 1
        assert record["pointers"] == solve(points[None])


def sort_by_size(points: np.ndarray) -> list[int]:
    return sorted(range(points.shape[1]), key=lambda i: (points[0, i, 0], i))


def test_an_epoch_is_a_function_of_the_seed_and_its_number(tmp_path: Path) -> None:
    reader, path = Points(), recipe(tmp_path)
    every = [list(reader.epoch(path, number)) for number in (0, 1, 2)]
    assert list(Points().epoch(path, 1)) == every[1]
    assert list(reader.read(path)) == every[0]
    assert list(reader.epoch(recipe(tmp_path, seed=4), 1)) not in every
    assert all(first[0]["points"] != second[0]["points"] for first, second in itertools.combinations(every, 2))


def test_only_a_recipe_changes_from_epoch_to_epoch(tmp_path: Path) -> None:
    assert Points().changes(tmp_path / "a.json")
    assert not Points().changes(tmp_path / "a.txt")


def test_a_recipe_of_a_million_records_is_generated_as_it_is_read(tmp_path: Path) -> None:
    records = Points().read(recipe(tmp_path, records=1_000_000))
    tracemalloc.start()
    next(records)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


WRONG_RECIPES = [
    ({"task": "hul"}, 2, "no task 'hul'; did you mean 'hull'"),
    ({"task": "sort"}, 2, "set the reader's option width: 1"),
    ({"task": "tour", "points": 13}, 3, "from 3 to 12 points"),
    ({"points": [5]}, 3, "write their number, or [fewest, most]"),
    ({"points": [8, 5]}, 3, "[8, 5]"),
    ({"points": 2}, 3, "from 3"),
    ({"records": 0}, 4, "records is 0"),
    ({"records": 2_000_000}, 4, "from 1 to 1,000,000"),
    ({"seed": -1}, 5, "seed is -1"),
    ({"seed": True}, 5, "seed is True"),
    ({"sede": 1}, 6, "a recipe has no 'sede'; did you mean 'seed'"),
]


@pytest.mark.parametrize(("changes", "line", "message"), WRONG_RECIPES)
def test_a_wrong_recipe_is_an_error(tmp_path: Path, changes: dict, line: int, message: str) -> None:
    path = recipe(tmp_path, **changes)
    with data_error(f"{path}:{line}", message):
        next(Points().read(path))


@pytest.mark.parametrize("text", ["{", "[1]", "", '{"task": "hull"}'])
def test_a_file_without_a_recipe_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.json").write_text(text)
    with pytest.raises(DataError, match=r"recipe\.json:1: .*recipe"):
        next(Points().read(tmp_path / "recipe.json"))


def test_a_width_without_recipes_is_refused(tmp_path: Path) -> None:
    with pytest.raises((DataError, UsageError)):
        next(Points(width=3).read(recipe(tmp_path)))
