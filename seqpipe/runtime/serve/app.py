"""The ASGI application: the routes of every protocol, and what holds for each request."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from seqpipe.errors import SeqpipeError
from seqpipe.runtime.serve import health, inference_v2, openai, openapi, operation, page, v1
from seqpipe.runtime.serve.access_log import AccessLog
from seqpipe.runtime.serve.auth import TokenCheck, allow_origins
from seqpipe.runtime.serve.catalog import RESERVED, Catalog
from seqpipe.runtime.serve.http_errors import HttpError, http_error
from seqpipe.runtime.serve.metrics import Metrics
from seqpipe.runtime.serve.observe import Observed
from seqpipe.runtime.serve.replies import error_content, send_error
from seqpipe.runtime.serve.request_record import CLIENT_GONE, current
from seqpipe.runtime.serve.settings import Settings

# Each has `routes(catalog, settings)`; v1 has every other name.
PROTOCOLS = (health, inference_v2, openai, openapi, v1, page)
CONNECTION = "seqpipe.connection"  # in a scope: what cancels a task when the client leaves


def make_app(catalog: Catalog, settings: Settings, metrics: Metrics) -> Observed:
    """What answers every request of a server, and counts it."""
    catalog.observers.append(metrics.batch)
    routes = [route for protocol in PROTOCOLS for route in protocol.routes(catalog, settings)]
    routes += operation.routes(catalog, settings, metrics)
    handlers: dict[Any, Any] = {HTTPException: _other_error}
    handlers |= dict.fromkeys((HttpError, SeqpipeError, Exception), _error)
    starlette = Starlette(routes=routes, exception_handlers=handlers)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        connection = scope.get(CONNECTION)
        if connection is not None:
            connection.task = asyncio.current_task()
        try:
            if scope["method"] == "POST" and _is_v1(scope["path"]):
                try:
                    await v1.answer(scope, receive, send, catalog, settings)
                except Exception as error:
                    await send_error(send, http_error(error))
            else:
                await starlette(scope, receive, send)
        except asyncio.CancelledError:
            if connection is None or not connection.lost:
                raise
            if (record := current()) is not None:
                record.status = CLIENT_GONE
        finally:
            if connection is not None:
                connection.task = None

    guarded: ASGIApp = TokenCheck(app, settings.token) if settings.token else app
    if settings.cors:  # outside of the token: a browser asks whether it may send one without sending one
        guarded = allow_origins(guarded, settings.cors)
    return Observed(guarded, metrics, AccessLog() if settings.access_log else None)


def _is_v1(path: str) -> bool:
    """Whether `POST` to this path asks a bundle by seqpipe's own protocol."""
    name = path.removeprefix("/v1/")
    return len(name) < len(path) and "/" not in name and name not in RESERVED


async def _error(request: Request, error: Exception) -> JSONResponse:
    answer = http_error(error)
    return JSONResponse(error_content(answer.message), answer.status, answer.headers)


async def _other_error(request: Request, error: Exception) -> JSONResponse:
    """What Starlette itself refuses: no such path, no such method."""
    assert isinstance(error, HTTPException)
    return JSONResponse(error_content(error.detail), error.status_code, error.headers)
