"""The bearer token: read from a file or the environment, compared in constant time, asked for by all but health."""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from seqpipe.errors import UsageError
from seqpipe.serve.http import error_content

VARIABLE = "SEQPIPE_TOKEN"
OPEN = frozenset({"/", "/v2/health/live", "/v2/health/ready"})  # paths that need no token
PAGE = "/page/"  # nor what is below it: the page holds nothing of a bundle, and asks its reader for the token
SHORTEST = 16  # characters
_SCHEME = b"bearer "
_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?")
_CURE = "make one with `openssl rand -hex 32`"


def read_token(file: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The token in this file, else that of the variable SEQPIPE_TOKEN; None if there is neither.

    Raises:
        UsageError: for a file that cannot be read, and a token that is empty, short, or no single printable word.
    """
    if file is not None:
        try:
            token, place = file.read_text(encoding="utf-8"), str(file)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--token-file: {file} cannot be read as text: {error}") from error
    elif VARIABLE in environment:
        token, place = environment[VARIABLE], VARIABLE
    else:
        return None
    token = token.strip()
    if not re.fullmatch(r"[!-~]+", token):
        raise UsageError(f"{place}: a token is one word of printable ASCII characters; {_CURE}")
    if len(token) < SHORTEST:
        raise UsageError(f"{place}: the token has {len(token)} characters, fewer than {SHORTEST}; {_CURE}")
    return token


class TokenCheck:
    """An ASGI application behind a token: 401 for a request without it.

    Args:
        app: Answers the requests that have the token.
        token: The token.
    """

    def __init__(self, app: ASGIApp, token: str):
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] != "http" or scope["path"] in OPEN or scope["path"].startswith(PAGE)
        values = [] if is_open else [value for name, value in scope["headers"] if name == b"authorization"]
        has_scheme = len(values) == 1 and values[0][: len(_SCHEME)].lower() == _SCHEME
        if is_open or (has_scheme and hmac.compare_digest(values[0][len(_SCHEME) :].strip(), self._token)):
            await self._app(scope, receive, send)
            return
        content = error_content("this server asks for a token: send the header `Authorization: Bearer TOKEN`")
        await JSONResponse(content, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)


def check_origins(origins: Sequence[str]) -> tuple[str, ...]:
    """Return the origins as they are; UsageError for what is none."""
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise UsageError(f"--cors: {origin!r} is no origin; write it as browsers do: https://example.org, or *")
    return tuple(origins)


def allow_origins(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """The application, which tells browsers that pages of these origins may call it."""
    headers = ("Authorization", "Content-Type", "X-Request-Id", "X-Request-Timeout")
    exposed = ("Retry-After", "X-Request-Id")
    return CORSMiddleware(app, origins, ("GET", "POST"), headers, expose_headers=exposed)


def exposure(host: str, token: str | None) -> str | None:
    """Return a warning for an address that other machines reach, where no token is asked for."""
    if token is not None or ipaddress.ip_address(host).is_loopback:
        return None
    return (
        f"bound to {host} without a token: whoever reaches this machine can use the bundles; "
        f"set {VARIABLE} or --token-file, or bind to 127.0.0.1 behind a proxy that authenticates"
    )
