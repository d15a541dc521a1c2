"""Refusals of a server: too much, too late, too slow; each leaves the other requests alone."""

import codecs
import contextlib
import gzip
import http.client
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gallery import gallery
from serving import Reply, Server, call_in_threads, metric_value, send_request
from toy_bundles import manifest_content, write_bundle

from seqpipe.runtime import bundle
from seqpipe.runtime.predictor import RUN_ROWS
from seqpipe.serve.http import deadline
from seqpipe.serve.settings import Settings

READ_S = 1.0  # that a client of this server may take to send a request
ENDLESS = 1e9  # the bias for a run of days


@pytest.fixture(scope="module")
def server(slow_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    content = bundle.read(slow_bundle)
    options = {"bias": {"type": "float", "default": 0.0, "minimum": -20, "maximum": ENDLESS}}
    path = tmp_path_factory.mktemp("endless") / "bundle"
    write_bundle(path, content.files, manifest_content(content.manifest) | {"options": options})
    limits = f"--timeout 60 --read-timeout {READ_S} --idle-timeout {READ_S} --max-waiting-tokens 40 --max-body 20000"
    with Server(path, "--threads", "1", *limits.split()) as running:
        yield running


def asked(server: Server, bias: float, **headers: str) -> Reply:
    body = {"inputs": "Anna", "options": {"bias": bias}}  # two tokens
    return server.post("/v1/slow", body, headers={name.replace("_", "-"): value for name, value in headers.items()})


def raw(body: bytes, more: str = "") -> bytes:
    return f"POST /v1/slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


def received(client: socket.socket) -> bytes:
    """Bytes received until the server closes the connection."""
    client.settimeout(60)
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(65536):
            parts.append(part)
    return b"".join(parts)


def exchange(server: Server, content: bytes) -> bytes:
    """Response to these bytes until the server closes the connection."""
    with server.connection() as client:
        client.sendall(content)
        return received(client)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_full_queue_refuses_requests_until_clients_leave_and_what_it_holds_is_answered(slow_bundle: Path) -> None:
    """The queue is held: a batch waits until it is full, or ten minutes."""

    def waiting() -> tuple[float | None, ...]:
        page = held.get("/metrics").body
        return tuple(metric_value(page, f"seqpipe_queue_{name}", bundle="slow") for name in ("items", "tokens"))

    def fill() -> list[socket.socket]:
        clients = [socket.create_connection(("127.0.0.1", held.port)) for _ in range(RUN_ROWS - 1)]
        for client in clients:
            client.sendall(raw(b'{"inputs": "Anna"}'))
        wait_until(lambda: waiting() == (RUN_ROWS - 1, 2 * RUN_ROWS - 2))
        return clients

    options = f"--threads 1 --delay-ms 600000 --max-waiting-tokens {2 * RUN_ROWS} --timeout 90"
    with Server(slow_bundle, *options.split()) as held:
        for reply in call_in_threads([lambda: asked(held, 0, X_Request_Timeout="0.3")] * 9):
            assert (reply.status, reply.json["error"][:19]) == (504, "no answer within 0.")
        assert waiting() == (0, 0)
        for client in fill():
            client.close()
        wait_until(lambda: waiting() == (0, 0))
        clients = fill()
        reply = held.post("/v1/slow", {"inputs": "Anna Anna"})  # three tokens
        assert (reply.status, reply.headers["retry-after"]) == (429, "1")
        assert reply.json["error"].startswith("too many requests are waiting; try again in ")
        assert metric_value(held.get("/metrics").body, "seqpipe_batch_items_sum", bundle="slow") == 0
        assert held.post("/v1/slow", {"inputs": "Anna"}).status == 200
        for client in clients:
            assert client.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")
            client.close()


def test_a_request_that_never_fits_is_too_large(server: Server) -> None:
    reply = server.post("/v1/slow", {"inputs": ["Anna"] * 21})
    assert (reply.status, reply.json["error"][:31]) == (413, "about 42 tokens in one request;")


def test_a_run_past_its_deadline_is_ended(server: Server) -> None:
    assert asked(server, ENDLESS, X_Request_Timeout="0.3").status == 504
    assert asked(server, 0).status == 200


def test_a_run_ends_at_the_latest_deadline_of_its_batch(server: Server) -> None:
    """While an endless run keeps the worker busy, two requests come together; their run takes about a second."""
    endless = json.dumps({"inputs": "Anna", "options": {"bias": ENDLESS}}).encode()
    with server.connection() as busy:
        busy.sendall(raw(endless, "X-Request-Timeout: 0.3\r\n"))
        time.sleep(0.1)  # where that is too short, the two are run one after the other, and get the same answers
        replies = call_in_threads([lambda s=s: asked(server, 10, X_Request_Timeout=s) for s in ("0.5", "60")])
    assert [reply.status for reply in replies] == [504, 200]


def test_a_client_cannot_have_more_time_than_the_server_gives() -> None:
    for text, most in ((b"100", 5), (b"inf", 5), (b"5.5", 5), (b"2", 2), (b"1e-3", 0.001), (None, 5)):
        began, headers = time.monotonic(), [] if text is None else [(b"x-request-timeout", text)]
        assert began + most <= deadline({"headers": headers}, Settings(timeout_s=5)) <= time.monotonic() + most


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan"])
def test_a_time_that_is_none_is_refused(server: Server, value: str) -> None:
    reply = asked(server, 0, X_Request_Timeout=value)
    assert (reply.status, reply.json["error"]) == (422, "X-Request-Timeout must be a number of seconds above 0")


HEAD = b"POST /v1/slow HTTP/1.1\r\nHost: localhost\r\n"
SLOW = {
    "nothing": b"",
    "half a line": b"POST /v1",
    "half the headers": HEAD + b"X: y\r\n",
    "half the body": HEAD + b'Content-Length: 99\r\n\r\n{"inputs": ',
    "half a chunk": HEAD + b'Transfer-Encoding: chunked\r\n\r\n20\r\n{"inputs": ',
}


@pytest.mark.parametrize("sent", SLOW)
def test_a_client_that_stops_is_dropped_and_in_the_body_it_gets_a_reason(server: Server, sent: str) -> None:
    began = time.monotonic()
    answer = exchange(server, SLOW[sent])
    assert time.monotonic() - began > READ_S * 0.9
    if sent in ("half the body", "half a chunk"):
        assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert b"the request was not complete after 1 s" in answer
    else:
        assert answer == b""


def test_a_client_that_drips_is_dropped(server: Server) -> None:
    def is_dropped() -> bool:
        try:
            client.sendall(b"X")
        except (ConnectionResetError, BrokenPipeError):
            return True
        return False

    with server.connection() as client:
        wait_until(is_dropped)


def test_each_request_of_a_connection_has_its_own_time_and_a_slow_one_is_dropped(server: Server) -> None:
    whole, end = raw(b'{"inputs": "Anna"}'), time.monotonic() + 2 * READ_S
    with server.connection() as client:
        while time.monotonic() < end:
            client.sendall(whole[:40])
            client.sendall(whole[40:])
            answer = b""
            while not answer.endswith(b"}"):
                answer += client.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        client.sendall(whole[:40])
        assert received(client) == b""


TOKEN = "0123456789abcdef"
AUTHORIZATION = {"Authorization": f"Bearer {TOKEN}"}
GET = f"GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
CHUNKED = HEAD + f"Authorization: Bearer {TOKEN}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
# What one connection sends first, what it sends again and again, how many MB of it, and whether it reads the answers.
FLOODS: dict[str, tuple[bytes, bytes, int, bool]] = {
    "requests": (b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000, 60, True),
    "requests whose answers are not read": (b"", (GET % "/").encode() * 1_000, 1_200, False),
    "requests for a document that is not read": (b"", (GET % "/openapi.json").encode() * 1_000, 1_200, False),
    "requests with a body": (b"", raw(b"{}") * 1_000, 60, True),
    "trailers": (CHUNKED + b'12\r\n{"inputs": "Anna"}\r\n0\r\n', b"X: yyyyyyyyyyyyyyyy\r\n" * 1_000, 300, True),
    "one extension of a chunk": (CHUNKED + b"1;", b"x=y" * 10_000, 300, True),
    "extensions of chunks": (CHUNKED, b"1;" + b"x" * 60 + b"=y\r\n \r\n" * 1_000, 300, True),
    "chunks of one byte": (CHUNKED, b"1\r\n \r\n" * 5_000, 60, True),
}


class Memory:
    """The memory in MB of the process that answers, and the most that it had since the beginning of a test."""

    def __init__(self, server: Server):
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        (pid,) = [pid for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
        self.status = Path(f"/proc/{pid}/status")
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # its peak is what it has now
        self.before = self.peak()

    def peak(self) -> float:
        (line,) = [line for line in self.status.read_text().splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) / 1024

    def growth(self) -> float:
        return self.peak() - self.before


def flood(server: Server, name: str, scale: float) -> None:
    """Sends so much of one kind, as long as the server takes some of it within two seconds."""
    first, again, megabytes, reads = FLOODS[name]
    taken, refused = 0, 0
    with contextlib.suppress(ConnectionError), server.connection() as client:
        client.sendall(first)
        client.setblocking(False)
        while taken < megabytes * scale * 1e6 and refused < 1_000:
            with contextlib.suppress(BlockingIOError):
                if reads and not client.recv(1 << 20):
                    break
            try:
                taken, refused = taken + client.send(again), 0
            except BlockingIOError:
                refused += 1
                time.sleep(0.002)


@pytest.fixture(scope="module")
def guarded(slow_bundle: Path) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEQPIPE_TOKEN", TOKEN)
        running = Server(slow_bundle, "--threads", "1", "--max-connections", "260")
    with running:
        yield running


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc, to read memory")


@needs_proc
@pytest.mark.parametrize("scale", [pytest.param(1.0, marks=pytest.mark.long), 0.05])
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_in_one_connection_takes_no_memory(guarded: Server, name: str, scale: float) -> None:
    memory = Memory(guarded)
    flood(guarded, name, scale)
    assert memory.growth() < (100 if scale == 1 else 30)
    assert guarded.post("/v1/slow", {"inputs": "Anna"}, headers=AUTHORIZATION).status == 200


@needs_proc
def test_two_hundred_slow_clients_take_little_memory_and_others_are_answered(guarded: Server) -> None:
    head = HEAD + f"Authorization: Bearer {TOKEN}\r\nContent-Length: 3000000\r\n\r\n".encode()
    memory = Memory(guarded)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(guarded.connection()) for _ in range(200)]
        for client in clients:
            client.sendall(head)
            with contextlib.suppress(ConnectionError):
                client.sendall(b"a" * 1_000_000)  # never whole: 200 MB in all
        assert guarded.post("/v1/slow", {"inputs": "Anna"}, headers=AUTHORIZATION).status == 200

        def hundred_are_refused() -> bool:
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
            return len(clients) <= 100

        wait_until(hundred_are_refused)
    assert memory.growth() < 100
    many = {"inputs": ["Anna " * 200] * 60}  # when they have left, their bytes count no longer
    wait_until(lambda: guarded.post("/v1/slow", many, headers=AUTHORIZATION).status == 200)


@needs_proc
def test_over_the_most_connections_a_request_waits_until_others_end(guarded: Server) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(guarded.connection()) for _ in range(270)]
        clients[-1].sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        clients[-1].settimeout(0.2)
        with pytest.raises(TimeoutError):
            clients[-1].recv(100)
        for client in clients[:100]:
            client.close()
        clients[-1].settimeout(60)
        assert clients[-1].recv(100).startswith(b"HTTP/1.1 200 OK")


