"""The OpenAPI 3.1 document of a server, with schemas of each of its bundles, and a page that shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from seqpipe.answers.types import TEXT, Schema, array, obj
from seqpipe.runtime.serve.api_page import page
from seqpipe.runtime.serve.bundle_schemas import bundle_schemas, example, ref
from seqpipe.runtime.serve.catalog import Catalog
from seqpipe.runtime.serve.inference_v2 import metadata
from seqpipe.runtime.serve.openapi_protocols import OPENAI_SCHEMAS, V2_SCHEMAS, completion_schema, embedding_schema
from seqpipe.runtime.serve.service import Service
from seqpipe.runtime.serve.settings import Settings
from seqpipe.version import VERSION

JSON = "application/json"
_REFUSALS = {
    "413": "too large",
    "422": "no valid input",
    "429": "too many requests wait; Retry-After says for how long",
    "503": "the server starts or stops",
    "504": "no answer in time",
}
_OPENAI_REFUSALS = {"400": "no valid input", "404": "no such model"}
_OPENAI_REFUSALS |= {status: reason for status, reason in _REFUSALS.items() if status != "422"}
_SERVER_SCHEMAS: Mapping[str, Schema] = {
    "Error": obj({"error": TEXT, "request_id": TEXT}, optional=["request_id"]),
    "Description": {"type": "object", "required": ["name", "answer", "fields", "options", "sha256"]},
}


def routes(catalog: Catalog, settings: Settings) -> list[BaseRoute]:
    """`/openapi.json`, and the same for people at `/docs`."""

    async def as_json(request: Request) -> Response:
        return JSONResponse(document(catalog.services.values(), settings))

    async def as_page(request: Request) -> Response:
        return HTMLResponse(page(document(catalog.services.values(), settings)))

    return [Route("/openapi.json", as_json), Route("/docs", as_page)]


def document(services: Iterable[Service], settings: Settings) -> dict[str, Any]:
    """The OpenAPI document of a server of these bundles."""
    served = [*services]
    paths, schemas = _server_paths(), {**_SERVER_SCHEMAS, **V2_SCHEMAS, **OPENAI_SCHEMAS}
    for service in served:
        paths |= _bundle_paths(service)
        schemas |= bundle_schemas(service.name, service.model)
    kinds = {service.name: service.model.predictor.kind for service in served}
    if vectors := [name for name, kind in kinds.items() if kind.is_embedding]:
        schemas["EmbeddingRequest"] = embedding_schema(vectors)
        paths["/v1/embeddings"] = {"post": _openai("Vectors of texts", "EmbeddingRequest", "EmbeddingResponse")}
    if models := [service for service in served if kinds[service.name].is_generated]:
        schemas["CompletionRequest"] = completion_schema(
            {service.name: service.model.manifest.options for service in models}
        )
        operation = _openai("Continue prompts with a language model", "CompletionRequest", "CompletionResponse")
        operation["responses"]["200"]["content"]["text/event-stream"] = {"schema": TEXT}
        paths["/v1/completions"] = {"post": operation}
    components: dict[str, Any] = {"schemas": schemas}
    content: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "seqpipe serve", "version": VERSION, "description": "Answers of seqpipe bundles over HTTP."},
        "paths": paths,
        "components": components,
    }
    if settings.repository is not None:
        paths |= _repository_paths()
    if settings.token is not None:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        content |= {"security": [{"token": []}]}
    return content


def _server_paths() -> dict[str, Any]:
    described = obj({"bundles": array(ref("Description"))})
    text = {"text/plain": {"schema": TEXT}}
    metrics = {"summary": "Metrics for Prometheus", "responses": {"200": {"description": "text", "content": text}}}
    ready = _get("Whether the server takes requests", obj({"ready": {"type": "boolean"}}))
    ready["responses"]["503"] = _content("it does not yet, or no more", obj({"ready": {"type": "boolean"}}))
    return {
        "/v1": {"get": _get("All bundles", described)},
        "/v1/models": {"get": _get("All bundles, as OpenAI's models", ref("Models"))},
        "/v2": {"get": _get("The server, in the Open Inference Protocol", ref("Server"))},
        "/metrics": {"get": metrics},
        "/v2/health/live": {"get": _get("Whether the server lives", obj({"live": {"type": "boolean"}}))},
        "/v2/health/ready": {"get": ready},
    }


def _repository_paths() -> dict[str, Any]:
    """What loads and unloads bundles while the server runs; every body may be empty."""
    name = {"name": "name", "in": "path", "required": True, "schema": TEXT}
    index = _get("Bundles of the repository", array({"type": "object", "required": ["name", "state"]}))
    paths: dict[str, Any] = {"/v2/repository/index": {"post": index}}
    for action in ("load", "unload"):
        change = _get(f"{action.capitalize()} a bundle of the repository", {"type": "object"})
        change["responses"]["404"] = _content("no such bundle", ref("Error"))
        paths[f"/v2/repository/models/{{name}}/{action}"] = {"post": {**change, "parameters": [name]}}
    return paths


def _bundle_paths(service: Service) -> dict[str, Any]:
    """What is asked of one bundle, in seqpipe's own protocol and in the Open Inference Protocol."""
    name, kind = service.name, service.model.predictor.kind
    answered = _post(f"Answers of {name}", f"{name}.Request", f"{name}.Response")
    if (body := example(service.model)) is not None:
        answered["requestBody"]["content"][JSON]["example"] = body
    if kind.is_generated:
        answered["responses"]["200"]["content"]["text/event-stream"] = {"schema": TEXT}
    infer = _post(f"Answers of {name}, in the Open Inference Protocol", "InferenceRequest", "InferenceResponse")
    stated = metadata(service)
    infer["description"] = (
        f"Inputs, BYTES each: {', '.join(tensor['name'] for tensor in stated['inputs'])}. Outputs: "
        f"{', '.join('{name} {datatype}'.format(**tensor) for tensor in stated['outputs'])}."
    )
    ready = obj({"name": TEXT, "ready": {"type": "boolean"}})
    return {
        f"/v1/{name}": {"get": _get(f"Description of {name}", ref("Description")), "post": answered},
        f"/v2/models/{name}": {"get": _get(f"Inputs and outputs of {name}", ref("Metadata"))},
        f"/v2/models/{name}/ready": {"get": _get(f"Whether {name} takes requests", ready)},
        f"/v2/models/{name}/infer": {"post": infer},
    }


def _get(summary: str, schema: Schema) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": _content("the answer", schema)}}


def _post(summary: str, request: str, response: str) -> dict[str, Any]:
    responses = {"200": _content("the answer", ref(response)), "400": _content("no JSON", ref("Error"))}
    responses |= {status: _content(reason, ref("Error")) for status, reason in _REFUSALS.items()}
    return _operation(summary, request, responses)


def _openai(summary: str, request: str, response: str) -> dict[str, Any]:
    responses = {"200": _content("the answer", ref(response))}
    responses |= {status: _content(reason, ref("OpenAIError")) for status, reason in _OPENAI_REFUSALS.items()}
    return _operation(f"{summary}, in OpenAI's protocol", request, responses)


def _operation(summary: str, request: str, responses: Mapping[str, Any]) -> dict[str, Any]:
    body = {"required": True, "content": {JSON: {"schema": ref(request)}}}
    return {"summary": summary, "requestBody": body, "responses": dict(responses)}


def _content(description: str, schema: Schema) -> dict[str, Any]:
    return {"description": description, "content": {JSON: {"schema": schema}}}
