"""A server from its start to its end: names, address, processes, what systemd receives, draining and exit codes."""

import contextlib
import os
import re
import resource
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import READY_S, Reply, Server, call_in_threads, metric_value
from tiny_pipelines import QUIET, fail_with, run_process, seqpipe
from toy_bundles import STUCK, manifest_content, write_bundle, write_stuck_bundle

from seqpipe import Model
from seqpipe.errors import UsageError, install_command
from seqpipe.runtime import bundle
from seqpipe.serve.repository import bundles_by_name
from seqpipe.serve.server import READY, Listener, ServerProcesses, notify, watchdog_seconds
from seqpipe.serve.settings import Settings

needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc, to find processes")


def children(server: Server) -> list[int]:
    """The processes that answer."""
    pids = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    return [int(pid) for pid in pids if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]


@needs_proc
def test_the_limit_of_open_files_is_raised_for_the_connections(tiny_bundle: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    try:
        with Server(str(tiny_bundle), "--max-connections", "300") as server:
            limits = Path(f"/proc/{server.process.pid}/limits").read_text()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert int(re.findall(r"Max open files +(\d+)", limits)[0]) > 300


# Names


def test_a_bundle_has_its_own_name_or_the_stated_one(tiny_bundle: Path, slow_bundle: Path, tmp_path: Path) -> None:
    assert bundles_by_name([str(tiny_bundle), f"b={slow_bundle}"]) == {"toy": tiny_bundle, "b": slow_bundle}
    folder = shutil.copytree(tiny_bundle, tmp_path / "a=b")
    assert bundles_by_name([str(folder)]) == {"toy": folder}


NAMES = [
    (["{}", "{}"], "the name 'toy' is given twice; write NAME="),
    (["a={}", "a={}"], "the name 'a' is given twice; write NAME="),
    (["models={}"], "the name 'models' is reserved for the OpenAI protocol; write NAME=FOLDER with another name"),
    (["a/b={}"], "'a/b' cannot be a name in an address: letters, digits, . _ and -; write NAME=FOLDER"),
    (["={}"], "'' cannot be a name in an address"),
    ([".a={}"], "'.a' cannot be a name in an address"),
]


@pytest.mark.parametrize(("items", "message"), NAMES)
def test_a_name_that_cannot_be_is_refused(tiny_bundle: Path, items: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        bundles_by_name([item.format(tiny_bundle) for item in items])
    assert message in str(caught.value)


# Start


COMMANDS = [
    ("", "name at least one bundle"),
    ("BUNDLE --cors example.org", "--cors: 'example.org' is not an origin"),
    ("BUNDLE --token-file /none", "--token-file: /none cannot be read"),
    ("BUNDLE --token-file short", "short: the token has 5 characters"),
    ("--repository /none", "--repository: /none: no such folder"),
    ("BUNDLE --repository . --processes 2", "--repository needs a single process"),
    ("BUNDLE --uds none/s", "none/s: cannot create a socket"),
    (f"BUNDLE --uds {'x' * 120}", "xx: cannot create a socket"),
    ("BUNDLE --uds short", "is not a socket"),
    ("BUNDLE --uds link", "is not a socket"),
    ("BUNDLE --host ::g --port 8001", "::g:8001: no address to listen on ("),
    ("BUNDLE --host .. --port 8001", "..:8001: no address to listen on ("),
    ("BUNDLE --port PORT", "cannot listen there (Address already in use); use another"),
]


@pytest.mark.parametrize(("arguments", "message"), COMMANDS)
def test_a_server_that_cannot_start_says_why(tiny_bundle: Path, tmp_path: Path, arguments: str, message: str) -> None:
    (tmp_path / "short").write_text("short")
    (tmp_path / "link").symlink_to(tmp_path / "short")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        values = {"BUNDLE": tiny_bundle, "PORT": taken.getsockname()[1]}
        done = seqpipe("serve", *(values.get(word, word) for word in arguments.split()), folder=tmp_path)
    assert (done.code, message in done.err) == (2, True), done.err
    assert (tmp_path / "short").read_text() == "short"


def test_a_bundle_that_is_damaged_or_fails_its_golden_examples_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    content = bundle.read(tiny_bundle)
    golden = [{"record": {"text": "Anna"}, "answer": []}]
    write_bundle(tmp_path / "other", content.files, manifest_content(content.manifest) | {"golden": golden})
    damaged = shutil.copytree(tiny_bundle, tmp_path / "damaged")
    (damaged / "model.onnx").write_bytes(b"x")
    for path, message, processes in (
        (tmp_path / "other", "answers differ on this machine", "1"),
        (damaged, "model.onnx: damaged", "2"),
    ):
        done = run_process("serve", f"toy={path}", "--port", "0", "--processes", processes, folder=tmp_path)
        assert (done.code, message in done.err, "Traceback" in done.err) == (6, True, False), done.err


def test_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path) -> None:
    monkeypatch.setitem(sys.modules, "granian", None)
    monkeypatch.delitem(sys.modules, "seqpipe.serve.server")
    done = seqpipe("serve", tiny_bundle)
    assert (done.code, done.err) == (7, f"granian is not installed: {install_command('serve')}\n")


# A Unix socket, and systemd


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: a socket's has at most 107 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def manager(folder: Path) -> Iterator[socket.socket]:
    """The socket at which systemd listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(folder / "notify"))
        receiver.settimeout(60)
        yield receiver


def test_a_unix_socket_for_owner_and_group_replaces_a_stale_one_answers_and_is_removed(
    tiny_bundle: Path, folder: Path, manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "s"
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(path))
    with monkeypatch.context() as patch:
        patch.setenv("NOTIFY_SOCKET", manager.getsockname())
        patch.setenv("WATCHDOG_USEC", "400000")
        running = Server(tiny_bundle, "--uds", path, ready=False, port=False)
    with running as server:
        assert [manager.recv(100) for _ in range(4)] == [b"READY=1", *[b"WATCHDOG=1"] * 3]
        server.wait_for(f"unix:{path}: ready: toy\n")
        assert path.stat().st_mode & 0o777 == 0o660
        fail_with(2, "another server listens there", "serve", tiny_bundle, "--uds", path)
        with socket.socket(socket.AF_UNIX) as client:  # the one that listens is not displaced
            client.connect(str(path))
            head = b"POST /v1/toy HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: unix-1\r\nContent-Length: 18\r\n\r\n"
            client.sendall(head + b'{"inputs": "Bern"}')
            assert client.recv(100).startswith(b"HTTP/1.1 200 OK")
        server.wait_for('"id":"unix-1".*"peer":null')
        assert server.end() == 0
    assert not path.exists()


def test_systemd_is_notified_at_an_abstract_address() -> None:
    notify(READY, {})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0seqpipe-test-{os.getpid()}")
        receiver.settimeout(60)
        notify(READY, {"NOTIFY_SOCKET": f"@seqpipe-test-{os.getpid()}"})
        assert receiver.recv(100) == b"READY=1"


class Clock:
    """In place of the module `time`: seconds that pass when a test says so."""

    seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the server, which waits for no answer at its socket."""
    clock = Clock()
    monkeypatch.setattr("seqpipe.serve.server.time", clock)
    monkeypatch.setattr(Listener, "wait", lambda self: None)
    return clock


def watched(manager: socket.socket, processes: int) -> ServerProcesses:
    environment = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "4000000"}
    return ServerProcesses(Settings(processes=processes), Listener(socket.AF_UNIX, "s"), QUIET, environment)


