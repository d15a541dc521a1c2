"""The ASGI application: the routes of every protocol, and the handling that all requests share."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from time import perf_counter
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seqpipe.errors import SeqpipeError
from seqpipe.runtime.opened import OpenedBundle
from seqpipe.serve import admin, inference_v2, openai, openapi, v1
from seqpipe.serve.auth import SiteCheck, TokenCheck
from seqpipe.serve.http import HttpError, error_content, http_error, send_error
from seqpipe.serve.metrics import Metrics
from seqpipe.serve.observe import CLIENT_GONE, AccessLog, EndedRequest, begin_request
from seqpipe.serve.service import Catalog
from seqpipe.serve.settings import CROWDED_WRITE_SECONDS, SHUTDOWN_NOTICE, V1_RESERVED, Settings

PROTOCOLS = (inference_v2, openai, openapi, v1)  # each has `routes(catalog, settings)`; v1 matches all other names
PAGE_HEADERS = {
    "Cache-Control": "no-cache",  # revalidated with its ETag: an update of seqpipe is visible at once
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "same-origin",  # without one, a browser may send `Origin: null`, which matches no server
    "X-Content-Type-Options": "nosniff",
}
_PIECE = 32 << 10  # bytes of a response that are sent at once; granian holds a few of these for each connection
_UNREAD = 256 << 10  # bytes of unread responses for each possible connection
_BEAT = 0.2  # seconds between two reports of a process
_WATCH_AFTER = 0.05  # seconds without an answer after which the server watches whether the client disconnects


def make_app(
    settings: Settings, models: Mapping[str, OpenedBundle], report: Callable[[str], None] = lambda state: None
) -> Observed:
    """Return the application that answers and counts the requests to a server of these bundles.

    `report` is called with "loaded" when the bundles are served, and then regularly with "alive". Its OSError means
    that the parent process has ended: then this one ends too.
    """
    catalog, metrics = Catalog(settings), Metrics()
    catalog.observers.append(metrics.batch)

    async def beat() -> None:
        while True:
            if settings.processes > 1:  # another process may answer requests for the metrics
                metrics.refresh(admin.waiting(catalog))
            try:
                report("alive")
            except OSError:
                os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(_BEAT)

    @contextlib.asynccontextmanager
    async def lifespan(starlette: Starlette) -> AsyncIterator[None]:
        catalog.start(models)
        asyncio.get_running_loop().add_signal_handler(signal.Signals[SHUTDOWN_NOTICE], application.announce_shutdown)
        report("loaded")
        beating = asyncio.create_task(beat())
        yield
        # The server closes its connections before it ends the application: no more requests arrive.
        beating.cancel()
        await catalog.stop()

    routes = [route for protocol in PROTOCOLS for route in protocol.routes(catalog, settings)]
    routes += [*page_routes(), *admin.routes(catalog, settings, metrics)]
    handlers: dict[Any, Any] = dict.fromkeys((HTTPException, HttpError, SeqpipeError, Exception), _error)
    starlette = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    starlette.router.redirect_slashes = False  # a redirect would repeat the Host of the request

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        # Most requests take this path. Routing through Starlette would cost them a third of their time.
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"].startswith(v1.PATH_PREFIX):
            name = scope["path"].removeprefix(v1.PATH_PREFIX)
            if "/" not in name and name not in V1_RESERVED:
                try:
                    await v1.answer(name, scope, receive, send, catalog, settings)
                except Exception as error:
                    await send_error(send, http_error(error))
                return
        await starlette(scope, receive, send)

    guarded: ASGIApp = TokenCheck(app, settings.token) if settings.token else app
    if settings.cors:  # outside of the token check: preflight requests of browsers have no token
        headers = ("Authorization", "Content-Type", "X-Request-Id", "X-Request-Timeout")
        exposed = ("Retry-After", "X-Request-Id")
        guarded = CORSMiddleware(guarded, settings.cors, ("GET", "POST"), headers, expose_headers=exposed)
    log = AccessLog() if settings.access_log else None
    application = Observed(SiteCheck(guarded, settings), metrics, log, settings)
    return application


class Observed:
    """Outermost layer: assigns request ids, cancels requests of disconnected clients, and records each request.

    A large response is sent in pieces, each of which waits until its client has read the ones before. A client that
    takes longer than `settings.write_s` for a piece counts as disconnected: a stream would keep its bundle from being
    unloaded. It has only 0.4 s while unread responses have more than 256 KB for each possible connection.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, log: AccessLog | None, settings: Settings):
        self._app, self._metrics, self._log, self._write_s = app, metrics, log, settings.write_s
        self._unread, self._most_unread = 0, settings.max_connections * _UNREAD  # bytes of large responses
        self._ended: list[EndedRequest] = []
        self._is_ending = False

    def announce_shutdown(self) -> None:
        """Announce to each client that its connection will close, since a request sent at that moment would be lost."""
        self._is_ending = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = perf_counter()
        record = begin_request(scope)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", record.id.encode())]
                if self._is_ending:
                    message["headers"].append((b"connection", b"close"))
            body, is_last = message.get("body", b""), not message.get("more_body")
            if is_last and len(body) <= _PIECE:
                await send(message)
                return
            client.watch()
            self._unread += len(body)
            try:
                for place in range(0, max(1, len(body)), _PIECE):
                    is_crowded = self._unread > self._most_unread
                    limit = min(CROWDED_WRITE_SECONDS, self._write_s) if is_crowded else self._write_s
                    async with asyncio.timeout(limit):
                        await send({**message, "body": body[place : place + _PIECE], "more_body": True})
            except TimeoutError:
                client.is_gone = True
                raise asyncio.CancelledError from None
            finally:
                self._unread -= len(body)
            if is_last:
                await send({**message, "body": b"", "more_body": False})

        client = Client(receive)
        try:
            await self._app(scope, client.receive, send_with_id)
        except Exception:
            record.status = record.status or 500
            raise
        except asyncio.CancelledError:
            record.status = CLIENT_GONE
            if not client.is_gone:
                raise
        finally:
            client.close()
            record.status = record.status or CLIENT_GONE
            # All requests that end in one turn of the event loop are written at once.
            if not self._ended:
                asyncio.get_running_loop().call_soon(self._write)
            self._ended.append(EndedRequest(scope, record, perf_counter() - start))

    def _write(self) -> None:
        ended, self._ended = self._ended, []
        self._metrics.requests(ended)
        if self._log:
            self._log.write(ended)


