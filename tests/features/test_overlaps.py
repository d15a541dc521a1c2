"""Spans that overlap: an error with its place and the cure, or the longest or the first remain."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqpipe.errors import DataError
from seqpipe.features.document import DroppedSpans, Overlaps, resolve_overlaps, select_spans


def record(*places: tuple[int, int]) -> dict[str, Any]:
    spans = [{"start": start, "end": end, "label": "X"} for start, end in places]
    return {"text": "a" * 40, "spans": spans, "where": "f:7"}


def remaining(rule: Overlaps, *places: tuple[int, int]) -> list[tuple[int, int]]:
    (resolved,) = resolve_overlaps([record(*places)], rule)
    return [(span["start"], span["end"]) for span in resolved["spans"]]


def test_overlapping_spans_are_an_error_with_their_place_and_the_cure() -> None:
    message = r"^f:7: the spans 0-4 X and 3-9 X overlap; .* data\.overlaps to longest or first"
    with pytest.raises(DataError, match=message):
        remaining("error", (3, 9), (0, 4))
    with pytest.raises(DataError, match="0-4 X and 0-4 X overlap"):
        remaining("error", (0, 4), (0, 4))
    assert remaining("error", (0, 4), (4, 9)) == [(0, 4), (4, 9)]


def test_the_longest_or_the_first_of_overlapping_spans_remain() -> None:
    chain = [(0, 4), (3, 9), (8, 10), (12, 13)]
    assert remaining("longest", *chain) == [(3, 9), (12, 13)]
    assert remaining("first", *chain) == [(0, 4), (8, 10), (12, 13)]
    assert remaining("longest", (0, 4), (2, 6)) == [(0, 4)]
    assert remaining("longest", (0, 4), (1, 2), (0, 4)) == [(0, 4)]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=9), st.sampled_from(["longest", "first"]))
def test_remaining_spans_never_overlap_and_dropped_ones_meet_one(sizes: list[tuple[int, int]], rule: Overlaps) -> None:
    places = [(start, start + length) for start, length in sizes]
    kept = select_spans(places, rule)
    assert all(places[a][1] <= places[b][0] for a, b in itertools.pairwise(kept))
    for i in {*range(len(places))} - {*kept}:
        rivals = [places[k] for k in kept if places[k][0] < places[i][1] and places[i][0] < places[k][1]]
        if rule == "longest":
            assert max(b - a for a, b in rivals) >= places[i][1] - places[i][0]
        else:
            assert min(a for a, _ in rivals) <= places[i][0]


def test_dropped_spans_are_counted_and_other_records_are_left_alone() -> None:
    other = {"text": "a", "spans": "a third party's", "where": "f:8"}
    plain = record((0, 2))
    resolved = list(resolve_overlaps([record((0, 4), (3, 9), (8, 10)), plain, other], "longest"))
    assert (resolved[1] is plain, resolved[2] is other) == (True, True)
    message = "2 of 4 spans overlap others, and are dropped (data.overlaps: longest); the first: f:7"
    for records, messages in ((resolved, [message]), ([plain], [])):
        dropped = DroppedSpans("longest")
        dropped.add(records)
        assert list(dropped.messages()) == messages
