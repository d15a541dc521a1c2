"""seqpipe's own protocol: `POST /v1/NAME` answers inputs, explains one, or streams a continuation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Doc
from seqpipe.features.kinds.registry import MEDIA
from seqpipe.features.sources import columns, media_fields, numeric_fields, read_fields
from seqpipe.files import json_bytes, null_non_finite
from seqpipe.runtime.decode_options import describe_options, field_options
from seqpipe.serve.http import (
    Body,
    HttpError,
    call_off_loop,
    deadline,
    encode_off_loop,
    http_error,
    is_large,
    parse_body,
    read_json_body,
    send_body,
)
from seqpipe.serve.service import Catalog, Service
from seqpipe.serve.settings import Settings
from seqpipe.types import Means

PATH_PREFIX = "/v1/"  # of the addresses
_MAX_EXAMPLES = 3  # number of inputs in a description


class PredictRequest(Body):
    """The body of a request."""

    inputs: Annotated[Any, Means("a text, a record, or a list of them")]
    options: dict[str, Any] = Field(default_factory=dict, description="Decode options.")
    option_fields: list[str] | dict[str, str] = Field(
        default_factory=list,
        description="Decode options that each record has itself: their names, or keys of the record by name.",
    )
    on_error: Literal["stop", "skip"] = Field(
        "stop", description="Whether an input that cannot be answered fails the request, or its answer is an error."
    )
    documents: bool = Field(False, description="Treat each text as a document, and split it into sentences.")
    explain: bool = Field(False, description="Return the attention weights, for one input.")
    stream: bool = Field(False, description="Send the text as it is generated, for one input.")


def routes(catalog: Catalog, settings: Settings) -> list[BaseRoute]:
    """Return the routes `GET /v1` and `GET /v1/NAME`; `answer` handles `POST /v1/NAME`."""

    async def everything(request: Request) -> JSONResponse:
        return JSONResponse({"bundles": [describe_bundle(service) for service in catalog.services.values()]})

    async def description(request: Request) -> JSONResponse:
        return JSONResponse(describe_bundle(catalog.get(request.path_params["name"])))

    return [Route("/v1", everything), Route("/v1/{name}", description)]


def describe_bundle(service: Service) -> dict[str, Any]:
    """Return the description of a bundle, for clients and for the page."""
    model = service.model
    stated: Mapping[str, Any] = model.manifest.answer
    parts = {name: part["labels"] for name, part in stated.get("parts", {}).items() if "labels" in part}
    labels = {"labels": labels} if (labels := stated.get("labels", parts)) else {}
    # The page draws a field by its content: a text, a category, rows of numbers, a picture or a sound.
    source = model.predictor.featurizer
    kinds = dict.fromkeys(columns(source), "category")
    kinds |= dict.fromkeys(numeric_fields(source), "rows") | {
        field: MEDIA[kind] for field, kind in media_fields(source).items()
    }
    return {
        "name": service.name,
        "pipeline": model.manifest.name,
        "answer": model.predictor.kind.kind,
        "fields": list(model.fields),
        "options": describe_options(model.predictor.options),
        **labels,
        "explains": model.explains,
        "streams": model.predictor.kind.is_generated,
        "documents": model.predictor.reads_documents,
        "limits": model.manifest.limits.model_dump(exclude_unset=True),
        "examples": [example.record for example in model.manifest.golden[:_MAX_EXAMPLES]],
        "sha256": model.sha256,
        "bytes": sum(entry.bytes for entry in model.manifest.files.values()),
        "reads_empty": model.predictor.kind.text_length(Doc("", [], [], [])) > 0,
        "inputs": [{"name": field, "type": kinds.get(field, "text")} for field in read_fields(source)],
        "drawing": model.predictor.kind.drawing,
    }


async def answer(name: str, scope: Scope, receive: Receive, send: Send, catalog: Catalog, settings: Settings) -> None:
    """Handle `POST /v1/NAME`; HttpError, DataError or UsageError for requests without an answer."""
    end = deadline(scope, settings)
    catalog.get(name).queue.refuse_early()  # a refused request need not be read
    parsed = await read_json_body(scope, receive, settings, partial(_parse, settings=settings))
    service = catalog.get(name)
    if parsed.stream:
        await _stream(send, service, parsed, end)
    else:
        await send_body(send, 200, await _content(service, parsed, end))


async def _content(service: Service, parsed: PredictRequest, end: float) -> bytes:
    """Return the body of a response; the answers, whose objects take far more memory, end with this call."""
    if parsed.explain:
        explanation = await service.explain(parsed.inputs, parsed.options, deadline=end)
        data = await asyncio.to_thread(lambda: null_non_finite(explanation.data()))
        return await encode_off_loop(True, {"answer": data["answer"], "explanation": data})
    several = isinstance(parsed.inputs, list)
    options = parsed.options
    if parsed.option_fields:
        known = service.model.predictor.options
        options = await call_off_loop(is_large(), field_options, parsed.option_fields, options, known)
    inputs = parsed.inputs if several else [parsed.inputs]
    answers: list[Any] = await service.answer(inputs, options, deadline=end, documents=parsed.documents)
    for i, answer_or_error in enumerate(answers):
        if isinstance(answer_or_error, DataError):
            if parsed.on_error == "stop":
                raise answer_or_error
            answers[i] = {"error": http_error(answer_or_error).message}
    content = {"answers": answers} if several else {"answer": answers[0]}
    return await encode_off_loop(is_large(answers), content)


def _parse(body: Mapping[str, Any], settings: Settings) -> PredictRequest:
    parsed = parse_body(PredictRequest, body)
    if parsed.option_fields and (parsed.explain or parsed.stream):
        raise UsageError("option_fields: explain and stream have one input; give its options as `options`")
    if parsed.explain + parsed.stream + parsed.documents > 1:
        raise UsageError("documents, explain and stream: choose one of the three")
    if not isinstance(parsed.inputs, list):
        return parsed
    if parsed.explain or parsed.stream:
        raise UsageError("inputs: explain and stream need one input, not a list; send a request for each")
    if len(parsed.inputs) > settings.max_items:
        raise HttpError(413, f"{len(parsed.inputs):,} inputs are over the limit of {settings.max_items:,}; send fewer")
    return parsed


async def _stream(send: Send, service: Service, parsed: PredictRequest, end: float) -> None:
    """Send each chunk as a server-sent event, and the whole text at the end; raise an error before the first chunk."""
    written: list[str] = []
    async with aclosing(service.stream(parsed.inputs, parsed.options, deadline=end)) as chunks:
        chunk = await anext(chunks, None)
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        try:
            while chunk is not None:
                written.append(chunk)
                await _event(send, {"text": chunk})
                chunk = await anext(chunks, None)
            text = service.prompt(parsed.inputs) + "".join(written)
            await _event(send, {"answer": {"generated_text": text}})
        except Exception as error:
            await _event(send, {"error": http_error(error).message}, b"event: error\n")
    await send({"type": "http.response.body", "body": b""})


EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]


async def _event(send: Send, data: Any, kind: bytes = b"") -> None:
    body = kind + b"data: " + json_bytes(data) + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})
