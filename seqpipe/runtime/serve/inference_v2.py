"""The Open Inference Protocol v2 over HTTP, which KServe and Triton speak, with its binary tensor data extension."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from seqpipe.errors import DataError, UsageError, did_you_mean
from seqpipe.features.document import Record
from seqpipe.features.sources import fields_of, numeric_fields
from seqpipe.runtime.serve.answer_tensors import Output, outputs_of
from seqpipe.runtime.serve.catalog import Catalog
from seqpipe.runtime.serve.http_errors import HttpError
from seqpipe.runtime.serve.replies import deadline, header, read_body
from seqpipe.runtime.serve.service import Service
from seqpipe.runtime.serve.settings import Settings
from seqpipe.runtime.serve.tensors import BYTES, Tensor, read_request, write_response
from seqpipe.version import VERSION

MODEL_VERSION = "1"  # the only one of a bundle at a time
HEADER_LENGTH = "Inference-Header-Content-Length"
_ALL_BINARY, _BINARY, _DOCUMENTS, _TIMEOUT = "binary_data_output", "binary_data", "documents", "timeout"


def routes(catalog: Catalog, settings: Settings) -> list[BaseRoute]:
    """`GET /v2`, and below `/v2/models/NAME` metadata, readiness and inference, with or without a version."""

    async def server(request: Request) -> Response:
        repository = [] if settings.repository is None else ["model_repository"]
        extensions = ["binary_tensor_data", *repository]
        return JSONResponse({"name": "seqpipe", "version": VERSION, "extensions": extensions})

    async def model(request: Request) -> Response:
        return JSONResponse(metadata(_service(catalog, request)))

    async def ready(request: Request) -> Response:
        return JSONResponse({"name": _service(catalog, request).name, "ready": True})

    async def infer(request: Request) -> Response:
        return await _infer(request, catalog, settings)

    paths: list[BaseRoute] = [Route("/v2", server)]
    for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        paths += [Route(path, model), Route(f"{path}/ready", ready)]
        paths.append(Route(f"{path}/infer", infer, methods=["POST"]))
    return paths


def _service(catalog: Catalog, request: Request) -> Service:
    """The service that a path names; HttpError 404 where there is none of this name, or version."""
    service, version = catalog.get(request.path_params["name"]), request.path_params.get("version", MODEL_VERSION)
    if version != MODEL_VERSION:
        raise HttpError(404, f"{service.name!r} has no version {version!r}; there is {MODEL_VERSION}")
    return service


def metadata(service: Service) -> dict[str, Any]:
    """What goes into a bundle and what comes out, as tensors."""
    predictor = service.model.predictor
    return {
        "name": service.name,
        "versions": [MODEL_VERSION],
        "platform": "seqpipe_onnx",
        "inputs": [{"name": name, "datatype": BYTES, "shape": [-1]} for name in fields_of(predictor.featurizer)],
        "outputs": [output.metadata() for output in outputs_of(predictor.kind).values()],
    }


async def _infer(request: Request, catalog: Catalog, settings: Settings) -> Response:
    end = deadline(request.scope, settings)
    if encoding := request.headers.get("content-encoding"):
        raise HttpError(415, f"Content-Encoding: {encoding} is not supported; send the body as it is")
    body = await read_body(request.scope, request.receive, settings.max_body_bytes)
    request_data, inputs = read_request(body, _header_length(request))
    service = _service(catalog, request)
    records, shape = _records(service, inputs)
    if len(records) > settings.max_items:
        raise HttpError(413, f"{len(records):,} inputs are over the limit of {settings.max_items:,}; send fewer")
    parameters = dict(_parameters(request_data, "the request"))
    all_binary = bool(parameters.pop(_ALL_BINARY, False))
    outputs = _requested(request_data.get("outputs"), outputs_of(service.model.predictor.kind), all_binary)
    documents = bool(parameters.pop(_DOCUMENTS, False))
    number = request_data.get("id")
    if not isinstance(number, str | None):
        raise UsageError(f"id: must be a text, not {type(number).__name__}")
    end = min(end, _until(parameters.pop(_TIMEOUT, None)))
    answers = await service.answer(records, parameters, deadline=end, documents=documents)
    for answer in answers:
        if isinstance(answer, DataError):
            raise answer
    return _response(service, number, [(output.tensor(answers, shape), binary) for output, binary in outputs])


def _header_length(request: Request) -> int | None:
    """How many bytes of the body are JSON, where the others are binary data."""
    text = header(request.scope, HEADER_LENGTH.lower().encode())
    if text is None:
        return None
    if not text.isdigit():
        raise UsageError(f"{HEADER_LENGTH} must be a number of bytes, not {text.decode('latin-1')!r}")
    return int(text)


def _until(microseconds: Any) -> float:
    """When a request with Triton's parameter `timeout` is late."""
    if microseconds is None:
        return float("inf")
    if type(microseconds) is not int or microseconds <= 0:
        raise UsageError(f"{_TIMEOUT}: must be a whole number of microseconds above 0, not {microseconds!r}")
    return time.monotonic() + microseconds / 1e6


