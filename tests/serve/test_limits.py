"""What a server refuses, and when: too much, too late, too slow; each refusal leaves the others alone."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_page import value
from serving import Reply, Server, ask, at_once

from seqpipe.serve.http import deadline
from seqpipe.serve.settings import Settings

READ_S = 0.4  # that a client of this server may take to send a request


@pytest.fixture(scope="module")
def server(slow_bundle: Path) -> Iterator[Server]:
    limits = {
        "timeout": 20,
        "read-timeout": READ_S,
        "idle-timeout": READ_S,
        "max-waiting-tokens": 40,
        "max-body": 20_000,
        "max-connections": 60,
    }
    given = [str(part) for name, value in limits.items() for part in (f"--{name}", value)]
    with Server(slow_bundle, "--threads", "1", *given) as running:
        yield running


def asked(server: Server, bias: float, text: str = "Anna", **headers: str) -> Reply:
    body = {"inputs": text, "options": {"bias": bias}}
    return server.post("/v1/slow", body, headers={name.replace("_", "-"): value for name, value in headers.items()})


def seconds(call: Any) -> tuple[float, Any]:
    began = time.monotonic()
    result = call()
    return time.monotonic() - began, result


def raw(body: bytes, more: str = "") -> bytes:
    return f"POST /v1/slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


def received(client: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    parts = []
    while True:
        try:
            part = client.recv(65536)
        except ConnectionResetError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def busy(server: Server, bias: float, text: str = "Anna") -> socket.socket:
    """A client whose request is being answered for some time."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    client.sendall(raw(json.dumps({"inputs": text, "options": {"bias": bias}}).encode()))
    time.sleep(0.02 if bias < 2 else 0.1)
    return client


def test_what_is_over_the_queue_is_refused_at_once_and_the_rest_answered(server: Server) -> None:
    with busy(server, 4):
        calls = [lambda: seconds(lambda: asked(server, 0)) for _ in range(30)]  # two tokens each
        timed = at_once(calls)
    statuses = [reply.status for _, reply in timed]
    assert (statuses.count(200), statuses.count(429)) == (20, 10)
    for took, reply in timed:
        if reply.status == 429:
            assert 1 <= int(reply.headers["retry-after"]) <= 60
            assert took < 1  # 0.05 s on a machine that does nothing else
            assert reply.json["error"].startswith("too many requests are waiting; try again in ")
    assert asked(server, 0).status == 200


def test_a_request_that_never_fits_is_too_large(server: Server) -> None:
    reply = server.post("/v1/slow", {"inputs": ["Anna"] * 21})
    assert (reply.status, reply.json["error"][:31]) == (413, "about 42 tokens in one request;")


def test_a_client_that_leaves_takes_its_requests_out_of_the_queue(server: Server) -> None:
    with busy(server, 12):  # 1.2 seconds: it outlasts the connections of a busy machine
        leaving = [busy(server, 1.5 + i / 100) for i in range(19)]  # each would be a batch of its own
        assert asked(server, 0, "Anna " * 4).status == 429
        for client in leaving:
            client.close()
        time.sleep(0.2)
        took, reply = seconds(lambda: asked(server, 0, "Anna " * 4))
    assert reply.status == 200
    assert took < 2  # the others would take three seconds and more


def test_a_request_past_its_deadline_is_answered_so_and_never_run(server: Server) -> None:
    with busy(server, 8):
        calls = [lambda i=i: seconds(lambda: asked(server, 8 + i / 10, X_Request_Timeout="0.3")) for i in range(9)]
        timed = at_once(calls)
        assert {reply.status for _, reply in timed} == {504}
        assert all(0.3 <= took < 4 for took, _ in timed)
        assert timed[0][1].json["error"].startswith("no answer within 0.")
        took, reply = seconds(lambda: asked(server, 0))
    assert reply.status == 200
    assert took < 5  # nine runs would take seven seconds and more


def test_a_run_past_its_deadline_is_ended(server: Server) -> None:
    took, reply = seconds(lambda: asked(server, 20, X_Request_Timeout="0.3"))
    assert (reply.status, took < 2) == (504, True)
    took, reply = seconds(lambda: asked(server, 0))
    assert (reply.status, took < 3) == (200, True)