def test_the_watchdog_hears_twice_a_period(manager: socket.socket, clock: Clock) -> None:
    processes = watched(manager, 1)
    processes.handle_report((os.getpid(), "loaded"))
    for _ in range(50):  # five seconds
        processes.handle_report((os.getpid(), "alive"))
        clock.seconds += 0.1
    assert [manager.recv(100) for _ in range(4)] == [b"READY=1", *[b"WATCHDOG=1"] * 3]
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(100)


def test_the_watchdog_hears_nothing_while_a_process_is_stuck(manager: socket.socket, clock: Clock) -> None:
    processes = watched(manager, 2)
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


# End


def test_a_server_that_ends_answers_what_it_accepted_and_takes_no_more(slow_bundle: Path) -> None:
    replies: list[Reply] = []

    def post(bias: int) -> None:
        replies.append(server.post("/v1/slow", {"inputs": "Anna", "options": {"bias": bias}}))

    def accepted() -> float:
        """The requests that wait, and those that were run."""
        page = server.get("/metrics").body
        names = ("seqpipe_queue_items", "seqpipe_batch_items_count")
        return sum(metric_value(page, name, bundle="slow") or 0 for name in names)

    with Server(slow_bundle, "--threads", "1") as server, server.connection() as idle:
        idle.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(9999).startswith(b"HTTP/1.1 200 OK")
        assert server.get("/v2/health/ready").json == {"ready": True}
        assert server.get("/v2/health/live").json == {"live": True}
        threads = [threading.Thread(target=post, args=(bias,)) for bias in (10, 11, 12)]  # each takes a second or more
        for thread in threads:
            thread.start()
        while accepted() < 2:  # another one is being run
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(ConnectionRefusedError, ConnectionResetError):
            while True:
                server.get("/v2/health/ready")
        assert any(thread.is_alive() for thread in threads)
        assert idle.recv(9999) == b""
        for thread in threads:
            thread.join()
        assert [reply.status for reply in replies] == [200] * 3
        assert replies[-1].headers["connection"] == "close"  # for the client of a connection that it would keep
        assert server.end() == 0
        assert "Traceback" not in server.log


