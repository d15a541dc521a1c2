"""Runs the server in this process: it loads the bundles while it listens, and ends when all is answered."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Sequence

import uvicorn

from seqpipe.runtime.serve.app import make_app
from seqpipe.runtime.serve.catalog import Catalog
from seqpipe.runtime.serve.connection import protocol
from seqpipe.runtime.serve.early_refusal import EarlyRefusal
from seqpipe.runtime.serve.metrics import Metrics
from seqpipe.runtime.serve.operation import waiting
from seqpipe.runtime.serve.settings import Settings
from seqpipe.runtime.serve.systemd import STOPPING, Heartbeat, notify

_GRACE = 5  # seconds that responses may take to be sent, after the last answer
SIGNALS = (signal.SIGINT, signal.SIGTERM)  # after which a server ends well


def run(settings: Settings, sockets: Sequence[socket.socket], on_ready: Callable[[list[str]], None]) -> None:
    """Answers requests until SIGTERM or SIGINT, then what was accepted.

    Args:
        settings: Of the server.
        sockets: Where it listens.
        on_ready: Is called with the names of the bundles when they have answered their golden examples.

    Raises:
        BundleError: if a bundle is refused.
    """
    server = Server(settings, on_ready)
    server.run(list(sockets))
    if server.failure is not None:
        raise server.failure


class Server(uvicorn.Server):
    """uvicorn's server, whose end by a signal is a good one."""

    def __init__(self, settings: Settings, on_ready: Callable[[list[str]], None]):
        self.catalog, self._on_ready = Catalog(settings), on_ready
        self.failure: Exception | None = None
        self._metrics, self._heartbeat = Metrics(), Heartbeat()
        self._waits = settings.processes > 1  # others answer until this one can
        app = make_app(self.catalog, settings, self._metrics)
        config = uvicorn.Config(
            app,
            http=protocol(settings, EarlyRefusal(self.catalog, settings, app.note)),
            loop="uvloop",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(settings.idle_s),
            timeout_graceful_shutdown=int(settings.timeout_s) + _GRACE,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loading = asyncio.create_task(self._load())
        if self._waits:
            await self._loading
        if self.failure is None:
            await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if not self._waits:
            notify(STOPPING)
        self.catalog.state = "is stopping"
        self._loading.cancel()
        await super().shutdown(sockets)
        await self.catalog.stop()

    async def on_tick(self, counter: int) -> bool:
        self._heartbeat.beat()
        if self._waits and counter % 10 == 0:  # each second: another process may be asked for the metrics
            self._metrics.refresh(waiting(self.catalog))
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but a signal that was obeyed is not raised again."""
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def _load(self) -> None:
        try:
            await self.catalog.start()
        except Exception as error:
            self.failure, self.should_exit = error, True
        else:
            self._on_ready(list(self.catalog.services))
