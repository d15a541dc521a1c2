"""The OpenAPI 3.1 document of a server, with the JSON Schemas of its protocols and of each of its bundles."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from seqpipe.answers.schemas import Schema
from seqpipe.config.json_schema import Generate
from seqpipe.features.kinds.registry import MEDIA
from seqpipe.features.sources import InputSource, media_fields, numeric_fields, one_text, read_fields, sources_of
from seqpipe.runtime.decode_options import option_schemas
from seqpipe.runtime.opened import OpenedBundle
from seqpipe.serve.inference_v2 import BYTES, FP32, INT64, InferenceRequest, metadata
from seqpipe.serve.openai import CompletionRequest, EmbeddingRequest, own_options
from seqpipe.serve.service import Catalog, Service
from seqpipe.serve.settings import Settings
from seqpipe.serve.v1 import PredictRequest
from seqpipe.version import VERSION

JSON_MEDIA_TYPE = "application/json"
_REFUSALS = {
    "413": "too large",
    "429": "too many waiting requests; see Retry-After",
    "503": "the server is stopping",
    "504": "no answer in time",
}
_OWN_REFUSALS = {"400": "not JSON", "422": "invalid input", **_REFUSALS}
_OPENAI_REFUSALS = {"400": "invalid input", "404": "no such model", **_REFUSALS}
_EVENTS = {"text/event-stream": {"schema": {"type": "string"}}}
TEXT: Schema = {"type": "string"}


def obj(optional: Collection[str] = (), /, **properties: Schema) -> Schema:
    """Return the schema of an object with exactly these properties, required unless listed as optional."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def texts_schema(values: Iterable[str]) -> Schema:
    """Return the schema of an enumeration of texts."""
    return {"type": "string", "enum": [*values]}


def routes(catalog: Catalog, settings: Settings) -> list[BaseRoute]:
    """Return the route `/openapi.json`."""

    async def as_json(request: Request) -> Response:
        return JSONResponse(document(catalog.services.values(), settings))

    return [Route("/openapi.json", as_json)]


def document(services: Iterable[Service], settings: Settings) -> dict[str, Any]:
    """Return the OpenAPI document of a server of these bundles."""
    served = [*services]
    paths, schemas = _server_paths(), {**_BODIES, **_SCHEMAS}
    for service in served:
        paths |= _bundle_paths(service)
        schemas |= bundle_schemas(service.name, service.model)
    kinds = {service.name: service.model.predictor.kind for service in served}
    if vectors := [name for name, kind in kinds.items() if kind.is_embedding]:
        schemas["EmbeddingRequest"] = _body_schema("EmbeddingRequest", model=texts_schema(vectors))
        paths["/v1/embeddings"] = {"post": _openai("Vectors of texts", "EmbeddingRequest", "EmbeddingResponse")}
    if models := [name for name, kind in kinds.items() if kind.is_generated]:
        known = [service.model.manifest.options for service in served if service.name in models]
        own = {name: option_schemas(options)[name] for options in known for name in own_options(options)}
        schemas["CompletionRequest"] = _body_schema("CompletionRequest", model=texts_schema(models), **own)
        operation = _openai("Continue prompts with a language model", "CompletionRequest", "CompletionResponse")
        operation["responses"]["200"]["content"] |= _EVENTS
        paths["/v1/completions"] = {"post": operation}
    if settings.repository is not None:
        paths |= _repository_paths()
    content: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "seqpipe serve", "version": VERSION, "description": "Answers of seqpipe bundles over HTTP."},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if settings.token is not None:
        content["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        content["security"] = [{"token": []}]
    return content


def _server_paths() -> dict[str, Any]:
    text = {"text/plain": {"schema": TEXT}}
    metrics = {"summary": "Metrics for Prometheus", "responses": {"200": {"description": "text", "content": text}}}
    return {
        "/v1": _get("All bundles", obj(bundles=array(schema_ref("Description")))),
        "/v1/models": _get("All bundles, as OpenAI's models", schema_ref("Models")),
        "/v2": _get("The server, in the Open Inference Protocol", schema_ref("Server")),
        "/metrics": {"get": metrics},
        "/v2/health/live": _get("Whether the server is alive", obj(live=_FLAG)),
        "/v2/health/ready": _get("Whether the server accepts requests", obj(ready=_FLAG)),
    }


def _repository_paths() -> dict[str, Any]:
    """Return the endpoints that load and unload bundles while the server runs; every body may be empty."""
    index = _operation("Bundles of the repository", array({"type": "object", "required": ["name", "state"]}))
    paths: dict[str, Any] = {"/v2/repository/index": {"post": index}}
    for action in ("load", "unload"):
        change = _operation(f"{action.capitalize()} a bundle of the repository", _ANY, {"404": "no such bundle"})
        change["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": TEXT}]
        paths[f"/v2/repository/models/{{name}}/{action}"] = {"post": change}
    return paths


