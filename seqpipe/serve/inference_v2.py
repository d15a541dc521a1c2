"""The Open Inference Protocol v2 over HTTP (KServe, Triton), with its binary tensor data extension."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import MinLen
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from seqpipe.answers.answer_types import Answer
from seqpipe.answers.base import AnswerKind, best_of
from seqpipe.answers.schemas import Schema
from seqpipe.errors import DataError, UsageError, did_you_mean
from seqpipe.features.document import Record
from seqpipe.features.sources import InputSource, media_fields, numeric_fields, read_fields
from seqpipe.files import json_bytes
from seqpipe.serve.http import (
    Body,
    HttpError,
    call_off_loop,
    deadline,
    decode_json,
    encode_json,
    is_large,
    parse_body,
    read_body,
)
from seqpipe.serve.service import Catalog, Service
from seqpipe.serve.settings import Settings
from seqpipe.types import Means
from seqpipe.version import VERSION

BYTES, FP32, INT64 = "BYTES", "FP32", "INT64"
_DTYPES = {FP32: "<f4", INT64: "<i8"}
_LENGTH = struct.Struct("<I")  # precedes each element of BYTES in binary data
_SIZE_PARAMETER = "binary_data_size"
ANSWER_OUTPUT = "answer_json"  # the output with the whole answers
_DATATYPES = {"string": BYTES, "number": FP32, "integer": INT64}
MODEL_VERSION = "1"  # a bundle has one version at a time
HEADER_LENGTH = "Inference-Header-Content-Length"


class InputParameters(Body):
    """Parameters of an input tensor."""

    binary_data_size: int | None = None


class InferenceInput(Body):
    """An input tensor of texts, in JSON or followed by binary data."""

    name: str
    datatype: Literal["BYTES"]
    shape: list[Annotated[int, Field(ge=0)]] = Field(description="[N] or [N, 1] for N texts.")
    data: list[Any] | None = None
    parameters: InputParameters = InputParameters()


class OutputParameters(Body):
    """Parameters of an output."""

    binary_data: bool | None = None


class RequestedOutput(Body):
    """An output that the request names."""

    name: str
    parameters: OutputParameters = OutputParameters()


class Parameters(Body, extra="allow"):
    """Parameters of a request; others are decode options."""

    documents: bool = False
    timeout: Annotated[int | None, Field(gt=0, description="Microseconds.")] = None
    binary_data_output: bool = False


class InferenceRequest(Body):
    """One tensor of N texts for each field."""

    inputs: Annotated[
        list[InferenceInput], MinLen(1), Means("a list of tensors, each with name, shape, datatype and data")
    ]
    id: str | None = None
    parameters: Parameters = Parameters()
    outputs: list[RequestedOutput] = Field([])


@dataclass(frozen=True)
class Tensor:
    """A named tensor: an input or an output."""

    name: str
    datatype: str  # BYTES, FP32 or INT64
    shape: tuple[int, ...]
    data: Sequence[Any]  # all elements in row-major order; None: a missing number


def read_request(body: bytes, header_length: int | None) -> tuple[InferenceRequest, dict[str, Tensor]]:
    """Parse an inference request: return it, and its input tensors of texts by name.

    Args:
        body: Body of the HTTP request.
        header_length: Bytes of JSON before the binary data (Inference-Header-Content-Length); None: all.

    Raises:
        UsageError: if it is not one.
    """
    end = len(body) if header_length is None else header_length
    if not 0 <= end <= len(body):
        raise UsageError(f"Inference-Header-Content-Length is {end:,}; the body has {len(body):,} bytes")
    try:
        content = decode_json(body[:end])
    except ValueError as error:
        raise UsageError(f"the body is not JSON: {error}") from error
    request = parse_body(InferenceRequest, content)
    tensors, at = dict[str, Tensor](), end
    for tensor in request.inputs:
        name, shape, size = tensor.name, tensor.shape, tensor.parameters.binary_data_size
        if len(shape) not in (1, 2) or shape[1:] not in ([], [1]):
            raise UsageError(f"input {name!r}: the shape is {shape}; give [N] or [N, 1] for N texts")
        if name in tensors:
            raise UsageError(f"input {name!r} occurs twice in the inputs")
        if size is None:
            data = _flat(tensor.data, name)
        else:
            data, at = _binary_texts(body, at, size, name), at + size
        if len(data) != math.prod(shape):
            raise UsageError(f"input {name!r}: {len(data):,} elements do not fill the shape {shape}")
        tensors[name] = Tensor(name, BYTES, tuple(shape), data)
    if at != len(body):
        raise UsageError(f"the body has {len(body) - at:,} bytes more than the {_SIZE_PARAMETER} of its inputs")
    return request, tensors


def write_response(
    content: Mapping[str, Any], tensors: Sequence[Tensor], is_binary: Callable[[str], bool]
) -> tuple[bytes, int | None]:
    """Return the body of a response, and the length of its JSON if binary data follow.

    Args:
        content: The keys besides `outputs`.
        tensors: The outputs.
        is_binary: Whether the output of this name is written as binary data.
    """
    outputs, parts = [], []
    for tensor in tensors:
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": [*tensor.shape]}
        if is_binary(tensor.name):
            if tensor.datatype == BYTES:
                elements = [text.encode("utf-8", "replace") for text in tensor.data]
                parts.append(b"".join(part for element in elements for part in (_LENGTH.pack(len(element)), element)))
            else:
                numbers = [math.nan if number is None else number for number in tensor.data]
                parts.append(np.array(numbers, _DTYPES[tensor.datatype]).tobytes())
            entry["parameters"] = {_SIZE_PARAMETER: len(parts[-1])}
        else:
            entry["data"] = [*tensor.data]
        outputs.append(entry)
    encode = encode_json if is_large(tensors[0].data if tensors else ()) else json_bytes
    header = encode({**content, "outputs": outputs})
    return (b"".join([header, *parts]), len(header)) if parts else (header, None)


def _flat(data: Any, name: str) -> list[str]:
    """Return the texts of JSON data, which may be nested like the shape."""
    if not isinstance(data, list):
        raise UsageError(f"input {name!r}: data must be a list of texts, not {type(data).__name__}")
    texts = [text for part in data for text in (part if isinstance(part, list) else [part])]
    for text in texts:
        if not isinstance(text, str):
            raise UsageError(f"input {name!r}: an element of {BYTES} must be a text, not {type(text).__name__}")
    return texts


def _binary_texts(body: bytes, at: int, size: int, name: str) -> list[str]:
    """Decode texts from binary data; UsageError if they are not UTF-8 or not of the stated length."""
    if not 0 <= size <= len(body) - at:
        remaining = f"{len(body) - at:,} bytes are left of the body"
        raise UsageError(f"input {name!r}: {_SIZE_PARAMETER} is {size!r}, but {remaining}")
    data, texts, end = body[at : at + size], [], 0
    try:
        while end < size:
            (length,) = _LENGTH.unpack_from(data, end)
            end += _LENGTH.size + length
            if end > size:
                raise struct.error(f"an element has {length:,} bytes")
            texts.append(data[end - length : end].decode())
        return texts
    except (UnicodeDecodeError, struct.error) as error:
        fault = "not UTF-8" if isinstance(error, UnicodeDecodeError) else "cut off"
        raise UsageError(f"input {name!r}: the binary data is {fault}: {error}") from error


@dataclass(frozen=True)
class Output:
    """An output: the value at a path of every answer."""

    name: str  # the path joined by dots; with several heads it begins with the head's name
    datatype: str  # BYTES, FP32 or INT64
    path: tuple[str, ...] = ()  # keys of an answer; empty: the whole answer, as JSON
    is_vector: bool = False  # whether it has several numbers

    def metadata(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": [-1, -1] if self.is_vector else [-1]}

    def tensor(self, answers: Sequence[Answer], shape: tuple[int, ...]) -> Tensor:
        """Return the output of these answers; of several alternatives that of the best.

        A missing text is empty, a missing number is None. `shape` is that of the inputs.
        """
        if not self.path:
            return Tensor(self.name, BYTES, shape, [json_bytes(answer).decode() for answer in answers])
        values: list[Any] = []
        for answer in answers:
            value: Any = answer
            for key in self.path:
                value = best_of(value)[key]
            values.append(value)
        if self.is_vector:
            width = max((len(vector) for vector in values if vector is not None), default=0)
            rows = [[None] * width if vector is None else vector for vector in values]
            return Tensor(self.name, self.datatype, (len(rows), width), [number for row in rows for number in row])
        if self.datatype == BYTES:
            values = ["" if value is None else value for value in values]
        return Tensor(self.name, self.datatype, shape, values)


def outputs_of(kind: AnswerKind) -> Mapping[str, Output]:
    """Return the outputs of a bundle by name, the output of whole answers first."""
    typed = _typed_outputs(kind.answer_schema(), ())
    return {output.name: output for output in (Output(ANSWER_OUTPUT, BYTES), *typed)}


def _typed_outputs(schema: Schema, path: tuple[str, ...]) -> Iterator[Output]:
    """Yield the texts, numbers and vectors that every answer of this schema has."""
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    (kind, *_), may_be_null = types, "null" in types
    if kind == "object" and not may_be_null:
        for name in schema["required"]:
            yield from _typed_outputs(schema["properties"][name], (*path, name))
    elif kind == "array" and path and schema["items"].get("type") == "number":
        yield Output(".".join(path), FP32, path, is_vector=True)
    elif kind in _DATATYPES and not (may_be_null and kind == "integer"):  # no integer could represent a missing value
        yield Output(".".join(path), _DATATYPES[kind], path)


def routes(catalog: Catalog, settings: Settings) -> list[BaseRoute]:
    """Return the routes: `GET /v2`, health, and below `/v2/models/NAME` metadata, readiness and inference."""

    repository = [] if settings.repository is None else ["model_repository"]
    server = {"name": "seqpipe", "version": VERSION, "extensions": ["binary_tensor_data", *repository]}
    # The server listens only after every bundle has answered its golden examples, and not while it stops.
    states = {"/v2": server, "/v2/health/live": {"live": True}, "/v2/health/ready": {"ready": True}}

    async def state(request: Request) -> Response:
        return JSONResponse(states[request.scope["path"]])

    async def model(request: Request) -> Response:
        return JSONResponse(metadata(_service(catalog, request)))

    async def ready(request: Request) -> Response:
        return JSONResponse({"name": _service(catalog, request).name, "ready": True})

    infer = partial(_infer, catalog=catalog, settings=settings)
    paths: list[BaseRoute] = [Route(path, state) for path in states]
    for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        paths += [Route(path, model), Route(f"{path}/ready", ready)]
        paths.append(Route(f"{path}/infer", infer, methods=["POST"]))
    return paths


def _service(catalog: Catalog, request: Request) -> Service:
    """Return the service that a path names; HttpError 404 if the name or version does not exist."""
    service, version = catalog.get(request.path_params["name"]), request.path_params.get("version", MODEL_VERSION)
    if version != MODEL_VERSION:
        raise HttpError(404, f"{service.name!r} has no version {version!r}; there is {MODEL_VERSION}")
    return service


def metadata(service: Service) -> dict[str, Any]:
    """Return the inputs and outputs of a bundle as tensors."""
    predictor = service.model.predictor
    return {
        "name": service.name,
        "versions": [MODEL_VERSION],
        "platform": "seqpipe_onnx",
        "inputs": [{"name": name, "datatype": BYTES, "shape": [-1]} for name in read_fields(predictor.featurizer)],
        "outputs": [output.metadata() for output in outputs_of(predictor.kind).values()],
    }


async def _infer(request: Request, catalog: Catalog, settings: Settings) -> Response:
    end = deadline(request.scope, settings)
    body = await read_body(request.scope, request.receive, settings)
    length = request.headers.get(HEADER_LENGTH)
    if length is not None and not length.isdecimal():
        raise UsageError(f"{HEADER_LENGTH} must be a number of bytes, not {length!r}")
    parsed, inputs = await call_off_loop(is_large(), read_request, body, None if length is None else int(length))
    featurizer = _service(catalog, request).model.predictor.featurizer
    records, shape = await call_off_loop(is_large(), _records, featurizer, inputs, settings.max_items)
    service = _service(catalog, request)
    parameters = parsed.parameters
    outputs = _requested_outputs(parsed, outputs_of(service.model.predictor.kind))
    if parameters.timeout is not None:
        end = min(end, time.monotonic() + parameters.timeout / 1e6)
    options, answers = parameters.model_extra or {}, []
    for answer in await service.answer(records, options, deadline=end, documents=parameters.documents):
        if isinstance(answer, DataError):
            raise answer
        answers.append(answer)
    content = {"model_name": service.name, "model_version": MODEL_VERSION}
    if parsed.id is not None:
        content["id"] = parsed.id
    binary = {output.name for output, is_binary in outputs if is_binary}

    def write() -> tuple[bytes, int | None]:
        tensors = [output.tensor(answers, shape) for output, _ in outputs]
        return write_response(content, tensors, binary.__contains__)

    body, json_length = await call_off_loop(is_large(answers), write)
    if json_length is None:
        return Response(body, media_type="application/json")
    return Response(body, media_type="application/octet-stream", headers={HEADER_LENGTH: str(json_length)})


def _records(featurizer: InputSource, inputs: Mapping[str, Tensor], most: int) -> tuple[list[Record], tuple[int, ...]]:
    """Return a record for each row of the inputs, and their shape.

    Raises:
        UsageError: for inputs that are not the bundle's.
        HttpError: 413 for more than `most` rows.
    """
    fields, numeric, encoded = read_fields(featurizer), numeric_fields(featurizer), media_fields(featurizer)
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
    if (count := math.prod(inputs[fields[0]].shape)) > most:
        raise HttpError(413, f"{count:,} inputs are over the limit of {most:,}; send fewer")
    columns: list[Sequence[Any]] = []
    for name in fields:
        is_json = [name in numeric and (name not in encoded or text.startswith("[")) for text in inputs[name].data]
        texts = zip(is_json, inputs[name].data, strict=True)
        columns.append([_json(name, text) if parsed else text for parsed, text in texts])
    return [dict(zip(fields, row, strict=True)) for row in zip(*columns, strict=True)], shapes[fields[0]]


def _json(name: str, text: str) -> Any:
    """Parse rows of numbers written as JSON; the source refuses any other value."""
    try:
        return decode_json(text.encode())
    except ValueError as error:
        example = "JSON, such as [[0.5, 1], [2, 3]]"
        raise UsageError(f"input {name!r}: an element must be {example}, not {text[:40]!r}: {error}") from error


def _requested_outputs(request: InferenceRequest, outputs: Mapping[str, Output]) -> list[tuple[Output, bool]]:
    """Return the requested outputs, each with a flag for binary data; all outputs if the request names none."""
    all_binary = request.parameters.binary_data_output
    if not request.outputs:
        return [(output, all_binary) for output in outputs.values()]
    requested = []
    for entry in request.outputs:
        if entry.name not in outputs:
            hint = f"{did_you_mean(entry.name, outputs)} (there is: {', '.join(outputs)})"
            raise UsageError(f"no output {entry.name!r}{hint}")
        binary = entry.parameters.binary_data
        requested.append((outputs[entry.name], all_binary if binary is None else binary))
    return requested
