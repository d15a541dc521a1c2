"""A server under load: what it serves, the requests, and one load after the other."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

import uvloop

from seqpipe.commands.bench.load import ClosedLoop, OpenLoop, Settings
from seqpipe.errors import DataError, EnvError, UsageError
from seqpipe.files import json_bytes

CHECK_SECONDS = 60.0  # for the description, and for the first answer
_SERVE = "seqpipe serve BUNDLE"


@dataclass(frozen=True)
class Server:
    """One bundle of a server.

    Attributes:
        host: Where the server listens.
        port: At which port.
        path: Of the bundle.
        headers: What every request sends.
    """

    host: str
    port: int
    path: str
    headers: Mapping[str, str]

    @classmethod
    def at(cls, url: str, name: str, token: str | None = None) -> Server:
        """The bundle of this name; UsageError for an address that is none of HTTP."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise UsageError(f"--url {url}: must be http://HOST:PORT; behind TLS measure the server itself")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return cls(parts.hostname, parts.port or 80, f"{parts.path.rstrip('/')}/v1/{quote(name)}", headers)

    @property
    def url(self) -> str:
        return f"http://{self._host}{self.path}"

    @property
    def _host(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def describe(self) -> dict[str, Any]:
        """What the server says of the bundle."""
        return self._ask(None)

    def check(self, body: bytes) -> None:
        """DataError with the server's own message if it does not answer this request."""
        self._ask(body)

    def request(self, body: bytes) -> bytes:
        """A whole HTTP request with this body."""
        headers = {"Host": self._host, "Content-Type": "application/json", **self.headers}
        lines = [f"POST {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body

    def _ask(self, body: bytes | None) -> dict[str, Any]:
        request = urllib.request.Request(self.url, body, {**self.headers, "Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy is measured
        try:
            with opener.open(request, timeout=CHECK_SECONDS) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            message = error.read(2000).decode(errors="replace")
            raise DataError(f"{self.url}: the server answers {error.code}: {message}") from error
        except (OSError, ValueError) as error:
            raise EnvError(f"{self.url}: no server answers there ({error}); start one: {_SERVE}") from error


def bodies(inputs: Sequence[Any], options: Mapping[str, Any]) -> list[bytes]:
    """The body of a request for each input."""
    rest = {"options": options} if options else {}
    return [json_bytes({"inputs": item, **rest}) for item in inputs]


def run_loads(
    server: Server,
    requests: Sequence[bytes],
    clients: Sequence[int],
    rates: Sequence[float],
    seconds: float,
    deadline: float,
    seed: int,
) -> dict[str, Any]:
    """Each load in turn: closed loops of so many clients, then open loops of so many arrivals a second."""
    share = seconds / (len(clients) + len(rates))

    async def loads() -> dict[str, Any]:
        connect = partial(_connect, server)
        settings = Settings(connect, requests, deadline=deadline)
        return {
            "closed_loop": [await ClosedLoop(settings, share).run(number) for number in clients],
            "open_loop": [await OpenLoop(settings, share).run(rate, seed) for rate in rates],
        }

    return uvloop.run(loads())


async def _connect(server: Server, protocol: Any) -> None:
    await asyncio.get_running_loop().create_connection(protocol, server.host, server.port)
