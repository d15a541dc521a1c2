"""A regular expression in, whether it may take exponential time out: Python's `re` has no limit of steps."""

from __future__ import annotations

from collections.abc import Iterable
from re import _constants as code  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

_REPEATS = (code.MAX_REPEAT, code.MIN_REPEAT)


def may_explode(pattern: str) -> bool:
    """Whether something repeated holds a repetition or a choice that may be undone: as in (x+x+)+ or (a|ab)*.

    What is possessive or atomic is never undone: (?:x++y)+ is safe, and so is (?>x+y)+.

    Raises:
        re.error: if it is no regular expression.
    """
    return any(_explodes(step, False) for step in parser.parse(pattern))


def _explodes(step: tuple[Any, Any], repeated: bool) -> bool:
    operator, argument = step
    if operator in (code.POSSESSIVE_REPEAT, code.ATOMIC_GROUP):
        repeated = False
    if repeated and (operator is code.BRANCH or (operator in _REPEATS and argument[0] != argument[1])):
        return True
    many = operator in _REPEATS and argument[1] > 1
    return any(_explodes(inner, repeated or many) for inner in _inner(argument))


def _inner(argument: Any) -> Iterable[tuple[Any, Any]]:
    """The steps within the argument of a step, however deep they stand in it."""
    if isinstance(argument, parser.SubPattern):
        yield from argument
    elif isinstance(argument, list | tuple):
        for part in argument:
            yield from _inner(part)
