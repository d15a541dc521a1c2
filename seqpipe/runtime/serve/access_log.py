"""The access log: one JSON line a request on standard error, without texts, answers, paths or query strings."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TextIO

from seqpipe.runtime.serve.request_record import RequestRecord

_QUIET = ("/metrics", "/v2/health/live", "/v2/health/ready")  # asked every few seconds; logged when they fail
_encode = lru_cache(1000)(json.dumps)  # of what the lines of many requests share


class AccessLog:
    """Writes the lines of all requests that end in one turn of the event loop at once: after a batch that is many.

    Args:
        stream: Where lines go; standard error by default.
    """

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream if stream is not None else sys.stderr
        self._lines: list[str] = []

    def write(self, scope: Any, record: RequestRecord, seconds: float) -> None:
        """Note a request that has ended."""
        route = getattr(scope.get("route"), "path", None)  # the pattern: a path may hold what a client typed
        if route is None and record.bundle:
            route = "/v1/{name}"  # the one path that is answered without routing
        if route in _QUIET and record.status < 400:
            return
        if not self._lines:
            asyncio.get_running_loop().call_soon(self.flush)
        self._lines.append(line(scope, record, seconds, route))

    def flush(self) -> None:
        """Write what was noted since the last time."""
        lines, self._lines = self._lines, []
        if lines:
            self._stream.write("".join(lines))
            self._stream.flush()


def line(scope: Any, record: RequestRecord, seconds: float, route: str | None) -> str:
    """One request as a line of JSON; an id has no character that JSON would escape."""
    peer = scope.get("client")  # None on a Unix socket
    return (
        f'{{"time":"{datetime.now(UTC).isoformat(timespec="milliseconds")}","id":"{record.id}"'
        f',"method":{_encode(scope["method"])},"route":{_encode(route)},"bundle":{_encode(record.bundle or None)}'
        f',"status":{record.status},"items":{record.items},"tokens":{record.tokens}'
        f',"queued":{record.queued:.6f},"seconds":{seconds:.6f},"peer":{_encode(peer[0] if peer else None)}}}\n'
    )
