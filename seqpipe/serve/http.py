"""Request bodies and responses of all protocols: limits, JSON, errors, deadlines."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.types import Receive, Scope, Send

from seqpipe.errors import DataError, SeqpipeError, UsageError, did_you_mean
from seqpipe.files import JSON_DECODER, json_bytes
from seqpipe.serve.observe import current
from seqpipe.serve.settings import Settings

log = logging.getLogger("seqpipe.serve")


class HttpError(Exception):
    """An error response to a request: its status, 400 or above, the reason and the fix, and headers."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})


def queue_full_error(seconds: int) -> HttpError:
    """Return the error for a full queue."""
    message = f"too many requests are waiting; try again in {seconds} s"
    return HttpError(429, message, {"Retry-After": str(seconds)})


def timeout_error(seconds: float) -> HttpError:
    """Return the error for a request that timed out after this time."""
    return HttpError(504, f"no answer within {seconds:.3g} s; send fewer inputs at a time, or increase --timeout")


def http_error(error: Exception) -> HttpError:
    """Return the response for this exception; an error that is not the client's is logged with its traceback."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, DataError | UsageError):
        return HttpError(422, str(error))
    log.error("a request has failed", exc_info=error)
    return HttpError(500, str(error) if isinstance(error, SeqpipeError) else "internal error; see the server's log")


class Bodies:
    """Budget of bytes for all incomplete bodies: without it, slow clients could fill the memory."""

    used, limit = 0, 48 << 20


async def read_body(scope: Scope, receive: Receive, settings: Settings) -> bytes:
    """Return the whole body of a request.

    Raises:
        HttpError: 413 if it is too large, 408 if it arrives too slowly, 429 if too many are incomplete.
    """
    most = settings.max_body_bytes
    too_large = HttpError(413, f"the body is over {most:,} bytes; send fewer inputs at a time")
    if int(header(scope, b"content-length") or 0) > most and header(scope, b"expect") is not None:
        raise too_large  # the client waits for permission to send the body
    parts, size, more = list[bytes](), 0, True
    try:
        async with asyncio.timeout(settings.read_s):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise HttpError(400, "the client disconnected before its request was complete")
                part, more = message.get("body", b""), message.get("more_body", False)
                Bodies.used += min(size + len(part), most) - min(size, most)
                size += len(part)
                if more and Bodies.used > max(Bodies.limit, most):
                    close = {"Connection": "close", "Retry-After": "1"}
                    raise HttpError(429, "too many bodies are being sent; try again, or send a smaller one", close)
                if size > most:
                    # The rest is read and dropped: a response before the end of the body would be lost to clients that
                    # read only after sending it, since the connection is reset.
                    parts.clear()
                else:
                    parts.append(part)
    except TimeoutError:
        close = {"Connection": "close"}
        raise HttpError(408, f"the request was not complete after {settings.read_s:g} s", close) from None
    finally:
        Bodies.used -= min(size, most)
    if size > most:
        raise too_large
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def read_json(scope: Scope, receive: Receive, settings: Settings) -> dict[str, Any]:
    """Return the JSON object that a request sends; HttpError 400 if its body is not one."""
    body = await read_body(scope, receive, settings)
    try:
        value = JSON_DECODER.decode(body.decode())
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"the body is not JSON: {str(error) or 'nested too deeply'}") from error
    if not isinstance(value, dict):
        raise HttpError(422, f"the body must be a JSON object, not {type(value).__name__}")
    return value


def refuse_unknown(content: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise UsageError for an unknown key of a JSON object."""
    for key in content:
        if key not in known:
            raise UsageError(f"no key {key!r}{did_you_mean(key, known)} (there is: {', '.join(known)})")


async def send_json(send: Send, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
    """Send a response with a JSON body."""
    body = json_bytes(value)
    written = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    written += [(name.lower().encode(), text.encode()) for name, text in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": written})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: HttpError) -> None:
    """Send an error response."""
    await send_json(send, error.status, error_content(error.message), error.headers)


def error_content(message: str) -> dict[str, str]:
    """Return the body of an error response: the reason, and the id of the request in the log."""
    record = current()
    return {"error": message} if record is None else {"error": message, "request_id": record.id}


def deadline(scope: Scope, settings: Settings) -> float:
    """Return the deadline by `time.monotonic`: from X-Request-Timeout, at most the server's limit."""
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
    """Return the first header of this lower-case name."""
    headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
    return next((value for key, value in headers if key == name), None)
