"""Request bodies and responses of all protocols: limits, JSON, errors, deadlines."""

from __future__ import annotations

import asyncio
import codecs
import json
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.types import Receive, Scope, Send

from seqpipe.config.signature import describe_type, existing, mismatch_message
from seqpipe.config.yaml import format_value
from seqpipe.errors import MAX_NAME, DataError, SeqpipeError, UsageError, did_you_mean
from seqpipe.files import JSON_DECODER, json_bytes
from seqpipe.serve.observe import current_request, header
from seqpipe.serve.settings import Settings

log = logging.getLogger("seqpipe.serve")
# The most that the event loop reads or encodes by itself: bytes of a body, inputs or answers, and estimated tokens.
MAX_LOOP_BYTES, MAX_LOOP_ANSWERS, MAX_LOOP_TOKENS = 64 << 10, 16, 4_096
# Lists and objects of a body (600 x 600 pixels of three numbers have fewer), and keys of an object.
_MAX_CONTAINERS, _MAX_KEYS = 400_000, 10_000
_MAX_MESSAGE = 2_000  # characters of a message, which may list the labels or options of a bundle
_LONG_NAME = re.compile(rf"(?<!\w)(?:'[^']{{{MAX_NAME},}}'|\"[^\"]{{{MAX_NAME},}}\")(?!\w)")
Result = TypeVar("Result")
Count = Annotated[int, Field(ge=1)]


class Body(BaseModel):
    """The JSON object of a request, or an object in it; null is the same as omitting a key that may be omitted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _omit_null(cls, content: Any) -> Any:
        if not isinstance(content, dict) or None not in content.values():
            return content
        required = [name for name, field in cls.model_fields.items() if field.is_required()]
        return {name: value for name, value in content.items() if value is not None or name in required}


AnyBody = TypeVar("AnyBody", bound=Body)


class WrongKeyError(UsageError):
    """A wrong key of a body, or a wrong value; OpenAI's error object has the key as `param`."""

    def __init__(self, key: str, message: str):
        super().__init__(f"{key[:MAX_NAME]}: {message}")
        self.key = key[:MAX_NAME]


def json_object(content: Any) -> dict[str, Any]:
    """Return the content of a body; UsageError if it is no JSON object."""
    if not isinstance(content, dict):
        raise UsageError(f"the body must be a JSON object, not {type(content).__name__}")
    return content


def parse_body(model: type[AnyBody], content: Any) -> AnyBody:
    """Return a JSON object as an instance of the model; WrongKeyError for the first unknown, missing or wrong key."""
    content = json_object(content)
    try:
        return model.model_validate(content)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
    problem = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")  # which may be a misspelt other
    where, known = problem["loc"], model.model_fields
    key, name = ".".join(map(str, where)), str(where[0])
    if problem["type"] == "extra_forbidden":
        fix = f"{did_you_mean(name, known)} (there is: {', '.join(known)})" if len(where) == 1 else "; omit it"
        raise WrongKeyError(key, f"is not supported{fix}")
    expected = describe_type(known[name].annotation, known[name].metadata)
    if problem["type"] == "missing":
        raise WrongKeyError(key, "is missing" + (f": {expected}" if len(where) == 1 else ""))
    place, value = existing(content, where)
    if len(place) > 1:
        raise WrongKeyError(key, f"{problem['msg'].removeprefix('Input ')}, not {format_value(value)}")
    raise WrongKeyError(name, mismatch_message(expected, content[name]))


class HttpError(Exception):
    """An error response to a request: its status, 400 or above, the reason and the fix, and headers.

    A quoted name of more than 100 characters is cut, since it comes from the client, and so is a long message.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None):
        if len(message) > MAX_NAME:
            message = _LONG_NAME.sub(lambda match: f"{match[0][: MAX_NAME - 2]}…{match[0][0]}", message)
            message = message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}…"
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})


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


class LargeCalls:
    """Calls in threads now, and seconds after which a thread lets others run: beside these calls, and usually."""

    count, seconds, usual_seconds = 0, 0.001, sys.getswitchinterval()


async def read_body(scope: Scope, receive: Receive, settings: Settings) -> bytes:
    """Return the whole body of a request.

    Raises:
        HttpError: 413 if it is too large, 408 if it arrives too slowly, 429 if too many are incomplete, 415 if it is
            compressed.
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
    encoding = header(scope, b"content-encoding")
    if encoding and encoding.lower() != b"identity":
        name = encoding[:MAX_NAME].decode("latin-1")
        reason = f"Content-Encoding: {name} is not supported; send the body without it"
        raise HttpError(415, reason, {"Accept-Encoding": "identity"})
    if (record := current_request()) is not None:
        record.size = size
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def read_json_body(scope: Scope, receive: Receive, settings: Settings, parse: Callable[[Any], Result]) -> Result:
    """Return the parsed JSON of a request; HttpError 400 if its body is not JSON."""

    def read() -> Result:
        try:
            value = decode_json(body)
        except ValueError as error:
            raise HttpError(400, f"the body is not JSON: {error}") from error
        return parse(value)

    body = await read_body(scope, receive, settings)
    return await call_off_loop(len(body) > MAX_LOOP_BYTES, read)


