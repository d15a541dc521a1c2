"""Which regular expressions may take exponential time: those that did, timed, and those that cannot."""

from __future__ import annotations

import random
import re
import time

import pytest

from seqpipe.config.patterns import may_explode


@pytest.mark.parametrize(
    "pattern",
    [r"(x+x+)+y", r"(a|ab)*c", r"((a+))+$", r"(?=(a+)+)b", r"(a?){30}b", r"(?:(?:a+)?)*b", r"(.*,)*b", r"(?:a+){2,}?b"],
)
def test_a_repeat_within_a_repeat_may_explode(pattern: str) -> None:
    assert may_explode(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?:a|ab)+c",
        r"(?:a|)+b",
        r"(?:a||bc)+d",
        r"(?:\b|ab)+c",
        r"(?:a{0}|b)+c",
        r"(?:ab|a++)+c",
        r"(?:a|(?:b|ac))+d",
        r"(?:a|(?=b)ac)+d",
        r"(?:x|(?:a|ab))+c",
        r"(?:.|ab)+\n",
        r"(?:\w|ab)+!",
        r"(?:[^b]|ac)+!",
        r"(?:[a-f]|cx)+!",
        r"(?:\d|٣x)+!",
        r"(?a:\D|٣x)+!",
        r"(?i)(?:a|Ab)+c",
        r"(?:(?i:k)|\u212ab)+c",
        r"(x|)(?:\1|ab)+c",
        r"(?:a|bc+)+d",
        r"(?:(?:a|bc)+)+d",
    ],
)
def test_a_repeated_choice_that_is_not_told_by_its_first_character_may_explode(pattern: str) -> None:
    assert may_explode(pattern)


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        (r"(?:a|bc)+$", ("a", "bc", "b")),
        (r"(?:a|bc)*(?:a|bc)*$", ("a", "bc", "b")),
        (r"(?:abc|ad)+?$", ("abc", "ad", "ab")),
        (r"(?:a|b(?:c|da))+$", ("a", "bc", "bda", "bd")),
        (r"(?:(?:a|bc){2})+$", ("a", "bc", "b")),
        (r"(?:\d|[a-z]1)+$", ("1", "a1", "a")),
        (r"(?:[^a]b|ab)+$", ("ab", "bb", "a", "b")),
        (r"(?:\D1|2\d)+$", ("a1", "22", "a", "2")),
        (r"(?a:\d|٣x)+$", ("1", "٣x", "٣")),
        (r"(?:^a|\bb |(?=c)c)+$", ("a", "b ", "c", "b")),
        (r"(?:a++|b?+c)+$", ("aa", "bc", "c", "b")),
        (r"(?:(?>x|xy)|z)+$", ("x", "xy", "z")),
        (r"(?:ab|(?-i:c))+$", ("ab", "c", "a")),
    ],
)
def test_a_repeated_choice_that_its_first_character_tells_is_safe(pattern: str, parts: tuple[str, ...]) -> None:
    assert not may_explode(pattern)
    for text in hostile(parts):
        begin = time.perf_counter()
        re.match(pattern, text)
        assert time.perf_counter() - begin < 5  # it is milliseconds; of 2 to the number of parts it would be for ever


def hostile(parts: tuple[str, ...], count: int = 300) -> list[str]:
    """Long texts of these parts, of one and mixed, which at the very end do not match."""
    draw = random.Random(1)
    mixed = ["".join(draw.choices(parts, k=count)) for _ in range(5)]
    return [text + "!" for text in [*(part * count for part in parts), *mixed]]


@pytest.mark.parametrize(
    "pattern",
    [r"[0-9]+[-.]", r"^(.)", r"(a|b)*c", r"([0-9]{3})+", r"(?:x++y)+z", r"(?>x+y)+z", r"([^_]+)_(.*)", "", "a|b+"],
)
def test_what_is_undone_in_one_way_alone_is_safe(pattern: str) -> None:
    assert not may_explode(pattern)


def test_what_is_no_pattern_is_said_to_be_none() -> None:
    with pytest.raises(re.error):
        may_explode("(")
