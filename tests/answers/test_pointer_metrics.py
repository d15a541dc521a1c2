"""Scores of positions, on answers a person can check."""

from __future__ import annotations

import pytest

from seqpipe.answers.metrics.counters import counter, shown
from seqpipe.answers.metrics.pointers import PointerCounter
from seqpipe.answers.pointers import Pointed

POINTS = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0), (0.5, 0.4))  # a square, and a point within
HULL = Pointed((0, 1, 2, 3, 0), POINTS)
TOUR = Pointed((0, 1, 2, 3, 4, 0), POINTS)


def scores(task: str, gold: Pointed, *answers: list[int]) -> dict[str, float]:
    counts = PointerCounter(task)
    for answer in answers:
        counts.add(gold, answer)
    return counts.result()


def test_a_sequence_is_right_as_a_whole_and_in_its_places() -> None:
    found = scores("sequence", Pointed((2, 0, 1)), [2, 0, 1], [2, 1], [2, 0, 1, 1])
    assert found == {"exact_match": 1 / 3, "position_accuracy": 7 / 9}


def test_a_hull_is_right_from_any_corner_and_in_any_direction() -> None:
    found = scores("hull", HULL, [0, 1, 2, 3, 0], [2, 3, 0, 1, 2], [3, 2, 1, 0, 3], [0, 1, 2, 3])
    assert found["hull_accuracy"] == found["area_covered"] == found["valid"] == 1
    assert found["exact_match"] == 1 / 4


def test_a_hull_that_lacks_a_corner_covers_less() -> None:
    found = scores("hull", HULL, [0, 1, 2, 0])
    assert (found["hull_accuracy"], found["area_covered"], found["valid"]) == (0, 0.5, 1)


@pytest.mark.parametrize("answer", [[0, 2, 1, 3, 0], [0, 1, 0], [], [0, 1, 2, 1, 0], [0]])
def test_what_is_no_polygon_is_wrong_and_its_area_is_not_counted(answer: list[int]) -> None:
    found = scores("hull", HULL, answer, [0, 1, 2, 3, 0])
    assert (found["hull_accuracy"], found["area_covered"], found["valid"]) == (0.5, 1, 0.5)


def test_a_hull_that_names_the_other_of_two_points_on_one_place_is_the_same_polygon() -> None:
    twice = Pointed((0, 1, 2, 3, 0), (*POINTS[:4], (1.0, 1.0)))
    assert scores("hull", twice, [0, 1, 4, 3, 0])["hull_accuracy"] == 1


def test_a_tour_as_long_as_the_shortest_is_as_good_in_any_direction() -> None:
    found = scores("tour", TOUR, [0, 4, 3, 2, 1, 0], [2, 3, 4, 0, 1, 2])
    assert found["optimality"] == pytest.approx(1)
    assert found["tour_length"] == pytest.approx(found["optimal_length"])
    assert (found["valid"], found["exact_match"]) == (1, 0)


@pytest.mark.parametrize("answer", [[0, 1, 2, 3, 0], [0, 1, 2, 3, 4], [0, 1, 2, 3, 3, 0], [], [0, 1, 2, 3, 4, 1]])
def test_what_leaves_a_point_out_or_does_not_return_is_no_tour(answer: list[int]) -> None:
    found = scores("tour", TOUR, answer, [0, 1, 2, 3, 4, 0])
    assert (found["valid"], found["optimality"]) == (0.5, pytest.approx(0.5))
    assert found["tour_length"] == pytest.approx(found["optimal_length"])


def test_a_longer_tour_is_as_good_as_the_shortest_is_shorter() -> None:
    found = scores("tour", Pointed((0, 1, 2, 3, 0), POINTS[:4]), [0, 2, 1, 3, 0])
    assert found["tour_length"] == pytest.approx(2 + 2 * 2**0.5)
    assert found["optimality"] == pytest.approx(4 / (2 + 2 * 2**0.5))


def test_nothing_counted_gives_zeros() -> None:
    for task in ("sequence", "hull", "tour"):
        assert {*PointerCounter(task).result().values()} == {0}


def test_the_first_score_is_the_tasks_own() -> None:
    first = {task: next(iter(counter("pointers", task).result())) for task in ("sequence", "hull", "tour")}
    assert first == {"sequence": "exact_match", "hull": "hull_accuracy", "tour": "optimality"}
    assert shown("hull_accuracy", 0.925) == "92.50"
    assert shown("tour_length", 2.1341) == "2.134"
