"""Which regular expressions may take exponential time: those that did, timed, and those that cannot."""

from __future__ import annotations

import re

import pytest

from seqpipe.patterns import may_explode


@pytest.mark.parametrize(
    "pattern",
    [r"(x+x+)+y", r"(a|ab)*c", r"((a+))+$", r"(?=(a+)+)b", r"(a?){30}b", r"(?:(?:a+)?)*b", r"(.*,)*b", r"(?:a+){2,}?b"],
)
def test_a_repeat_within_a_repeat_may_explode(pattern: str) -> None:
    assert may_explode(pattern)


@pytest.mark.parametrize(
    "pattern",
    [r"[0-9]+[-.]", r"^(.)", r"(a|b)*c", r"([0-9]{3})+", r"(?:x++y)+z", r"(?>x+y)+z", r"([^_]+)_(.*)", "", "a|b+"],
)
def test_what_is_undone_in_one_way_alone_is_safe(pattern: str) -> None:
    assert not may_explode(pattern)


def test_what_is_no_pattern_is_said_to_be_none() -> None:
    with pytest.raises(re.error):
        may_explode("(")
