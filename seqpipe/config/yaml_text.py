"""Values as YAML text and back: what a plain scalar means, and how values are written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

Plain = Any  # None, bool, int, float, str, list or dict of these

_WORDS: dict[str, Plain] = {"": None, "~": None}
_WORDS |= dict.fromkeys(("null", "Null", "NULL"))
_WORDS |= dict.fromkeys(("true", "True", "TRUE"), True)
_WORDS |= dict.fromkeys(("false", "False", "FALSE"), False)
_WORDS |= {sign + form: float(sign + "inf") for sign in ("", "+", "-") for form in (".inf", ".Inf", ".INF")}
_WORDS |= dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan)
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def resolve(text: str) -> Plain:
    """What a plain (unquoted) scalar means by YAML 1.2's core schema; ValueError names the cure where it is a trap."""
    if text in _WORDS:
        return _WORDS[text]
    if _LEADING_ZERO.fullmatch(text):
        raise ValueError(
            f"{text} could mean several numbers; quote it ('{text}') if it is text, or drop the leading zero"
        )
    if _INT.fullmatch(text):
        number = int(text, 0) if len(text) < 100 else 1 << 64
        if not -(1 << 63) <= number < 1 << 63:
            raise ValueError("this number is too large (beyond 64 bits); quote it if it is text")
        return number
    if _FLOAT.fullmatch(text):
        if math.isinf(float(text)):
            raise ValueError(
                "this number is too large for a float; write .inf if infinity is meant, or quote it if it is text"
            )
        return float(text)
    return text


def dump(data: Plain) -> str:
    """YAML text that `parse` reads as the same data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def plain(value: Any, path_text: Callable[[Path], str] = Path.as_posix) -> Plain:
    """An option's value as plain YAML data, paths as text."""
    if isinstance(value, Path):
        return path_text(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, path_text) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, path_text) for item in value]
    return value


def shown(value: Plain) -> str:
    """A value as the YAML would say it, short."""
    if isinstance(value, str):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}…'"
    if isinstance(value, (list, dict)) and len(json.dumps(value)) > 60:
        return "a list" if isinstance(value, list) else "a mapping"
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=1000)
    return text.removesuffix("...\n").strip()


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, quoting also what only YAML 1.2 takes for a number."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def text(self, data: str) -> yaml.Node:
        try:
            plain = resolve(data) == data
        except ValueError:
            plain = False
        style = '"' if not data.isprintable() else None if plain else "'"  # in single quotes U+0085 would be folded
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.text)
