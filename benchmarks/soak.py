"""A server under clients that leave, that send nonsense, while bundles are reloaded and processes killed.

The first half of the requests goes to one process, whose bundle is reloaded all the time: no right request may fail,
and its memory may not grow. The second half goes to two processes, one of which is killed again and again: what was on
its way there is sent once more, and has to be answered. Every answer is compared with that of the bundle.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import Table
from server_process import Process, cores, on_core, texts_of

import seqpipe
from seqpipe.runtime.opened import same_answer

WORKERS, MOST_LIST = 64, 8
LEAVE, MALFORMED = 0.08, 0.12  # of the requests: clients that leave, requests that are none
RELOAD_SECONDS, KILL_SECONDS, ANSWER_SECONDS = 2.0, 3.0, 60.0
NO_BODY = b"\r\nContent-Length: 99999999\r\n\r\n"
TRIES, PAUSE = 30, 0.2
SETTLED = 0.3  # of the first half: what the memory is compared with
Answer = tuple[int, Any]


@dataclass
class Soak:
    """What clients do, by a seed, and what went wrong.

    Attributes:
        retries: Whether a right request whose connection is lost is sent again.
    """

    port: int
    name: str
    texts: Sequence[str]
    answers: Sequence[Any]
    count: int
    retries: bool
    done: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    async def run(self, disturb: Callable[[], object], every: float) -> None:
        """Sends all requests, and calls `disturb` every so many seconds."""
        tasks = [asyncio.create_task(self._worker(number)) for number in range(WORKERS)]
        disturbing = asyncio.create_task(_repeat(disturb, every))
        try:
            await asyncio.gather(*tasks)
        finally:
            disturbing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await disturbing

    async def _worker(self, number: int) -> None:
        dice, connection = random.Random(number), Connection(self.port)
        while self.done < self.count:
            self.done += 1
            chance = dice.random()
            if chance < LEAVE:
                await self._leave(dice)
            elif chance < LEAVE + MALFORMED:
                await self._malformed(dice, connection)
            else:
                await self._ask(dice, connection)
        connection.close()

    async def _ask(self, dice: random.Random, connection: Connection) -> None:
        """A right request; its answer has to be that of the bundle."""
        rows = [dice.randrange(len(self.texts)) for _ in range(dice.choice((1, 1, 1, dice.randint(2, MOST_LIST))))]
        is_single = len(rows) == 1
        body = json.dumps({"inputs": self.texts[rows[0]] if is_single else [self.texts[i] for i in rows]}).encode()
        for _ in range(TRIES):
            try:
                code, content = await connection.ask(_request(f"/v1/{self.name}", body))
            except (OSError, EOFError, TimeoutError) as error:
                self.codes[f"connection lost ({type(error).__name__})"] += 1
                connection.close()
                if not self.retries:
                    break
                await asyncio.sleep(PAUSE)
                continue
            self.codes[str(code)] += 1
            if code in (429, 503) and self.retries:
                await asyncio.sleep(PAUSE)
                continue
            answers = [content.get("answer")] if is_single else content.get("answers")
            if code != 200 or not same_answer(answers, [self.answers[i] for i in rows]):
                self.faults[f"wrong: status {code}, {str(content)[:200]}"] += 1
            return
        self.faults["lost"] += 1

    async def _malformed(self, dice: random.Random, connection: Connection) -> None:
        """A request that is none has to get its status, and the connection has to stay good."""
        request, codes = dice.choice(_malformed(f"/v1/{self.name}", self.texts[0]))
        for _ in range(TRIES):
            try:
                code, _ = await connection.ask(request)
            except (OSError, EOFError, TimeoutError) as error:
                connection.close()
                if self.retries:
                    await asyncio.sleep(PAUSE)
                    continue
                self.faults[f"no answer ({type(error).__name__}) to {request[:60]!r}"] += 1
                return
            if request.endswith(NO_BODY):
                connection.close()  # what is sent next would be taken for the body
            self.codes[str(code)] += 1
            if code not in codes and not (self.retries and code == 503):
                self.faults[f"status {code} for {request[:60]!r}"] += 1
            return
        self.faults["lost"] += 1

    async def _leave(self, dice: random.Random) -> None:
        """A client that leaves: in the middle of its request, at once after it, or a little later."""
        request = _request(f"/v1/{self.name}", json.dumps({"inputs": dice.choice(self.texts)}).encode())
        self.codes["left"] += 1
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(request[: dice.randint(1, len(request))] if dice.random() < 0.3 else request)
            await asyncio.sleep(dice.choice((0, 0, 0.001, 0.01)))
            if dice.random() < 0.5:
                writer.transport.abort()
            writer.close()


class Connection:
    """A keep-alive connection, opened when it is needed."""

    def __init__(self, port: int):
        self._port, self._streams = port, None

    async def ask(self, request: bytes) -> Answer:
        """The status and the JSON of the answer; OSError, EOFError or TimeoutError if there is none."""
        async with asyncio.timeout(ANSWER_SECONDS):
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(length[1])) if length else await reader.read()
        if not length or re.search(rb"connection: *close", head, re.IGNORECASE):
            self.close()
        is_json = re.search(rb"content-type: *application/json", head, re.IGNORECASE)
        return int(head.split()[1]), json.loads(body) if is_json else {"text": body.decode(errors="replace")}

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def _request(path: str, body: bytes, method: str = "POST") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _malformed(path: str, text: str) -> list[tuple[bytes, tuple[int, ...]]]:
    """Requests that are none, with the status codes that each may get."""
    invalid = (
        *(b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"inputs": 5}', b'{"inputs": [1]}', b'{"inpts": "a"}', b"{}"),
        *(
            b"[" * 100_000,
            b'{"inputs": NaN}',
            b'{"inputs": "a", "options": {"no": 1}}',
            b'{"inputs": "a", "options": 1}',
        ),
        json.dumps({"inputs": "word " * 20_000}).encode(),
        json.dumps({"inputs": [text, None]}).encode(),
    )
    return [
        *((_request(path, body), (400, 422, 429)) for body in invalid),  # one is long: the queue may have no room
        (_request(path + "x", b'{"inputs": "a"}'), (404,)),
        (_request(path, b"", "DELETE"), (405,)),
        (_request(path, json.dumps({"inputs": ["a"] * 5000}).encode()), (413,)),
        (b"NONSENSE\r\n\r\n", (400,)),
        (f"POST {path} HTTP/1.1\r\nHost: a".encode() + NO_BODY, (413,)),
    ]


async def _repeat(disturb: Callable[[], object], every: float) -> None:
    while True:
        await asyncio.sleep(every)
        await asyncio.to_thread(disturb)


def main(bundles: Path, name: str, requests: int) -> None:
    """Both halves; prints what went wrong, and how much the memory grew."""
    folder = bundles / name / "bundle"
    texts = texts_of(folder, name)[:200]
    answers = json.loads(json.dumps(seqpipe.load(folder, "cpu", 1)(texts)))
    with tempfile.TemporaryDirectory() as parent:
        repository = Path(parent)
        shutil.copytree(folder, repository / name)
        command = [sys.executable, "-m", "seqpipe", "serve", "--port", "{port}", "--quiet", "--repository", repository]
        with Process(command, cores()[0]) as process:
            columns = ("requests", "disturbed by", "wrong or lost", "memory, MiB", "answers by status")
            table = Table("serve", "soak", "half", *columns)
            table.row(*_reloads(process, name, texts, answers, requests // 2))
    command = [sys.executable, "-m", "seqpipe", "serve", f"{name}={folder}", "--port", "{port}", "--processes", 2]
    with Process(command, cores()[0]) as process:
        table.row(*_kills(process, name, texts, answers, requests - requests // 2))


def _reloads(process: Process, name: str, texts: Sequence[str], answers: Sequence[Any], count: int) -> list[object]:
    """The half with reloads, without which nothing may be lost."""
    reloads: Counter[int] = Counter()
    settled: list[float] = []

    def reload() -> None:
        address = f"http://127.0.0.1:{process.port}/v2/repository/models/{name}/load"
        with urllib.request.urlopen(urllib.request.Request(address, b"{}", method="POST"), timeout=60) as response:
            reloads[response.status] += 1
        if not settled and soak.done > SETTLED * count:
            settled.append(process.resident())

    soak = Soak(process.port, name, texts, answers, count, retries=False)
    with on_core(cores()[1]):
        asyncio.run(soak.run(reload, RELOAD_SECONDS))
    before, after = (settled or [process.resident()])[0], process.resident()
    memory = f"{before:.0f} → {after:.0f} ({100 * (after / before - 1):+.1f} %)"
    return ["reloads", f"{count:,}", dict(reloads), dict(soak.faults) or 0, memory, dict(soak.codes)]


def _kills(process: Process, name: str, texts: Sequence[str], answers: Sequence[Any], count: int) -> list[object]:
    """The half with kills, where what was on its way to a process that is gone is sent again."""
    kills: Counter[str] = Counter()
    dice = random.Random(0)

    def kill() -> None:
        workers = [each for each in process.processes() if each != process.process.pid and is_worker(each)]
        if not workers:
            raise SystemExit(f"the server has no processes left:\n{process.log()}")
        os.kill(dice.choice(workers), signal.SIGKILL)
        kills["killed"] += 1

    soak = Soak(process.port, name, texts, answers, count, retries=True)
    with on_core(cores()[1]):
        asyncio.run(soak.run(kill, KILL_SECONDS))
    return ["kills", f"{count:,}", dict(kills), dict(soak.faults) or 0, "", dict(soak.codes)]


def is_worker(process: int) -> bool:
    """Whether a process answers requests: multiprocessing also starts one that looks after its resources."""
    with contextlib.suppress(FileNotFoundError):
        return b"spawn_main" in (Path("/proc") / str(process) / "cmdline").read_bytes()
    return False
