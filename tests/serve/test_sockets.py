"""Unix sockets, the socket that systemd passes, and what systemd is told."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from seqpipe.errors import UsageError
from seqpipe.serve import systemd
from seqpipe.serve.server import activation_socket, unix_socket


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: a socket's has at most 107 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


def test_a_unix_socket_is_for_owner_and_group_and_goes_at_the_end(folder: Path) -> None:
    path = folder / "s"
    mask = os.umask(0)
    try:
        with unix_socket(path) as listener, socket.socket(socket.AF_UNIX) as client:
            assert path.stat().st_mode & 0o777 == 0o660
            client.connect(str(path))
            listener.accept()[0].close()
        assert os.umask(0) == 0
    finally:
        os.umask(mask)
    assert not path.exists()


def test_a_socket_that_nobody_listens_on_is_replaced(folder: Path) -> None:
    path = folder / "s"
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(path))
    with unix_socket(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_server_that_listens_is_not_displaced(folder: Path) -> None:
    path = folder / "s"
    with unix_socket(path), pytest.raises(UsageError, match="another server listens there"), unix_socket(path):
        pass
    assert not path.exists()


def test_the_socket_of_a_later_server_stays(folder: Path) -> None:
    path = folder / "s"
    with unix_socket(path):
        path.rename(folder / "old")
        with socket.socket(socket.AF_UNIX) as later:
            later.bind(str(path))
    assert path.is_socket()


def test_a_file_is_not_overwritten(folder: Path) -> None:
    path = folder / "s"
    path.write_text("mine")
    with pytest.raises(UsageError, match="is no socket"), unix_socket(path):
        pass
    assert path.read_text() == "mine"
    (folder / "link").symlink_to(path)
    with pytest.raises(UsageError, match="is no socket"), unix_socket(folder / "link"):
        pass


@pytest.mark.parametrize("name", ["none/s", "x" * 120])
def test_no_place_for_a_socket_is_named(folder: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"--uds: .*{name}: no socket can be made there"), unix_socket(folder / name):
        pass


ACTIVATED = """
import os, sys
from seqpipe.serve.server import activation_socket
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
listener = activation_socket()
print(listener.getsockname()[1], os.get_inheritable(3))
"""


def test_the_socket_of_systemd_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.fileno()
        command = [sys.executable, "-c", ACTIVATED, str(number)]
        done = subprocess.run(command, pass_fds=[number], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [str(listener.getsockname()[1]), "False"]


def test_sockets_for_other_processes_are_not_taken() -> None:
    assert activation_socket({}) is None
    assert activation_socket({"LISTEN_PID": "1", "LISTEN_FDS": "1"}) is None
    assert activation_socket({"LISTEN_PID": str(os.getpid())}) is None
    with pytest.raises(UsageError, match="2 sockets"):
        activation_socket({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"})


@pytest.fixture
def manager(folder: Path) -> Iterator[socket.socket]:
    """What systemd listens at."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(folder / "notify"))
        receiver.settimeout(5)
        yield receiver


def test_systemd_is_told(manager: socket.socket) -> None:
    systemd.notify(systemd.READY, {"NOTIFY_SOCKET": manager.getsockname()})
    assert manager.recv(100) == b"READY=1"
    systemd.notify(systemd.READY, {})


def test_systemd_is_told_at_an_abstract_address() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0seqpipe-test-{os.getpid()}")
        receiver.settimeout(5)
        systemd.notify(systemd.STOPPING, {"NOTIFY_SOCKET": f"@seqpipe-test-{os.getpid()}"})
        assert receiver.recv(100) == b"STOPPING=1"


def test_the_watchdog_hears_twice_a_period(manager: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "40000", "WATCHDOG_PID": str(os.getpid())}

    heartbeat, end, beats = systemd.Heartbeat(environment), time.monotonic() + 0.07, 0
    while time.monotonic() < end:
        heartbeat.beat()
        beats += 1
    assert [manager.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
    assert beats > 10


def test_the_watchdog_of_another_process_is_left_alone() -> None:
    assert systemd.watchdog_seconds({"WATCHDOG_USEC": "40000", "WATCHDOG_PID": "1"}) is None
    assert systemd.watchdog_seconds({}) is None
    assert systemd.watchdog_seconds({"WATCHDOG_USEC": "2500000"}) == 2.5
    systemd.Heartbeat({}).beat()
