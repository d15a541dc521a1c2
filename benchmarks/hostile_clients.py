"""Cost of hostile clients to `seqpipe serve`: its memory, and the time that its other clients wait.

    python benchmarks/hostile_clients.py media     large pictures and sounds in few bytes, from clients that leave
    python benchmarks/hostile_clients.py unread    clients that do not read large responses
    python benchmarks/hostile_clients.py loop      requests that are expensive to read, check or answer

The bundles are trained for one epoch, in runs, if they are not there. The server and its clients share all cores, so
run it on an otherwise idle machine. Rows are printed as Markdown and recorded in runs/results.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import re
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np
from common import ROOT, RUNS

sys.path.insert(0, str(ROOT))

from common import Table
from http_load import http_request
from server_process import Process
from soak import is_worker

HOSTILE_CLIENTS, GOOD_CLIENTS = 20, 4
LEAVES_AFTER, DEADLINE = 1.0, 2.0  # seconds of a hostile client with a request, and of a good one for its answer
SIDE, SOUND, ADMITTED_SECONDS = 4_400, (41, 8, 192_000), 3  # pixels; seconds, channels, rate; of a sound that may wait
UNREADING, ITEMS = 8, 1_024  # connections, and inputs of a request
TICK = 0.005  # seconds between two looks at the event loop
LIVE, LAGS = "/v2/health/live", "/benchmark/lags"  # the second is only on the server of `loop`
TRAINED = {  # for each bundle its pipeline and overrides
    "picture": ("digits",),
    "sound": ("spoken-digits",),
    "vector": ("intent-lstm", "head={use: vector, target: intent}"),
}


def server(names: Sequence[str], *options: object, script: Sequence[object] = ("-m", "seqpipe")) -> Process:
    """A server, on all cores, of bundles that are trained if they are not there."""
    bundles = {name: RUNS / f"hostile-{name}" / "bundle" for name in names}
    for name, folder in bundles.items():
        if not folder.exists():
            pipeline, *overrides = TRAINED[name]
            common.seqpipe("run", f"pipelines/{pipeline}.yaml", f"name=hostile-{name}", "train.epochs=1", *overrides)
    command = [sys.executable, *script, "serve", *(f"{name}={folder}" for name, folder in bundles.items())]
    return Process([*command, "--port", "{port}", "--threads", 2, "--no-access-log", "--quiet", *options], None)


def memory(process: Process, is_reset: bool = False) -> np.ndarray:
    """MiB of the process that answers: the most since the last reset, and now."""
    (worker,) = [each for each in process.processes() if is_worker(each)]
    if is_reset:
        Path(f"/proc/{worker}/clear_refs").write_text("5")
    status = Path(f"/proc/{worker}/status").read_text()
    return np.array([int(re.findall(rf"{key}:\s+(\d+)", status)[0]) / 1024 for key in ("VmHWM", "VmRSS")])


def request(path: str, inputs: Any) -> bytes:
    return http_request("localhost", path, json.dumps({"inputs": inputs}).encode())


async def repeat(port: int, content: bytes, end: float, pause: float, times: list[float]) -> None:
    """Send a request again and again until `end`; append the seconds of each, infinite for another status than 200."""
    while (began := time.monotonic()) < end:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(content.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        is_answered = (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        times.append(time.monotonic() - began if is_answered else float("inf"))
        await asyncio.sleep(max(0.0, began + pause - time.monotonic()))


def get(port: int, path: str) -> Any:
    return json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60))


def media(seconds: float) -> None:
    """Answers to good clients, and the memory, beside clients that send what is large once decoded, and leave."""
    import soundfile
    from PIL import Image

    def encoded(save: Callable[[io.BytesIO], object]) -> str:
        save(file := io.BytesIO())
        return base64.b64encode(file.getvalue()).decode()

    def sound(length: float, channels: int, rate: int) -> str:
        silence = np.zeros((int(length * rate), channels), np.int16)
        return encoded(lambda file: soundfile.write(file, silence, rate, "PCM_16", format="FLAC"))

    pictures = [encoded(lambda file, n=n: Image.new("1", (n, n)).save(file, "PNG")) for n in (8, SIDE)]  # type: ignore[misc]
    sounds = [sound(0.5, 1, 8_000), sound(ADMITTED_SECONDS, *SOUND[1:]), sound(*SOUND)]
    columns = ("good requests", "answered in time", "slowest, s", "memory, peak MiB", "memory, end MiB")
    table = Table("hostile_clients", "media", "hostile requests", *columns)
    for name, (good, *large) in (("picture", pictures), ("sound", sounds)):
        with server([name]) as process:
            small = request(f"/v1/{name}", good)
            bodies = [request(f"/v1/{name}", [each] * 3) for each in large]
            asyncio.run(beside(process.port, small, 2.0))
            before = memory(process, is_reset=True)
            times = asyncio.run(beside_hostile_clients(process.port, small, bodies, seconds))
            time.sleep(1)
            in_time, sizes = sum(each <= DEADLINE for each in times), memory(process) - before
        figures = (len(times), in_time, f"{max(times):.2f}", *(f"{size:.0f}" for size in sizes))
        table.row(f"three {name}s", *figures, asked="all in time; less than 150 MiB")


async def beside_hostile_clients(port: int, good: bytes, hostile: Sequence[bytes], seconds: float) -> list[float]:
    """The seconds of each request of the good clients, infinite without an answer."""
    times, end = list[float](), time.monotonic() + seconds

    async def attack(number: int) -> None:
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(hostile[number % len(hostile)])
                await asyncio.sleep(LEAVES_AFTER)
                writer.transport.abort()

    clients = [repeat(port, good, end, 0.25, times) for _ in range(GOOD_CLIENTS)]
    await asyncio.gather(*map(attack, range(HOSTILE_CLIENTS)), *clients)
    return times


def unread(seconds: float) -> None:
    """The time of a health request, and the memory, while eight clients fill all connections and read nothing."""
    columns = ("health, slowest s", "memory, peak KiB a connection", "memory, end KiB a connection")
    table = Table("hostile_clients", "unread", "responses", *columns)
    limits = ("--max-connections", UNREADING, "--timeout", 10, "--idle-timeout", 5)
    for row in ("one of 2 MB", "400 of some KB"):
        with server(["vector"], *limits) as process, contextlib.ExitStack() as stack:
            whole = request("/v1/vector", [f"wake me at {i}" for i in range(ITEMS)])
            small = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400
            asyncio.run(
                beside(process.port, whole, 3.0, UNREADING)
            )  # the memory reaches that of responses that are read
            before, times = memory(process, is_reset=True), list[float]()
            for _ in range(UNREADING):
                client = stack.enter_context(socket.socket())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.settimeout(60)
                client.connect(("127.0.0.1", process.port))
                client.sendall(whole if row.startswith("one") else small)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                times.append(common.seconds(lambda port=process.port: get(port, LIVE)))  # type: ignore[misc]
                time.sleep(0.01)
            sizes = 1024 * (memory(process) - before) / UNREADING
        figures = (f"{max(times):.2f}", *(f"{size:.0f}" for size in sizes))
        table.row(row, *figures, asked="health in 1 s; at the end at most 256 KiB")


def load_with_lags(settings: Any, sender: Any) -> Any:
    """The application of a process of the server, which also tells how late its event loop runs a task.

    A lag does not depend on what else the machine does: it is without the time in which the thread of the event loop
    was ready and had no processor, and at most the processor time of the whole process meanwhile.
    """
    app, lags, tasks = LOAD(settings, sender), list[float](), list[Any]()

    async def tick() -> None:
        schedule, before = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY), None
        while True:
            waited = int(os.pread(schedule, 100, 0).split()[1]) / 1e9  # seconds in which a processor was missing
            now = np.array([time.perf_counter() - waited, time.process_time()])
            lags.append(0.0 if before is None else float((now - before).min()))
            before = now + np.array([TICK, 0])
            await asyncio.sleep(TICK)

    async def measured(scope: Any, receive: Any, send: Any) -> None:
        tasks[:] = tasks or [asyncio.create_task(tick())]
        if scope.get("path") != LAGS:
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(lags).encode()})
        lags.clear()

    return measured


def heavy_requests() -> dict[str, bytes]:
    """Requests of 1 to 4 MB, or with large responses, by what is large in them."""
    name, numbers, deep = "k" * 3_000_000, [0.12] * 500_000, json.loads("[" * 400 + "]" * 400)
    texts = [f"wake me at {i}" for i in range(ITEMS)]
    tensor = {"name": "text", "datatype": "BYTES", "shape": [ITEMS], "data": texts}
    rows = {"name": "audio", "datatype": "BYTES", "shape": [1], "data": [json.dumps(numbers)]}
    v1, keys = "/v1/vector", [f"k{i}" for i in range(300_000)]
    bodies: dict[str, tuple[str, Any]] = {
        "an unknown key": (v1, {name: 1}),
        "many options": (v1, {"inputs": "a", "options": dict.fromkeys(keys[:200_000], 1)}),
        "many fields of options": (v1, {"inputs": "a", "option_fields": keys}),
        "many records": (v1, {"inputs": [{"text": "a"}] * 200_000}),
        "many fields of a record": (v1, {"inputs": dict.fromkeys(keys, 1)}),
        "nested lists": (v1, {"inputs": [deep] * 3_500}),
        "a sound as numbers": ("/v1/sound", {"inputs": {"audio": numbers}}),
        "a sound as numbers, v2": ("/v2/models/sound/infer", {"inputs": [rows]}),
        "the response": (v1, {"inputs": texts}),
        "the response, v2": ("/v2/models/vector/infer", {"inputs": [tensor]}),
        "the response, OpenAI": ("/v1/embeddings", {"model": "vector", "input": texts}),
    }
    return {row: http_request("localhost", path, json.dumps(body).encode()) for row, (path, body) in bodies.items()}


def loop(seconds: float) -> None:
    """Lags of the event loop, and times of health requests, beside two clients with heavy requests."""
    columns = ("requests", "lag, p99.9 ms", "lag, greatest ms", "health, p99.9 ms", "health, slowest ms")
    table = Table("hostile_clients", "loop", "what is large", *columns)
    with server(["vector", "sound"], script=[Path(__file__)]) as process:
        for row, content in {"nothing": b"", **heavy_requests()}.items():
            get(process.port, LAGS)  # those since the last row
            count, times = asyncio.run(beside(process.port, content, seconds))
            values = [(np.quantile(each, 0.999), max(each)) for each in (get(process.port, LAGS), times)]
            figures = [f"{1000 * value:.0f}" for pair in values for value in pair]
            table.row(row, count, *figures, **({"asked": "lag of at most 50 ms"} if content else {}))


async def beside(port: int, content: bytes, seconds: float, clients: int = 2) -> tuple[int, list[float]]:
    """The number of requests of some clients, and the seconds of a health request every 10 ms."""
    live, end = f"GET {LIVE} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), time.monotonic() + seconds
    times, others = list[float](), list[float]()
    heavy = [repeat(port, content, end, 0, others) for _ in range(clients if content else 0)]
    await asyncio.gather(repeat(port, live, end, 0.01, times), *heavy)
    return len(others), times


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("what", choices=("media", "unread", "loop"))
    parser.add_argument("--seconds", type=float, help="of each row; default: 30, 15 and 5")
    options = parser.parse_args()
    measure, seconds = {"media": (media, 30.0), "unread": (unread, 15.0), "loop": (loop, 5.0)}[options.what]
    measure(options.seconds or seconds)


if "serve" in sys.argv[1:2]:  # the server of `loop`, and its processes, in which this is not __main__
    from seqpipe.commands.app import main as seqpipe_main
    from seqpipe.serve import server as serving

    LOAD, serving._load = serving._load, load_with_lags
    if __name__ == "__main__":
        seqpipe_main()
elif __name__ == "__main__":
    main()