def test_a_run_ends_at_the_latest_deadline_of_its_batch(server: Server) -> None:
    with busy(server, 3):
        short, long = at_once(
            [lambda: asked(server, 6, X_Request_Timeout="0.5"), lambda: asked(server, 6, X_Request_Timeout="15")]
        )
    assert (short.status, long.status) == (504, 200)


def test_a_client_cannot_have_more_time_than_the_server_gives() -> None:
    for text, most in ((b"100", 5), (b"inf", 5), (b"5.5", 5), (b"2", 2), (b"1e-3", 0.001)):
        began, scope = time.monotonic(), {"headers": [(b"x-request-timeout", text)]}
        assert began + most <= deadline(scope, Settings(timeout_s=5)) <= time.monotonic() + most
    began = time.monotonic()
    assert began + 5 <= deadline({"headers": []}, Settings(timeout_s=5)) <= time.monotonic() + 5


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan"])
def test_a_time_that_is_none_is_refused(server: Server, value: str) -> None:
    reply = asked(server, 0, X_Request_Timeout=value)
    assert (reply.status, reply.json["error"]) == (422, "X-Request-Timeout must be a number of seconds above 0")


HEAD = b"POST /v1/slow HTTP/1.1\r\nHost: localhost\r\n"
SLOW = {
    "nothing": b"",
    "half a line": b"POST /v1",
    "half the headers": HEAD + b"X: y\r\n",
}
SLOW_BODIES = {
    "half the body": HEAD + b'Content-Length: 99\r\n\r\n{"inputs": ',
    "half a chunk": HEAD + b'Transfer-Encoding: chunked\r\n\r\n20\r\n{"inputs": ',
}


@pytest.mark.parametrize("sent", SLOW)
def test_a_client_that_stops_in_the_headers_is_dropped(server: Server, sent: str) -> None:
    with server.connection() as client:
        client.sendall(SLOW[sent])
        took, got = seconds(lambda: received(client))
    assert READ_S * 0.9 <= took < READ_S + 1.5
    assert got == b""


@pytest.mark.parametrize("sent", SLOW_BODIES)
def test_a_client_that_stops_in_the_body_is_told_and_dropped(server: Server, sent: str) -> None:
    with server.connection() as client:
        client.sendall(SLOW_BODIES[sent])
        took, got = seconds(lambda: received(client))
    assert READ_S * 0.9 <= took < READ_S + 1.5
    assert got.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"the request was not complete after 0.4 s" in got


def drip(client: socket.socket) -> None:
    for _ in range(100):
        client.sendall(b"X")
        time.sleep(0.05)


def test_a_client_that_drips_is_dropped(server: Server) -> None:
    with server.connection() as client:
        began = time.monotonic()
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            drip(client)
        assert time.monotonic() - began < READ_S + 3


def test_a_second_request_has_its_own_time_and_a_slow_one_is_dropped(server: Server) -> None:
    whole = raw(b'{"inputs": "Anna"}')
    with server.connection() as client:
        for _ in range(3):
            client.sendall(whole[:40])
            time.sleep(READ_S * 0.6)
            client.sendall(whole[40:])
            got = b""
            while not got.endswith(b"}"):
                got += client.recv(65536)
            assert got.startswith(b"HTTP/1.1 200 OK\r\n")
        client.sendall(whole[:40])
        took, got = seconds(lambda: received(client))
    assert (got, took < READ_S + 1.5) == (b"", True)


def memory(server: Server) -> float:
    """Resident memory of the process that answers, in MB."""
    page = server.get("/metrics").body
    return (value(page, "process_resident_memory_bytes") or 0) / 1e6


def push(client: socket.socket, data: bytes, seconds: float) -> int:
    """Sends the same again and again and reads nothing; how many bytes the server took in this time."""
    client.setblocking(False)
    taken, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            taken += client.send(data)
        except BlockingIOError:
            time.sleep(0.01)
        except (ConnectionResetError, BrokenPipeError):
            break
    return taken


