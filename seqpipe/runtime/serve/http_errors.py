"""What seqpipe raises in, the status of a response out."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from seqpipe.errors import DataError, SeqpipeError, UsageError

log = logging.getLogger("seqpipe.serve")


class HttpError(Exception):
    """A request that gets no answer: the status of its response, and why.

    Args:
        status: From 400 on.
        message: What was wrong, and the cure.
        headers: Of the response, such as Retry-After.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})


def full(seconds: int) -> HttpError:
    """More waits already than may wait."""
    message = f"too many requests are waiting; try again in {seconds} s"
    return HttpError(429, message, {"Retry-After": str(seconds)})


def late(seconds: float) -> HttpError:
    """No answer came within this time."""
    return HttpError(504, f"no answer within {seconds:.3g} s; send less at a time, or allow more with --timeout")


def unavailable(why: str) -> HttpError:
    """No request is taken now."""
    return HttpError(503, f"the server {why}; try again", {"Retry-After": "1"})


def http_error(error: Exception) -> HttpError:
    """The response to a request whose answer raised this; what is no fault of the client is logged whole."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, DataError | UsageError):
        return HttpError(422, str(error))
    log.error("a request has failed", exc_info=error)
    return HttpError(500, str(error) if isinstance(error, SeqpipeError) else "internal error; the server's log has it")
