"""What whoever runs the server asks of it: `/metrics`, and `/v2/repository` where it is enabled."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from seqpipe.errors import UsageError, did_you_mean
from seqpipe.runtime.serve.catalog import Catalog
from seqpipe.runtime.serve.http_errors import HttpError
from seqpipe.runtime.serve.metrics import Metrics, Waiting
from seqpipe.runtime.serve.replies import read_json
from seqpipe.runtime.serve.repository import Repository
from seqpipe.runtime.serve.settings import Settings

_PARAMETERS = {"load": ("version",), "unload": ("unload_dependents",)}  # the latter: no bundle has any


def routes(catalog: Catalog, settings: Settings, metrics: Metrics) -> list[BaseRoute]:
    """`/metrics`, and with a repository `/v2/repository/index` and `…/models/NAME/load` and `/unload`."""

    async def show_metrics(request: Request) -> Response:
        metrics.refresh(waiting(catalog))
        page, content_type = metrics.render(request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    if settings.repository is None:
        return [Route("/metrics", show_metrics)]
    repository = Repository(settings.repository, catalog, metrics, settings.bundles)

    async def index(request: Request) -> JSONResponse:
        refuse_other_site(request, settings)
        body = await _body(request, settings, ("ready",))
        entries = repository.index()
        return JSONResponse([entry for entry in entries if entry["state"] == "READY" or not body.get("ready")])

    async def load(request: Request) -> JSONResponse:
        refuse_other_site(request, settings)
        version = (await _parameters(request, settings, "load")).get("version")
        if version is not None and not isinstance(version, str):
            raise UsageError(f"parameters.version: must be a string, not {version!r}")
        return JSONResponse(await repository.load(request.path_params["name"], version))

    async def unload(request: Request) -> JSONResponse:
        refuse_other_site(request, settings)
        await _parameters(request, settings, "unload")
        return JSONResponse(await repository.unload(request.path_params["name"]))

    return [
        Route("/metrics", show_metrics),
        Route("/v2/repository/index", index, methods=["POST"]),
        Route("/v2/repository/models/{name}/load", load, methods=["POST"]),
        Route("/v2/repository/models/{name}/unload", unload, methods=["POST"]),
    ]


def waiting(catalog: Catalog) -> dict[str, Waiting]:
    """What waits for each bundle."""
    queues = {name: service.queue for name, service in catalog.services.items()}
    return {name: Waiting(len(queue), queue.tokens, queue.age()) for name, queue in queues.items()}


def refuse_other_site(request: Request, settings: Settings) -> None:
    """HttpError 403 where a browser asks for a page of another site: it sends a POST before it asks whether it may."""
    site, origin = request.headers.get("sec-fetch-site", "none"), request.headers.get("origin")
    if site not in ("none", "same-origin") and origin not in settings.cors:
        raise HttpError(403, "a page of another site may not change what is served; allow its origin with --cors")


async def _parameters(request: Request, settings: Settings, action: str) -> dict[str, object]:
    parameters = (await _body(request, settings, ("parameters",))).get("parameters", {})
    if not isinstance(parameters, dict):
        raise UsageError("parameters: must be an object")
    _refuse_unknown(parameters, _PARAMETERS[action])
    return parameters


async def _body(request: Request, settings: Settings, keys: tuple[str, ...]) -> dict[str, object]:
    """The object that was sent, or none."""
    if request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers:
        return {}
    body = await read_json(request.scope, request.receive, settings)
    _refuse_unknown(body, keys)
    return body


def _refuse_unknown(values: dict[str, object], known: tuple[str, ...]) -> None:
    for key in values:
        if key not in known:
            raise UsageError(f"no key {key!r}{did_you_mean(key, known)} (there is: {', '.join(known)})")
