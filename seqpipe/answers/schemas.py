"""JSON Schemas (draft 2020-12) of answers, derived from their types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from seqpipe.answers.answer_types import LABEL_FORMAT

Schema = dict[str, Any]


def schema_of(answer_type: Any, labels: Sequence[str] = (), keys: Mapping[str, bool] | None = None) -> Schema:
    """The JSON Schema of an answer, whole in itself: without references and titles.

    Args:
        answer_type: A typed dict, or a list of them.
        labels: What a text of type `LabelName` may be.
        keys: Keys that the type does not require, each with whether the answers of this model have it: always or never.
    """
    whole = TypeAdapter(answer_type).json_schema()
    return _resolved(whole, whole.get("$defs", {}), labels, keys or {})


def _resolved(schema: Schema, definitions: Schema, labels: Sequence[str], keys: Mapping[str, bool]) -> Schema:
    if reference := schema.get("$ref"):
        return _resolved(definitions[reference.rpartition("/")[2]], definitions, labels, keys)
    if "anyOf" in schema:  # pydantic's form of a type that may be null
        (inner, _) = (_resolved(part, definitions, labels, keys) for part in schema["anyOf"])
        if "enum" in inner:
            inner["enum"] = [*inner["enum"], None]
        return {**inner, "type": [inner["type"], "null"]}
    resolved = {key: value for key, value in schema.items() if key not in ("$defs", "title", "description")}
    if resolved.get("format") == LABEL_FORMAT:
        return {"type": "string", "enum": [*labels]}
    if "items" in resolved:
        resolved["items"] = _resolved(resolved["items"], definitions, labels, keys)
    if "properties" in resolved:
        properties = {name: part for name, part in resolved["properties"].items() if keys.get(name, True)}
        resolved["properties"] = {name: _resolved(part, definitions, labels, keys) for name, part in properties.items()}
        required = {*resolved.get("required", ()), *(name for name, is_there in keys.items() if is_there)}
        resolved["required"] = [name for name in properties if name in required]
        resolved["additionalProperties"] = False
    return resolved


def described_type(name: str, keys: Mapping[str, Any], optional: Iterable[str] = ()) -> Any:
    """A typed dict of keys that are known when a model is loaded, and not before."""
    make: Any = TypedDict  # mypy reads the definitions of typed dicts that stand in the code, and no others
    may_lack = {*optional}
    return make(name, {key: NotRequired[of] if key in may_lack else of for key, of in keys.items()})
