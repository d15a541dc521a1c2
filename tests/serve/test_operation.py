"""Operation through a server process: token, CORS, sockets, systemd, the log, and metrics of several processes."""

from __future__ import annotations

import http.client
import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_page import value
from serving import Server, at_once
from typer.testing import CliRunner

from seqpipe.commands.app import app
from seqpipe.errors import UsageError

TOKEN = "a-token-of-the-tests-0123456789"
SECRET = "Zanzibar"


class UnixConnection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: Path):
        super().__init__("localhost", timeout=30)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def server(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text(TOKEN + "\n")
    with Server(tiny_bundle, "--token-file", file, "--cors", "https://app.example.org") as running:
        yield running


def ask(server: Server, method: str, path: str, body: Any = None, **headers: str) -> Any:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return server.request(method, path, body, headers={"Authorization": f"Bearer {TOKEN}", **named})


def lines(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


def logged(server: Server, request_id: str) -> dict[str, Any]:
    server.wait_for(f'"id":"{request_id}".*\n')
    (line,) = [line for line in lines(server.log) if line["id"] == request_id]
    return line


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1"), ("POST", "/v1/toy"), ("GET", "/metrics"), ("POST", "/v1/none"), ("GET", "/v2/models/toy")],
)
def test_all_but_health_asks_for_the_token(server: Server, method: str, path: str) -> None:
    reply = server.request(method, path, {"inputs": "Bern"})
    assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert reply.json["request_id"] == reply.headers["x-request-id"]
    assert ask(server, method, path, {"inputs": "Bern"}).status != 401
    for health in ("live", "ready"):
        assert server.get(f"/v2/health/{health}").status == 200


@pytest.mark.parametrize(
    ("body", "status", "items"),
    [
        ({"inputs": SECRET}, 200, 1),
        ({"inputs": [SECRET] * 3}, 200, 3),
        ({"inputs": [SECRET, 5]}, 422, 1),
        ({"input": SECRET}, 422, 0),
        (SECRET.encode(), 400, 0),
    ],
)
def test_a_request_is_logged_and_counted_without_its_texts(server: Server, body: Any, status: int, items: int) -> None:
    request_id = f"test-{status}-{items}-{len(str(body))}"
    before = value(ask(server, "GET", "/metrics").body, "seqpipe_requests_total", bundle="toy", code=str(status)) or 0
    reply = ask(server, "POST", "/v1/toy", body, X_Request_Id=request_id)
    assert (reply.status, reply.headers["x-request-id"]) == (status, request_id)
    assert reply.json.get("request_id") == (None if status == 200 else request_id)
    line = logged(server, request_id)
    known = {"bundle": "toy", "status": status, "items": items, "route": "/v1/{name}", "peer": "127.0.0.1"}
    assert line.items() >= known.items()
    assert 0 <= line["queued"] <= line["seconds"] < 30
    assert (line["tokens"] > 0) == (items > 0)
    assert SECRET not in server.log
    page = ask(server, "GET", "/metrics").body
    assert value(page, "seqpipe_requests_total", bundle="toy", code=str(status)) == before + 1


def test_a_client_that_leaves_a_stream_is_a_499(writer_bundle: Path) -> None:
    body = json.dumps({"inputs": "a good", "stream": True, "options": {"max_length": 100, "min_length": 99}}).encode()
    head = b"POST /v1/w HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: gone-1\r\nContent-Length: %d\r\n\r\n" % len(body)
    with Server(f"w={writer_bundle}") as server:
        with server.connection() as client:
            client.sendall(head + body)
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        line = logged(server, "gone-1")
        assert line.items() >= {"status": 499, "bundle": "w", "items": 1}.items()


def test_the_path_of_an_unknown_bundle_is_not_logged(server: Server) -> None:
    ask(server, "POST", f"/v1/{SECRET}", {"inputs": "Bern"}, X_Request_Id="unknown-1")
    assert logged(server, "unknown-1").items() >= {"bundle": None, "status": 404, "route": None}.items()
    assert SECRET.encode() not in ask(server, "GET", "/metrics").body


def test_a_browser_is_told_which_origin_may_call(server: Server) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    allowed = server.request("OPTIONS", "/v1/toy", headers={"Origin": "https://app.example.org", **asks})
    assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (200, "https://app.example.org")
    refused = server.request("OPTIONS", "/v1/toy", headers={"Origin": "https://example.org", **asks})
    assert (refused.status, "access-control-allow-origin" in refused.headers) == (400, False)
    reply = ask(server, "POST", "/v1/toy", {"inputs": "Bern"}, Origin="https://app.example.org")
    assert reply.headers["access-control-allow-origin"] == "https://app.example.org"


def test_batches_are_measured_by_stage(server: Server) -> None:
    at_once([lambda: ask(server, "POST", "/v1/toy", {"inputs": ["Bern"] * 4})] * 8)
    page = ask(server, "GET", "/metrics").body
    stages = [value(page, "seqpipe_batch_seconds_sum", bundle="toy", stage=stage) for stage in ("features", "run")]
    assert all(stage is not None and 0 < stage < 30 for stage in stages)
    assert (value(page, "seqpipe_batch_items_sum", bundle="toy") or 0) >= 32
    assert value(page, "seqpipe_queue_items", bundle="toy") == 0
    assert value(page, "process_resident_memory_bytes") is not None


def test_nothing_of_a_browser_is_allowed_by_default_and_nothing_logged_on_request(tiny_bundle: Path) -> None:
    with Server(tiny_bundle, "--no-access-log", "--host", "0.0.0.0") as server:
        assert "warning: bound to 0.0.0.0 without a token" in server.log
        reply = server.post("/v1/toy", {"inputs": "Bern"}, headers={"Origin": "https://example.org"})
        assert (reply.status, [name for name in reply.headers if name.startswith("access-control")]) == (403, [])
        assert server.end() == 0
        assert lines(server.log) == []


def test_a_unix_socket_answers_and_systemd_is_told(
    tiny_bundle: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        with Server(tiny_bundle, "--uds", path, ready=False, port=False) as server:
            assert [manager.recv(100) for _ in range(4)] == [b"READY=1", *[b"WATCHDOG=1"] * 3]
            connection = UnixConnection(path)
            connection.request("POST", "/v1/toy", json.dumps({"inputs": "Bern"}), {"X-Request-Id": "unix-1"})
            assert connection.getresponse().status == 200
            connection.close()
            assert logged(server, "unix-1")["peer"] is None
            assert server.end() == 0
    assert not path.exists()


def test_processes_count_together(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Server(tiny_bundle, "--processes", "2", "--threads", "1") as server:
        at_once([lambda: server.post("/v1/toy", {"inputs": "Bern"})] * 20)
        pages = [server.get("/metrics").body for _ in range(8)]
        counts = {value(page, "seqpipe_requests_total", bundle="toy", code="200") for page in pages}
        assert counts == {20}
        assert [path.name.rpartition("-")[0] for path in tmp_path.iterdir()] == ["seqpipe-metrics"]
        assert server.end() == 0
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("arguments", "variables", "told"),
    [
        (["--cors", "example.org"], {}, "--cors: 'example.org' is not an origin"),
        ([], {"SEQPIPE_TOKEN": "short"}, "SEQPIPE_TOKEN: the token has 5 characters"),
        (["--token-file", "/none"], {}, "--token-file: /none cannot be read"),
        (["--repository", "/none"], {}, "--repository: /none: no such folder"),
        (["--repository", str(Path(__file__).parent), "--processes", "2"], {}, "--repository needs a single process"),
        (["--uds", "/none/s"], {}, "--uds: /none/s: cannot create a socket"),
    ],
)
def test_a_server_that_is_told_nonsense_does_not_start(
    tiny_bundle: Path, arguments: list[str], variables: dict[str, str], told: str
) -> None:
    given = ["serve", str(tiny_bundle), "--port", "0", *arguments]
    result = CliRunner().invoke(app, given, env=variables)
    assert isinstance(result.exception, UsageError)
    assert told in str(result.exception)
