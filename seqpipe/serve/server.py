"""Run the server: granian's processes, each of which loads the bundles and shuts down gracefully at a signal."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from granian import Granian
from granian.constants import HTTPModes, Interfaces, Loops
from granian.http import HTTP1Settings
from prometheus_client.multiprocess import mark_process_dead
from starlette.types import ASGIApp

from seqpipe.console import Console
from seqpipe.errors import SeqpipeError, UsageError
from seqpipe.serve.auth import exposure_warning
from seqpipe.serve.settings import CROWDED_WRITE_SECONDS, SHUTDOWN_NOTICE, Settings

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # that shut a server down gracefully
READY, ALIVE = "READY=1", "WATCHDOG=1"  # states for systemd, see sd_notify(3)
_GRACE = 5  # seconds for the shutdown in addition to the time limit of a request
_NOTICE_SECONDS = 0.5  # of them, in which responses ask clients to close their connections; 1.5 more are for stopping
_METRICS_PREFIX = "seqpipe-metrics-"  # prefix of the folder's name
_MODE = 0o660  # of a Unix socket: owner and group may connect
_SEND_BUFFER = 64 << 10  # bytes of a response that the system holds for a client; Linux doubles it
_OTHER_FILES = 200  # descriptors that a process needs in addition to connections
Report = tuple[int, str | SeqpipeError]  # from a process: its id, and its state or the error that prevents its start


def run_server(settings: Settings, console: Console) -> None:
    """Answer requests until SIGTERM or SIGINT, then finish accepted requests.

    Raises:
        UsageError: if the server cannot listen on the address.
        BundleError: if a bundle is refused.
    """
    if settings.repository is not None and settings.processes > 1:
        raise UsageError("--repository needs a single process, as loading changes only one; omit --processes")
    _allow_connections(settings.max_connections)
    # A process that inherits nothing: a fork would copy the threads' locks, and keep the pipe open by which a process
    # notices that its parent has ended.
    multiprocessing.set_start_method("spawn", force=True)
    reports, sender = multiprocessing.Pipe(duplex=False)
    with contextlib.ExitStack() as stack:
        if settings.processes > 1:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = stack.enter_context(_metrics_folder())
        if settings.uds is not None:
            _check_unix_socket(settings.uds)
            listener, address = Listener(socket.AF_UNIX, str(settings.uds)), ("", 0)
        else:
            listener, address = stack.enter_context(_reserve_address(settings))
            settings = replace(settings, host=address[0])  # a name does not show whether it is a loopback address
            if warning := exposure_warning(settings.host, settings.token):
                console.result(f"warning: {warning}")
        server = Granian(
            "seqpipe",
            *address,
            uds=settings.uds,
            uds_permissions=None if settings.uds is None else _MODE,
            interface=Interfaces.ASGI,
            workers=settings.processes,
            loop=Loops.auto,  # uvloop, which the extra `serve` installs if it is available
            http=HTTPModes.http1,
            websockets=False,
            backpressure=settings.max_connections,
            http1_settings=HTTP1Settings(
                header_read_timeout=int(settings.idle_s * 1000), max_buffer_size=settings.max_header_bytes
            ),
            log_enabled=False,
            respawn_failed_workers=True,
            workers_kill_timeout=int(settings.timeout_s + _GRACE - 4 * _NOTICE_SECONDS),
        )
        processes = ServerProcesses(settings, listener, console)
        server.on_startup(processes.handle_signals)
        thread = threading.Thread(target=processes.listen, args=(reports,), daemon=True)
        thread.start()
        try:
            server.serve(target_loader=partial(_load, settings, sender), wrap_loader=False)
        except SystemExit as ended:
            if processes.failure is None:
                raise SeqpipeError("a process of the server has ended twice within some seconds") from ended
        finally:
            sender.close()
            thread.join()
    if processes.failure is not None:
        raise processes.failure


def _load(settings: Settings, sender: Connection) -> ASGIApp:
    """Return the application of one process, with its bundles loaded; granian calls it before it listens."""
    os.setpgrp()  # Ctrl+C is for the parent process, which then ends all processes
    for number in STOP_SIGNALS:  # granian sets handlers of its own later; until then a signal ends the process at once
        signal.signal(number, signal.SIG_DFL)
    # Imported here, since the parent process does not need onnxruntime and its memory.
    from seqpipe.serve.app import make_app
    from seqpipe.serve.service import open_model

    limit, least = 0.0, sys.maxsize  # seconds without reading, and open files without connections

    def report(state: str | SeqpipeError) -> None:
        nonlocal limit, least
        count = len(os.listdir("/dev/fd"))
        least = min(least, count)
        is_full = count - least >= settings.max_connections  # further clients wait
        seconds = min(settings.write_s, CROWDED_WRITE_SECONDS) if is_full else settings.write_s
        if seconds != limit and limit_unread(seconds):
            limit = seconds
        sender.send((os.getpid(), state))

    try:
        models = {name: open_model(folder, settings) for name, folder in settings.bundles.items()}
        app = make_app(settings, models, report)
        gc.freeze()  # a collection that visited the modules would keep the event loop from its requests for 0.1 s
        return app
    except Exception as error:
        report(error if isinstance(error, SeqpipeError) else SeqpipeError(f"{type(error).__name__}: {error}"))
        raise SystemExit(1) from error


def limit_unread(seconds: float) -> bool:
    """Let Linux close each TCP connection whose client reads nothing for so long; return whether one socket listens.

    Neither granian nor hyper limits the time of a write: a client that does not read would keep its connection. Both
    hide their sockets, but an accepted one has the options of the one that listens.
    """
    is_listening = False
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError), socket.fromfd(int(name), socket.AF_INET, socket.SOCK_STREAM) as connection:
            is_listening |= bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))  # OSError: no socket
            if sys.platform == "linux":
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))  # OSError: Unix
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    return is_listening


@contextlib.contextmanager
def _metrics_folder() -> Iterator[str]:
    """Create a folder in which processes share their metrics; remove those of killed servers.

    A server has the lock of its folder as long as it runs; the system releases the lock when the process ends.
    """
    for stale in Path(tempfile.gettempdir()).glob(f"{_METRICS_PREFIX}*"):
        with contextlib.suppress(OSError), _lock(stale, fcntl.LOCK_NB):  # of another user, in use, or gone already
            shutil.rmtree(stale)
    new = Path(tempfile.mkdtemp(prefix=f".{_METRICS_PREFIX}"))
    with _lock(new):  # before it has the prefix for which other servers search
        folder = new.rename(new.with_name(new.name[1:]))
        try:
            yield str(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _lock(folder: Path, mode: int = 0) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | mode)
        yield
    finally:
        os.close(handle)


class Listener:
    """Address of a server, as clients write it."""

    def __init__(self, family: int, address: object):
        self._family, self._address = family, address

    def __str__(self) -> str:
        if isinstance(self._address, str):
            return f"unix:{self._address}"
        host, port = self._address[:2]  # type: ignore[index]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def wait(self) -> None:
        """Wait until a connection is accepted: granian loads the application before it listens."""
        while True:
            with socket.socket(self._family, socket.SOCK_STREAM) as client:
                if client.connect_ex(self._address) == 0:  # type: ignore[arg-type]
                    return
            time.sleep(0.01)


class ServerProcesses:
    """States reported by the processes of a server, for the console and for systemd.

    `environment` has variables with systemd's socket and watchdog interval.
    """

    def __init__(
        self, settings: Settings, listener: Listener, console: Console, environment: Mapping[str, str] = os.environ
    ):
        self._settings, self._listener, self._console, self._environment = settings, listener, console, environment
        self.last_reports: dict[int, float] = {}  # time, for each process that has loaded its bundles
        self._is_ready = False
        self._period, self._beat = watchdog_seconds(environment), 0.0
        self.failure: SeqpipeError | None = None  # the error that prevented the start of a process

    def handle_signals(self) -> None:
        """Announce the end to clients of persistent connections, before granian's signal handlers close them."""

        def announce_shutdown(end: Any, number: int, frame: object) -> None:
            for child in multiprocessing.active_children():
                if child.pid in self.last_reports:  # before its first report, the signal would end it
                    os.kill(child.pid, signal.Signals[SHUTDOWN_NOTICE])
            time.sleep(_NOTICE_SECONDS if self.last_reports else 0)
            end(number, frame)

        for number in STOP_SIGNALS:
            signal.signal(number, partial(announce_shutdown, signal.getsignal(number)))

    def listen(self, reports: Connection) -> None:
        """Receive reports until every process has ended."""
        with contextlib.suppress(EOFError):
            while True:
                self.handle_report(reports.recv())

    def handle_report(self, report: Report) -> None:
        """Process one report."""
        pid, state = report
        if isinstance(state, SeqpipeError):
            self.failure = self.failure or state
            os.kill(os.getpid(), signal.SIGTERM)  # ends the server, like a signal from outside
            return
        ended = [number for number in self.last_reports if not _is_alive(number)]
        for number in ended:
            del self.last_reports[number]
            if self._settings.processes > 1:
                mark_process_dead(number)  # removes its queues and keeps its counts
        is_new = pid not in self.last_reports
        self.last_reports[pid] = now = time.monotonic()
        if not self._is_ready and len(self.last_reports) == self._settings.processes:
            self._is_ready = True
            self._listener.wait()
            notify(READY, self._environment)
            self._console.say(f"{self._listener}: ready: {', '.join(self._settings.bundles)}")
        elif self._is_ready and is_new:
            self._console.result(f"a process of the server has ended; process {pid} replaces it")
        # A single stuck process stops the watchdog messages, so systemd restarts the server.
        if self._is_ready and self._period is not None and now >= self._beat:
            if min(self.last_reports.values()) > now - self._period:
                notify(ALIVE, self._environment)
            self._beat = now + self._period / 2


