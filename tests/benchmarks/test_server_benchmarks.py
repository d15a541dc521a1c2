"""benchmarks/serve.py: what it reads of a server's processes, and that its soak sees what is wrong."""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from repository_scripts import benchmark_script
from threaded_server import ThreadedServer

PATHS = ("benchmarks/serve.py", "benchmarks/server_process.py", "benchmarks/soak.py", "tests/benchmarks/*")
pytestmark = pytest.mark.nightly(*PATHS)

CHILDREN = """
import http.server, os, sys, time
if os.fork() == 0:
    held, clock = b"x" * (60 << 20), time.process_time()
    while time.process_time() - clock < 0.3:
        pass
    time.sleep(60)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *arguments):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


server_process = benchmark_script("server_process")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_processor_time_and_memory_are_those_of_all_processes_of_a_server() -> None:
    with server_process.Process([sys.executable, "-c", CHILDREN, "{port}"], None) as process:
        while process.cpu() < 0.3:
            assert process.process.poll() is None
        assert len(process.processes()) == 2
        assert process.resident() > 60
    end = time.monotonic() + 100
    while process.processes():
        assert time.monotonic() < end


def test_a_server_that_does_not_start_is_reported_with_its_log() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such bundle')"]
    with pytest.raises(SystemExit, match=r"(?s)does not start:.*no such bundle"), server_process.Process(command, None):
        pass


class Liar(ThreadedServer):
    """A server whose answer to a text is its length; each fault is planted by a text."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"POST"):
                self._send(writer, 405 if head.startswith(b"DELETE") else 400)
                continue
            length = int(head.lower().split(b"content-length: ")[1].split()[0])
            if length > 1 << 20:
                self._send(writer, 413)
                continue
            await self._answer(writer, head.split()[1], await reader.readexactly(length))

    async def _answer(self, writer: asyncio.StreamWriter, path: bytes, body: bytes) -> None:
        try:
            request = json.loads(body)
            inputs = request.pop("inputs")
            several = inputs if isinstance(inputs, list) else [inputs]
            lengths = [len(text) for text in several]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return self._send(writer, 422)
        if path != b"/v1/toy" or request or len(several) > 1000 or max(lengths) > 1000:
            return self._send(writer, 404 if path != b"/v1/toy" else 413 if len(several) > 1000 else 422)
        if "vanish" in several:
            return writer.close()
        answers = [0 if text == "lie" else length for text, length in zip(several, lengths, strict=True)]
        return self._send(writer, 200, {"answers": answers} if isinstance(inputs, list) else {"answer": answers[0]})

    def _send(self, writer: asyncio.StreamWriter, code: int, content: Any = None) -> None:
        body = json.dumps(content).encode()
        head = f"HTTP/1.1 {code} -\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)


def soak_run(texts: list[str], count: int, disturb: Callable[[], Any], seconds: float) -> Any:
    """The soak of so many requests, at its end."""
    with Liar().running() as liar:
        run = benchmark_script("soak").Soak(liar.port, "toy", texts, [*map(len, texts)], count, retries=False)
        asyncio.run(run.run(disturb, seconds))
    return run


@pytest.mark.parametrize(
    ("texts", "fault"),
    [(["honest", "true"], ""), (["honest", "lie"], "wrong: status 200"), (["honest", "vanish"], "lost")],
    ids=["nothing", "a wrong answer", "a lost answer"],
)
def test_the_soak_sees_what_is_wrong(texts: list[str], fault: str) -> None:
    disturbed: list[int] = []
    run = soak_run(texts, 400, lambda: disturbed.append(1), 0.01)
    assert disturbed
    assert {name.partition(",")[0] for name in run.faults} == ({fault} if fault else set())
    assert run.codes["left"] > 10
    assert {"200", "404", "405", "413", "422"} <= {*run.codes}


def test_the_soak_sees_a_malformed_request_that_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def accept(self: Liar, writer: asyncio.StreamWriter, path: bytes, body: bytes) -> None:
        self._send(writer, 200, {"answer": 6, "answers": [6] * 8})

    monkeypatch.setattr(Liar, "_answer", accept)
    run = soak_run(["honest"], 300, lambda: None, 0.1)
    assert any(fault.startswith("status 200 for b'POST /v1/toy") for fault in run.faults)