@needs_proc
def test_clients_that_do_not_read_lose_their_connections(slow_bundle: Path) -> None:
    """As many as there may be connections, with small requests whose answers fill every buffer, or large ones."""
    unread = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400
    key = b'{"%s": 1}' % (b"k" * 3_000_000)
    limits = "--threads 1 --max-connections 4 --read-timeout 5 --idle-timeout 1"
    with Server(slow_bundle, *limits.split()) as crowded, contextlib.ExitStack() as stack:
        clients, memory = [stack.enter_context(socket.socket()) for _ in range(8)], Memory(crowded)
        for client, content in zip(clients, [unread] * 4 + [raw(key)] * 4, strict=True):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(60)
            client.connect(("127.0.0.1", crowded.port))
            client.sendall(content)  # of the second four: when they are accepted, in place of the first
        assert crowded.get("/v2/health/live").status == 200
        assert received(clients[0]).count(b"HTTP/1.1 200 OK") < 400
        assert len(received(clients[4])) < 1_000
        assert memory.growth() < 80  # four bodies, read and decoded; comparing their keys took twice that


@needs_proc
def test_clients_that_do_not_read_lose_all_connections_long_before_one_of_them_would(slow_bundle: Path) -> None:
    limits = "--threads 1 --max-connections 4 --read-timeout 60 --idle-timeout 60"
    with Server(slow_bundle, *limits.split()) as crowded, contextlib.ExitStack() as stack:
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(60)
            client.connect(("127.0.0.1", crowded.port))
            client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400)
        assert crowded.get("/v2/health/live", timeout=40).status == 200