def test_a_worker_that_never_ends_keeps_neither_a_request_nor_the_server(tiny_bundle: Path, tmp_path: Path) -> None:
    """A client cannot ask for more time than the server gives."""
    with Server(write_stuck_bundle(tiny_bundle, tmp_path / "stuck"), "--timeout", "1", "--threads", "2") as server:
        tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [STUCK]}
        for path, body in (
            ("/v1/stuck", {"inputs": STUCK}),
            ("/v2/models/stuck/infer", {"inputs": [tensor], "parameters": {"timeout": 600_000_000}}),
        ):
            began = time.monotonic()
            assert server.post(path, body, headers={"X-Request-Timeout": "600"}).status == 504
            assert time.monotonic() - began >= 0.9
        assert server.end() == 0
        assert "a worker does not end; its thread is abandoned" in server.log


@needs_proc
def test_a_process_that_does_nothing_any_more_is_killed(tiny_bundle: Path) -> None:
    with Server(tiny_bundle, "--timeout", "1") as server:
        (pid,) = children(server)
        os.kill(pid, signal.SIGSTOP)  # as a library that never lets go of Python's lock
        server.end()
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.long
def test_a_signal_before_it_is_ready_ends_it_too(tiny_bundle: Path) -> None:
    with Server(tiny_bundle, ready=False) as server:
        time.sleep(0.35)
        assert server.end() in (0, 143)


@pytest.mark.long
def test_ctrl_c_ends_it_well(tiny_bundle: Path) -> None:
    with Server(tiny_bundle) as server:
        assert server.end(signal.SIGINT) == 0


# Several processes


@needs_proc
def test_processes_share_a_port_and_count_together_and_one_that_dies_is_replaced(
    tiny_bundle: Path, tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def assert_answers() -> None:
        replies = call_in_threads([lambda: server.post("/v1/toy", {"inputs": "Anna in Bern"})] * 20)
        assert [reply.json for reply in replies] == [{"answer": tiny("Anna in Bern")}] * 20

    with Server(tiny_bundle, "--processes", "2", "--threads", "1") as server:
        before = children(server)
        assert len(before) == 2
        assert_answers()
        pages = [server.get("/metrics").body for _ in range(8)]
        assert {metric_value(page, "seqpipe_requests_total", bundle="toy", code="200") for page in pages} == {20}
        assert [path.name.rpartition("-")[0] for path in tmp_path.iterdir()] == ["seqpipe-metrics"]
        os.kill(before[0], signal.SIGKILL)
        server.wait_for(r"a process of the server has ended; process \d+ replaces it")
        assert_answers()
        after = children(server)
        assert (len(after), before[1] in after, before[0] in after) == (2, True, False)
        assert server.end() == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in after)
    assert [*tmp_path.iterdir()] == []


def test_metrics_of_a_killed_server_are_removed_by_the_next_one(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "other").mkdir()
    (tmp_path / "seqpipe-metrics-link").symlink_to(tmp_path / "other")
    (tmp_path / "seqpipe-metrics-file").write_text("no folder")

    def folders() -> set[Path]:
        return {path for path in tmp_path.glob("*seqpipe-metrics-*") if path.is_dir() and not path.is_symlink()}

    with Server(tiny_bundle, "--processes", "2") as running:
        (used,) = folders()
        with Server(tiny_bundle, "--processes", "2") as killed:
            assert used in folders()
            (left,) = folders() - {used}
            killed.end(signal.SIGKILL)
        with Server(tiny_bundle, "--processes", "2") as server:
            assert used in folders()
            assert left not in folders()
            assert len(folders()) == 2
            assert server.end() == 0
        assert folders() == {used}
        assert running.post("/v1/toy", {"inputs": "Anna"}).status == 200
        assert b"seqpipe_queue_items" in running.get("/metrics").body
        assert running.end() == 0
    assert folders() == set()
    assert {path.name for path in tmp_path.iterdir()} >= {"other", "seqpipe-metrics-link", "seqpipe-metrics-file"}


@pytest.mark.long
@needs_proc
def test_processes_end_with_the_one_that_started_them(tiny_bundle: Path) -> None:
    with Server(tiny_bundle, "--processes", "2") as server:
        pids = children(server)
        server.end(signal.SIGKILL)
        end = time.monotonic() + READY_S
        while any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_text() for pid in pids):
            assert time.monotonic() < end
            time.sleep(0.05)
