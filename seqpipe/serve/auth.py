"""Access control: the bearer token, which all routes except health require, and the allowed hosts and origins."""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from seqpipe.errors import UsageError
from seqpipe.serve.http import HttpError, send_error
from seqpipe.serve.settings import Settings

TOKEN_VARIABLE = "SEQPIPE_TOKEN"
OPEN = frozenset({"/", "/v2/health/live", "/v2/health/ready"})  # paths that need no token
PAGE = "/page/"  # needs no token either: the page has no data of a bundle, and asks its user for the token
MIN_TOKEN_LENGTH = 16  # characters
_SCHEME = b"bearer "
_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?")
_HOST = re.compile(r"\[[0-9a-f:.]+\]|[a-z0-9._-]+")
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LOOPBACK = ("localhost", rf"127(?:\.{_BYTE}){{3}}", r"\[::1\]")  # names that no name server can redirect
_SAFE = ("GET", "HEAD", "OPTIONS")  # methods without side effects; a page of another site cannot read their responses
_TOKEN_FIX = "make one with `openssl rand -hex 32`"


def read_token(file: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the token in this file, otherwise that of the variable SEQPIPE_TOKEN; None if neither is set.

    Raises:
        UsageError: for a file that cannot be read, and a token that is empty, short, or not one printable word.
    """
    if file is not None:
        try:
            token, place = file.read_text(encoding="utf-8"), str(file)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--token-file: {file} cannot be read as text: {error}") from error
    elif TOKEN_VARIABLE in environment:
        token, place = environment[TOKEN_VARIABLE], TOKEN_VARIABLE
    else:
        return None
    token = token.strip()
    if not re.fullmatch(r"[!-~]+", token):
        raise UsageError(f"{place}: a token is one word of printable ASCII characters; {_TOKEN_FIX}")
    if len(token) < MIN_TOKEN_LENGTH:
        raise UsageError(f"{place}: the token has {len(token)} characters, fewer than {MIN_TOKEN_LENGTH}; {_TOKEN_FIX}")
    return token


class TokenCheck:
    """ASGI middleware that requires a token: 401 for a request without it."""

    def __init__(self, app: ASGIApp, token: str):
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] != "http" or scope["path"] in OPEN or scope["path"].startswith(PAGE)
        values = [] if is_open else [value for name, value in scope["headers"] if name == b"authorization"]
        has_scheme = len(values) == 1 and values[0][: len(_SCHEME)].lower() == _SCHEME
        if is_open or (has_scheme and hmac.compare_digest(values[0][len(_SCHEME) :].strip(), self._token)):
            await self._app(scope, receive, send)
            return
        fix = "this server needs a token: send the header `Authorization: Bearer TOKEN`"
        await send_error(send, HttpError(401, fix, {"WWW-Authenticate": "Bearer"}))


def check_origins(origins: Sequence[str]) -> tuple[str, ...]:
    """Return the origins unchanged; UsageError for an invalid one."""
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise UsageError(f"--cors: {origin!r} is not an origin; write it as browsers do: https://example.org, or *")
    return tuple(origins)


def check_hosts(names: Sequence[str]) -> tuple[str, ...]:
    """Return the host names in lower case; UsageError for an invalid one."""
    for name in names:
        if not _HOST.fullmatch(name.lower()):
            raise UsageError(f"--allow-host: {name!r} is not a host name; write it without a port: example.org")
    return tuple(name.lower() for name in names)


class SiteCheck:
    """ASGI middleware that refuses requests with a foreign origin or an unknown host name.

    A browser may send a POST of another site's page without a preflight request. A site can also map its own name to
    127.0.0.1 (DNS rebinding), so that its pages have the origin of the server. The headers reveal both.
    `settings.host` is an address.
    """

    def __init__(self, app: ASGIApp, settings: Settings):
        self._app, self._cors = app, {origin.encode() for origin in settings.cors}
        is_local = settings.uds is None and ipaddress.ip_address(settings.host).is_loopback
        names = [*_LOOPBACK, *map(re.escape, settings.hosts)] if is_local or settings.hosts else [r"[^:]*|\[.*\]"]
        self._hosts = re.compile(f"({'|'.join(names)})(:[0-9]*)?".encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (self._app(scope, receive, send) if refusal is None else send_error(send, refusal))

    def _refusal(self, scope: Scope) -> HttpError | None:
        hosts, origin, site = [], None, b"none"
        for name, value in scope["headers"]:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origin = value
            elif name == b"sec-fetch-site":
                site = value
        host = hosts[0].lower() if hosts else b""  # granian adds an empty one if there is none
        if len(hosts) > 1 or (not host and scope["http_version"] == "1.1"):
            return HttpError(400, "a request must have one header Host, with the name of the server")
        if host and not self._hosts.fullmatch(host):
            fix = "use localhost, or start the server with --allow-host and that name"
            return HttpError(421, f"the name in the header Host is not allowed; {fix}")
        if b"%2f" in scope.get("raw_path", b"").lower():  # `path` has it decoded, and would match another route
            return HttpError(404, "no route has an encoded slash (%2F) in its path; write it as /")
        if scope["method"] in _SAFE or origin in self._cors:
            return None
        if b"*" in self._cors and not scope["path"].startswith("/v2/repository"):  # any page may read, none may change
            return None
        is_other = site not in (b"none", b"same-origin") if origin is None else origin.partition(b"://")[2] != host
        fix = "a page of another site may not send requests; allow its origin with --cors"
        return HttpError(403, fix) if is_other else None


def exposure_warning(host: str, token: str | None) -> str | None:
    """Return a warning if other machines can reach the address and no token is required."""
    if token is not None or ipaddress.ip_address(host).is_loopback:
        return None
    return (
        f"bound to {host} without a token: everyone who can reach this machine can use the bundles; "
        f"set {TOKEN_VARIABLE} or --token-file, or bind to 127.0.0.1 behind a proxy that authenticates"
    )