def _bundle_paths(service: Service) -> dict[str, Any]:
    """Return the endpoints of one bundle, in seqpipe's own protocol and in the Open Inference Protocol."""
    name, kind = service.name, service.model.predictor.kind
    answered = _post(f"Answers of {name}", f"{name}.Request", f"{name}.Response")
    if (body := example(service.model)) is not None:
        answered["requestBody"]["content"][JSON_MEDIA_TYPE]["example"] = body
    if kind.is_generated:
        answered["responses"]["200"]["content"] |= _EVENTS
    infer = _post(f"Answers of {name}, in the Open Inference Protocol", "InferenceRequest", "InferenceResponse")
    stated = metadata(service)
    inputs = ", ".join(tensor["name"] for tensor in stated["inputs"])
    outputs = ", ".join("{name} {datatype}".format(**tensor) for tensor in stated["outputs"])
    infer["description"] = f"Inputs, BYTES each: {inputs}. Outputs: {outputs}."
    return {
        f"/v1/{name}": {**_get(f"Description of {name}", schema_ref("Description")), "post": answered},
        f"/v2/models/{name}": _get(f"Inputs and outputs of {name}", schema_ref("Metadata")),
        f"/v2/models/{name}/ready": _get(f"Whether {name} accepts requests", obj(name=TEXT, ready=_FLAG)),
        f"/v2/models/{name}/infer": {"post": infer},
    }


def _get(summary: str, schema: Schema) -> dict[str, Any]:
    return {"get": _operation(summary, schema)}


def _post(
    summary: str, request: str, response: str, refusals: Mapping[str, str] = _OWN_REFUSALS, error: str = "Error"
) -> dict[str, Any]:
    operation = _operation(summary, schema_ref(response), refusals, error)
    return operation | {"requestBody": {"required": True, "content": _json_content(schema_ref(request))}}


def _openai(summary: str, request: str, response: str) -> dict[str, Any]:
    return _post(f"{summary}, in OpenAI's protocol", request, response, _OPENAI_REFUSALS, "OpenAIError")


def _operation(
    summary: str, answer: Schema, refusals: Mapping[str, str] = MappingProxyType({}), error: str = "Error"
) -> dict[str, Any]:
    responses = {"200": {"description": "the answer", "content": _json_content(answer)}}
    for status, reason in refusals.items():
        responses[status] = {"description": reason, "content": _json_content(schema_ref(error))}
    return {"summary": summary, "responses": responses}


def _json_content(schema: Schema) -> dict[str, Any]:
    return {JSON_MEDIA_TYPE: {"schema": schema}}