def test_many_requests_at_once_are_no_large_headers(server: Server) -> None:
    request = b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
    count = 50_000 // len(request)
    answers = exchange(server, request * count + request[:-2] + b"Connection: close\r\n\r\n")
    assert answers.count(b"HTTP/1.1 200 OK") == count + 1


LARGE, GET_V1 = b"y" * 200_000, b"GET /v1 HTTP/1.1\r\n"
CLOSE = "Connection: close\r\n"
UPGRADE = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
REQUESTS: dict[str, tuple[bytes, bytes]] = {
    "a header": (HEAD + b"X: " + LARGE + b"\r\n\r\n", b"431 "),
    "a header without end": (HEAD + b"X: " + LARGE, b"431 "),
    "headers": (HEAD + b"X: y\r\n" * 20_000 + b"\r\n", b"431 "),
    "many headers": (HEAD + b"X: y\r\n" * 200 + b"\r\n", b"431 "),
    "an address": (b"GET /" + LARGE + b" HTTP/1.1\r\n\r\n", b"4"),
    "a body": (raw(b"y" * 20_001, CLOSE), b"413 "),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400 "),
    "a length that is none": (HEAD + b"Content-Length: -5\r\n\r\n", b"400 "),
    "no host": (GET_V1 + b"\r\n", b"400 "),
    "an empty host": (GET_V1 + b"Host:\r\n\r\n", b"400 "),
    "two hosts": (GET_V1 + b"Host: localhost\r\nHost: localhost\r\n\r\n", b"400 "),
    "a foreign host": (GET_V1 + b"Host: evil.example\r\n\r\n", b"421 "),
    "a host with a port": (GET_V1 + b"Host: localhost:1\r\nConnection: close\r\n\r\n", b"200 "),
    "a number that is no loopback address": (GET_V1 + b"Host: 127.0.0.999\r\n\r\n", b"421 "),
    "an encoded slash": (b"GET /v1%2fslow HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404 "),
    "an encoded letter": (b"GET /v1/%73low HTTP/1.1\r\nHost: 127.1.2.3\r\nConnection: close\r\n\r\n", b"200 "),
    "HTTP 1.0 without a host": (b"GET /v1 HTTP/1.0\r\n\r\n", b"200 "),
    "a tunnel": (b"CONNECT localhost:443 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"404 "),
    "an upgrade of the protocol": (raw(b'{"inputs": "Anna"}', UPGRADE), b"200 "),
}


@pytest.mark.parametrize("sent", REQUESTS)
def test_what_is_too_large_or_wrong_as_http_is_refused(server: Server, sent: str) -> None:
    content, status = REQUESTS[sent]
    assert exchange(server, content).partition(b" ")[2].startswith(status)


TEXT = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["Anna"]}
INFER = "/v2/models/slow/infer"
PACKED = gzip.compress(b'{"inputs": "Anna"}')
LONG = "<" + "k" * 15_000 + ">"


