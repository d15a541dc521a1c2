"""JSON Schemas (draft 2020-12) of answers, derived from their types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from seqpipe.answers.answer_types import LABEL_FORMAT

Schema = dict[str, Any]


def schema_of(answer_type: Any, labels: Sequence[str] = (), keys: Mapping[str, bool] | None = None) -> Schema:
    """Return the JSON Schema of an answer, without references and titles.

    Args:
        answer_type: A typed dict, or a list of them.
        labels: The values of the type `LabelName`.
        keys: Optional keys of the type, each with whether this model's answers have it (always or never).
    """
    whole = TypeAdapter(answer_type).json_schema()
    return _inline(whole, whole.get("$defs", {}), labels, keys or {})


def _inline(schema: Schema, definitions: Schema, labels: Sequence[str], keys: Mapping[str, bool]) -> Schema:
    if reference := schema.get("$ref"):
        return _inline(definitions[reference.rpartition("/")[2]], definitions, labels, keys)
    if "anyOf" in schema:  # pydantic's schema of a type that may be null
        (inner, _) = (_inline(part, definitions, labels, keys) for part in schema["anyOf"])
        if "enum" in inner:
            inner["enum"] = [*inner["enum"], None]
        return {**inner, "type": [inner["type"], "null"]}
    resolved = {key: value for key, value in schema.items() if key not in ("$defs", "title", "description")}
    if resolved.get("format") == LABEL_FORMAT:
        return {"type": "string", "enum": [*labels]}
    if "items" in resolved:
        resolved["items"] = _inline(resolved["items"], definitions, labels, keys)
    if "properties" in resolved:
        properties = {name: part for name, part in resolved["properties"].items() if keys.get(name, True)}
        resolved["properties"] = {name: _inline(part, definitions, labels, keys) for name, part in properties.items()}
        required = {*resolved.get("required", ()), *(name for name, is_there in keys.items() if is_there)}
        resolved["required"] = [name for name in properties if name in required]
        resolved["additionalProperties"] = False
    return resolved


def typed_dict(name: str, keys: Mapping[str, Any], optional: Iterable[str] = ()) -> Any:
    """Return a typed dict of keys that are known only when a model is loaded."""
    make: Any = TypedDict  # mypy accepts only typed dicts that are defined in the code
    may_lack = {*optional}
    return make(name, {key: NotRequired[of] if key in may_lack else of for key, of in keys.items()})
