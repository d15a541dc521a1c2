"""OpenAI's protocol: `/v1/models`, `/v1/embeddings` of bundles with vectors, `/v1/completions` of language models."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from seqpipe.errors import DataError
from seqpipe.runtime.serve import openai_completions
from seqpipe.runtime.serve.catalog import Catalog
from seqpipe.runtime.serve.openai_replies import (
    InvalidRequestError,
    checked_keys,
    error_response,
    texts_of,
    token_counts,
)
from seqpipe.runtime.serve.replies import deadline, read_json
from seqpipe.runtime.serve.service import Service
from seqpipe.runtime.serve.settings import Settings

Answer = Callable[[Request], Awaitable[Response]]
_EMBEDDING_KEYS = ("model", "input", "encoding_format", "user")
_FORMATS = ("float", "base64")


def routes(catalog: Catalog, settings: Settings) -> list[BaseRoute]:
    """What is below `/v1` besides bundles."""

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_model(service) for service in catalog.services.values()]})

    async def model(request: Request) -> Response:
        return JSONResponse(_model(_service(catalog, request.path_params["name"])))

    async def embeddings(request: Request) -> Response:
        end = deadline(request.scope, settings)
        body = await read_json(request.scope, request.receive, settings)
        return await _embeddings(_service(catalog, body.get("model")), body, settings, end)

    async def completions(request: Request) -> Response:
        end = deadline(request.scope, settings)
        body = await read_json(request.scope, request.receive, settings)
        return await openai_completions.complete(_service(catalog, body.get("model")), body, settings, end)

    return [
        Route("/v1/models", _guarded(models)),
        Route("/v1/models/{name}", _guarded(model)),
        Route("/v1/embeddings", _guarded(embeddings), methods=["POST"]),
        Route("/v1/completions", _guarded(completions), methods=["POST"]),
    ]


def _guarded(answer: Answer) -> Answer:
    """An endpoint whose errors are OpenAI's error object."""

    async def guarded(request: Request) -> Response:
        try:
            return await answer(request)
        except Exception as error:
            return error_response(error)

    return guarded


def _model(service: Service) -> dict[str, Any]:
    return {"id": service.name, "object": "model", "created": 0, "owned_by": "seqpipe"}


def _service(catalog: Catalog, name: Any) -> Service:
    if not isinstance(name, str):
        known = ", ".join(catalog.services)
        raise InvalidRequestError("model", f"must be the name of a bundle (there is: {known})")
    return catalog.get(name)


async def _embeddings(service: Service, body: Mapping[str, Any], settings: Settings, end: float) -> Response:
    if not service.model.predictor.kind.is_embedding:
        cure = f"POST /v1/{service.name} asks for its answers"
        raise InvalidRequestError("model", f"{service.name!r} gives no vectors; {cure}")
    checked_keys(body, _EMBEDDING_KEYS)
    texts = texts_of("input", body.get("input"), settings)
    encoding = body.get("encoding_format") or "float"
    if encoding not in _FORMATS:
        raise InvalidRequestError("encoding_format", f"must be one of {', '.join(_FORMATS)}, not {encoding!r}")
    answers = await service.answer(texts, {}, deadline=end)
    vectors = [_vector(answer, i) for i, answer in enumerate(answers, 1)]
    tokens = sum(await asyncio.to_thread(token_counts, service.model, texts))
    data = [
        {"object": "embedding", "index": i, "embedding": vector if encoding == "float" else _base64(vector)}
        for i, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JSONResponse({"object": "list", "data": data, "model": service.name, "usage": usage})


def _vector(answer: Any, number: int) -> list[float]:
    """The vector of an answer; DataError if there is none."""
    if isinstance(answer, DataError):
        raise answer
    if answer["vector"] is None:
        raise DataError(f"record {number}: a text without a token has no vector; leave it out")
    vector: list[float] = answer["vector"]
    return vector


def _base64(vector: Sequence[float]) -> str:
    return base64.b64encode(np.array(vector, "<f4").tobytes()).decode()
