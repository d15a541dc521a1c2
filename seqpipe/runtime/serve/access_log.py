"""The access log: one JSON line a request on standard error, without texts, answers, paths or query strings."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TextIO

from seqpipe.runtime.serve.request_record import Ended

_QUIET = ("/metrics", "/v2/health/live", "/v2/health/ready")  # asked every few seconds; logged when they fail
_encode = lru_cache(1000)(json.dumps)  # of what the lines of many requests share


class AccessLog:
    """Writes the lines of several requests at once.

    Args:
        stream: Where lines go; standard error by default.
    """

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream if stream is not None else sys.stderr

    def write(self, ended: Sequence[Ended]) -> None:
        """Write a line for each request that has ended just now."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        lines = [
            line(request, route, time)
            for request in ended
            if (route := _route(request)) not in _QUIET or _failed(request)
        ]
        if lines:
            self._stream.write("".join(lines))
            self._stream.flush()


def _route(ended: Ended) -> str | None:
    """The pattern of its path, which itself may hold what a client typed; None: there is no such path."""
    route = getattr(ended.scope.get("route"), "path", None)
    return "/v1/{name}" if route is None and ended.record.bundle else route  # the one that is answered without routing


def _failed(ended: Ended) -> bool:
    return ended.record.status >= 400


def line(ended: Ended, route: str | None, time: str) -> str:
    """One request as a line of JSON; an id has no character that JSON would escape."""
    scope, record, seconds = ended
    peer = scope.get("client")  # None on a Unix socket
    return (
        f'{{"time":"{time}","id":"{record.id}"'
        f',"method":{_encode(scope["method"])},"route":{_encode(route)},"bundle":{_encode(record.bundle or None)}'
        f',"status":{record.status},"items":{record.items},"tokens":{record.tokens}'
        f',"queued":{record.queued:.6f},"seconds":{seconds:.6f},"peer":{_encode(peer[0] if peer else None)}}}\n'
    )
