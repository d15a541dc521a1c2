"""Operation through a server process: the token, CORS, the access log and metrics."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gallery import gallery
from serving import Server, metric_value

TOKEN = "a-token-of-the-tests-0123456789"
SECRET = "Zanzibar"


@pytest.fixture(scope="module")
def server(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text(TOKEN + "\n")
    with Server(
        tiny_bundle, gallery("generation").bundle, "--token-file", file, "--cors", "https://app.example.org"
    ) as running:
        yield running


def ask(server: Server, method: str, path: str, body: Any = None, **headers: str) -> Any:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return server.request(method, path, body, headers={"Authorization": f"Bearer {TOKEN}", **named})


def requests_total(server: Server, status: int) -> float:
    page = ask(server, "GET", "/metrics").body
    return metric_value(page, "seqpipe_requests_total", bundle="toy", code=str(status)) or 0


def logged(server: Server, request_id: str) -> Any:
    return json.loads(server.wait_for(f'{{.*"id":"{request_id}".*\n')[0])


def test_all_but_health_needs_the_token(server: Server) -> None:
    load = "/v2/repository/models/toy/load"  # without a repository there is none
    for path, status in (("/v1/toy", 200), ("/v1/none", 404), (load, 404), ("/metrics", 405)):
        reply = server.post(path, {"inputs": "Bern"})
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert reply.json["request_id"] == reply.headers["x-request-id"]
        assert ask(server, "POST", path, {"inputs": "Bern"}).status == status
    assert server.get("/v2/health/ready").status == 200


REQUESTS: list[tuple[Any, int, int]] = [
    ({"inputs": SECRET}, 200, 1),
    ({"inputs": [SECRET] * 3}, 200, 3),
    ({"inputs": [SECRET, 5]}, 422, 1),
    ({"input": SECRET}, 422, 0),
    (SECRET.encode(), 400, 0),
]


@pytest.mark.parametrize(("body", "status", "items"), REQUESTS)
def test_a_request_is_logged_and_counted_without_its_texts(server: Server, body: Any, status: int, items: int) -> None:
    request_id = f"test-{status}-{items}-{len(str(body))}"
    before = requests_total(server, status)
    reply = ask(server, "POST", "/v1/toy", body, X_Request_Id=request_id)
    assert (reply.status, reply.headers["x-request-id"]) == (status, request_id)
    assert reply.json.get("request_id") == (None if status == 200 else request_id)
    line = logged(server, request_id)
    known = {"bundle": "toy", "status": status, "items": items, "route": "/v1/{name}", "peer": "127.0.0.1"}
    assert line.items() >= known.items()
    assert 0 <= line["queued"] <= line["seconds"]
    assert (line["tokens"] > 0) == (items > 0)
    assert SECRET not in server.log
    assert requests_total(server, status) == before + 1


def test_a_client_that_leaves_a_stream_is_a_499(server: Server) -> None:
    body = json.dumps({"inputs": "a good", "stream": True, "options": {"max_length": 100, "min_length": 99}}).encode()
    head = f"POST /v1/lm HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nX-Request-Id: gone-1\r\n"
    with server.connection() as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
    assert logged(server, "gone-1").items() >= {"status": 499, "bundle": "lm", "items": 1}.items()


def test_a_browser_is_told_which_origin_may_call(server: Server) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    allowed = server.request("OPTIONS", "/v1/toy", headers={"Origin": "https://app.example.org", **asks})
    assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (200, "https://app.example.org")
    refused = server.request("OPTIONS", "/v1/toy", headers={"Origin": "https://example.org", **asks})
    assert (refused.status, "access-control-allow-origin" in refused.headers) == (400, False)
    reply = ask(server, "POST", "/v1/toy", {"inputs": "Bern"}, Origin="https://app.example.org")
    assert reply.headers["access-control-allow-origin"] == "https://app.example.org"


def test_batches_are_measured_by_stage(server: Server) -> None:
    assert ask(server, "POST", "/v1/toy", {"inputs": ["Bern"] * 4}).status == 200
    page = ask(server, "GET", "/metrics").body
    for stage in ("features", "run"):
        assert (metric_value(page, "seqpipe_batch_seconds_sum", bundle="toy", stage=stage) or 0) > 0
    assert (metric_value(page, "seqpipe_batch_items_sum", bundle="toy") or 0) >= 4
    assert metric_value(page, "seqpipe_queue_items", bundle="toy") == 0
    assert metric_value(page, "process_resident_memory_bytes") is not None


def test_nothing_of_a_browser_is_allowed_by_default_and_nothing_logged_on_request(tiny_bundle: Path) -> None:
    with Server(tiny_bundle, "--no-access-log", "--host", "0.0.0.0") as server:
        assert "warning: bound to 0.0.0.0 without a token" in server.log
        reply = server.post("/v1/toy", {"inputs": "Bern"}, headers={"Origin": "https://example.org"})
        assert (reply.status, [name for name in reply.headers if name.startswith("access-control")]) == (403, [])
        assert server.end() == 0
        assert "{" not in server.log