def notify(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send a state to systemd; without NOTIFY_SOCKET nothing is sent."""
    address = environment.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # Linux's abstract names
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), address)


def watchdog_seconds(environment: Mapping[str, str] = os.environ) -> float | None:
    """Return the interval of systemd's watchdog in seconds; None if `WatchdogSec=` is not set."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = environment.get("WATCHDOG_USEC")
    return int(microseconds) / 1e6 if microseconds else None


@contextlib.contextmanager
def _reserve_address(settings: Settings) -> Iterator[tuple[Listener, tuple[str, int]]]:
    """Find a free address, and reserve it until the server listens."""
    place = f"{settings.host}:{settings.port}"
    try:
        addresses = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{place}: no address to listen on ({error}); use another --host") from error
    family, _, _, _, address = addresses[0]
    with socket.socket(family, socket.SOCK_STREAM) as holder:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                address = probe.getsockname()
            # On Linux each of granian's processes shares the port by SO_REUSEPORT, and so may this socket. It does not
            # listen, so that no connection goes to it.
            if sys.platform == "linux":
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                holder.bind(address)
        except OSError as error:
            message = f"{place}: cannot listen there ({error.strerror}); use another --host or --port"
            raise UsageError(message) from error
        yield Listener(family, address), (str(address[0]), int(address[1]))


def _check_unix_socket(path: Path) -> None:
    """Remove the socket of a server that has ended.

    Raises:
        UsageError: if something else is there, a server listens there already, or no socket can be created there.
    """
    with contextlib.suppress(OSError):  # the path does not exist, or is inaccessible, which `bind` reports
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageError(f"--uds: {path}: exists and is not a socket; name another path")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(1)
            try:
                client.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
            except OSError as error:
                fix = "remove it if it is not"
                raise UsageError(f"--uds: {path}: exists and may be in use ({error}); {fix}") from error
            else:
                raise UsageError(f"--uds: {path}: another server listens there; stop it, or name another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(str(path))
        except OSError as error:  # a path of over 107 bytes, a folder that does not exist or is not writable
            raise UsageError(f"--uds: {path}: cannot create a socket: {error.strerror or error}") from error
    path.unlink()


def _allow_connections(count: int) -> None:
    """Raise the limit of open files for the connections, as far as the system allows it; processes inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
