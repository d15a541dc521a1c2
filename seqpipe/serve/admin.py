"""Endpoints for operators: `/metrics`, and `/v2/repository` to load and unload bundles."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import defaultdict
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from seqpipe.errors import SeqpipeError
from seqpipe.runtime.predictor import trim_heap
from seqpipe.serve.http import AnyBody, Body, HttpError, parse_body, read_json_body
from seqpipe.serve.metrics import Metrics, Waiting
from seqpipe.serve.repository import Location, locate_bundle, names
from seqpipe.serve.service import Catalog
from seqpipe.serve.settings import Settings

log = logging.getLogger("seqpipe.serve")


class IndexRequest(Body):
    """A request for the bundles of the repository."""

    ready: bool = False  # whether to list only those that are loaded


class LoadParameters(Body):
    """Parameters of a request to load a bundle."""

    version: str | None = None


class LoadRequest(Body):
    """A request to load a bundle."""

    parameters: LoadParameters = LoadParameters()


class UnloadParameters(Body):
    """Parameters of a request to unload a bundle."""

    unload_dependents: bool = False  # no bundle has dependents


class UnloadRequest(Body):
    """A request to unload a bundle."""

    parameters: UnloadParameters = UnloadParameters()


def routes(catalog: Catalog, settings: Settings, metrics: Metrics) -> list[BaseRoute]:
    """Return `/metrics` and, with a repository, `/v2/repository/index` and `…/models/NAME/load` and `/unload`."""

    async def show_metrics(request: Request) -> Response:
        metrics.refresh(waiting(catalog))
        page, content_type = metrics.render(request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    if settings.repository is None:
        return [Route("/metrics", show_metrics)]
    repository = Repository(settings.repository, catalog, metrics, settings.bundles)

    async def index(request: Request) -> JSONResponse:
        body = await _body(request, settings, IndexRequest)
        return JSONResponse([e for e in repository.index() if e["state"] == "READY" or not body.ready])

    async def load(request: Request) -> JSONResponse:
        body = await _body(request, settings, LoadRequest)
        return JSONResponse(await repository.load(request.path_params["name"], body.parameters.version))

    async def unload(request: Request) -> JSONResponse:
        await _body(request, settings, UnloadRequest)
        return JSONResponse(await repository.unload(request.path_params["name"]))

    return [
        Route("/metrics", show_metrics),
        Route("/v2/repository/index", index, methods=["POST"]),
        Route("/v2/repository/models/{name}/load", load, methods=["POST"]),
        Route("/v2/repository/models/{name}/unload", unload, methods=["POST"]),
    ]


def waiting(catalog: Catalog) -> dict[str, Waiting]:
    """Return the queued inputs of each bundle."""
    queues = {name: service.queue for name, service in catalog.services.items()}
    return {name: Waiting(len(queue), queue.tokens, queue.age()) for name, queue in queues.items()}


async def _body(request: Request, settings: Settings, model: type[AnyBody]) -> AnyBody:
    """Return the body; that of an empty object for an empty one."""
    if request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers:
        return model()
    return await read_json_body(request.scope, request.receive, settings, partial(parse_body, model))


@dataclass
class Status:
    """The version of a bundle that was last loaded, and its last failure."""

    version: str = ""
    failure: str = ""
    is_loading: bool = False


class Repository:
    """The bundles below one folder: FOLDER/NAME, or the newest version FOLDER/NAME/VERSION.

    `started` has the folders of the bundles that are served from the start, by name.
    """

    def __init__(self, folder: Path, catalog: Catalog, metrics: Metrics, started: Mapping[str, Path]):
        self._folder, self._catalog, self._metrics = folder.resolve(), catalog, metrics
        self._status: dict[str, Status] = {}
        for name, path in started.items():
            if path.parent == self._folder / name:
                self._status[name] = Status(path.name)
        # One change of a name at a time. Changes of several names do not wait for each other, since one may never end:
        # the machine needs memory for all bundles that are loaded at once.
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: set[asyncio.Task[Any]] = set()

    def index(self) -> list[dict[str, str]]:
        """List the bundles that are served or can be loaded, in the form of the Open Inference Protocol."""
        return [self.entry(name) for name in sorted({*names(self._folder), *self._catalog.services})]

    def entry(self, name: str) -> dict[str, str]:
        """Return the entry of one bundle in the index."""
        status, is_served = self._status.get(name, Status()), name in self._catalog.services
        state = "READY" if is_served else "LOADING" if status.is_loading else "UNAVAILABLE"
        reason = status.failure or ("" if is_served or status.is_loading else "not loaded")
        return {"name": name, "version": status.version, "state": state, "reason": reason}

    async def load(self, name: str, version: str | None = None) -> dict[str, str]:
        """Load a bundle; the old one of this name answers until it is replaced. Return the index entry.

        Raises:
            HttpError: 404 for an unknown name, 422 for a bundle that is refused: the old one stays.
        """
        location = locate_bundle(self._folder, name, version)
        return await self._finish(self._load(name, location))

    async def unload(self, name: str) -> dict[str, str]:
        """Unload a bundle after its accepted requests are answered. Return the index entry."""

        self._catalog.get(name)  # 404 for a name that is not served, before a lock is created

        async def change() -> dict[str, str]:
            async with self._locks[name]:
                await self._catalog.unload(name)
                self._status.pop(name, None)
                self._metrics.load(name, "unloaded")
                return self.entry(name)

        return await self._finish(change())

    async def _load(self, name: str, location: Location) -> dict[str, str]:
        async with self._locks[name]:
            status = self._status.setdefault(name, Status())
            status.is_loading = True
            try:
                await self._catalog.load(name, location.folder)
            except SeqpipeError as error:
                status.failure = str(error).replace(f"{self._folder}/", "")
                self._metrics.load(name, "refused")
                log.warning("%s: refused: %s", name, status.failure)
                is_served = name in self._catalog.services
                kept = "; the version that was loaded before still answers" if is_served else ""
                raise HttpError(422, f"{status.failure}{kept}") from error
            finally:
                status.is_loading = False
            status.version, status.failure = location.version, ""
            self._metrics.load(name, "loaded")
            return self.entry(name)

    async def _finish(self, change: Awaitable[dict[str, str]]) -> dict[str, str]:
        """Complete a change even when the client disconnects."""

        async def run() -> dict[str, str]:
            try:
                return await change
            finally:
                # A model has reference cycles: without a collection its memory would stay for long.
                await asyncio.to_thread(gc.collect)
                await asyncio.to_thread(trim_heap)

        task = asyncio.create_task(run())
        self._tasks.add(task)  # the event loop does not keep tasks alive
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)