@pytest.mark.parametrize("path", ["/v1/slow", INFER])
def test_a_body_with_a_byte_order_mark_is_read_and_a_compressed_one_named(server: Server, path: str) -> None:
    body = json.dumps({"inputs": "Anna" if path == "/v1/slow" else [TEXT]}).encode()
    assert server.post(path, codecs.BOM_UTF8 + body, headers={"Content-Encoding": "identity"}).status == 200
    for coding in ("gzip", "br"):
        reply = server.post(path, PACKED, headers={"Content-Encoding": coding})
        assert (reply.status, reply.headers["accept-encoding"]) == (415, "identity")
        assert reply.json["error"] == f"Content-Encoding: {coding} is not supported; send the body without it"
    reply = server.post(path, PACKED)
    assert reply.status in (400, 422)
    assert reply.json["error"] == "the body is not JSON: it is compressed with gzip; send it uncompressed"


ECHOES: list[tuple[str, Any]] = [
    ("/v1/slow", {LONG: 1}),
    ("/v1/slow", {"inputs": "Anna", "options": {LONG: 1}}),
    ("/v1/slow", {"inputs": "Anna", "options": {"bias": LONG}}),
    ("/v1/slow", {"inputs": "Anna", "on_error": LONG}),
    ("/v1/slow", f'{{"inputs": "Anna", "{LONG}": 1, "{LONG}": 2}}'.encode()),
    (f"/v1/{LONG}", {"inputs": "Anna"}),
    ("/v1/embeddings", {"model": LONG}),
    ("/v1/embeddings", {"model": "slow", LONG: [LONG]}),
    (INFER, {"inputs": [{**TEXT, "name": LONG}]}),
    (INFER, {"inputs": [{**TEXT, "shape": LONG}]}),
    (INFER, {"inputs": [TEXT], "parameters": {LONG: 1}}),
    (INFER, {"inputs": [TEXT], "outputs": [{"name": LONG}]}),
]


