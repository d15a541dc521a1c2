"""One connection of a client: uvicorn's, which also tells the request that its client has left."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from seqpipe.runtime.serve.app import CONNECTION


class Connection(HttpToolsProtocol):
    """A connection that cancels the task of its request when it is lost."""

    task: asyncio.Task[Any] | None = None
    lost = False

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self.task is not None:
            self.task.cancel()
        super().connection_lost(exc)
