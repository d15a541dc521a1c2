"""HTTP load on a server: closed loop (each client waits for its answer) and open loop (arrivals wait for nobody).

It stands beside well-kept load generators because a benchmark needs what none of them has in one: both loops, arrivals
that follow from a seed, latency that counts from the arrival, and a row for each status code.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from abc import ABC, abstractmethod
from array import array
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import httptools
import numpy as np

from seqpipe.commands.bench import latencies

WARM_UP = 0.1  # the part of the time that passes before anything counts
RETRY = 0.1  # seconds before a client whose connection was lost connects again
STALE = 2.0  # seconds after which an idle connection is closed, before the server does so just as it is used
LOOK = 0.25  # seconds between looks for requests that wait too long
OK = 200
Answered = Callable[["Connection", int, float], None]  # with the status code, and when it came
Lost = Callable[["Connection", str], None]  # with the reason, if a request was on its way; else with nothing
Connect = Callable[[Callable[[], "Connection"]], Awaitable[Any]]


def http_request(host: str, path: str, body: bytes) -> bytes:
    """Return a whole POST request with a JSON body."""
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


class Connection(asyncio.Protocol):
    """A connection with at most one request on its way.

    No task, future or stream is made for a request: a load generator has to be much cheaper than what it measures.

    Attributes:
        scheduled: When the request on its way was to be sent; the latency counts from there.
        sent: When it was sent; None: none is on its way.
        body: The body of the last answer.
        is_open: Whether it can take a request.
    """

    def __init__(self, answered: Answered, lost: Lost):
        self._answered, self._lost = answered, lost
        self._parser = httptools.HttpResponseParser(self)
        self._reason = "connection closed without an answer"
        self.scheduled = 0.0
        self.sent: float | None = None
        self.body = b""
        self.is_open = False
        self.idle_since = time.perf_counter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def send(self, request: bytes, scheduled: float) -> None:
        """Sends a request that was to be sent at this time (of `time.perf_counter`)."""
        self.scheduled, self.sent = scheduled, time.perf_counter()
        self._transport.write(request)

    def close(self) -> None:
        """Closes it; a request on its way gets no answer, and is not told of."""
        self.is_open, self.sent = False, None
        self._transport.close()

    def abort(self, reason: str) -> None:
        """Gives a request on its way up."""
        self._reason = reason
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.abort(f"no HTTP: {error}")

    def on_message_begin(self) -> None:
        self.body = b""

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        now = self.idle_since = time.perf_counter()
        self.sent = None
        if not self._parser.should_keep_alive():
            self.close()
        self._answered(self, self._parser.get_status_code(), now)

    def connection_lost(self, exc: Exception | None) -> None:
        was_waiting, self.sent, self.is_open = self.sent is not None, None, False
        self._lost(self, self._reason if was_waiting else "")


class Tally:
    """Counts what happens in a window of time: latencies by when a request was due, rates by when its answer came.

    Args:
        start: When the window begins (of `time.perf_counter`); what was before is warm-up.
        end: When it ends.
        deadline: Seconds after which an answer is of no use.
    """

    def __init__(self, start: float, end: float, deadline: float):
        self.start, self.end, self.deadline = start, end, deadline
        self.latencies: dict[int, array[float]] = {}
        self.failures: Counter[str] = Counter()
        self._delays = array("d")
        self._came = self._in_time = 0
        self.total = 0  # answers, those of the warm-up too

    def answer(self, code: int, scheduled: float, now: float) -> None:
        """An answer that came now."""
        self.total += 1
        if code == OK and self.start <= now < self.end:
            self._came += 1
            self._in_time += now - scheduled <= self.deadline
        if not self.start <= scheduled < self.end:
            return
        if code not in self.latencies:
            self.latencies[code] = array("d")
        self.latencies[code].append(now - scheduled)

    def failure(self, reason: str, scheduled: float) -> None:
        """A request that gets no answer."""
        if self.start <= scheduled < self.end:
            self.failures[reason] += 1

    def delay(self, seconds: float) -> None:
        """How much later than scheduled a request was sent."""
        self._delays.append(seconds)

    def data(self) -> dict[str, Any]:
        """Rates in requests a second; `in_time_per_second` is the goodput."""
        seconds = self.end - self.start
        return {
            "seconds": round(seconds, 3),
            "per_second": round(self._came / seconds, 2),
            "deadline_s": self.deadline,
            "in_time_per_second": round(self._in_time / seconds, 2),
            "codes": {str(code): latencies(self.latencies[code]) for code in sorted(self.latencies)},
            "failures": dict(self.failures),
            **({"sent_late": latencies(self._delays)} if self._delays else {}),
        }


@dataclass(frozen=True)
class Settings:
    """What every load needs to know.

    Attributes:
        connect: Opens a connection: `loop.create_connection` and where to.
        requests: Whole HTTP requests, which are sent in turn.
        timeout: Seconds to wait for an answer.
        deadline: Seconds after which an answer is of no use.
        most: Connections at a time; in an open loop an arrival that finds none free waits, which its latency includes.
    """

    connect: Connect
    requests: Sequence[bytes]
    timeout: float = 60.0
    deadline: float = 1.0
    most: int = 900


class Load(ABC):
    """Connections that send requests for some time; what comes back is counted."""

    def __init__(self, settings: Settings, seconds: float):
        self.settings = settings
        self._requests = itertools.cycle(settings.requests)
        self._connections: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._is_over, self._busy = False, 0.0
        self.began = time.perf_counter()
        self.tally = Tally(self.began + seconds * WARM_UP, self.began + seconds, settings.deadline)

    @abstractmethod
    def ready(self, connection: Connection, now: float) -> None:
        """A connection that may send a request."""

    @abstractmethod
    def unconnected(self, reason: str) -> None:
        """A connection that could not be opened."""

    @abstractmethod
    def gone(self, reason: str) -> None:
        """A connection that was lost, with the reason if a request was on its way."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While requests are sent; then those on their way are waited for, and all connections closed."""
        wall, cpu = time.perf_counter(), time.process_time()
        watch = asyncio.create_task(self._watch())
        try:
            yield
            self._busy = (time.process_time() - cpu) / (time.perf_counter() - wall)
            while any(connection.sent is not None for connection in self._connections):
                await asyncio.sleep(0.01)
        finally:
            self._is_over = True
            tasks = [watch, *self._opening]
            for task in tasks:
                task.cancel()
            for connection in [*self._connections]:
                connection.close()
            await asyncio.gather(*tasks, return_exceptions=True)

    def open(self, delay: float = 0.0) -> None:
        """Begins to open a connection."""
        task = asyncio.create_task(self._open(delay))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def send(self, connection: Connection, scheduled: float) -> None:
        connection.send(next(self._requests), scheduled)

    def result(self) -> dict[str, Any]:
        """What was counted, and the part of one core that this process used."""
        return {**self.tally.data(), "generator_busy": round(self._busy, 3)}

    @property
    def connections(self) -> int:
        """Connections that are open or about to be."""
        return len(self._connections) + len(self._opening)

    async def _open(self, delay: float) -> None:
        await asyncio.sleep(delay)
        connection = Connection(self._answered, self._lost)
        try:
            await self.settings.connect(lambda: connection)
        except OSError as error:
            self.unconnected(f"no connection: {error.strerror or error}")
            return
        if connection.is_open:
            self._connections.add(connection)
            self.ready(connection, time.perf_counter())

    def _answered(self, connection: Connection, code: int, now: float) -> None:
        self.tally.answer(code, connection.scheduled, now)
        if connection.is_open:
            self.ready(connection, now)

    def _lost(self, connection: Connection, reason: str) -> None:
        self._connections.discard(connection)
        if reason:
            self.tally.failure(reason, connection.scheduled)
        if not self._is_over:
            self.gone(reason)

    async def _watch(self) -> None:
        """Gives requests up that wait too long."""
        while True:
            await asyncio.sleep(LOOK)
            now = time.perf_counter()
            for connection in [*self._connections]:
                if connection.sent is not None and now - connection.sent > self.settings.timeout:
                    connection.abort(f"no answer within {self.settings.timeout:g} s")


