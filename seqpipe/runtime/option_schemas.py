"""The JSON Schema of each decode option of a bundle, as a caller gives it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from seqpipe.answers.types import Schema
from seqpipe.runtime.decode_options import MOST_SIZE, SEED, Known, beside

_TYPES = {"size": "integer", "int": "integer", "float": "number", "bool": "boolean"}
_TOKENS: Schema = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "integer"]}}, {"type": "null"}],
    "description": "A text, which is split, or a list of tokens or of their ids.",
}
_SEED: Schema = {
    "type": ["integer", "null"],
    "minimum": 0,
    "default": None,
    "description": "Texts are drawn at random, by this seed, where one is given.",
}


def option_schemas(known: Known) -> dict[str, Schema]:
    """The JSON Schema of each option by its name: type, bounds and default."""
    schemas = {}
    for name, option in known.items():
        match option["type"]:
            case "uniform":
                schemas[beside(name, SEED)] = _SEED
            case "tokens":
                schemas[name] = {**_TOKENS, "default": option["default"]}
            case kind:
                schemas[name] = {"type": _TYPES[kind], **_bounds(option), "default": option["default"]}
    return schemas


def _bounds(option: Mapping[str, Any]) -> Schema:
    """The bounds; where the next number after a whole one is the least, that whole one is the exclusive minimum."""
    low, high = option.get("minimum"), option.get("maximum")
    bounds: Schema = {}
    if low is not None:
        before = math.nextafter(low, -math.inf)
        bounds = {"exclusiveMinimum": round(before)} if before == round(before) else {"minimum": low}
    if high is None and option["type"] == "size":
        high = MOST_SIZE
    return bounds if high is None else {**bounds, "maximum": high}
