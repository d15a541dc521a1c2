"""The outermost layer of the server: gives each request its id, and notes it in the metrics and the access log."""

from __future__ import annotations

import asyncio
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seqpipe.runtime.serve.access_log import AccessLog
from seqpipe.runtime.serve.metrics import Metrics
from seqpipe.runtime.serve.request_record import CLIENT_GONE, Ended, RequestRecord, begin


class Observed:
    """An ASGI application, observed.

    Args:
        app: Answers the requests.
        metrics: Counts them.
        log: The access log; None: none is written.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, log: AccessLog | None):
        self._app, self._metrics, self._log = app, metrics, log
        self._ended: list[Ended] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = perf_counter()
        record = begin(scope["headers"])

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", record.id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            record.status = record.status or 500
            raise
        except asyncio.CancelledError:
            record.status = CLIENT_GONE
            raise
        finally:
            record.status = record.status or CLIENT_GONE
            self.note(scope, record, perf_counter() - start)

    def note(self, scope: Scope, record: RequestRecord, seconds: float) -> None:
        """Notes a request that has ended; all that end in one turn of the event loop are written at once."""
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._write)
        self._ended.append(Ended(scope, record, seconds))

    def _write(self) -> None:
        ended, self._ended = self._ended, []
        self._metrics.requests(ended)
        if self._log:
            self._log.write(ended)
