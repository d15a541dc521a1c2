"""A server of bundles in another process, clients that speak to it over real sockets, and checks of its responses."""

from __future__ import annotations

import asyncio
import contextlib
import copy
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from http.client import HTTPConnection
from operator import getitem
from pathlib import Path
from typing import Any

import granian.server.embed
from granian.constants import Interfaces
from jsonschema import Draft202012Validator
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp

Headers = Mapping[str, str] | None
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
    """`seqpipe serve` with these arguments, at a free port; `with Server(bundle) as server`."""

    def __init__(self, *arguments: str | Path, ready: bool = True, port: bool = True):
        self._log = Path(tempfile.mkdtemp(prefix="serve-")) / "log"
        options = ["--port", "0"] if port else []
        command = [sys.executable, "-m", "seqpipe", "serve", *map(str, arguments), *options]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ.copy())
        self.port = int(self.wait_for(r"http://[^ :]+:(\d+): ready")[1]) if ready and port else 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """The log so far."""
        return self._log.read_text(encoding="utf-8")

    def wait_for(self, pattern: str, seconds: float = READY_S) -> re.Match[str]:
        """Wait until the log matches a pattern."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if match := re.search(pattern, self.log):
                return match
            assert self.process.poll() is None, self.log
            time.sleep(0.02)
        raise AssertionError(f"no {pattern!r} in: {self.log}")

    def request(self, method: str, path: str, body: Any = None, headers: Headers = None, timeout: float = 60) -> Reply:
        """Send one request on a new connection; a body that is not bytes is sent as JSON."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            return send_request(connection, method, path, body, headers)
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


def server_sent_events(body: bytes) -> list[tuple[str, Any]]:
    """Server-sent events, each with its kind."""
    blocks = body.decode().removesuffix("\n\n").split("\n\n")
    lines = [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]
    return [(event.get("event", "message"), json.loads(event["data"])) for event in lines]


def send_request(
    connection: HTTPConnection, method: str, path: str, body: Any = None, headers: Headers = None
) -> Reply:
    """One request on a connection that stays open."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, data, dict(headers or {}))
    response = connection.getresponse()
    return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


def call_in_threads(calls: list[Any]) -> list[Any]:
    """The results of calls in a thread each, in order; the first exception of a call is raised."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def metric_value(page: bytes, name: str, **labels: str) -> float | None:
    """The value of a sample on a page of metrics, as a Prometheus server reads it; None without the sample."""
    families = text_string_to_metric_families(page.decode())
    samples = (sample for family in families for sample in family.samples)
    return next((sample.value for sample in samples if (sample.name, sample.labels) == (name, labels)), None)


def schema_violations(document: dict[str, Any], schema: dict[str, Any], value: Any) -> list[str]:
    """The violations of a schema by a value, in a document."""
    whole = {**schema, "components": document["components"]}
    return [error.message for error in Draft202012Validator(whole).iter_errors(value)]


def schema_of(document: dict[str, Any], method: str, path: str, status: int | None) -> dict[str, Any]:
    """The schema of a response, or without a status of the request."""
    operation = document["paths"][path][method.lower()]
    part = operation["requestBody"] if status is None else operation["responses"][str(status)]
    schema: dict[str, Any] = part["content"]["application/json"]["schema"]
    return schema


def assert_as_described(server: Server, document: dict[str, Any], method: str, path: str, body: Any) -> None:
    """Send a request that the document allows; the response has to be as described."""
    if body is not None:
        assert schema_violations(document, schema_of(document, method, path, None), body) == []
    reply = server.request(method, path, body)
    assert reply.status == 200, reply.body
    assert schema_violations(document, schema_of(document, method, path, 200), reply.json) == []
    assert schema_violations(document, schema_of(document, method, path, 200), {"other": 1}) != []


def assert_refused_by_both(server: Server, document: dict[str, Any], path: str, body: Any, status: int) -> None:
    """Send a request that the document does not allow; the response has to be the described error."""
    assert schema_violations(document, schema_of(document, "POST", path, None), body) != []
    reply = server.post(path, body)
    assert reply.status == status
    assert schema_violations(document, schema_of(document, "POST", path, status), reply.json) == []


OTHER_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**70, 1.5, 1e400, "", "x", "\ud800", [], [[]], {}, {"a": 1}, [None], [1, "a"],
)  # fmt: skip


def value_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to each value within a value."""
    if path:
        yield path
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield from value_paths(value[key], (*path, key))


def malformed_bodies(body: dict[str, Any]) -> Iterator[bytes]:
    """The body with other values in the place of each, and without each."""
    for *path, last in value_paths(body):
        for value in OTHER_VALUES:
            changed = copy.deepcopy(body)
            inner = reduce(getitem, path, changed)
            inner[last] = value
            yield json.dumps(changed).encode()
        del inner[last]
        yield json.dumps(changed).encode()
    yield from (json.dumps(value).encode() for value in OTHER_VALUES)
    yield json.dumps(body).encode()[:-3]


def malformed_statuses(server: Server, path: str, body: dict[str, Any]) -> list[int]:
    """The statuses of all malformed requests; every response but those of status 200 gives a reason."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        replies = [send_request(connection, "POST", path, changed) for changed in malformed_bodies(body)]
    finally:
        connection.close()
    assert all(reply.json["error"] for reply in replies if reply.status != 200)
    return [reply.status for reply in replies]