def _records(service: Service, inputs: Mapping[str, Tensor]) -> tuple[list[Record], tuple[int, ...]]:
    """A record of each row of the inputs, and the shape of these; UsageError for inputs that are not the bundle's."""
    featurizer = service.model.predictor.featurizer
    fields, numeric = fields_of(featurizer), numeric_fields(featurizer)
    for name in inputs:
        if name not in fields:
            raise UsageError(f"no input {name!r}{did_you_mean(name, fields)} (there is: {', '.join(fields)})")
    for name in fields:
        if name not in inputs:
            raise UsageError(f"the input {name!r} is missing (there is: {', '.join(fields)})")
    shapes = {name: inputs[name].shape for name in fields}
    if len({*shapes.values()}) > 1:
        stated = ", ".join(f"{name} {[*shape]}" for name, shape in shapes.items())
        raise UsageError(f"the inputs must have one shape, not {stated}")
    columns: list[Sequence[Any]] = []
    for name in fields:
        texts = inputs[name].data
        columns.append([_json(name, text) for text in texts] if name in numeric else texts)
    return [dict(zip(fields, row, strict=True)) for row in zip(*columns, strict=True)], shapes[fields[0]]


def _json(name: str, text: str) -> Any:
    """Rows of numbers, which are written as JSON; the source refuses what are none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        example = "JSON, such as [[0.5, 1], [2, 3]]"
        raise UsageError(f"input {name!r}: an element must be {example}, not {text[:40]!r}: {error}") from error


def _parameters(entry: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    parameters = entry.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise UsageError(f"parameters of {what} must be an object, not {type(parameters).__name__}")
    return parameters


def _requested(entries: Any, outputs: Mapping[str, Output], all_binary: bool) -> list[tuple[Output, bool]]:
    """The outputs that a request asks for, each with whether it is to be binary data; all if it names none."""
    if not entries:
        return [(output, all_binary) for output in outputs.values()]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError("outputs: must be a list of objects, each with the name of an output")
    requested = []
    for entry in entries:
        name, parameters = entry.get("name"), _parameters(entry, f"output {entry.get('name')!r}")
        if not isinstance(name, str) or name not in outputs:
            raise UsageError(f"no output {name!r}{did_you_mean(str(name), outputs)} (there is: {', '.join(outputs)})")
        if unknown := [key for key in parameters if key != _BINARY]:
            raise UsageError(f"output {name!r}: the parameter {unknown[0]!r} is not supported; leave it out")
        requested.append((outputs[name], bool(parameters.get(_BINARY, all_binary))))
    return requested


def _response(service: Service, number: str | None, tensors: Sequence[tuple[Tensor, bool]]) -> Response:
    content = {"model_name": service.name, "model_version": MODEL_VERSION}
    if number is not None:
        content["id"] = number
    binary = {tensor.name for tensor, is_binary in tensors if is_binary}
    body, header_length = write_response(content, [tensor for tensor, _ in tensors], binary.__contains__)
    if header_length is None:
        return Response(body, media_type="application/json")
    return Response(body, media_type="application/octet-stream", headers={HEADER_LENGTH: str(header_length)})
