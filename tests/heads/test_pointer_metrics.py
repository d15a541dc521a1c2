"""Scores of hulls and round trips, on answers a person can check."""

import pytest

from seqpipe.answers.metrics.numbers import format_score
from seqpipe.answers.pointers import PointerGold
from seqpipe_plugins.heads.pointer import Pointer

POINTS = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0), (0.5, 0.4))  # a square, and a point within
HULL = PointerGold((0, 1, 2, 3, 0), POINTS)
TOUR = PointerGold((0, 1, 2, 3, 4, 0), POINTS)


def scores(task: str, gold: PointerGold, *answers: list[int]) -> dict[str, float]:
    """The head's own scores of several answers to one record."""
    return Pointer.metrics({"task": task}, [gold] * len(answers), [*answers])


def test_a_hull_is_right_from_any_corner_and_in_any_direction() -> None:
    found = scores("hull", HULL, [0, 1, 2, 3, 0], [2, 3, 0, 1, 2], [3, 2, 1, 0, 3], [0, 1, 2, 3])
    assert found["hull_accuracy"] == found["area_covered"] == found["valid"] == 1


def test_a_hull_that_lacks_a_corner_covers_less() -> None:
    found = scores("hull", HULL, [0, 1, 2, 0])
    assert (found["hull_accuracy"], found["area_covered"], found["valid"]) == (0, 0.5, 1)


@pytest.mark.parametrize("answer", [[0, 2, 1, 3, 0], [0, 1, 0], [], [0, 1, 2, 1, 0], [0]])
def test_what_is_no_polygon_is_wrong_and_its_area_is_not_counted(answer: list[int]) -> None:
    found = scores("hull", HULL, answer, [0, 1, 2, 3, 0])
    assert (found["hull_accuracy"], found["area_covered"], found["valid"]) == (0.5, 1, 0.5)


def test_a_hull_that_names_the_other_of_two_points_on_one_place_is_the_same_polygon() -> None:
    twice = PointerGold((0, 1, 2, 3, 0), (*POINTS[:4], (1.0, 1.0)))
    assert scores("hull", twice, [0, 1, 4, 3, 0])["hull_accuracy"] == 1


def test_a_tour_as_long_as_the_shortest_is_as_good_in_any_direction() -> None:
    found = scores("tour", TOUR, [0, 4, 3, 2, 1, 0], [2, 3, 4, 0, 1, 2])
    assert found["optimality"] == pytest.approx(1)
    assert found["tour_length"] == pytest.approx(found["optimal_length"])
    assert found["valid"] == 1


@pytest.mark.parametrize("answer", [[0, 1, 2, 3, 0], [0, 1, 2, 3, 4], [0, 1, 2, 3, 3, 0], [], [0, 1, 2, 3, 4, 1]])
def test_what_leaves_a_point_out_or_does_not_return_is_no_tour(answer: list[int]) -> None:
    found = scores("tour", TOUR, answer, [0, 1, 2, 3, 4, 0])
    assert (found["valid"], found["optimality"]) == (0.5, pytest.approx(0.5))
    assert found["tour_length"] == pytest.approx(found["optimal_length"])


def test_a_longer_tour_is_as_good_as_the_shortest_is_shorter() -> None:
    found = scores("tour", PointerGold((0, 1, 2, 3, 0), POINTS[:4]), [0, 2, 1, 3, 0])
    assert found["tour_length"] == pytest.approx(2 + 2 * 2**0.5)
    assert found["optimality"] == pytest.approx(4 / (2 + 2 * 2**0.5))


def test_the_first_score_is_the_tasks_own_and_shown_as_the_head_states() -> None:
    of_hull, of_tour = scores("hull", HULL, [0, 1, 2, 3, 0]), scores("tour", TOUR, [0, 1, 2, 3, 4, 0])
    assert scores("sequence", PointerGold((2, 0, 1)), [2, 0, 1]) == {}
    assert (next(iter(of_hull)), next(iter(of_tour))) == ("hull_accuracy", "optimality")
    assert {*of_hull, *of_tour} - Pointer.score_types.keys() == {"optimal_length"}  # the reference's own: never a goal
    assert format_score("hull_accuracy", 0.925, Pointer.score_types) == "92.50"
    assert format_score("tour_length", 2.1341, Pointer.score_types) == "2.134"
