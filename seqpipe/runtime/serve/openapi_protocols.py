"""JSON Schemas of the protocols that others have defined: the Open Inference Protocol v2 and OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from seqpipe.answers.schemas import TEXT, Schema, array, obj, one_of
from seqpipe.runtime.decode_options import Known, option_schemas
from seqpipe.runtime.serve.openai_completions import MAX_TOKENS, own_options
from seqpipe.runtime.serve.tensors import BYTES, FP32, INT64

_COUNT: Schema = {"type": "integer", "minimum": 0}
_FROM_ONE: Schema = {"type": "integer", "minimum": 1}
_FLAG: Schema = {"type": "boolean", "default": False}
_ANY: Schema = {"type": "object"}
_NULL: Schema = {"type": "null"}
_TEXTS: Schema = {"anyOf": [TEXT, array(TEXT)]}
_SHAPE: Schema = array({"type": "integer", "minimum": -1})
_USAGE = obj({"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT}, ["completion_tokens"])


def _stated(datatypes: Sequence[str]) -> Schema:
    return array(obj({"name": TEXT, "datatype": one_of(datatypes), "shape": _SHAPE}))


def _tensors(datatypes: Sequence[str]) -> Schema:
    tensor = {"name": TEXT, "datatype": one_of(datatypes), "shape": _SHAPE, "data": {"type": "array"}}
    return array(obj({**tensor, "parameters": _ANY}, ["data", "parameters"]))


V2_SCHEMAS: Mapping[str, Schema] = {
    "Server": obj({"name": TEXT, "version": TEXT, "extensions": array(TEXT)}),
    "Metadata": obj(
        {
            "name": TEXT,
            "versions": array(TEXT),
            "platform": TEXT,
            "inputs": _stated([BYTES]),
            "outputs": _stated([BYTES, FP32, INT64]),
        }
    ),
    "InferenceRequest": {
        **obj(
            {
                "id": TEXT,
                "parameters": {**_ANY, "description": "Decode options, documents, timeout, binary_data_output."},
                "inputs": _tensors([BYTES]),
                "outputs": array(obj({"name": TEXT, "parameters": _ANY}, ["parameters"])),
            },
            ["id", "parameters", "outputs"],
        ),
        "description": "One tensor of shape [N] or [N, 1] for each field.",
    },
    "InferenceResponse": obj(
        {"model_name": TEXT, "model_version": TEXT, "id": TEXT, "outputs": _tensors([BYTES, FP32, INT64])}, ["id"]
    ),
}
_CHOICE = obj(
    {"index": _COUNT, "text": TEXT, "logprobs": _NULL, "finish_reason": {"enum": ["stop", "length"], "type": "string"}}
)
_MODEL = obj({"id": TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": TEXT})
_EMBEDDING = obj(
    {
        "object": {"const": "embedding"},
        "index": _COUNT,
        "embedding": {"anyOf": [array({"type": "number"}), {**TEXT, "contentEncoding": "base64"}]},
    }
)
_FAULT = obj(
    {"message": TEXT, "type": TEXT, "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}
)
OPENAI_SCHEMAS: Mapping[str, Schema] = {
    "OpenAIError": obj({"error": _FAULT}),
    "Models": obj({"object": {"const": "list"}, "data": array(_MODEL)}),
    "EmbeddingResponse": obj({"object": {"const": "list"}, "data": array(_EMBEDDING), "model": TEXT, "usage": _USAGE}),
    "CompletionResponse": obj(
        {
            "id": TEXT,
            "object": {"const": "text_completion"},
            "created": _COUNT,
            "model": TEXT,
            "choices": array(_CHOICE),
            "usage": _USAGE,
        }
    ),
}


def embedding_schema(names: Sequence[str]) -> Schema:
    """A request for vectors of these bundles."""
    properties = {"model": one_of(names), "input": _TEXTS, "encoding_format": one_of(["float", "base64"]), "user": TEXT}
    return obj(properties, ["encoding_format", "user"])


def completion_schema(models: Mapping[str, Known]) -> Schema:
    """A request to these language models, whose decode options are given; those that OpenAI lacks are there too."""
    properties: dict[str, Schema] = {
        "model": one_of([*models]),
        "prompt": _TEXTS,
        "max_tokens": {**_FROM_ONE, "default": MAX_TOKENS},
        "n": {**_FROM_ONE, "default": 1},
        "temperature": {"type": "number", "minimum": 0, "default": 1},
        "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 1},
        "seed": _COUNT,
        "stop": {"anyOf": [TEXT, {**array(TEXT), "maxItems": 4}]},
        "stream": _FLAG,
        "stream_options": obj({"include_usage": _FLAG}, ["include_usage"]),
        "echo": _FLAG,
        "user": TEXT,
    }
    for options in models.values():
        schemas = option_schemas(options)
        properties |= {name: schemas[name] for name in own_options(options)}
    return obj(properties, [name for name in properties if name not in ("model", "prompt")])
