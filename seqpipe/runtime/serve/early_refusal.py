"""Refusals before the application: while a queue is full, a request to it costs little more than its headers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from time import perf_counter
from typing import Any

from seqpipe.runtime.serve.auth import has_token
from seqpipe.runtime.serve.catalog import Catalog
from seqpipe.runtime.serve.http_errors import HttpError
from seqpipe.runtime.serve.request_record import RequestRecord, request_id
from seqpipe.runtime.serve.scheduling import RunsFirst
from seqpipe.runtime.serve.settings import Settings

PREFIX = b"/v1/"
_quoted = lru_cache(100)(json.dumps)  # there is one message for each number of seconds
Headers = Sequence[tuple[bytes, bytes]]


class EarlyRefusal:
    """Answers requests to `/v1/NAME` that the application would answer with 429 too.

    Args:
        catalog: The bundles.
        settings: Of the server.
        observe: Notes a request that has ended, with its scope and its seconds.
    """

    def __init__(self, catalog: Catalog, settings: Settings, observe: Callable[[Any, RequestRecord, float], None]):
        self._catalog, self._settings, self._observe = catalog, settings, observe
        self._runs_first = RunsFirst()
        self._coming: Counter[str] = Counter()  # requests to each bundle that the application has not seen yet

    def response(self, path: bytes, headers: Headers, scope: Any) -> bytes | None:
        """The response after its status line to a POST, as far as it is known when its headers are; else None.

        Args:
            path: As it was sent.
            headers: Names in small letters.
            scope: Of the request, for the access log.
        """
        if not path.startswith(PREFIX):
            return None
        service = self._catalog.services.get(path[len(PREFIX) :].decode("latin-1"))
        if service is None or self._catalog.state or not self._may_ask(headers):
            return None
        began = perf_counter()
        try:
            service.queue.refuse_early(self._coming[service.name])
        except HttpError as error:
            self._runs_first()
            record = RequestRecord(request_id(headers), service.name, status=error.status)
            self._observe(scope, record, perf_counter() - began)
            return _response(error, record.id)
        if not self._coming:
            asyncio.get_running_loop().call_soon(self._coming.clear)  # in the turn in which the application sees them
        self._coming[service.name] += 1
        return None

    def _may_ask(self, headers: Headers) -> bool:
        """Whether nothing but the queue stands against it; pages of other origins need headers of their own."""
        if self._settings.cors and any(name == b"origin" for name, _ in headers):
            return False
        return self._settings.token is None or has_token(headers, self._settings.token.encode())


def _response(error: HttpError, request_id: str) -> bytes:
    """The headers and body of a refusal; an id has no character that JSON would escape."""
    body = f'{{"error": {_quoted(error.message)}, "request_id": "{request_id}"}}'
    return (
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"retry-after: {error.headers['Retry-After']}\r\nx-request-id: {request_id}\r\n\r\n{body}"
    ).encode()