TOKEN = "0123456789abcdef"
CHUNKED = HEAD + f"Authorization: Bearer {TOKEN}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
# What one connection sends first, what it sends again and again, and how many MB of it.
FLOODS: dict[str, tuple[bytes, bytes, int]] = {
    "requests": (b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000, 60),
    "requests with a body": (b"", raw(b"{}") * 1_000, 60),
    "trailers": (CHUNKED + b'12\r\n{"inputs": "Anna"}\r\n0\r\n', b"X: yyyyyyyyyyyyyyyy\r\n" * 1_000, 300),
    "one extension of a chunk": (CHUNKED + b"1;", b"x=y" * 10_000, 300),
    "extensions of chunks": (CHUNKED, b"1;" + b"x" * 60 + b"=y\r\n \r\n" * 1_000, 300),
    "chunks of one byte": (CHUNKED, b"1\r\n \r\n" * 5_000, 60),
}


def highest(server: Server) -> float:
    """The most memory that its process ever had, in MB; one without a token is not told it."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    (pid,) = [pid for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def flood(server: Server, name: str, megabytes: int, seconds: float) -> int:
    """Sends so much of one kind, and reads whatever comes as well; how many bytes the server took."""
    first, again, _ = FLOODS[name]
    taken, end = 0, time.monotonic() + seconds
    with server.connection() as client:
        client.sendall(first)
        client.setblocking(False)
        while taken < megabytes * 1e6 and time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                if not client.recv(1 << 20):
                    break
            try:
                taken += client.send(again)
            except BlockingIOError:
                time.sleep(0.001)
            except (ConnectionResetError, BrokenPipeError):
                break
    return taken


@pytest.fixture(scope="module")
def guarded(slow_bundle: Path) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEQPIPE_TOKEN", TOKEN)
        running = Server(slow_bundle, "--threads", "1")
    with running:
        yield running


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc, to read memory")
@pytest.mark.parametrize("scale", [pytest.param(1.0, marks=pytest.mark.long), 0.05])
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_in_one_connection_takes_no_memory(guarded: Server, name: str, scale: float) -> None:
    before = highest(guarded)
    with contextlib.suppress(ConnectionResetError):
        flood(guarded, name, int(FLOODS[name][2] * scale), 120 * scale)
    assert highest(guarded) < before + (100 if scale == 1 else 30)
    reply = guarded.post("/v1/slow", {"inputs": "Anna"}, headers={"Authorization": f"Bearer {TOKEN}"})
    assert reply.status == 200


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc, to read memory")
def test_two_hundred_slow_clients_take_little_memory_and_others_are_answered(guarded: Server) -> None:
    head = f"Authorization: Bearer {TOKEN}\r\nContent-Length: 3000000\r\n\r\n".encode()
    before = highest(guarded)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(guarded.connection()) for _ in range(200)]
        for client in clients:
            client.sendall(HEAD + head)
            with contextlib.suppress(ConnectionError):
                client.sendall(b"a" * 1_000_000)  # never whole: 200 MB in all
        took, reply = seconds(
            lambda: guarded.post("/v1/slow", {"inputs": "Anna"}, headers={"Authorization": f"Bearer {TOKEN}"})
        )
        assert (reply.status, took < 5) == (200, True)
        refused, end = 0, time.monotonic() + 10
        while refused < 100 and time.monotonic() < end:
            for client in [*clients]:
                client.setblocking(False)
                try:
                    answer = client.recv(99999)
                except BlockingIOError:
                    continue
                except ConnectionResetError:  # it was closed while the client still sent
                    answer = b""
                assert answer == b"" or (answer.startswith(b"HTTP/1.1 429 ") and b"too many bodies" in answer)
                clients.remove(client)
                refused += 1
        assert refused >= 100
    assert highest(guarded) < before + 100
    end = time.monotonic() + 30
    headers = {"Authorization": f"Bearer {TOKEN}"}
    while guarded.post("/v1/slow", {"inputs": ["Anna " * 200] * 60}, headers=headers).status != 200:
        assert time.monotonic() < end  # when they have left, their bytes count no longer


@pytest.mark.parametrize("path", ["/openapi.json", "/"])
def test_a_client_that_pipelines_and_reads_nothing_takes_no_memory(server: Server, path: str) -> None:
    before = memory(server)
    with server.connection() as client:
        push(client, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 1_000, 3)
        assert memory(server) < before + 30


def test_trailers_without_end_take_no_memory(server: Server) -> None:
    before = memory(server)
    with server.connection() as client:
        client.sendall(HEAD + b'Transfer-Encoding: chunked\r\n\r\n12\r\n{"inputs": "Anna"}\r\n0\r\n')
        push(client, b"X: yyyyyyyyyyyyyyyy\r\n" * 1_000, 3)
        assert memory(server) < before + 30


def test_many_requests_at_once_are_no_large_headers(server: Server) -> None:
    with server.connection() as client:
        request = b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
        count = 50_000 // len(request)
        client.sendall(request * count + request[:-2] + b"Connection: close\r\n\r\n")
        got = received(client)
    assert got.count(b"HTTP/1.1 200 OK") == count + 1


LARGE: dict[str, tuple[bytes, bytes]] = {
    "a header": (HEAD + b"X: " + b"y" * 200_000 + b"\r\n\r\n", b"431 "),
    "a header without end": (HEAD + b"X: " + b"y" * 200_000, b"431 "),
    "headers": (HEAD + b"X: y\r\n" * 20_000 + b"\r\n", b"431 "),
    "many headers": (HEAD + b"X: y\r\n" * 200 + b"\r\n", b"431 "),
    "an address": (b"GET /" + b"y" * 200_000 + b" HTTP/1.1\r\n\r\n", b"4"),
    "a body": (raw(b"y" * 20_001, "Connection: close\r\n"), b"413 "),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400 "),
    "a length that is none": (HEAD + b"Content-Length: -5\r\n\r\n", b"400 "),
}


@pytest.mark.parametrize("sent", LARGE)
def test_what_is_too_large_or_no_http_is_refused(server: Server, sent: str) -> None:
    with server.connection() as client:
        content, status = LARGE[sent]
        client.sendall(content)
        got = received(client)
    assert got.startswith(b"HTTP/1.1 " + status)


def test_of_two_lengths_that_of_the_chunks_counts_and_the_connection_ends(server: Server) -> None:
    body = b'12\r\n{"inputs": "Anna"}\r\n0\r\n\r\n'
    with server.connection() as client:
        client.sendall(HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n" + body + raw(b"{}"))
        got = received(client)
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert got.count(b"HTTP/1.1") == 1


def test_a_request_names_its_host(server: Server) -> None:
    cases = {
        b"GET /v1 HTTP/1.1\r\n\r\n": b"400",
        b"GET /v1 HTTP/1.1\r\nHost:\r\n\r\n": b"400",
        b"GET /v1 HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n": b"400",
        b"GET /v1 HTTP/1.1\r\nHost: evil.example\r\n\r\n": b"421",
        b"GET /v1 HTTP/1.1\r\nHost: localhost:1\r\nConnection: close\r\n\r\n": b"200",
        b"GET /v1 HTTP/1.0\r\n\r\n": b"200",
    }
    for request, status in cases.items():
        with server.connection() as client:
            client.sendall(request)
            assert client.recv(65536).split(b" ")[1] == status


@pytest.mark.parametrize("path", ["/v1/slow/", "/v1/", "/page", "//evil.example/..", "/v2/health/live/"])
def test_no_answer_leads_elsewhere(server: Server, path: str) -> None:
    for method in ("GET", "POST"):
        reply = server.request(method, path, headers={"Host": "127.0.0.1:1"})
        assert 400 <= reply.status < 500
        assert "location" not in reply.headers
        assert b"127.0.0.1" not in reply.body


def test_a_request_that_asks_for_an_upgrade_keeps_its_body(server: Server) -> None:
    more = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
    with server.connection() as client:
        client.sendall(raw(b'{"inputs": "Anna"}', more))
        got = received(client)
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")


def test_after_a_body_that_was_too_large_the_connection_goes_on(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    for chunked in (False, True):
        body: Any = iter([b"y" * 9_000] * 3) if chunked else b"y" * 27_000
        connection.request("POST", "/v1/slow", body, encode_chunked=chunked)
        response = connection.getresponse()
        assert (response.status, b"over 20,000 bytes" in response.read()) == (413, True)
        assert ask(connection, "POST", "/v1/slow", {"inputs": "Anna"}).status == 200
    connection.close()


def test_over_the_most_connections_one_waits_until_another_ends(server: Server) -> None:
    request = b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with contextlib.ExitStack() as stack:
        busy_clients = [stack.enter_context(busy(server, 6)) for _ in range(15)]
        clients = [stack.enter_context(server.connection()) for _ in range(70)]
        clients[-1].sendall(request)
        clients[-1].settimeout(READ_S / 4)
        with pytest.raises(TimeoutError):
            clients[-1].recv(100)
        for client in busy_clients:
            client.close()
        clients[-1].settimeout(30)
        assert clients[-1].recv(100).startswith(b"HTTP/1.1 200 OK")
    assert asked(server, 0).status == 200


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    texts = ["Anna", "Ben", "Bern", "in"]
    with server.connection() as client:
        client.sendall(b"".join(raw(json.dumps({"inputs": text}).encode()) for text in texts[:3]))
        client.sendall(raw(json.dumps({"inputs": texts[3]}).encode(), "Connection: close\r\n"))
        got = received(client)
    bodies = [part.split(b"\r\n\r\n")[1] for part in got.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    words = [[span["word"] for span in json.loads(body)["answer"]] for body in bodies]
    assert words == [["Anna"], ["Ben"], ["Bern"], []]


def test_nothing_of_all_this_was_an_error_of_the_server(server: Server) -> None:
    assert "Traceback" not in server.log
    assert asked(server, 0).status == 200


# What a request may ask to be written


@pytest.fixture(scope="module")
def writer(writer_bundle: Path) -> Iterator[Server]:
    limits = ("--max-length", "50", "--max-beams", "3", "--max-waiting-tokens", "400")
    with Server(f"writer={writer_bundle}", "--threads", "1", *limits) as running:
        yield running


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_length": 101}, "max_length: 101 is not between 1 and 100"),  # the default, which exceeds --max-length
        ({"beams": 4}, "beams: 4 is not between 1 and 3"),
        ({"beams": 3, "n_best": 4}, "n_best: 4 is not between 1 and 3"),
        ({"beams": 10**30}, "is not between 1 and 3"),
    ],
)
def test_more_than_the_server_allows_is_refused(writer: Server, options: dict[str, Any], told: str) -> None:
    for more in ({}, {"stream": True}, {"documents": True}):
        reply = writer.post("/v1/writer", {"inputs": "a good", "options": options, **more})
        assert (reply.status, told in reply.json["error"]) == (422, True)
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a good"]}
    reply = writer.post("/v2/models/writer/infer", {"inputs": [tensor], "parameters": options})
    assert (reply.status, told in reply.json["error"]) == (422, True)


def test_the_bounds_of_the_server_are_described_and_hold_for_completions(writer: Server) -> None:
    described = writer.get("/v1/writer").json["options"]
    assert [described[name]["maximum"] for name in ("max_length", "beams", "n_best")] == [100, 3, 3]
    for name, given, limit in (("max_tokens", 101, 100), ("n", 4, 3)):
        reply = writer.post("/v1/completions", {"model": "writer", "prompt": "a", name: given})
        error = reply.json["error"]
        assert (reply.status, error["param"], error["message"]) == (
            400,
            name,
            f"{name}: {given} is over the limit of {limit}",
        )


def test_what_is_written_is_counted(writer: Server) -> None:
    def status(inputs: Any, path: str = "/v1/writer", **body: Any) -> int:
        return writer.post(path, {"inputs": inputs, **body}).status

    one = {"max_length": 40}
    assert [status(["a"] * count, options=one) for count in (9, 10)] == [200, 413]
    wide = {"max_length": 40, "beams": 3}
    assert [status(["a"] * count, options=wide) for count in (3, 4)] == [200, 413]
    assert [status(["a"] * count) for count in (3, 4)] == [200, 413]  # 100 by default
    for count, expected in ((3, 200), (4, 413)):
        body = {"model": "writer", "prompt": ["a"] * count, "n": 3, "max_tokens": 40, "seed": 1}
        assert writer.post("/v1/completions", body).status == expected
    page = writer.get("/metrics").body
    assert value(page, "seqpipe_queue_tokens", bundle="writer") == 0
    assert (value(page, "seqpipe_tokens_total", bundle="writer") or 0) < 60  # of the inputs alone
