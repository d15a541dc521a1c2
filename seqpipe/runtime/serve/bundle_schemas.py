"""The JSON Schemas of one bundle: its inputs, its decode options, its answers, and requests to `/v1/NAME`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqpipe.answers.types import TEXT, Schema, array, obj, one_of
from seqpipe.features.sources import InputSource, fields_of, numeric_fields, one_text, sources_of
from seqpipe.runtime.decode_options import option_schemas
from seqpipe.runtime.model import Model
from seqpipe.runtime.serve.v1 import ON_ERROR

_ROWS: Schema = {
    "type": "array",
    "items": {"anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}}]},
    "description": "Rows of numbers, or the numbers of one row.",
}
_FAILED: Schema = obj({"error": TEXT})


def ref(name: str) -> Schema:
    """The schema of this name among the components of a document."""
    return {"$ref": f"#/components/schemas/{name}"}


def bundle_schemas(name: str, model: Model) -> Mapping[str, Schema]:
    """The schemas of a bundle by their names in a document, each of which begins with the bundle's."""
    options = model.manifest.options
    return {
        f"{name}.Input": input_schema(model.predictor.featurizer),
        f"{name}.Options": _optional(option_schemas(options)),
        f"{name}.Answer": model.predictor.kind.schema(options),
        f"{name}.Request": _request(name, model),
        f"{name}.Response": _response(name, model),
    }


def input_schema(source: InputSource) -> Schema:
    """A record with the fields that are read; where one text is all that is, that text too."""
    numeric, columns = numeric_fields(source), _columns(source)
    properties: dict[str, Schema] = {}
    for field in fields_of(source):
        properties[field] = _ROWS if field in numeric else columns.get(field, TEXT)
    record: Schema = {"type": "object", "properties": properties, "required": [*properties]}
    if len(sources_of(source)) > 1 or source.pairs or numeric:
        return record
    others = [field for field in properties if field not in source.fields]
    split = {**record, "properties": {**properties, "words": array(TEXT)}, "required": ["words", *others]}
    records = [record, {**split, "description": "Words that are split already."}]
    return {"anyOf": [TEXT, *records] if one_text(source) else records}


def _columns(source: InputSource) -> dict[str, Schema]:
    """The fields besides the input, with what each may hold where that is known."""
    schemas = {}
    for feature in source.features.values():
        for field in feature.fields:
            schemas[field] = one_of(feature.names) if feature.names else TEXT
    return schemas


def _optional(properties: Mapping[str, Schema]) -> Schema:
    return obj(properties, optional=properties)


def _request(name: str, model: Model) -> Schema:
    item, flag = ref(f"{name}.Input"), {"type": "boolean", "default": False}
    properties: dict[str, Schema] = {
        "inputs": {"anyOf": [item, array(item)], "description": "One input, or a list of them."},
        "options": ref(f"{name}.Options"),
        "on_error": {
            **one_of(ON_ERROR),
            "default": ON_ERROR[0],
            "description": "Whether an input that cannot be answered fails the request, or has its error in place.",
        },
    }
    if model.predictor.reads_documents:
        properties["documents"] = {**flag, "description": "Take each text as a document; split it into sentences."}
    if model.explains:
        properties["explain"] = {**flag, "description": "Show what the model looked at, for one input."}
    if model.predictor.kind.is_generated:
        properties["stream"] = {**flag, "description": "Send the text as it is written, for one input."}
    return obj(properties, optional=[key for key in properties if key != "inputs"])


def _response(name: str, model: Model) -> Schema:
    answer = ref(f"{name}.Answer")
    responses = [obj({"answer": answer}), obj({"answers": array({"anyOf": [answer, _FAILED]})})]
    if model.explains:
        responses.append(obj({"answer": answer, "explanation": {"type": "object"}}))
    return {"anyOf": [*responses, _skipped()]}


def _skipped() -> Schema:
    """The response to one input that cannot be answered, with on_error: skip."""
    return obj({"answer": _FAILED})


def example(model: Model) -> Any:
    """The body of a request that the bundle can answer, if it has a golden example."""
    if not model.manifest.golden:
        return None
    record, (field, *_) = model.manifest.golden[0].record, fields_of(model.predictor.featurizer)
    if not isinstance(record, str) and one_text(model.predictor.featurizer) and field in record:
        return {"inputs": record[field]}
    return {"inputs": record}
