"""Bundles loaded and unloaded while the server runs: only those below one folder, by name, never by a client's path."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import stat
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqpipe.errors import SeqpipeError, UsageError, did_you_mean
from seqpipe.runtime import bundle
from seqpipe.runtime.predictor import trim_heap
from seqpipe.runtime.serve.catalog import Catalog, check_name
from seqpipe.runtime.serve.http_errors import HttpError, unavailable
from seqpipe.runtime.serve.metrics import Metrics

_VERSION = re.compile(r"v?[0-9]{1,18}([._-][0-9]{1,18}){0,7}")
log = logging.getLogger("seqpipe.serve")


@dataclass(frozen=True)
class Location:
    """A bundle in the repository: its folder, and its version, which is empty where the folder of its name is it."""

    folder: Path
    version: str


@dataclass
class Status:
    """What the index says of a name besides whether it answers: the version last loaded, the last failure."""

    version: str = ""
    failure: str = ""
    is_loading: bool = False


class Repository:
    """The bundles below one folder: FOLDER/NAME, or the newest version FOLDER/NAME/VERSION.

    Args:
        folder: Of the repository.
        catalog: Serves what is loaded.
        metrics: Counts what was loaded, unloaded and refused.
        started: The folders of the bundles that are served from the start, by name.
    """

    def __init__(self, folder: Path, catalog: Catalog, metrics: Metrics, started: Mapping[str, Path]):
        self._folder, self._catalog, self._metrics = folder.resolve(), catalog, metrics
        self._status: dict[str, Status] = {}
        for name, path in started.items():
            if path.parent == self._folder / name:
                self._status[name] = Status(path.name)
        self._lock = asyncio.Lock()  # one at a time: each needs the memory of a bundle more
        self._tasks: set[asyncio.Task[Any]] = set()

    def index(self) -> list[dict[str, str]]:
        """Every bundle that is served or could be, as the Open Inference Protocol lists them."""
        return [self.entry(name) for name in sorted({*names(self._folder), *self._catalog.services})]

    def entry(self, name: str) -> dict[str, str]:
        """What the index says of one bundle."""
        status, is_served = self._status.get(name, Status()), name in self._catalog.services
        state = "READY" if is_served else "LOADING" if status.is_loading else "UNAVAILABLE"
        reason = status.failure or ("" if is_served or status.is_loading else "not loaded")
        return {"name": name, "version": status.version, "state": state, "reason": reason}

    async def load(self, name: str, version: str | None = None) -> dict[str, str]:
        """Load a bundle beside the one of its name, which answers until the new one takes over; the index's entry.

        Raises:
            HttpError: 404 for a name that is not there, 422 for a bundle that is refused: the old one stays.
        """
        location = locate(self._folder, name, version)
        return await self._finish(self._load(name, location))

    async def unload(self, name: str) -> dict[str, str]:
        """Serve a bundle no longer, once what it has accepted is answered; the index's entry."""
        return await self._finish(self._unload(name))

    async def _load(self, name: str, location: Location) -> dict[str, str]:
        async with self._lock:
            if self._catalog.state:
                raise unavailable(self._catalog.state)
            status = self._status.setdefault(name, Status())
            status.is_loading = True
            try:
                await self._catalog.load(name, location.folder)
            except SeqpipeError as error:
                status.failure = str(error).replace(f"{self._folder}/", "")
                self._metrics.load(name, "refused")
                log.warning("%s: refused: %s", name, status.failure)
                raise HttpError(422, f"{status.failure}{self._kept(name)}") from error
            finally:
                status.is_loading = False
            status.version, status.failure = location.version, ""
            self._metrics.load(name, "loaded")
            return self.entry(name)

    async def _unload(self, name: str) -> dict[str, str]:
        async with self._lock:
            await self._catalog.unload(name)
            self._status.pop(name, None)
            self._metrics.load(name, "unloaded")
            return self.entry(name)

    async def _finish(self, change: Awaitable[dict[str, str]]) -> dict[str, str]:
        """A change is completed even when the client that asked for it leaves."""
        task: asyncio.Task[dict[str, str]] = asyncio.create_task(_then_collect(change))
        self._tasks.add(task)  # the loop itself keeps none alive
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked has it, if still there; the log and the index have it too

    def _kept(self, name: str) -> str:
        return "; the version that was loaded before still answers" if name in self._catalog.services else ""


async def _then_collect(change: Awaitable[dict[str, str]]) -> dict[str, str]:
    """A change, and the memory of what it has replaced given back: a model refers to itself."""
    try:
        return await change
    finally:
        await asyncio.to_thread(_give_back)


def _give_back() -> None:
    gc.collect()
    trim_heap()


def bundles(folder: Path) -> Mapping[str, Path]:
    """Every bundle of a repository in its newest version, by name.

    Raises:
        UsageError: if the folder is not there, or a bundle has a name that none can be served under.
    """
    if not folder.is_dir():
        raise UsageError(f"--repository: {folder}: no such folder; make it, with a folder NAME for each bundle")
    try:
        return {name: locate(folder.resolve(), name).folder for name in names(folder)}
    except HttpError as error:
        raise UsageError(f"--repository: {folder}: {error.message}") from error


def names(folder: Path) -> list[str]:
    """The names in a repository: folders that hold a bundle, or versions of one."""
    folders = [
        entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink() and entry.name[0] != "."
    ]
    return sorted(entry.name for entry in folders if (entry / bundle.MANIFEST).exists() or versions(entry))


def versions(folder: Path) -> list[str]:
    """The versions of one bundle, oldest first: folders called by numbers (3, v3, 1.10, 2026-11-23)."""
    present = [entry.name for entry in folder.iterdir() if _VERSION.fullmatch(entry.name)]
    return sorted(present, key=lambda version: ([int(number) for number in re.findall("[0-9]+", version)], version))


def locate(root: Path, name: str, version: str | None = None) -> Location:
    """Where the bundle of this name is: the newest version, or the one that is named.

    Raises:
        UsageError: for a name that none can be served under.
        HttpError: 404 where there is no such bundle or version, 422 for a link.
    """
    check_name(name)
    folder = root / name
    if not _is_folder(folder):
        raise HttpError(404, f"the repository holds no bundle {name!r}{did_you_mean(name, names(root))}")
    present = versions(folder)
    if version is None and ((folder / bundle.MANIFEST).exists() or not present):
        return Location(folder, "")
    if version is not None and version not in present:
        there = ", ".join(present) or "none"
        raise HttpError(404, f"{name!r} has no version {version!r}; there is: {there}")
    chosen = present[-1] if version is None else version
    if not _is_folder(folder / chosen):
        raise HttpError(422, f"{name}/{chosen}: not a folder")
    return Location(folder / chosen, chosen)


def _is_folder(path: Path) -> bool:
    """Whether this is a folder itself; HttpError for a link, which might lead out of the repository."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    if stat.S_ISLNK(mode):
        raise HttpError(422, f"{path.name}: is a link; a repository holds folders alone: copy the bundle there")
    return stat.S_ISDIR(mode)