def _object(pairs: list[tuple[str, Any]]) -> Any:
    if len(pairs) > _MAX_KEYS:
        raise HttpError(413, f"an object of the body has {len(pairs):,} keys; at most {_MAX_KEYS:,} are read")
    return JSON_DECODER.object_pairs_hook(pairs)


# Without functions of Python for what is frequent, no other thread would run until the decoder returns.
_DECODER = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_float=lambda digits: float(digits),
    parse_int=JSON_DECODER.parse_int,
    parse_constant=JSON_DECODER.parse_constant,
)


def decode_json(data: bytes) -> Any:
    """Return the value of JSON in UTF-8, which may begin with a byte order mark.

    Raises:
        ValueError: names the fault.
        HttpError: 413 for too many lists, objects or keys.
    """
    if data.startswith(b"\x1f\x8b"):
        raise ValueError("it is compressed with gzip; send it uncompressed")
    if data.count(b"[") + data.count(b"{") > _MAX_CONTAINERS:
        raise HttpError(413, f"the body has more than {_MAX_CONTAINERS:,} lists and objects; send fewer inputs")
    try:
        return _DECODER.decode(data.removeprefix(codecs.BOM_UTF8).decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def encode_json(value: Any) -> bytes:
    """Return JSON as `json_bytes` does, but long lists in parts: until its encoder returns, no other thread runs."""
    if isinstance(value, dict):
        return b"{" + b", ".join(json_bytes(key) + b": " + encode_json(item) for key, item in value.items()) + b"}"
    if not isinstance(value, list):
        return json_bytes(value)
    if len(value) <= MAX_LOOP_ANSWERS:
        return b"[" + b", ".join(map(encode_json, value)) + b"]"
    starts = range(0, len(value), MAX_LOOP_ANSWERS)
    return b"[" + b", ".join(json_bytes(value[start : start + MAX_LOOP_ANSWERS])[1:-1] for start in starts) + b"]"


def is_large(items: Sequence[Any] = ()) -> bool:
    """Return whether the running task's request, or the inputs or answers of it, are too large for the event loop."""
    record = current_request()
    is_long = record is not None and (record.size > MAX_LOOP_BYTES or record.tokens > MAX_LOOP_TOKENS)
    return is_long or len(items) > MAX_LOOP_ANSWERS


async def call_off_loop(is_large: bool, function: Callable[..., Result], *arguments: Any) -> Result:
    """Return the result of a function; a large one is called in a thread, so that the event loop answers others.

    Meanwhile threads have to let the event loop run more often, which would cost small requests much of their rate.
    """
    if not is_large:
        return function(*arguments)
    LargeCalls.count += 1
    sys.setswitchinterval(LargeCalls.seconds)
    try:
        return await asyncio.to_thread(function, *arguments)
    finally:
        LargeCalls.count -= 1
        if not LargeCalls.count:
            sys.setswitchinterval(LargeCalls.usual_seconds)


async def encode_off_loop(is_large: bool, value: Any) -> bytes:
    """Return JSON, encoded in a thread and in parts if it is large."""
    return await call_off_loop(is_large, encode_json if is_large else json_bytes, value)


async def send_body(send: Send, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
    """Send a response with a body of JSON."""
    written = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    written += [(name.lower().encode(), text.encode()) for name, text in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": written})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: HttpError) -> None:
    """Send an error response."""
    await send_body(send, error.status, json_bytes(error_content(error.message)), error.headers)


def error_content(message: str) -> dict[str, str]:
    """Return the body of an error response: the reason, and the id of the request in the log."""
    record = current_request()
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
