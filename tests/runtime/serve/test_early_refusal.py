"""A bundle whose queue is full: requests are refused when their headers are read, and all else is as it was."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from serving import Server, at_once

from seqpipe.runtime.serve.batch_queue import BatchQueue, Job
from seqpipe.runtime.serve.early_refusal import EarlyRefusal
from seqpipe.runtime.serve.request_record import RequestRecord
from seqpipe.runtime.serve.scheduling import RunsFirst
from seqpipe.runtime.serve.settings import Settings

TOKEN = "0123456789abcdef"
BODY = json.dumps(
    {"inputs": "Anna", "options": {"bias": 4}}
).encode()  # two tokens, answered in some tenths of a second


class Early:
    """A server with one bundle, whose queue holds 100 of 100 tokens."""

    def __init__(self, **settings: Any):
        self.queue = BatchQueue(100)
        self.queue.put([Job("a", 10, time.monotonic() + 60, None, None) for _ in range(10)])
        self.catalog: Any = SimpleNamespace(services={"ner": SimpleNamespace(name="ner", queue=self.queue)}, state="")
        self.noted: list[RequestRecord] = []
        self._settings = Settings(**settings)

    def response(self, path: str = "/v1/ner", **headers: str) -> bytes | None:
        """What comes of a request with these headers."""

        async def ask() -> bytes | None:
            early = EarlyRefusal(self.catalog, self._settings, lambda scope, record, seconds: self.noted.append(record))
            given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
            return early.response(path.encode(), given, {})

        return asyncio.run(ask())


def test_the_refusal_is_that_of_the_application_and_is_noted() -> None:
    early = Early()
    head, _, body = (early.response(x_request_id="abc") or b"").partition(b"\r\n\r\n")
    assert json.loads(body) == {"error": "too many requests are waiting; try again in 1 s", "request_id": "abc"}
    assert head.decode().split("\r\n") == [
        "content-type: application/json",
        f"content-length: {len(body)}",
        "retry-after: 1",
        "x-request-id: abc",
    ]
    assert early.noted == [RequestRecord("abc", "ner", status=429)]


@pytest.mark.parametrize("path", ["/v1/other", "/v1/ner/", "/v1/ner?a=b", "/v1/", "/v2/models/ner/infer", "/v1/n%65r"])
def test_other_paths_go_to_the_application(path: str) -> None:
    assert Early().response(path) is None


def test_a_server_that_starts_or_stops_says_so_itself() -> None:
    early = Early()
    early.catalog.state = "is stopping"
    assert early.response() is None


def test_without_the_token_nobody_learns_that_the_queue_is_full() -> None:
    early = Early(token=TOKEN)
    assert early.response() is None
    assert early.response(authorization="Bearer 0123456789abcdeX") is None
    assert early.response(authorization=f"Bearer {TOKEN}") is not None


def test_a_page_of_another_origin_gets_its_headers_from_the_application() -> None:
    early = Early(cors=("https://example.org",))
    assert early.response(origin="https://example.org") is None
    assert early.response() is not None


def test_requests_on_their_way_to_the_application_count() -> None:
    early = Early()
    early.queue.take()

    async def ask() -> list[bool]:
        refusal = EarlyRefusal(early.catalog, Settings(), lambda *_: None)
        early.queue.put([Job("a", 10, time.monotonic() + 60, None, None) for _ in range(5)])
        turn = [refusal.response(b"/v1/ner", [], {}) is None for _ in range(100)]
        await asyncio.sleep(0)  # the application has seen them, and put none of them into the queue
        return [*turn, refusal.response(b"/v1/ner", [], {}) is None]

    room = 100 - early.queue.tokens - 50
    went = asyncio.run(ask())
    assert went == [*[True] * (room // 2), *[False] * (100 - room // 2), True]  # usual: 2 % of what may wait


@pytest.fixture(scope="module")
def server(slow_bundle: Path) -> Iterator[Server]:
    with Server(slow_bundle, "--threads", "1", "--max-waiting-tokens", "40", "--read-timeout", "1") as running:
        yield running


def request(more: str = "", body: bytes = BODY) -> bytes:
    return f"POST /v1/slow HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


def statuses(client: socket.socket, count: int) -> list[int]:
    """Of so many responses, which come in the order of the requests."""
    file = client.makefile("rb")
    found = []
    for _ in range(count):
        found.append(int(file.readline().split()[1]))
        length = 0
        while (line := file.readline()) != b"\r\n":
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        file.read(length)
    return found


def test_a_connection_goes_on_after_a_refusal(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as busy, server.connection() as client:
        busy.sendall(request(body=json.dumps({"inputs": "Anna", "options": {"bias": 8}}).encode()))
        time.sleep(0.2)
        body = json.dumps({"inputs": ["Anna"] * 20, "options": {"bias": 0}}).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as full:
            full.sendall(request(body=body))
            time.sleep(0.1)
            client.sendall(request() * 3)  # in a pipeline
            assert statuses(client, 3) == [429] * 3
            head, rest = request()[:-20], request()[-20:]
            client.sendall(head)
            time.sleep(0.1)
            client.sendall(rest)  # what nobody reads
            assert statuses(client, 1) == [429]
            client.sendall(request("Connection: close\r\n"))
            assert statuses(client, 1) == [429]
            assert client.recv(1) == b""
            assert statuses(full, 1) == [200]
    with server.connection() as client:
        client.sendall(request())
        assert statuses(client, 1) == [200]


def test_refusals_are_counted_and_logged(server: Server) -> None:
    before = metric(server)
    at_once([lambda: server.post("/v1/slow", json.loads(BODY)) for _ in range(60)])
    assert metric(server) > before
    assert '"status":429' in server.log


def metric(server: Server) -> float:
    text = server.get("/metrics").body.decode()
    lines = [line for line in text.splitlines() if line.startswith('seqpipe_requests_total{bundle="slow",code="429"}')]
    return float(lines[0].split()[-1]) if lines else 0.0


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a policy of Linux")
def test_the_runs_go_first_until_all_is_calm() -> None:
    async def policies() -> list[int]:
        runs_first, found = RunsFirst(), []
        runs_first()
        found.append(os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK)
        await asyncio.sleep(0.15)
        runs_first()
        await asyncio.sleep(0.15)
        found.append(os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK)
        await asyncio.sleep(0.3)
        return [*found, os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK]

    assert asyncio.run(policies()) == [os.SCHED_BATCH, os.SCHED_BATCH, os.SCHED_OTHER]


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a policy of Linux")
def test_where_the_system_forbids_it_all_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def forbid(*_: Any) -> None:
        asked.append(1)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", forbid)

    async def call() -> None:
        runs_first = RunsFirst()
        runs_first()
        await asyncio.sleep(0.3)
        runs_first()

    asyncio.run(call())
    assert len(asked) == 1
