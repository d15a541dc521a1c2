"""Types in words, as messages and pages show them: `a whole number above 0`, `'BIOES' or 'none'`, `text or null`."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from pydantic.fields import FieldInfo

from seqpipe.config.yaml_text import Plain, shown
from seqpipe.types import Means


def words(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """A type as a person reads it: `a whole number above 0`, `'BIOES' or 'none'`, `text or null`."""
    kind, inner = unpacked(annotation)
    inner += metadata
    for item in inner:
        if isinstance(item, Means):
            return item.words
    limits = _limits(inner)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return _either([shown(value) for value in arguments])
    if origin in (Union, types.UnionType):
        return _either([words(member) + (limits if member is not type(None) else "") for member in arguments])
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is ...):
        return f"a list of {len(arguments)} ({', '.join(map(words, arguments))})"
    if origin in (list, tuple, set, frozenset):
        return f"a list{limits}, each {words(arguments[0])}"
    if origin is dict:
        return f"a mapping{limits}, each value {words(arguments[1])}"
    return _SIMPLE.get(kind, kind.__name__ if isinstance(kind, type) else str(kind)) + limits


def unlike(expected: str, value: Plain) -> str:
    """The message for a value that is not what was expected, with a cure where it is plain what was meant."""
    return f"should be {expected}, not {shown(value)}{cure(expected, value)}"


def cure(expected: str, value: Plain) -> str:
    """What to write instead, `; write 3 without quotes`, or nothing where that is not plain."""
    wants_number = "number" in expected
    if isinstance(value, str) and "true or false" in expected and value.lower() in ("yes", "on", "no", "off"):
        return f"; write {'true' if value.lower() in ('yes', 'on') else 'false'}"
    if isinstance(value, str) and wants_number and _is_number(value):
        return f"; write {value.replace('_', '')}" + ("" if "_" in value else " without quotes")
    if isinstance(value, float) and "whole number" in expected and value.is_integer():
        return f"; write {int(value)}"
    if isinstance(value, (int, float)) and not isinstance(value, bool) and "text" in expected:
        return f"; put it in quotes ('{shown(value)}')"
    return ""


def unpacked(annotation: Any) -> tuple[Any, list[Any]]:
    """A type without Annotated, and all that stood in it (pydantic's Fields opened up)."""
    metadata: list[Any] = []
    if typing.get_origin(annotation) is Annotated:
        annotation, *extra = typing.get_args(annotation)
        for item in extra:
            metadata += item.metadata if isinstance(item, FieldInfo) else [item]
    return annotation, metadata


def bounds(kind: type, metadata: Iterable[Any]) -> tuple[int | float | None, int | float | None]:
    """The least and greatest value allowed; an exclusive bound becomes the nearest value inside it."""
    limits = _constraints(metadata)
    low, high = limits.get("ge"), limits.get("le")
    if "gt" in limits:
        low = limits["gt"] + 1 if kind is int else math.nextafter(limits["gt"], math.inf)
    if "lt" in limits:
        high = limits["lt"] - 1 if kind is int else math.nextafter(limits["lt"], -math.inf)
    return low, high


_SIMPLE: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    type(None): "null",
    list: "a list",
    tuple: "a list",
    dict: "a mapping",
    Any: "anything",
}
_PHRASES = {
    "gt": "above {}",
    "ge": "from {}",
    "lt": "below {}",
    "le": "up to {}",
    "multiple_of": "that is a multiple of {}",
    "min_length": "at least {} long",
    "max_length": "at most {} long",
    "pattern": "matching {}",
}


def _constraints(metadata: Iterable[Any]) -> dict[str, Any]:
    """The bounds among a type's metadata, by their names in pydantic's `Field`."""
    # Each bound is an object of its own class, most of annotated-types, some private to pydantic.
    return {name: value for item in metadata for name in _PHRASES if (value := getattr(item, name, None)) is not None}


def _limits(metadata: Iterable[Any]) -> str:
    """The bounds in words, with a space before them."""
    limits = _constraints(metadata)
    phrases = ["that is not empty"] if limits.get("min_length") == 1 else []
    phrases += [_PHRASES[name].format(value) for name, value in limits.items() if (name, value) != ("min_length", 1)]
    text = " and ".join(phrases)
    return f" {text.replace(' and up to ', ' to ') if 'ge' in limits else text}" if text else ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _either(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