@pytest.mark.parametrize(("path", "body"), ECHOES)
def test_an_error_repeats_a_hundred_characters_of_a_name_at_most(server: Server, path: str, body: Any) -> None:
    reply = server.post(path, body)
    assert 400 <= reply.status < 500
    assert max(map(len, re.findall("k+", reply.body.decode())), default=0) <= 100
    assert len(reply.body) < 2_500


def test_of_two_lengths_that_of_the_chunks_counts_and_the_connection_ends(server: Server) -> None:
    body = b'12\r\n{"inputs": "Anna"}\r\n0\r\n\r\n'
    lengths = HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
    answers = exchange(server, lengths + body + raw(b"{}"))
    assert answers.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answers.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("path", ["/v1/slow/", "/v1/", "/page", "//evil.example/..", "/v2/health/live/"])
def test_no_answer_leads_elsewhere(server: Server, path: str) -> None:
    for method in ("GET", "POST"):
        reply = server.request(method, path, headers={"Host": "127.0.0.1:1"})
        assert 400 <= reply.status < 500
        assert "location" not in reply.headers
        assert b"127.0.0.1" not in reply.body


def test_after_a_body_that_was_too_large_the_connection_goes_on(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    for chunked in (False, True):
        body: Any = iter([b"y" * 9_000] * 3) if chunked else b"y" * 27_000
        connection.request("POST", "/v1/slow", body, encode_chunked=chunked)
        response = connection.getresponse()
        assert (response.status, b"over 20,000 bytes" in response.read()) == (413, True)
        assert send_request(connection, "POST", "/v1/slow", {"inputs": "Anna"}).status == 200
    connection.close()


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    bodies = [json.dumps({"inputs": text}).encode() for text in ("Anna", "Ben", "Bern", "in")]
    answers = exchange(server, b"".join(map(raw, bodies[:3])) + raw(bodies[3], CLOSE))
    answered = [part.split(b"\r\n\r\n")[1] for part in answers.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    words = [[span["word"] for span in json.loads(body)["answer"]] for body in answered]
    assert words == [["Anna"], ["Ben"], ["Bern"], []]


def test_nothing_of_all_this_was_an_error_of_the_server(server: Server) -> None:
    assert "Traceback" not in server.log
    assert asked(server, 0).status == 200


# What a request may ask to be written


@pytest.fixture(scope="module")
def writer() -> Iterator[Server]:
    limits = ("--max-length", "50", "--max-beams", "3", "--max-waiting-tokens", "400")
    with Server(f"writer={gallery('generation').bundle}", "--threads", "1", *limits) as running:
        yield running


EXCESSIVE: list[tuple[dict[str, Any], str]] = [
    ({"max_length": 101}, "max_length: 101 is not between 1 and 100"),  # the default, which exceeds --max-length
    ({"beams": 4}, "beams: 4 is not between 1 and 3"),
    ({"beams": 3, "n_best": 4}, "n_best: 4 is not between 1 and 3"),
    ({"beams": 10**30}, "is not between 1 and 3"),
]


@pytest.mark.parametrize(("options", "message"), EXCESSIVE)
def test_more_than_the_server_allows_is_refused(writer: Server, options: dict[str, Any], message: str) -> None:
    for more in ({}, {"stream": True}, {"documents": True}):
        reply = writer.post("/v1/writer", {"inputs": "a good", "options": options, **more})
        assert (reply.status, message in reply.json["error"]) == (422, True)
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a good"]}
    reply = writer.post("/v2/models/writer/infer", {"inputs": [tensor], "parameters": options})
    assert (reply.status, message in reply.json["error"]) == (422, True)


def test_the_bounds_of_the_server_are_described_and_hold_for_completions(writer: Server) -> None:
    described = writer.get("/v1/writer").json["options"]
    assert [described[name]["maximum"] for name in ("max_length", "beams", "n_best")] == [100, 3, 3]
    for name, given, limit in (("max_tokens", 101, 100), ("n", 4, 3)):
        reply = writer.post("/v1/completions", {"model": "writer", "prompt": "a", name: given})
        error = reply.json["error"]
        assert (reply.status, error["param"]) == (400, name)
        assert error["message"] == f"{name}: {given} is over the limit of {limit}"


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
    assert metric_value(page, "seqpipe_queue_tokens", bundle="writer") == 0
    assert (metric_value(page, "seqpipe_tokens_total", bundle="writer") or 0) < 60  # of the inputs alone
