"""Hulls and tours against brute force, polygons against what a person sees."""

import itertools
import math

import numpy as np
import pytest

from seqpipe_plugins.geometry import area, hulls, is_simple, length, open_sequence, same_polygon, tours

SQUARE = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], float)


def drawn(count: int, size: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).random((count, size, 2))


def corners_by_force(points: np.ndarray) -> set[int]:
    """Points that lie within no triangle of three others."""

    def within(p: int, triangle: tuple[int, ...]) -> bool:
        sides = [
            (points[b, 0] - points[a, 0]) * (points[p, 1] - points[a, 1])
            - (points[b, 1] - points[a, 1]) * (points[p, 0] - points[a, 0])
            for a, b in itertools.pairwise((*triangle, triangle[0]))
        ]
        return all(side > 0 for side in sides) or all(side < 0 for side in sides)

    every = range(len(points))
    return {
        p
        for p in every
        if not any(within(p, three) for three in itertools.combinations([q for q in every if q != p], 3))
    }


@pytest.mark.parametrize("size", [3, 4, 7, 12])
def test_a_hull_has_the_points_that_no_triangle_of_others_holds(size: int) -> None:
    points = drawn(40, size)
    for some, hull in zip(points, hulls(points), strict=True):
        assert {*hull} == corners_by_force(some)
        assert hull[0] == hull[-1] == min(hull)
        assert len({*hull}) == len(hull) - 1


def test_a_hull_goes_counter_clockwise() -> None:
    for points, hull in zip(drawn(40, 8), hulls(drawn(40, 8)), strict=True):
        x, y = points[hull].T
        assert (x[:-1] * y[1:] - x[1:] * y[:-1]).sum() > 0


def test_points_on_a_side_and_on_one_place_are_no_further_corners() -> None:
    halves = np.array([[0, 0], [0.5, 0], [1, 0], [1, 1], [1, 1], [0, 1], [0, 0]], float)
    assert hulls(halves[None]) == [[0, 2, 3, 5, 0]]


@pytest.mark.parametrize("size", [3, 5, 7])
def test_no_other_order_makes_a_shorter_tour(size: int) -> None:
    points = drawn(20, size)
    for some, tour in zip(points, tours(points), strict=True):
        ways = ([0, *order] for order in itertools.permutations(range(1, size)))
        assert length(some[tour[:-1]]) == pytest.approx(min(length(some[way]) for way in ways))
        assert (tour[0], tour[-1], sorted(tour[:-1])) == (0, 0, [*range(size)])
        assert tour[1] < tour[-2]


def test_one_and_two_points_have_one_tour() -> None:
    assert tours(drawn(1, 1)) == [[0, 0]]
    assert tours(drawn(1, 2)) == [[0, 1, 0]]


def test_a_tour_of_too_many_points_is_refused() -> None:
    with pytest.raises(ValueError, match="13 points"):
        tours(drawn(1, 13))


def test_many_sets_at_a_time_have_the_answers_of_each_alone() -> None:
    points = drawn(3000, 9)
    assert hulls(points)[2990:] == [hulls(some[None])[0] for some in points[2990:]]
    assert tours(points[:300])[290:] == [tours(some[None])[0] for some in points[290:300]]


def test_areas_and_lengths_are_those_of_a_square_in_either_direction() -> None:
    assert (area(SQUARE), area(SQUARE[::-1]), length(SQUARE)) == (1, 1, 4)
    assert area(SQUARE[:2]) == 0
    assert length(SQUARE[:2]) == 2
    assert length(SQUARE[[0, 2, 1, 3]]) == pytest.approx(2 + 2 * math.sqrt(2))


def test_a_polygon_is_simple_unless_its_sides_meet() -> None:
    assert is_simple(SQUARE)
    assert not is_simple(SQUARE[[0, 2, 1, 3]])
    assert not is_simple(SQUARE[:2])
    assert not is_simple(SQUARE[[0, 1, 2, 0]])
    touching = np.array([[0, 0], [2, 0], [2, 2], [1, 0], [0, 2]], float)  # a corner on another side
    assert not is_simple(touching)
    assert not is_simple(np.array([[0, 0], [1, 1], [2, 2]], float))


def test_polygons_are_the_same_from_any_corner_in_any_direction() -> None:
    assert same_polygon(SQUARE, np.roll(SQUARE, 2, 0))
    assert same_polygon(SQUARE, np.roll(SQUARE[::-1], 1, 0))
    assert not same_polygon(SQUARE, SQUARE[[0, 2, 1, 3]])
    assert not same_polygon(SQUARE, SQUARE[:3])
    assert not same_polygon(SQUARE[:0], SQUARE[:0])


def test_a_closed_way_loses_its_last_position_and_an_open_one_nothing() -> None:
    assert open_sequence([3, 1, 3]) == [3, 1]
    assert open_sequence([3, 1]) == [3, 1]
    assert open_sequence([3]) == [3]
    assert open_sequence([]) == []
