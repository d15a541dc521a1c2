"""Runs the server: sockets, signals, draining."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator

import uvicorn

from seqpipe.console import Console
from seqpipe.errors import UsageError
from seqpipe.runtime.serve import operation, systemd
from seqpipe.runtime.serve.app import make_app
from seqpipe.runtime.serve.auth import exposure
from seqpipe.runtime.serve.catalog import Catalog
from seqpipe.runtime.serve.connection import protocol
from seqpipe.runtime.serve.metrics import Metrics
from seqpipe.runtime.serve.settings import Settings
from seqpipe.runtime.serve.sockets import activation_socket, unix_socket

_GRACE = 5  # seconds that responses may take to be sent, after the last answer


def serve(settings: Settings, console: Console) -> None:
    """Answers requests until SIGTERM or SIGINT, then what was accepted.

    Raises:
        UsageError: if the address cannot be listened at.
        BundleError: if a bundle is refused.
    """
    if settings.repository is not None and settings.processes > 1:
        raise UsageError("--repository needs one process, which loads and unloads for all; leave out --processes")
    with listening(settings, console) as listener:
        _Server(settings, console).run_all([listener])


@contextlib.contextmanager
def listening(settings: Settings, console: Console) -> Iterator[socket.socket]:
    """Where the server listens: at the socket that systemd passes, else at a Unix socket, else at host and port."""
    passed = activation_socket()
    if passed is not None:
        yield passed
    elif settings.uds is not None:
        with unix_socket(settings.uds) as listener:
            yield listener
    else:
        if warning := exposure(settings.host, settings.token):
            console.result(f"warning: {warning}")
        yield listen(settings)


def listen(settings: Settings) -> socket.socket:
    """A socket that listens where the settings say; UsageError if it cannot."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        listener.close()
        place = f"{settings.host}:{settings.port}"
        raise UsageError(f"{place}: cannot be listened at ({error}); give another --host or --port") from error
    listener.set_inheritable(True)
    return listener


class _Server(uvicorn.Server):
    """uvicorn's server, which loads the bundles while it listens, and whose end by a signal is a good one."""

    def __init__(self, settings: Settings, console: Console):
        self._catalog, self._console = Catalog(settings), console
        self._metrics, self._processes = Metrics(), settings.processes
        app = make_app(self._catalog, settings, self._metrics)
        grace = int(settings.timeout_s) + _GRACE
        config = uvicorn.Config(
            app,
            http=protocol(settings),
            loop="uvloop",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(settings.idle_s),
            timeout_graceful_shutdown=grace,
        )
        super().__init__(config)
        self._failure: Exception | None = None

    def run_all(self, sockets: list[socket.socket]) -> None:
        """As `run`; raises what a bundle that could not be loaded raised."""
        self.run(sockets)
        if self._failure is not None:
            raise self._failure

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._alive = asyncio.create_task(systemd.keep_alive())
        self._loading = asyncio.create_task(self._load([_address(one) for one in sockets or []]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        systemd.notify(systemd.STOPPING)
        self._catalog.state = "is stopping"
        self._loading.cancel()
        await super().shutdown(sockets)
        await self._catalog.stop()

    async def on_tick(self, counter: int) -> bool:
        if self._processes > 1 and counter % 10 == 0:  # each second: another process may be asked for the metrics
            self._metrics.refresh(operation.waiting(self._catalog))
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but a signal that was obeyed is not raised again."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def _load(self, addresses: list[str]) -> None:
        try:
            await self._catalog.start()
        except Exception as error:
            self._failure, self.should_exit = error, True
            return
        systemd.notify(systemd.READY)
        self._console.say(f"{', '.join(addresses)}: ready: {', '.join(self._catalog.services)}")


def _address(listener: socket.socket) -> str:
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
