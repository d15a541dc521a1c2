"""The bundles that are served, by name: loaded, exchanged for a new version, and unloaded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from seqpipe.errors import UsageError, did_you_mean
from seqpipe.runtime import bundle
from seqpipe.runtime.model import Model, check_golden, load
from seqpipe.runtime.serve.http_errors import HttpError, unavailable
from seqpipe.runtime.serve.request_record import current
from seqpipe.runtime.serve.service import Observer, Service
from seqpipe.runtime.serve.settings import Settings

RESERVED = ("chat", "completions", "embeddings", "files", "models")  # what OpenAI's protocol has below /v1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Catalog:
    """The services by name, and whether the server takes requests; used in the event loop alone.

    Attributes:
        services: In the order in which they were loaded.
        state: What the server does: "is starting", "is stopping", or nothing when it takes requests.
        observers: Are called with each batch that is done.
    """

    def __init__(self, settings: Settings):
        self._settings = settings
        self.services: dict[str, Service] = {}
        self.state = "is starting"
        self.observers: list[Observer] = []

    def get(self, name: str) -> Service:
        """The service of this name: to be used before anything else is awaited, since it may be exchanged.

        Raises:
            HttpError: 503 while the server starts or stops, 404 if there is none.
        """
        service = self.services.get(name)
        if self.state:
            raise unavailable(self.state)
        if service is None:
            raise HttpError(
                404, f"no bundle {name!r}{did_you_mean(name, self.services)}; GET /v1 lists those that are here"
            )
        if (record := current()) is not None:
            record.bundle = name
        return service

    async def start(self) -> None:
        """Loads every bundle of the settings, then takes requests."""
        for name, folder in self._settings.bundles.items():
            await self.load(name, folder)
        self.state = ""

    async def load(self, name: str, folder: Path) -> Service:
        """Serves a bundle that has answered its golden examples; one of this name is served until then.

        Raises:
            BundleError: if it is refused or answers otherwise; what was served before stays.
        """
        model = await asyncio.to_thread(self._open, folder)
        service = Service(name, model, self._settings, self.observers)
        before, self.services[name] = self.services.get(name), service
        if before is not None:
            await before.close()
        return service

    async def unload(self, name: str) -> None:
        """Serves a bundle no longer, when what it has accepted is answered."""
        service = self.get(name)
        del self.services[name]
        await service.close()

    async def stop(self) -> None:
        """Takes no more requests, and answers what was accepted."""
        self.state = "is stopping"
        await asyncio.gather(*(service.close() for service in self.services.values()))

    def _open(self, folder: Path) -> Model:
        model = load(folder, self._settings.device, threads=1, timeout=self._settings.timeout_s)
        check_golden(model, folder)
        return model


def named(items: Sequence[str]) -> Mapping[str, Path]:
    """The folder of each bundle by its name, from what a command line gives: FOLDER or NAME=FOLDER.

    Raises:
        UsageError: for a name that cannot be part of an address, is reserved, or is given twice.
    """
    bundles: dict[str, Path] = {}
    for item in items:
        name, equals, folder = item.partition("=")
        path = Path(folder if equals and not Path(item).is_dir() else item)
        name = name if path == Path(folder) and equals else bundle.read_manifest(path)[0].name
        check_name(name)
        if name in bundles:
            raise UsageError(f"{item}: the name {name!r} is given twice; write NAME={path} with another name")
        bundles[name] = path
    return bundles


def check_name(name: str) -> None:
    """UsageError for a name that no bundle can be served under."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot be a name in an address: letters, digits, . _ and -; write NAME=FOLDER")
    if name in RESERVED:
        raise UsageError(f"the name {name!r} is reserved for the OpenAI protocol; write NAME=FOLDER with another name")
