"""Record and id of one request, for the access log and the metrics."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, TextIO

from starlette.types import Scope

CLIENT_GONE = 499  # nginx's status for a client that disconnected before its response was complete
_VALID_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_QUIET = ("/metrics", "/v2/health/live", "/v2/health/ready")  # requested every few seconds; logged only when they fail
_encode = lru_cache(1000)(json.dumps)  # for values that many lines share


@dataclass(slots=True)
class RequestRecord:
    """One request; every layer that handles it adds its figures. It has no text of the client."""

    id: str
    bundle: str = ""  # that answers; empty if there is none (health, metrics, unknown names)
    items: int = 0  # inputs
    tokens: int = 0  # of all inputs, estimated
    queued: float = 0.0  # seconds that it waited for a worker; without an answer, until it was cancelled
    status: int = 0  # HTTP status of the response; 0 before it starts
    size: int = 0  # bytes of the body

    def add(self, tokens: Sequence[int], queued: float) -> None:
        """Record inputs by their tokens, and their waiting time; a further chunk of a stream has no tokens."""
        self.items += len(tokens) - tokens.count(0)
        self.tokens += sum(tokens)
        self.queued += queued


class EndedRequest(NamedTuple):
    """A request that has ended: its ASGI scope, its record, and the seconds that it took."""

    scope: Any
    record: RequestRecord
    seconds: float


_current: ContextVar[RequestRecord | None] = ContextVar("seqpipe_request", default=None)


def begin_request(scope: Scope) -> RequestRecord:
    """Create the record of a request and attach it to the running task.

    Its id is the client's X-Request-Id if that is valid. Otherwise it is random, but not a secret, since a system call
    would cost a switch of threads.
    """
    sent = header(scope, b"x-request-id")
    record = RequestRecord(sent.decode() if sent and _VALID_ID.fullmatch(sent) else f"{random.getrandbits(128):032x}")
    _current.set(record)
    return record


def current_request() -> RequestRecord | None:
    """Return the record of the running task's request; None outside of a request."""
    return _current.get()


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header of this lower-case name."""
    headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
    return next((value for key, value in headers if key == name), None)


class AccessLog:
    """The access log, on standard error by default, which writes the lines of several requests at once."""

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream if stream is not None else sys.stderr

    def write(self, ended: Sequence[EndedRequest]) -> None:
        """Write a line for each request that has ended just now."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        lines = []
        for request in ended:
            # The pattern of the path, since the path itself may contain a client's text; None: there is no such path.
            route = getattr(request.scope.get("route"), "path", None)
            if route is None and request.record.bundle:
                route = "/v1/{name}"  # answered without Starlette's routing
            if route not in _QUIET or request.record.status >= 400:
                lines.append(line(request, route, time))
        if lines:
            self._stream.write("".join(lines))
            self._stream.flush()


def line(ended: EndedRequest, route: str | None, time: str) -> str:
    """Return one request as a line of JSON; an id needs no JSON escapes."""
    scope, record, seconds = ended
    peer, *_ = scope.get("client") or (None,)  # empty on a Unix socket
    return (
        f'{{"time":"{time}","id":"{record.id}"'
        f',"method":{_encode(scope["method"])},"route":{_encode(route)},"bundle":{_encode(record.bundle or None)}'
        f',"status":{record.status},"items":{record.items},"tokens":{record.tokens}'
        f',"queued":{record.queued:.6f},"seconds":{seconds:.6f},"peer":{_encode(peer or None)}}}\n'
    )
