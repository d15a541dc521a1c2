"""Run the server: granian's processes, each of which loads the bundles and shuts down gracefully at a signal."""

from __future__ import annotations

import contextlib
import fcntl
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
from seqpipe.serve.auth import exposure
from seqpipe.serve.settings import GOODBYE, Settings

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # after which a server ends well
READY, ALIVE = "READY=1", "WATCHDOG=1"  # states for systemd, see sd_notify(3)
_GRACE = 5  # seconds that the server may take to end beyond the time of a request
_FAREWELL = 0.5  # of them, in which answers ask clients to close their connections; 1.5 more are for stopping
_METRICS = "seqpipe-metrics-"  # begins the name of a folder
_MODE = 0o660  # of a Unix socket: owner and group may connect
_OTHER_FILES = 200  # descriptors that a process needs besides those of connections
Report = tuple[int, str | SeqpipeError]  # from a process: its number, and its state or why it cannot start


def serve(settings: Settings, console: Console) -> None:
    """Answer requests until SIGTERM or SIGINT, then finish accepted requests.

    Raises:
        UsageError: if the address cannot be listened at.
        BundleError: if a bundle is refused.
    """
    if settings.repository is not None and settings.processes > 1:
        raise UsageError("--repository needs one process, which loads and unloads for all; leave out --processes")
    _allow_connections(settings.max_connections)
    # A process that inherits nothing: a fork would copy the threads' locks, and keep the pipe open on which a process
    # notices that the one that started it is gone.
    multiprocessing.set_start_method("spawn", force=True)
    reports, sender = multiprocessing.Pipe(duplex=False)
    with contextlib.ExitStack() as stack:
        if settings.processes > 1:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = stack.enter_context(_metrics_folder())
        if settings.uds is not None:
            _check_unix_socket(settings.uds)
            listener, address = Listener(socket.AF_UNIX, str(settings.uds)), ("", 0)
        else:
            listener, address = stack.enter_context(_reserved(settings))
            settings = replace(settings, host=address[0])  # a name would not say whether it is a loopback address
            if warning := exposure(settings.host, settings.token):
                console.result(f"warning: {warning}")
        server = Granian(
            "seqpipe",
            *address,
            uds=settings.uds,
            uds_permissions=None if settings.uds is None else _MODE,
            interface=Interfaces.ASGI,
            workers=settings.processes,
            loop=Loops.auto,  # uvloop, which the extra `serve` installs where it can be had
            http=HTTPModes.http1,
            websockets=False,
            backpressure=settings.max_connections,
            http1_settings=HTTP1Settings(
                header_read_timeout=int(settings.idle_s * 1000), max_buffer_size=settings.max_header_bytes
            ),
            log_enabled=False,
            respawn_failed_workers=True,
            workers_kill_timeout=int(settings.timeout_s + _GRACE - 4 * _FAREWELL),
        )
        processes = Processes(settings, listener, console)
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
    os.setpgrp()  # Ctrl+C is for the process that started this one, which then ends all of them
    for number in SIGNALS:  # granian sets handlers of its own later; until then a signal ends the process at once
        signal.signal(number, signal.SIG_DFL)
    # Imported here: the process that starts the others needs neither onnxruntime nor the memory that it takes.
    from seqpipe.serve.app import make_app
    from seqpipe.serve.service import open_model

    def report(state: str | SeqpipeError) -> None:
        sender.send((os.getpid(), state))

    try:
        models = {name: open_model(folder, settings) for name, folder in settings.bundles.items()}
        return make_app(settings, models, report)
    except Exception as error:
        report(error if isinstance(error, SeqpipeError) else SeqpipeError(f"{type(error).__name__}: {error}"))
        raise SystemExit(1) from error


