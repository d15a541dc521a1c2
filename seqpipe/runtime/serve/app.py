"""The ASGI application: the routes of every protocol, and what holds for each request."""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from seqpipe.runtime.serve import health, v1
from seqpipe.runtime.serve.catalog import RESERVED, Catalog
from seqpipe.runtime.serve.http_errors import http_error
from seqpipe.runtime.serve.replies import send_error
from seqpipe.runtime.serve.settings import Settings

PROTOCOLS = (health, v1)  # each has `routes(catalog, settings)`
CONNECTION = "seqpipe.connection"  # in a scope: what cancels a task when the client leaves


def make_app(catalog: Catalog, settings: Settings) -> ASGIApp:
    """What answers every request of a server."""
    routes = [route for protocol in PROTOCOLS for route in protocol.routes(catalog, settings)]
    starlette = Starlette(routes=routes, exception_handlers={HTTPException: _other_error, Exception: _error})

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
        finally:
            if connection is not None:
                connection.task = None

    return app


def _is_v1(path: str) -> bool:
    """Whether `POST` to this path asks a bundle by seqpipe's own protocol."""
    name = path.removeprefix("/v1/")
    return len(name) < len(path) and "/" not in name and name not in RESERVED


async def _error(request: Request, error: Exception) -> JSONResponse:
    answer = http_error(error)
    return JSONResponse({"error": answer.message}, answer.status, answer.headers)


async def _other_error(request: Request, error: Exception) -> JSONResponse:
    """What Starlette itself refuses: no such path, no such method."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)
