"""Bodies of requests in, responses out: limits, JSON, errors, deadlines; the same for every protocol."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.types import Receive, Scope, Send

from seqpipe.files import json_bytes
from seqpipe.runtime.serve.http_errors import HttpError
from seqpipe.runtime.serve.request_record import current
from seqpipe.runtime.serve.settings import Settings


async def read_body(scope: Scope, receive: Receive, most: int) -> bytes:
    """The whole body of a request; HttpError 413 if it is over so many bytes."""
    if int(header(scope, b"content-length") or 0) > most:
        raise _too_large(most)
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HttpError(400, "the client left before its request was whole")
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise _too_large(most)
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def read_json(scope: Scope, receive: Receive, settings: Settings) -> dict[str, Any]:
    """The JSON object that a request sends; HttpError 400 if its body is none."""
    body = await read_body(scope, receive, settings.max_body_bytes)
    try:
        value = _DECODER.decode(body.decode())
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"the body is not JSON: {str(error) or 'nested too deeply'}") from error
    if not isinstance(value, dict):
        raise HttpError(422, f"the body must be a JSON object, not {type(value).__name__}")
    return value


async def send_json(send: Send, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
    """A response whose body is JSON."""
    body = json_bytes(value)
    written: list[tuple[bytes, bytes]] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    written += [(name.lower().encode(), text.encode()) for name, text in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": written})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: HttpError) -> None:
    """The response of a request without an answer."""
    await send_json(send, error.status, error_content(error.message), error.headers)


def error_content(message: str) -> dict[str, str]:
    """The body of a response without an answer: why, and the id under which the log has the request."""
    record = current()
    return {"error": message} if record is None else {"error": message, "request_id": record.id}


def deadline(scope: Scope, settings: Settings) -> float:
    """When the client stops waiting, by `time.monotonic`: what X-Request-Timeout says, at most the server's limit."""
    seconds, text = settings.timeout_s, header(scope, b"x-request-timeout")
    if text is not None:
        try:
            seconds_asked = float(text)
        except ValueError:
            seconds_asked = 0.0
        if not seconds_asked > 0:
            raise HttpError(422, "X-Request-Timeout must be a number of seconds above 0")
        seconds = min(seconds, seconds_asked)
    return time.monotonic() + seconds


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of this name, in small letters."""
    headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
    for key, value in headers:
        if key == name:
            return value
    return None


def _too_large(most: int) -> HttpError:
    return HttpError(413, f"the body is over {most:,} bytes; send fewer inputs at a time")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
