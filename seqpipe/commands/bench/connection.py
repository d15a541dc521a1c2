"""One keep-alive connection to a server: bytes of a request in, status code out, by callbacks alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

import httptools

Answered = Callable[["Connection", int, float], None]  # with the status code, and when it came
Lost = Callable[["Connection", str], None]  # with the reason, if a request was on its way; else with nothing


class Connection(asyncio.Protocol):
    """A connection with at most one request on its way.

    No task, future or stream is made for a request: a load generator has to be much cheaper than what it measures.

    Attributes:
        scheduled: When the request on its way was to be sent; the latency counts from there.
        sent: When it was sent; None: none is on its way.
        body: The body of the last answer.
        is_open: Whether it can take a request.
    """

    def __init__(self, answered: Answered, lost: Lost):
        self._answered, self._lost = answered, lost
        self._parser = httptools.HttpResponseParser(self)
        self._reason = "connection closed without an answer"
        self.scheduled = 0.0
        self.sent: float | None = None
        self.body = b""
        self.is_open = False
        self.idle_since = time.perf_counter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are of no class of asyncio
        self.is_open = True

    def send(self, request: bytes, scheduled: float) -> None:
        """Sends a request that was to be sent at this time (of `time.perf_counter`)."""
        self.scheduled, self.sent = scheduled, time.perf_counter()
        self._transport.write(request)

    def close(self) -> None:
        """Closes it; a request on its way gets no answer, and is not told of."""
        self.is_open, self.sent = False, None
        self._transport.close()

    def abort(self, reason: str) -> None:
        """Gives a request on its way up."""
        self._reason = reason
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.abort(f"no HTTP: {error}")

    def on_message_begin(self) -> None:
        self.body = b""

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        now = self.idle_since = time.perf_counter()
        self.sent = None
        if not self._parser.should_keep_alive():
            self.close()
        self._answered(self, self._parser.get_status_code(), now)

    def connection_lost(self, exc: Exception | None) -> None:
        was_waiting, self.sent, self.is_open = self.sent is not None, None, False
        self._lost(self, self._reason if was_waiting else "")
