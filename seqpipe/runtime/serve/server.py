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
from seqpipe.runtime.serve.app import make_app
from seqpipe.runtime.serve.catalog import Catalog
from seqpipe.runtime.serve.connection import Connection
from seqpipe.runtime.serve.settings import Settings

_GRACE = 5  # seconds that responses may take to be sent, after the last answer


def serve(settings: Settings, console: Console) -> None:
    """Answers requests until SIGTERM or SIGINT, then what was accepted.

    Raises:
        UsageError: if the address cannot be listened at.
        BundleError: if a bundle is refused.
    """
    listener = listen(settings)
    _Server(settings, console).run_all([listener])


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
        app = make_app(self._catalog, settings)
        grace = int(settings.timeout_s) + _GRACE
        config = uvicorn.Config(
            app,
            http=Connection,
            loop="uvloop",
            ws="none",
            lifespan="off",
            log_config=None,
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
        self._loading = asyncio.create_task(self._load([_address(one) for one in sockets or []]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._catalog.state = "is stopping"
        self._loading.cancel()
        await super().shutdown(sockets)
        await self._catalog.stop()

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
        self._console.say(f"{', '.join(addresses)}: ready: {', '.join(self._catalog.services)}")


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
