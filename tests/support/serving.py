"""A server of bundles in a process of its own, and clients that speak to it over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import granian.server.embed
from granian.constants import Interfaces
from starlette.types import ASGIApp

READY_S = 60  # a busy machine needs that long to start a process


@dataclass
class Reply:
    """The response to one request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    """`seqpipe serve` with these arguments, at a port of its own; `with Server(bundle) as server`."""

    def __init__(self, *arguments: str | Path, ready: bool = True, port: bool = True):
        self._log = Path(tempfile.mkdtemp(prefix="serve-")) / "log"
        given = [*map(str, arguments), *(["--port", "0"] if port else [])]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "seqpipe", "serve", *given], stdout=log, stderr=log, env=os.environ.copy()
            )
        self.port = 0
        if ready:
            self.port = int(self.wait_for(r"http://[^ :]+:(\d+): ready")[1]) if port else 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What it has said so far."""
        return self._log.read_text(encoding="utf-8")

    def wait_for(self, pattern: str, seconds: float = READY_S) -> re.Match[str]:
        """Waits until it says a line like this."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := re.search(pattern, self.log):
                return found
            assert self.process.poll() is None, self.log
            time.sleep(0.02)
        raise AssertionError(f"no {pattern!r} in: {self.log}")

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, timeout: float = 60
    ) -> Reply:
        """One request on a connection of its own; a body that is no bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            return ask(connection, method, path, body, headers)
        finally:
            connection.close()

    def get(self, path: str, **more: Any) -> Reply:
        return self.request("GET", path, **more)

    def post(self, path: str, body: Any, **more: Any) -> Reply:
        return self.request("POST", path, body, **more)

    @contextmanager
    def connection(self) -> Iterator[socket.socket]:
        """A bare socket, connected."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as client:
            yield client

    def end(self, number: signal.Signals = signal.SIGTERM, seconds: float = 60) -> int:
        """Sends a signal; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextmanager
def running_app(app: ASGIApp) -> Iterator[str]:
    """Run an application in a thread of this process; its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stop: list[Callable[[], object]] = []

    async def run() -> None:
        server = granian.server.embed.Server(app, port=port, interface=Interfaces.ASGINL, log_enabled=False)
        stop.append(partial(asyncio.get_running_loop().call_soon_threadsafe, server.stop))
        await server.serve()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            break
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}"
    stop[0]()
    thread.join()


def events(body: bytes) -> list[tuple[str, Any]]:
    """Server-sent events, each with its kind."""
    found = []
    for block in body.decode().removesuffix("\n\n").split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((lines.get("event", "message"), json.loads(lines["data"])))
    return found


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """One request on a connection that stays open."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, data, dict(headers or {}))
    response = connection.getresponse()
    return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


def at_once(calls: list[Any]) -> list[Any]:
    """Calls each in a thread of its own; what they return, in order. What one raises is raised."""
    results: list[Any] = [None] * len(calls)

    def run(i: int) -> None:
        try:
            results[i] = calls[i]()
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