class Client:
    """Client of the running task's request; the task is cancelled when the client disconnects.

    An ASGI server reports a disconnected client in a `receive` after the body. This needs a separate task, which starts
    only after a while, since a request that is answered at once does not need it.
    """

    def __init__(self, receive: Receive):
        self._receive, self._task = receive, asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.Task[None] | None = None
        self.is_gone = False  # the client has disconnected, and the task was cancelled

    async def receive(self) -> Message:
        """Return the next message; after the body, wait until the client disconnects."""
        if self._timer is not None:
            await asyncio.Future()  # ends when the task is cancelled
        message = await self._receive()
        if not message.get("more_body"):
            self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER, self.watch)
        return message

    def watch(self) -> None:
        """Cancel the task as soon as the client disconnects."""
        if self._watch is None:
            self._watch = asyncio.create_task(self._wait())

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()

    async def _wait(self) -> None:
        if (await self._receive())["type"] == "http.disconnect" and self._task is not None:
            self.is_gone = True
            self._task.cancel()


def page_routes() -> list[BaseRoute]:
    """Return the routes of the demo page: `GET /` and its files, with a policy that allows no foreign content."""

    class Files(StaticFiles):
        def file_response(self, *args: Any, **kwargs: Any) -> Response:
            response = super().file_response(*args, **kwargs)
            response.headers.update(PAGE_HEADERS)
            return response

    files = Files(packages=[("seqpipe.serve", "page")])

    async def index(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    return [Route("/", index), Mount("/page", files)]


async def _error(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, HTTPException):  # of Starlette: no such path, no such method
        return JSONResponse(error_content(error.detail), error.status_code, error.headers)
    answer = http_error(error)
    return JSONResponse(error_content(answer.message), answer.status, answer.headers)
