"""JSON Schemas (draft 2020-12) of answers, of which each answer kind composes its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
PROBABILITY: Schema = {"type": "number", "minimum": 0, "maximum": 1}
POSITION: Schema = {"type": "integer", "minimum": 0}


def obj(properties: Mapping[str, Schema], optional: Iterable[str] = ()) -> Schema:
    """An object with just these properties, all of them required but the optional ones."""
    may_lack = {*optional}
    required = [name for name in properties if name not in may_lack]
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def one_of(values: Iterable[str]) -> Schema:
    """One of these texts."""
    return {"type": "string", "enum": [*values]}


def or_null(schema: Schema) -> Schema:
    """What the schema of a single type allows, or null."""
    if "enum" in schema:
        schema = {**schema, "enum": [*schema["enum"], None]}
    return {**schema, "type": [schema["type"], "null"]}