class ClosedLoop(Load):
    """Clients each of which sends its next request when it has its answer."""

    async def run(self, clients: int) -> dict[str, Any]:
        async with self.running():
            for _ in range(clients):
                self.open()
            await asyncio.sleep(self.tally.end - time.perf_counter())
        return {"clients": clients, **self.result()}

    def ready(self, connection: Connection, now: float) -> None:
        if now < self.tally.end:
            self.send(connection, now)

    def unconnected(self, reason: str) -> None:
        self.tally.failure(reason, time.perf_counter())
        self.open(RETRY)

    def gone(self, reason: str) -> None:
        self.open(RETRY if reason else 0.0)


class OpenLoop(Load):
    """Poisson arrivals at a rate, whatever the server does; latency counts from the arrival.

    A generator that waits for a slow server sends less while it is slow, and measures too good a latency
    (coordinated omission; Tene, "How NOT to Measure Latency", 2013).
    """

    async def run(self, rate: float, seed: int) -> dict[str, Any]:
        self._idle: list[Connection] = []
        self._backlog: deque[float] = deque()
        arrivals = self.arrivals(rate, seed)
        loop, stop = asyncio.get_running_loop(), threading.Event()
        pace = threading.Thread(target=self._pace, args=(arrivals, loop, stop), daemon=True)
        try:
            async with self.running():
                pace.start()
                await asyncio.sleep(self.tally.end - time.perf_counter())
                while pace.is_alive():
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0)  # for what it handed over last
                while self._backlog and time.perf_counter() < self.tally.end + self.settings.timeout:
                    await asyncio.sleep(0.01)
        finally:
            stop.set()
        for scheduled in self._backlog:
            self.tally.failure("no connection was free", scheduled)
        return {"rate": rate, "seed": seed, **self.result()}

    def ready(self, connection: Connection, now: float) -> None:
        if self._backlog:
            self._send_late(connection, self._backlog.popleft())
        else:
            self._idle.append(connection)

    def unconnected(self, reason: str) -> None:
        if self._backlog:
            self.tally.failure(reason, self._backlog.popleft())
        self._open_more(opened=1)

    def gone(self, reason: str) -> None:
        self._open_more()

    def arrivals(self, rate: float, seed: int) -> np.ndarray:
        """The times of all arrivals: of the same seed they are equally long after the beginning."""
        mean = rate * (self.tally.end - self.began)
        gaps = np.random.default_rng(seed).exponential(1 / rate, int(mean + 10 * mean**0.5) + 10)
        times = self.began + np.cumsum(gaps)
        return times[times < self.tally.end]

    def _pace(self, arrivals: np.ndarray, loop: asyncio.AbstractEventLoop, stop: threading.Event) -> None:
        """Hands arrivals to the event loop when they are due; a thread: timers of a loop count whole milliseconds."""
        done = 0
        while done < len(arrivals) and not stop.wait(max(0.0, arrivals[done] - time.perf_counter())):
            arrived = int(np.searchsorted(arrivals, time.perf_counter(), "right"))
            loop.call_soon_threadsafe(self._arrive, arrivals[done:arrived].tolist())
            done = arrived

    def _arrive(self, arrivals: list[float]) -> None:
        for scheduled in arrivals:
            if connection := self._free():
                self._send_late(connection, scheduled)
            else:
                self._backlog.append(scheduled)
                self._open_more()

    def _free(self) -> Connection | None:
        """The connection that was used last, for others to become stale."""
        now = time.perf_counter()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and now - connection.idle_since < STALE:
                return connection
            if connection.is_open:
                connection.close()
        return None

    def _open_more(self, opened: int = 0) -> None:
        """Opens a connection if more requests wait for one than connections are about to open."""
        if len(self._opening) - opened < len(self._backlog) and self.connections - opened < self.settings.most:
            self.open()

    def _send_late(self, connection: Connection, scheduled: float) -> None:
        self.send(connection, scheduled)
        assert connection.sent is not None
        self.tally.delay(connection.sent - scheduled)
