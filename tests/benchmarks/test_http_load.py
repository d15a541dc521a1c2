"""benchmarks/http_load.py against servers that are slow, stall, refuse, hang up or talk nonsense."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from repository_scripts import benchmark_script
from threaded_server import ThreadedServer

pytestmark = pytest.mark.nightly("benchmarks/http_load.py", "tests/benchmarks/*")

http_load = benchmark_script("http_load")
ClosedLoop, OpenLoop = http_load.ClosedLoop, http_load.OpenLoop
Settings, Tally = http_load.Settings, http_load.Tally
Behave = Callable[["Toy", asyncio.StreamWriter, int], Awaitable[None]]


class Toy(ThreadedServer):
    """A server that does with request number N what `behave` does; it counts what it gets at a time."""

    def __init__(self, behave: Behave):
        self.behave, self.count, self.now, self.most = behave, 0, 0, 0
        self.bodies: set[bytes] = set()
        self.began, self.has_stalled = time.monotonic(), False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            self.bodies.add(await reader.readexactly(int(length[1]) if length else 0))
            self.count, self.now = self.count + 1, self.now + 1
            self.most = max(self.most, self.now)
            await self.behave(self, writer, self.count)
            self.now -= 1


def reply(writer: asyncio.StreamWriter, code: int = 200, header: str = "") -> None:
    writer.write(f"HTTP/1.1 {code} -\r\n{header}Content-Length: 2\r\n\r\n{{}}".encode())


async def answer(toy: Toy, writer: asyncio.StreamWriter, number: int, seconds: float = 0.0) -> None:
    await asyncio.sleep(seconds)
    reply(writer)


def run(behave: Behave, kind: Any, seconds: float, *arguments: Any, **settings: Any) -> tuple[Toy, dict[str, Any]]:
    """Counts of a load on a server with this behaviour."""
    with Toy(behave).running() as toy:
        return toy, load_at(toy.port, kind, seconds, *arguments, **settings)


def load_at(port: int, kind: Any, seconds: float, *arguments: Any, **settings: Any) -> dict[str, Any]:
    bodies = (b'{"inputs": "Anna"}', b'{"inputs": "Ben"}')
    requests = [http_load.http_request(f"127.0.0.1:{port}", "/v1/toy", body) for body in bodies]

    async def loop() -> dict[str, Any]:
        connect = partial(asyncio.get_running_loop().create_connection, host="127.0.0.1", port=port)
        load: Any = kind(Settings(connect, requests, **settings), seconds)
        return await load.run(*arguments)

    return asyncio.run(loop())


def test_clients_of_a_closed_loop_wait_for_their_answers() -> None:
    toy, result = run(partial(answer, seconds=0.02), ClosedLoop, 0.5, 4)
    latency = result["codes"]["200"]
    assert toy.most == 4
    assert latency["p50_ms"] >= 20
    assert 0 < result["per_second"] <= 4 / 0.02
    assert 0 < latency["count"] < toy.count  # the others were warm-up
    assert toy.bodies == {b'{"inputs": "Anna"}', b'{"inputs": "Ben"}'}


async def stall(toy: Toy, writer: asyncio.StreamWriter, number: int) -> None:
    if not toy.has_stalled and time.monotonic() - toy.began > 0.3:
        toy.has_stalled = True
        time.sleep(0.3)  # the whole server
    reply(writer)


def test_latency_in_an_open_loop_counts_from_the_arrival_and_shows_a_stall() -> None:
    """In a closed loop one request sees the stall, however long it is; in an open loop those of 0.3 s of 0.8 s do."""
    _, closed = run(stall, ClosedLoop, 0.8, 1)
    _, opened = run(stall, OpenLoop, 0.8, 200.0, 1)
    assert closed["codes"]["200"]["max_ms"] > 250
    assert opened["codes"]["200"]["p90_ms"] > max(150, closed["codes"]["200"]["p90_ms"])


def test_arrivals_that_find_no_connection_wait_and_the_wait_counts() -> None:
    toy, result = run(partial(answer, seconds=0.05), OpenLoop, 0.4, 60.0, 1, most=1)
    assert toy.most == 1
    assert result["codes"]["200"]["max_ms"] > 150
    assert result["sent_late"]["max_ms"] > 100


def test_an_open_loop_opens_as_many_connections_as_it_needs() -> None:
    toy, _ = run(partial(answer, seconds=0.1), OpenLoop, 0.4, 200.0, 1)
    assert toy.most > 10


def test_arrivals_are_poisson_at_the_rate_and_follow_from_the_seed() -> None:
    def gaps(seed: int) -> np.ndarray:
        load = OpenLoop(Settings(never, [b""]), 20.0)
        return np.diff(load.arrivals(500.0, seed), prepend=load.began)

    first, again, other = map(gaps, (1, 1, 2))
    assert np.allclose(first, again, atol=1e-6)
    assert len(first) != len(other) or not np.allclose(first, other, atol=1e-6)
    assert 9500 < len(first) < 10500
    assert first.std() == pytest.approx(first.mean(), rel=0.1)
    assert sum(first) <= 20.0


async def never(protocol: Callable[[], Any]) -> None:
    raise AssertionError("nothing is sent")


def test_every_arrival_is_sent_however_late() -> None:
    async def busy(toy: Toy, writer: asyncio.StreamWriter, number: int) -> None:
        time.sleep(0.002)
        reply(writer)

    toy, result = run(busy, OpenLoop, 0.2, 1000.0, 1)
    due = len(OpenLoop(Settings(never, [b""]), 0.2).arrivals(1000.0, 1))
    assert toy.count == result["sent_late"]["count"] == due > 150
    assert result["failures"] == {}


def test_codes_are_counted_each_with_its_latency_and_only_answers_in_time_are_goodput() -> None:
    async def behave(toy: Toy, writer: asyncio.StreamWriter, number: int) -> None:
        await asyncio.sleep(0.03 if number % 3 == 0 else 0)
        reply(writer, 429 if number % 3 == 1 else 200)

    _, result = run(behave, ClosedLoop, 0.5, 1, deadline=0.02)
    ok, shed = result["codes"]["200"], result["codes"]["429"]
    assert abs(ok["count"] - 2 * shed["count"]) <= 2
    assert shed["p50_ms"] < 30 <= ok["max_ms"]
    assert 0 < result["in_time_per_second"] <= 0.55 * result["per_second"]


LOOPS = [(ClosedLoop, (2,)), (OpenLoop, (100.0, 1))]


async def hang_up(toy: Toy, writer: asyncio.StreamWriter, number: int) -> None:
    if number % 2:
        reply(writer)
    else:
        writer.close()


async def wait(toy: Toy, writer: asyncio.StreamWriter, number: int) -> None:
    await asyncio.sleep(30)


async def talk_nonsense(toy: Toy, writer: asyncio.StreamWriter, number: int) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")


@pytest.mark.parametrize(
    ("behave", "reason"),
    [(hang_up, "connection closed without an answer"), (wait, "no answer within 0.1 s"), (talk_nonsense, "no HTTP: ")],
    ids=["hangs up", "waits", "talks nonsense"],
)
@pytest.mark.parametrize(("kind", "arguments"), LOOPS, ids=["closed", "open"])
def test_requests_without_an_answer_are_counted(
    behave: Behave, reason: str, kind: Any, arguments: tuple[Any, ...]
) -> None:
    toy, result = run(behave, kind, 0.4, *arguments, timeout=0.1)
    ((message, count),) = result["failures"].items()
    assert message.startswith(reason)
    answered = result["codes"]["200"]["count"] if result["codes"] else 0
    assert (answered > 0) == (behave is hang_up)
    assert 0 < count + answered <= toy.count


@pytest.mark.parametrize(("kind", "arguments"), LOOPS, ids=["closed", "open"])
def test_a_server_that_is_gone_is_a_failure_of_each_request(kind: Any, arguments: tuple[Any, ...]) -> None:
    with Toy(answer).running() as toy:
        port = toy.port
    result = load_at(port, kind, 0.5, *arguments)
    assert result["codes"] == {}
    ((reason, count),) = result["failures"].items()
    assert re.fullmatch("no connection: .*(refused|failed).*", reason, re.IGNORECASE)
    assert count > 0


def test_a_connection_that_the_server_closes_after_its_answer_is_opened_again() -> None:
    async def behave(toy: Toy, writer: asyncio.StreamWriter, number: int) -> None:
        reply(writer, header="Connection: close\r\n")
        writer.close()

    _, result = run(behave, ClosedLoop, 0.4, 2)
    assert result["failures"] == {}
    assert result["codes"]["200"]["count"] > 2


def test_an_answer_in_chunks_is_one_answer() -> None:
    async def behave(toy: Toy, writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
        await asyncio.sleep(0.01)
        writer.write(b"0\r\n\r\n")

    toy, result = run(behave, ClosedLoop, 0.4, 1)
    assert result["failures"] == {}
    assert result["codes"]["200"]["p50_ms"] > 9
    assert result["codes"]["200"]["count"] < toy.count < 45


def test_answers_are_counted_by_code_and_failures_by_reason() -> None:
    tally = Tally(0.0, 2.0, 0.5)
    times = ((200, 0.5, 0.75), (200, 0.5, 1.5), (429, 1.0, 1.001), (200, 1.0, 9.0), (200, -1.0, 0.1))
    for code, scheduled, now in times:
        tally.answer(code, scheduled, now)
    tally.failure("connection closed", 1.0)
    result = tally.data()
    assert (result["per_second"], result["in_time_per_second"]) == (1.5, 0.5)
    ok, shed = result["codes"]["200"], result["codes"]["429"]
    assert ok == {"count": 3, "p50_ms": 1000.0, "p90_ms": 8000.0, "p99_ms": 8000.0, "max_ms": 8000.0}
    assert shed == {"count": 1, "p50_ms": 1.0, "p90_ms": 1.0, "p99_ms": 1.0, "max_ms": 1.0}
    assert result["failures"] == {"connection closed": 1}
