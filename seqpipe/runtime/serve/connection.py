"""One connection of a client: uvicorn's, with limits on what is sent and on how slowly."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from seqpipe.files import json_bytes
from seqpipe.runtime.serve.app import CONNECTION
from seqpipe.runtime.serve.early_refusal import EarlyRefusal
from seqpipe.runtime.serve.settings import Settings

CONTINUE = b"HTTP/1.1 100"  # what goes before a response: a client waits for it to send its body


def protocol(settings: Settings, early: EarlyRefusal) -> type[Connection]:
    """The class of connections under these settings."""
    return type("LimitedConnection", (Connection,), {"settings": settings, "early": early})


class Connection(HttpToolsProtocol):
    """A connection that drops clients which send or read slowly, and cancels the request of one that has left."""

    settings: Settings
    early: EarlyRefusal
    task: asyncio.Task[Any] | None = None  # what answers the request
    lost = False
    _reading = _in_head = True  # a new connection owes its first request
    _head = 0  # bytes that came while the headers were not whole
    _head_was_whole = False  # those of a request, in the bytes that came last
    _fault = 400, "this is not HTTP/1.1"
    _is_refused = False  # the request was answered when its headers were read; its body is skipped
    _answering: RequestResponseCycle | None = None
    _read_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.settings.max_connections:
            self._refuse(503, f"there are {self.settings.max_connections:,} connections already; try again")
        else:
            self._await_more()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True  # uvicorn tells the last request of a pipeline alone
        self._read_timer = _cancelled(self._read_timer)
        self._write_timer = _cancelled(self._write_timer)
        if self.task is not None:
            self.task.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_was_whole = False
        super().data_received(data)
        if self.transport.is_closing():
            return
        if not self._reading:
            self._read_timer = _cancelled(self._read_timer)
            if self._owes_nothing() and self.timeout_keep_alive_task is None:  # refused before it was whole
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
            return
        self._await_more()
        if self._in_head:
            self._head = 0 if self._head_was_whole else self._head + len(data)
            if self._head > self.settings.max_header_bytes:
                self._refuse(*self._large_head())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]
        self._reading = self._in_head = True
        self._is_refused = False
        self._read_timer = _cancelled(self._read_timer)

    def on_headers_complete(self) -> None:
        self._in_head, self._head, self._head_was_whole = False, 0, True
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.settings.max_header_bytes:
            self._fault = self._large_head()
            raise ValueError(self._fault)
        self._is_refused = self._refuse_early()
        if not self._is_refused:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._reading = False
        if not self._is_refused:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        cycle.transport = OneWrite(cycle.transport)  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        if self._answering is not None:
            self._answering.transport.flush()  # type: ignore[attr-defined]
        super().on_response_complete()
        if self.transport.is_closing():
            self._drop_unread()

    def send_400_response(self, msg: str) -> None:
        self._refuse(*self._fault)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._drop_unread()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write_timer = _cancelled(self._write_timer)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._drop_unread()

    def _owes_nothing(self) -> bool:
        """Whether every request so far has its response."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _refuse_early(self) -> bool:
        """Answers the request whose headers are whole if nobody would answer it; the connection stays open."""
        parser = self.parser
        if parser.get_method() != b"POST" or self.expect_100_continue or not self._owes_nothing():
            return False
        if parser.get_http_version() != "1.1" or not parser.should_keep_alive() or parser.should_upgrade():
            return False
        self.scope["method"] = "POST"
        response = self.early.response(self.url, self.headers, self.scope)
        if response is None:
            return False
        more = b"".join(b"%b: %b\r\n" % header for header in self.server_state.default_headers)
        self.transport.write(STATUS_LINE[429] + more + response)
        return True

    def _await_more(self) -> None:
        """The request has to be whole in time."""
        if self._read_timer is None:
            self._read_timer = self.loop.call_later(self.settings.read_s, self._too_slow)

    def _too_slow(self) -> None:
        self._read_timer = None
        cycle: RequestResponseCycle | None = self.cycle
        if self.flow.read_paused:  # it is the server that does not read
            self._await_more()
        elif self.pipeline or (cycle and not cycle.response_complete and (self._in_head or cycle.response_started)):
            self.transport.abort()
        else:
            self._refuse(408, f"the request was not whole after {self.settings.read_s:g} s")

    def _drop_unread(self) -> None:
        """What is written has to be read in time."""
        if self._write_timer is None and self.transport.get_write_buffer_size():
            self._write_timer = self.loop.call_later(self.settings.read_s, self.transport.abort)

    def _large_head(self) -> tuple[int, str]:
        return 431, f"the headers are over {self.settings.max_header_bytes:,} bytes; send fewer"

    def _refuse(self, status: int, message: str) -> None:
        """The last response of this connection, to what never was a request."""
        body = json_bytes({"error": message})
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
        self._drop_unread()


class OneWrite:
    """The transport of one response, whose head goes out together with the first part of its body.

    Args:
        transport: That of the connection.
    """

    __slots__ = ("_had_head", "_head", "_transport")

    def __init__(self, transport: asyncio.Transport):
        self._transport, self._head, self._had_head = transport, b"", False

    def write(self, data: bytes) -> None:
        if self._had_head:
            self._transport.write(self._head + data if self._head else data)
            self._head = b""
        elif data.startswith(CONTINUE):
            self._transport.write(data)
        else:
            self._head, self._had_head = data, True

    def flush(self) -> None:
        """Sends the head of a response that has no body."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """What is left of a timer: none."""
    if timer is not None:
        timer.cancel()
    return None
