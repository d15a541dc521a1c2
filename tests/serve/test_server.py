"""The address of a server, its processes as they report themselves, and what systemd is told."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Server

from seqpipe.console import Console
from seqpipe.serve.server import READY, Listener, Processes, notify, watchdog_seconds
from seqpipe.serve.settings import Settings


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: a socket's has at most 107 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


def refused(bundle: Path, path: Path) -> str:
    """Why a server does not listen at this path."""
    command = [sys.executable, "-m", "seqpipe", "serve", str(bundle), "--uds", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    return done.stderr


def test_a_unix_socket_is_for_owner_and_group_replaces_a_stale_one_and_goes_at_the_end(
    tiny_bundle: Path, folder: Path
) -> None:
    path = folder / "s"
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(path))
    with Server(tiny_bundle, "--uds", path, ready=False, port=False) as server:
        server.wait_for("ready")
        assert path.stat().st_mode & 0o777 == 0o660
        assert "another server listens there" in refused(tiny_bundle, path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))  # the one that listens is not displaced
        assert server.end() == 0
    assert not path.exists()


def test_a_file_is_not_overwritten(tiny_bundle: Path, folder: Path) -> None:
    path = folder / "s"
    path.write_text("mine")
    assert "is not a socket" in refused(tiny_bundle, path)
    assert path.read_text() == "mine"
    (folder / "link").symlink_to(path)
    assert "is not a socket" in refused(tiny_bundle, folder / "link")


@pytest.mark.parametrize("name", ["none/s", "x" * 120])
def test_no_place_for_a_socket_is_named(tiny_bundle: Path, folder: Path, name: str) -> None:
    assert f"{name}: cannot create a socket" in refused(tiny_bundle, folder / name)


@pytest.fixture
def manager(folder: Path) -> Iterator[socket.socket]:
    """What systemd listens at."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(folder / "notify"))
        receiver.settimeout(5)
        yield receiver


def test_systemd_is_told(manager: socket.socket) -> None:
    notify(READY, {"NOTIFY_SOCKET": manager.getsockname()})
    assert manager.recv(100) == b"READY=1"
    notify(READY, {})


def test_systemd_is_told_at_an_abstract_address() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0seqpipe-test-{os.getpid()}")
        receiver.settimeout(5)
        notify(READY, {"NOTIFY_SOCKET": f"@seqpipe-test-{os.getpid()}"})
        assert receiver.recv(100) == b"READY=1"


class Told(Console):
    """A console that keeps its lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def say(self, text: str = "") -> None:
        self.lines.append(text)

    result = say


class Clock:
    """In place of the module `time`: seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the server, which waits for no answer at its socket."""
    clock = Clock()
    monkeypatch.setattr("seqpipe.serve.server.time", clock)
    monkeypatch.setattr(Listener, "wait", lambda self: None)
    return clock


def watched(manager: socket.socket, processes: int) -> tuple[Processes, Told]:
    environment = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "4000000"}
    told = Told()
    return Processes(Settings(processes=processes), Listener(socket.AF_UNIX, "s"), told, environment), told


def test_the_watchdog_hears_twice_a_period(manager: socket.socket, clock: Clock) -> None:
    processes, told = watched(manager, 1)
    processes.handle_report((os.getpid(), "loaded"))
    for _ in range(50):  # five seconds
        processes.handle_report((os.getpid(), "alive"))
        clock.seconds += 0.1
    assert [manager.recv(100) for _ in range(4)] == [b"READY=1", *[b"WATCHDOG=1"] * 3]
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(100)
    assert told.lines == ["unix:s: ready: "]


def test_the_watchdog_hears_nothing_while_a_process_is_stuck(manager: socket.socket, clock: Clock) -> None:
    processes, _ = watched(manager, 2)
    for pid in (os.getpid(), os.getppid()):
        processes.handle_report((pid, "loaded"))
    assert [manager.recv(100) for _ in range(2)] == [b"READY=1", b"WATCHDOG=1"]
    clock.seconds += 10
    manager.setblocking(False)
    processes.handle_report((os.getpid(), "alive"))
    with pytest.raises(BlockingIOError):
        manager.recv(100)


def test_the_watchdog_of_another_process_is_left_alone() -> None:
    assert watchdog_seconds({"WATCHDOG_USEC": "40000", "WATCHDOG_PID": "1"}) is None
    assert watchdog_seconds({}) is None
    assert watchdog_seconds({"WATCHDOG_USEC": "2500000"}) == 2.5