_ROWS: Schema = {
    "type": "array",
    "items": {"anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}}]},
    "description": "Rows of numbers, or the numbers of one row.",
}
_PIXEL: Schema = {"type": "number", "minimum": 0, "maximum": 255}
_FILE: Schema = {**TEXT, "contentEncoding": "base64"}  # or a data URL
_SAMPLES: Schema = array({"type": "number"})
_MEDIA: Mapping[str, Schema] = {
    "picture": {
        "anyOf": [_FILE, array(array({"anyOf": [_PIXEL, {**array(_PIXEL), "minItems": 3, "maxItems": 3}]}))],
        "description": "PNG or JPEG in base64, or a data URL of it; or rows of pixels, numbers or triples, 0 to 255.",
    },
    "sound": {
        "anyOf": [_FILE, _SAMPLES, obj(array=_SAMPLES, sampling_rate={"type": "integer"})],
        "description": "A WAV in base64, or a data URL of it; or samples from -1 to 1 at the bundle's rate or theirs.",
    },
}
_FAILED: Schema = obj(error=TEXT)


def schema_ref(name: str) -> Schema:
    """Return a reference to the schema of this name."""
    return {"$ref": f"#/components/schemas/{name}"}


def bundle_schemas(name: str, model: OpenedBundle) -> Mapping[str, Schema]:
    """Return the schemas of a bundle by their names, each prefixed with the bundle's."""
    kind, options = model.predictor.kind, model.predictor.options
    schemas = option_schemas(options)
    item, answer = schema_ref(f"{name}.Input"), schema_ref(f"{name}.Answer")
    inputs = {"anyOf": [item, array(item)], "description": "One input, or a list of them."}
    modes = {"documents": model.predictor.reads_documents, "explain": model.explains, "stream": kind.is_generated}
    changed = {"options": schema_ref(f"{name}.Options")} | {mode: None for mode, has in modes.items() if not has}
    responses = [obj(answer=answer), obj(answers=array({"anyOf": [answer, _FAILED]}))]
    if model.explains:
        responses.append(obj(answer=answer, explanation=_ANY))
    return {
        f"{name}.Input": input_schema(model.predictor.featurizer),
        f"{name}.Options": obj(schemas, **schemas),
        f"{name}.Answer": kind.schema(options),
        f"{name}.Request": _body_schema("PredictRequest", inputs=inputs, **changed),
        f"{name}.Response": {"anyOf": [*responses, obj(answer=_FAILED)]},  # the last with on_error: skip
    }


def input_schema(source: InputSource) -> Schema:
    """Return the schema of a record; for a single text field, also of a bare text."""
    properties, columns = dict[str, Schema](), dict[str, Schema]()
    encoded = {field: _MEDIA[MEDIA[kind]] for field, kind in media_fields(source).items()}
    numeric = dict.fromkeys(numeric_fields(source), _ROWS) | encoded
    for feature in source.features.values():  # fields besides the input, with their possible values if these are known
        columns |= dict.fromkeys(feature.fields, texts_schema(feature.names) if feature.names else TEXT)
    for field in read_fields(source):
        properties[field] = numeric.get(field) or columns.get(field, TEXT)
    record: Schema = {"type": "object", "properties": properties, "required": [*properties]}
    if len(properties) == 1 and encoded:
        return {"anyOf": [_FILE, record]}
    if len(sources_of(source)) > 1 or source.pairs or numeric:
        return record
    others = [field for field in properties if field not in source.fields]
    split = {**record, "properties": {**properties, "words": array(TEXT)}, "required": ["words", *others]}
    records = [record, {**split, "description": "Pre-split words."}]
    return {"anyOf": [TEXT, *records] if one_text(source) else records}


def _body_schema(body: str, **changed: Schema | None) -> Schema:
    """Return the schema of a body, with other schemas of some of its keys; None leaves a key out."""
    properties = {**_BODIES[body]["properties"], **changed}
    return _BODIES[body] | {"properties": {name: each for name, each in properties.items() if each is not None}}


def example(model: OpenedBundle) -> Any:
    """Return the body of an example request, if the bundle has a golden example."""
    if not model.manifest.golden:
        return None
    record, (field, *_) = model.manifest.golden[0].record, read_fields(model.predictor.featurizer)
    if not isinstance(record, str) and one_text(model.predictor.featurizer) and field in record:
        return {"inputs": record[field]}
    return {"inputs": record}


_COUNT: Schema = {"type": "integer", "minimum": 0}
_ANY: Schema = {"type": "object"}
_FLAG: Schema = {"type": "boolean"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_SHAPE: Schema = array({"type": "integer", "minimum": -1})
_INPUT = obj(name=TEXT, datatype=texts_schema([BYTES]), shape=_SHAPE)
_TYPED: Mapping[str, Schema] = {"name": TEXT, "datatype": texts_schema([BYTES, FP32, INT64]), "shape": _SHAPE}
_TENSOR = obj(["data", "parameters"], **_TYPED, data={"type": "array"}, parameters=_ANY)
_TOKENS = {"tokens": array(TEXT), "token_logprobs": array({"type": "number"}), "text_offset": array(_COUNT)}
_LOGPROBS: Schema = {"anyOf": [{"type": "null"}, obj(**_TOKENS, top_logprobs={"type": "null"})]}
_CHOICE = obj(index=_COUNT, text=TEXT, logprobs=_LOGPROBS, finish_reason=texts_schema(["stop", "length"]))
_MODEL = obj(id=TEXT, object={"const": "model"}, created=_COUNT, owned_by=TEXT)
_VECTOR: Schema = {"anyOf": [array({"type": "number"}), {**TEXT, "contentEncoding": "base64"}]}
_EMBEDDING = obj(object={"const": "embedding"}, index=_COUNT, embedding=_VECTOR)
_USAGE = obj(["completion_tokens"], prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT)
_FAULT = obj(message=TEXT, type=TEXT, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL)
_SCHEMAS: Mapping[str, Schema] = {
    "Error": obj(["request_id"], error=TEXT, request_id=TEXT),
    "Description": {"type": "object", "required": ["name", "answer", "fields", "options", "sha256"]},
    "Server": obj(name=TEXT, version=TEXT, extensions=array(TEXT)),
    "Metadata": obj(name=TEXT, versions=array(TEXT), platform=TEXT, inputs=array(_INPUT), outputs=array(obj(**_TYPED))),
    "InferenceResponse": obj(["id"], model_name=TEXT, model_version=TEXT, id=TEXT, outputs=array(_TENSOR)),
    "OpenAIError": obj(error=_FAULT),
    "Models": obj(object={"const": "list"}, data=array(_MODEL)),
    "EmbeddingResponse": obj(object={"const": "list"}, data=array(_EMBEDDING), model=TEXT, usage=_USAGE),
    "CompletionResponse": obj(
        id=TEXT, object={"const": "text_completion"}, created=_COUNT, model=TEXT, choices=array(_CHOICE), usage=_USAGE
    ),
}
_, _DEFINITIONS = models_json_schema(
    [(body, "validation") for body in (PredictRequest, InferenceRequest, EmbeddingRequest, CompletionRequest)],
    ref_template="#/components/schemas/{model}",
    schema_generator=Generate,
)
_BODIES: Mapping[str, Schema] = _DEFINITIONS["$defs"]
