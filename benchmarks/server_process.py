"""What the rows of serve.py share: a server on one core, its processor time and memory, loads from another core."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import common
from common import ROOT
from http_load import ClosedLoop, Load, OpenLoop, Settings, http_request

from seqpipe.files import json_bytes

TEXTS = {"dates": "dates/test.jsonl"}  # inputs for each bundle, below pipelines/data
OTHER_TEXTS = "assistant-en/test.conll"
START_SECONDS = 120.0
READY, V1 = "/v2/health/ready", "/v1/{name}"


@functools.cache
def cores() -> tuple[int, int]:
    """The core of the server, and that of the load generator."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        raise SystemExit("the server and the load generator need a core each; this process may use one")
    return allowed[0], allowed[1]


@contextlib.contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """What is started here runs on this core (None: on any), as does this thread."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before if core is None else {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Process:
    """A server in processes of its own on one core.

    Args:
        command: What starts it; `{port}` in it stands for a port that is free.
        core: Its core; None: any.
        ready: The path that answers 200 when it takes requests.
        path: Where requests go.
        body: The body of the request for a text.
        variables: Its environment; None: this one's, with this source tree on the path.
    """

    def __init__(
        self,
        command: Sequence[object],
        core: int | None,
        ready: str = READY,
        path: str = "",
        body: Callable[[str], Any] = lambda text: {"inputs": text},
        variables: Mapping[str, str] | None = None,
    ):
        self.core, self.ready, self.path, self.body = core, ready, path, body
        self.variables = variables or {**os.environ, "PYTHONPATH": str(ROOT)}
        self.command, self.port = [*map(str, command)], free_port()

    def __enter__(self) -> Process:
        self._log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        try:
            self.started = self.start()
        except SystemExit:
            self._log.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._log.close()

    def start(self) -> float:
        """Seconds from the start of the process to its first answer that it is ready."""
        command = [part.replace("{port}", str(self.port)) for part in self.command]
        clock = time.perf_counter()
        with on_core(self.core):
            self.process = subprocess.Popen(
                command, stdout=self._log, stderr=self._log, env=self.variables, start_new_session=True
            )
        while not self.is_ready():
            if self.process.poll() is not None or time.perf_counter() - clock > START_SECONDS:
                raise SystemExit(f"{' '.join(command)}: does not start:\n{self.log()}")
            time.sleep(0.002)
        return time.perf_counter() - clock

    def pause(self) -> None:
        """Its processes get no time until `resume`: some poll while they have nothing to do."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """The end of `pause`."""
        self._signal(signal.SIGCONT)

    def stop(self) -> int:
        """Asks it to end; its exit code. What it left of its processes is ended with it."""
        self.resume()
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def is_ready(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self.port}{self.ready}", timeout=5) as response:
                return response.status == 200
        except OSError:
            return False

    def log(self) -> str:
        return Path(self._log.name).read_text()[-4000:]

    def processes(self) -> list[int]:
        """The process and all that came from it."""
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if _session(path) == self.process.pid]

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def cpu(self) -> float:
        """Processor seconds, user and system, of all its processes so far."""
        return sum(_cpu(process) for process in self.processes())

    def resident(self) -> float:
        """MiB that all its processes hold."""
        statuses = (Path(f"/proc/{process}/status").read_text() for process in self.processes())
        return sum(int(match[1]) for status in statuses if (match := re.search(r"VmRSS:\s+(\d+)", status))) / 1024

    def requests(self, texts: Sequence[str]) -> list[bytes]:
        """A whole request for each text."""
        host = f"127.0.0.1:{self.port}"
        return [http_request(host, self.path, json_bytes(self.body(text))) for text in texts]

    def closed_loop(self, texts: Sequence[str], clients: int, seconds: float) -> dict[str, Any]:
        """A load of so many clients from the other core."""
        return self._load(ClosedLoop, texts, seconds, (clients,))

    def open_loop(
        self, texts: Sequence[str], rate: float, seconds: float, deadline: float, most: int
    ) -> dict[str, Any]:
        """A load of so many arrivals a second from the other core, over at most so many connections."""
        return self._load(OpenLoop, texts, seconds, (rate, 1), deadline=deadline, most=most)

    def _load(
        self, kind: type[Load], texts: Sequence[str], seconds: float, arguments: tuple[Any, ...], **settings: Any
    ) -> dict[str, Any]:
        async def run() -> dict[str, Any]:
            connect = partial(asyncio.get_running_loop().create_connection, host="127.0.0.1", port=self.port)
            load: Any = kind(Settings(connect, self.requests(texts), **settings), seconds)
            return {**await load.run(*arguments), "total": load.tally.total}

        with on_core(cores()[1]):
            return asyncio.run(run())


def served(bundles: Mapping[str, Path], name: str, *options: object) -> Process:
    """`seqpipe serve` of these bundles on the first core; requests go to the one of this name."""
    items = [f"{each}={folder}" for each, folder in bundles.items()]
    command = [sys.executable, "-m", "seqpipe", "serve", *items, "--port", "{port}", *options]
    return Process(command, cores()[0], path=V1.format(name=name))


def called(bundle: Path, texts: Sequence[str]) -> common.Peer:
    """A process on the server's core that calls the bundle from Python, when it is asked to."""
    file = Path(tempfile.mkdtemp()) / "texts.txt"
    file.write_text("\n".join(texts), encoding="utf-8")
    return common.Peer([sys.executable, common.HERE / "peers" / "called.py", bundle, file, cores()[0]])


def texts_of(bundle: Path, name: str) -> list[str]:
    """The first test texts of a shipped pipeline."""
    import seqpipe
    from seqpipe.commands.bench import bundle_inputs

    model = seqpipe.load(bundle, "cpu", 1)
    path = ROOT / "pipelines" / "data" / TEXTS.get(name, OTHER_TEXTS)
    return [record["text"].replace("\n", " ") for record in bundle_inputs(model, path, "auto")]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """The median, and the least and the most."""
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def _stat(process: Path | int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name; none of a process that is gone."""
    try:
        text = (Path("/proc") / str(process) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def _session(process: Path) -> int:
    fields = _stat(process.name)
    return int(fields[3]) if fields and fields[0] != "Z" else 0  # one that has ended is no process of a server


def _cpu(process: int) -> float:
    fields = _stat(process)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0