@contextlib.contextmanager
def _metrics_folder() -> Iterator[str]:
    """Create a folder in which processes share their metrics; remove those of killed servers.

    A server holds the lock of its folder for as long as it runs, and the system releases it whatever ends the server.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_METRICS}*"):
        with contextlib.suppress(OSError), _locked(left, fcntl.LOCK_NB):  # of another user, in use, or gone already
            shutil.rmtree(left)
    new = Path(tempfile.mkdtemp(prefix=f".{_METRICS}"))
    with _locked(new):  # before it has a name for which another server that starts looks
        folder = new.rename(new.with_name(new.name[1:]))
        try:
            yield str(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path, mode: int = 0) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | mode)
        yield
    finally:
        os.close(handle)


class Listener:
    """Address of a server, in the form that clients use."""

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


class Processes:
    """States that the processes of a server report, for the console and for systemd.

    Args:
        settings: Of the server.
        listener: Its address.
        console: For messages.
        environment: In which systemd says where it listens, and how often it wants to hear of a process.

    Attributes:
        heard: When each process that has loaded its bundles was heard of.
        failure: What kept a process from starting.
    """

    def __init__(
        self, settings: Settings, listener: Listener, console: Console, environment: Mapping[str, str] = os.environ
    ):
        self._settings, self._listener, self._console, self._environment = settings, listener, console, environment
        self.heard: dict[int, float] = {}
        self._is_ready = False
        self._period, self._beat = watchdog_seconds(environment), 0.0
        self.failure: SeqpipeError | None = None

    def handle_signals(self) -> None:
        """Announce the end to clients of persistent connections, before granian's signal handlers close them."""

        def say_goodbye(end: Any, number: int, frame: object) -> None:
            for child in multiprocessing.active_children():
                if child.pid in self.heard:  # before that, the signal would end it
                    os.kill(child.pid, GOODBYE)
            time.sleep(_FAREWELL if self.heard else 0)
            end(number, frame)

        for number in SIGNALS:
            signal.signal(number, partial(say_goodbye, signal.getsignal(number)))

    def listen(self, reports: Connection) -> None:
        """Receive reports until every process has ended."""
        with contextlib.suppress(EOFError):
            while True:
                self.hear(reports.recv())

    def hear(self, report: Report) -> None:
        """Process one report."""
        pid, state = report
        if isinstance(state, SeqpipeError):
            self.failure = self.failure or state
            os.kill(os.getpid(), signal.SIGTERM)  # ends the server, as it would from outside
            return
        ended = [number for number in self.heard if not _is_alive(number)]
        for number in ended:
            del self.heard[number]
            if self._settings.processes > 1:
                mark_process_dead(number)  # its queues are gone, its counts stay
        is_new = pid not in self.heard
        self.heard[pid] = now = time.monotonic()
        if not self._is_ready and len(self.heard) == self._settings.processes:
            self._is_ready = True
            self._listener.wait()
            notify(READY, self._environment)
            self._console.say(f"{self._listener}: ready: {', '.join(self._settings.bundles)}")
        elif self._is_ready and is_new:
            self._console.result(f"a process of the server has ended; process {pid} takes its place")
        # One process that is stuck is enough for systemd to hear nothing more, and to restart the server.
        if self._is_ready and self._period is not None and now >= self._beat:
            if min(self.heard.values()) > now - self._period:
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
def _reserved(settings: Settings) -> Iterator[tuple[Listener, tuple[str, int]]]:
    """Find a free address, and reserve it until the server listens."""
    place = f"{settings.host}:{settings.port}"
    try:
        addresses = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UsageError(f"{place}: no address to listen at ({error}); give another --host") from error
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
            message = f"{place}: cannot be listened at ({error.strerror}); give another --host or --port"
            raise UsageError(message) from error
        yield Listener(family, address), (str(address[0]), int(address[1]))


def _check_unix_socket(path: Path) -> None:
    """Remove the socket of a server that has ended.

    Raises:
        UsageError: if something else is there, a server listens there already, or the path is no place for a socket.
    """
    with contextlib.suppress(OSError):  # nothing there, or no way there, which `bind` reports
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageError(f"--uds: {path}: is there and is no socket; name another path")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(1)
            try:
                client.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
            except OSError as error:
                fix = "remove it if it is not"
                raise UsageError(f"--uds: {path}: is there and may be in use ({error}); {fix}") from error
            else:
                raise UsageError(f"--uds: {path}: another server listens there; stop it, or name another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(str(path))
        except OSError as error:  # a path of over 107 bytes, a folder that is not there or not writable
            raise UsageError(f"--uds: {path}: no socket can be made there: {error.strerror or error}") from error
    path.unlink()


def _allow_connections(count: int) -> None:
    """Raise the limit of open files to what connections need, as far as the system lets it; processes inherit it."""
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
