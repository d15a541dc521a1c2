"""Whether a regular expression may take exponential time: Python's `re` has no limit of steps."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from re import _constants as code  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

Ranges = list[tuple[int, int]]  # of code points, both ends included

_REPEATS = (code.MAX_REPEAT, code.MIN_REPEAT)
_ZERO_WIDTH = (code.AT, code.ASSERT, code.ASSERT_NOT)
_ANY: Ranges = [(0, sys.maxunicode)]
_CATEGORIES = {
    code.CATEGORY_DIGIT: r"\d+",
    code.CATEGORY_NOT_DIGIT: r"\D+",
    code.CATEGORY_SPACE: r"\s+",
    code.CATEGORY_NOT_SPACE: r"\S+",
    code.CATEGORY_WORD: r"\w+",
    code.CATEGORY_NOT_WORD: r"\W+",
}


def may_explode(pattern: str) -> bool:
    """Whether something repeated holds a repetition or a choice that may be undone: as in (x+x+)+ or (a|ab)*.

    What is possessive or atomic is never undone: (?:x++y)+ is safe, and so is (?>x+y)+. Nor is a choice between
    alternatives of which no two begin with the same character: (?:a|bc)+ is safe.

    Raises:
        re.error: if it is no regular expression.
    """
    parsed = parser.parse(pattern)
    return any(_explodes(step, False, parsed.state.flags) for step in parsed)


def _explodes(step: tuple[Any, Any], repeated: bool, flags: int) -> bool:
    operator, argument = step
    if operator in (code.POSSESSIVE_REPEAT, code.ATOMIC_GROUP):
        repeated = False
    if repeated and operator in _REPEATS and argument[0] != argument[1]:
        return True
    if repeated and operator is code.BRANCH and not _differ_at_once(argument[1], flags):
        return True
    if operator is code.SUBPATTERN:
        flags = _flags_within(argument, flags)
    many = operator in _REPEATS and argument[1] > 1
    return any(_explodes(inner, repeated or many, flags) for inner in _inner(argument))


def _inner(argument: Any) -> Iterable[tuple[Any, Any]]:
    """The steps within the argument of a step, however deep they stand in it."""
    if isinstance(argument, parser.SubPattern):
        yield from argument
    elif isinstance(argument, list | tuple):
        for part in argument:
            yield from _inner(part)


def _flags_within(group: tuple[Any, int, int, Any], flags: int) -> int:
    _, added, removed, _ = group
    return (flags | added) & ~removed


def _differ_at_once(alternatives: Sequence[Any], flags: int) -> bool:
    """Whether no alternative may be empty, and no two may begin with the same character."""
    firsts = [_first(steps, flags) for steps in alternatives]
    ranges = sorted(interval for characters, _ in firsts for interval in _merged(characters))
    return not any(empty for _, empty in firsts) and all(low[1] < high[0] for low, high in pairwise(ranges))


def _first(steps: Iterable[tuple[Any, Any]], flags: int) -> tuple[Ranges, bool]:
    """The characters that these steps may begin with, or more, and whether the steps may match nothing."""
    characters: Ranges = []
    for step in steps:
        ranges, empty = _first_of_step(*step, flags)
        characters += ranges
        if not empty:
            return characters, False
    return characters, True


def _first_of_step(operator: Any, argument: Any, flags: int) -> tuple[Ranges, bool]:
    if operator in _ZERO_WIDTH:
        return [], True
    if operator in (code.LITERAL, code.NOT_LITERAL, code.IN):
        # What is equal but for its case is not looked up: it may be anything.
        return (_ANY if flags & re.IGNORECASE else _characters(operator, argument, flags)), False
    if operator in (*_REPEATS, code.POSSESSIVE_REPEAT):
        least, _, steps = argument
        ranges, empty = _first(steps, flags)
        return ranges, empty or least == 0
    if operator is code.SUBPATTERN:
        return _first(argument[3], _flags_within(argument, flags))
    if operator is code.ATOMIC_GROUP:
        return _first(argument, flags)
    if operator is code.BRANCH:
        firsts = [_first(steps, flags) for steps in argument[1]]
        return [interval for ranges, _ in firsts for interval in ranges], any(empty for _, empty in firsts)
    return _ANY, True


def _characters(operator: Any, argument: Any, flags: int) -> Ranges:
    """What a character, all but one, or a set in brackets matches."""
    if operator is code.LITERAL:
        return [(argument, argument)]
    if operator is code.NOT_LITERAL:
        return _complement([(argument, argument)])
    ranges: Ranges = []
    for kind, value in argument:
        if kind is code.LITERAL:
            ranges.append((value, value))
        elif kind is code.RANGE:
            ranges.append(value)
        elif kind is code.CATEGORY:
            ranges += _category(_CATEGORIES[value], bool(flags & re.ASCII))
    return _complement(ranges) if argument[0][0] is code.NEGATE else ranges


@cache
def _category(pattern: str, ascii_only: bool) -> Ranges:
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    return [(m.start(), m.end() - 1) for m in re.finditer(pattern, everything, re.ASCII if ascii_only else 0)]


def _merged(ranges: Ranges) -> Ranges:
    """The same characters, in order, no two ranges with a character in common."""
    merged: Ranges = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged


def _complement(ranges: Ranges) -> Ranges:
    edges = [(-1, -1), *_merged(ranges), (sys.maxunicode + 1, sys.maxunicode + 1)]
    return [(low[1] + 1, high[0] - 1) for low, high in pairwise(edges) if low[1] + 1 < high[0]]
