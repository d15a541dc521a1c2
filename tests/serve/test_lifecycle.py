"""A server from its start to its end: names, readiness, draining, exit codes, several processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import forged
import pytest
from served_bundles import STUCK, write_stuck_bundle
from serving import READY_S, Reply, Server

from seqpipe import Model
from seqpipe.errors import UsageError, install_command
from seqpipe.serve.settings import bundles_by_name


def started(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A server that is not to start: how it ended."""
    command = [sys.executable, "-m", "seqpipe", "serve", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_bundle_has_its_own_name_or_the_one_given(tiny_bundle: Path, slow_bundle: Path) -> None:
    assert bundles_by_name([str(tiny_bundle), f"b={slow_bundle}"]) == {"toy": tiny_bundle, "b": slow_bundle}


@pytest.mark.parametrize(
    ("items", "told"),
    [
        (["{}", "{}"], "the name 'toy' is given twice; write NAME="),
        (["a={}", "a={}"], "the name 'a' is given twice; write NAME="),
        (["models={}"], "the name 'models' is reserved for the OpenAI protocol; write NAME=FOLDER with another name"),
        (["a/b={}"], "'a/b' cannot be a name in an address: letters, digits, . _ and -; write NAME=FOLDER"),
        (["={}"], "'' cannot be a name in an address"),
        ([".a={}"], "'.a' cannot be a name in an address"),
    ],
)
def test_a_name_that_cannot_be_is_refused(tiny_bundle: Path, items: list[str], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        bundles_by_name([item.format(tiny_bundle) for item in items])
    assert told in str(caught.value)


def test_a_folder_with_an_equals_sign_is_a_folder(tiny_bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_bundle, tmp_path / "a=b")
    assert bundles_by_name([str(tmp_path / "a=b")]) == {"toy": tmp_path / "a=b"}


def test_a_server_that_cannot_start_says_why(tiny_bundle: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = started(tiny_bundle, "--port", taken.getsockname()[1])
    assert (done.returncode, "cannot listen there (Address already in use); use another" in done.stderr) == (2, True)
    assert "name at least one bundle" in started().stderr
    broken = Path(shutil.copytree(tiny_bundle, tmp_path / "broken"))
    (broken / "model.onnx").write_bytes(b"x")
    for more in ([], ["--processes", "2"]):
        done = started(f"toy={broken}", "--port", 0, *more)
        assert (done.returncode, "model.onnx: damaged" in done.stderr, "Traceback" in done.stderr) == (6, True, False)


def test_a_bundle_that_fails_its_golden_examples_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    from seqpipe.runtime import bundle

    content = bundle.read(tiny_bundle)
    forged.write(
        tmp_path / "other",
        content.files,
        {**forged.plain(content.manifest), "golden": [{"record": {"text": "Anna"}, "answer": []}]},
    )
    done = started(tmp_path / "other", "--port", 0)
    assert (done.returncode, "answers differ on this machine" in done.stderr) == (6, True)


def test_a_server_that_ends_answers_what_it_accepted_and_takes_no_more(slow_bundle: Path) -> None:
    replies: list[Reply] = []
    with Server(slow_bundle) as server, server.connection() as idle:
        idle.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(9999).startswith(b"HTTP/1.1 200 OK")
        assert (server.get("/v2/health/ready").json, server.get("/v2/health/live").json) == (
            {"ready": True},
            {"live": True},
        )
        accepted = [
            threading.Thread(
                target=lambda i=i: replies.append(
                    server.post("/v1/slow", {"inputs": "Anna", "options": {"bias": 4 + i / 10}})
                )
            )
            for i in range(6)
        ]
        for thread in accepted:
            thread.start()
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        idle.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        parts = []
        while part := idle.recv(9999):  # the client of a kept connection is told, and then it ends
            parts.append(part)
        assert b"\r\nconnection: close\r\n" in b"".join(parts)
        time.sleep(0.6)
        with pytest.raises((ConnectionRefusedError, ConnectionResetError)):
            server.get("/v2/health/ready", timeout=5)
        for thread in accepted:
            thread.join()
        assert [reply.status for reply in replies] == [200] * 6
        assert server.end() == 0
        assert "Traceback" not in server.log


def test_a_worker_that_never_ends_keeps_neither_a_request_nor_the_server(tiny_bundle: Path, tmp_path: Path) -> None:
    with Server(write_stuck_bundle(tiny_bundle, tmp_path / "stuck"), "--timeout", "1", "--threads", "2") as server:
        tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [STUCK]}
        for path, body in (
            ("/v1/stuck", {"inputs": STUCK}),
            ("/v2/models/stuck/infer", {"inputs": [tensor], "parameters": {"timeout": 60_000_000}}),
        ):  # a client cannot ask for more time than the server gives
            began = time.monotonic()
            reply = server.post(path, body, headers={"X-Request-Timeout": "60"})
            assert reply.status == 504
            assert 0.9 <= time.monotonic() - began < 3
        began = time.monotonic()
        assert server.end() == 0
        assert time.monotonic() - began < 1 + 5
        assert "a worker does not end; its thread is abandoned" in server.log


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc, to find processes")
def test_a_process_that_does_nothing_any_more_is_killed_in_time(tiny_bundle: Path) -> None:
    with Server(tiny_bundle, "--timeout", "1") as server:
        (pid,) = children(server)
        os.kill(pid, signal.SIGSTOP)  # as a library that never lets go of Python's lock
        began = time.monotonic()
        server.end()
        assert time.monotonic() - began < 1 + 5
        assert not Path(f"/proc/{pid}").exists()


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
def test_a_signal_before_it_is_ready_ends_it_too(tiny_bundle: Path) -> None:
    with Server(tiny_bundle, ready=False) as server:
        time.sleep(0.35)
        assert server.end(signal.SIGTERM, 20) in (0, 143)


@pytest.mark.long
def test_ctrl_c_ends_it_well(tiny_bundle: Path) -> None:
    with Server(tiny_bundle) as server:
        assert server.end(signal.SIGINT) == 0


def children(server: Server) -> list[int]:
    """The processes that answer."""
    found = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    return [int(pid) for pid in found if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc, to find processes")
def test_several_processes_share_a_port_and_one_that_dies_is_replaced(tiny_bundle: Path, tiny: Model) -> None:
    expected = {"answer": tiny("Anna in Bern")}
    with Server(tiny_bundle, "--processes", "2") as server:
        before = children(server)
        assert len(before) == 2
        assert [server.post("/v1/toy", {"inputs": "Anna in Bern"}).json for _ in range(20)] == [expected] * 20
        os.kill(before[0], signal.SIGKILL)
        server.wait_for(r"a process of the server has ended; process \d+ replaces it")
        assert [server.post("/v1/toy", {"inputs": "Anna in Bern"}).json for _ in range(20)] == [expected] * 20
        after = children(server)
        assert (len(after), before[1] in after, before[0] in after) == (2, True, False)
        assert server.end() == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in after)


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc, to find processes")
def test_processes_end_with_the_one_that_started_them(tiny_bundle: Path) -> None:
    with Server(tiny_bundle, "--processes", "2") as server:
        pids = children(server)
        server.end(signal.SIGKILL)
        end = time.monotonic() + READY_S
        while any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_text() for pid in pids):
            assert time.monotonic() < end
            time.sleep(0.05)


def test_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path) -> None:
    code = "import sys; sys.modules['granian'] = None\nfrom seqpipe.commands.app import main; main()"
    command = [sys.executable, "-c", code, "serve", str(tiny_bundle)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (7, f"granian is not installed: {install_command('serve')}\n")


def test_other_commands_import_nothing_of_the_server() -> None:
    code = (
        "import json, sys\nimport seqpipe.commands.app, seqpipe.runtime.model\n"
        "print(json.dumps([name for name in ('starlette', 'granian', 'prometheus_client', "
        "'seqpipe.serve') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == []
