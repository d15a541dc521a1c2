"""seqpipe's own protocol: `POST /v1/NAME` answers inputs."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from seqpipe.errors import DataError, UsageError, nearest
from seqpipe.features.sources import fields_of
from seqpipe.runtime.serve.catalog import Catalog
from seqpipe.runtime.serve.http_errors import HttpError
from seqpipe.runtime.serve.replies import deadline, read_json, send_json
from seqpipe.runtime.serve.service import Service
from seqpipe.runtime.serve.settings import Settings

KEYS = ("inputs", "options", "documents", "on_error")
_ON_ERROR = ("stop", "skip")


def routes(catalog: Catalog, settings: Settings) -> list[BaseRoute]:
    """`GET /v1` and `GET /v1/NAME`; what is posted goes to `answer`."""

    async def everything(request: Request) -> JSONResponse:
        return JSONResponse({"bundles": [describe(service) for service in catalog.services.values()]})

    async def one(request: Request) -> JSONResponse:
        return JSONResponse(describe(catalog.get(request.path_params["name"])))

    return [Route("/v1", everything), Route("/v1/{name}", one)]


def describe(service: Service) -> dict[str, Any]:
    """What a client may want to know of a bundle."""
    model = service.model
    return {
        "name": service.name,
        "pipeline": model.manifest["name"],
        "answer": model.predictor.kind.kind,
        "fields": list(fields_of(model.predictor.featurizer)),
        "options": model.manifest["options"],
        "limits": model.manifest["limits"],
        "sha256": model.sha256,
    }


async def answer(scope: Scope, receive: Receive, send: Send, catalog: Catalog, settings: Settings) -> None:
    """`POST /v1/NAME`; raises HttpError, DataError and UsageError for requests without an answer."""
    service, end = catalog.get(scope["path"].removeprefix("/v1/")), deadline(scope, settings)
    body = await read_json(scope, receive, settings)
    inputs, options, documents, skip = _asked(body, settings)
    several = isinstance(inputs, list)
    answers = await service.answer(inputs if several else [inputs], options, deadline=end, documents=documents)
    shown = [_shown(one, skip) for one in answers]
    await send_json(send, 200, {"answers": shown} if several else {"answer": shown[0]})


def _asked(body: dict[str, Any], settings: Settings) -> tuple[Any, dict[str, Any], bool, bool]:
    for key in body:
        if key not in KEYS:
            raise UsageError(f"no key {key!r}{nearest(key, KEYS)} (there is: {', '.join(KEYS)})")
    if "inputs" not in body:
        raise UsageError("the key 'inputs' is missing: a text, a record, or a list of them")
    inputs, options = body["inputs"], body.get("options") or {}
    if not isinstance(options, dict):
        raise UsageError("options: must be an object of decode options")
    if isinstance(inputs, list) and len(inputs) > settings.max_items:
        raise HttpError(413, f"{len(inputs):,} inputs are over the limit of {settings.max_items:,}; send fewer")
    on_error = body.get("on_error", "stop")
    if on_error not in _ON_ERROR:
        raise UsageError(f"on_error: must be one of {', '.join(_ON_ERROR)}")
    return inputs, options, bool(body.get("documents", False)), on_error == "skip"


def _shown(answer: Any, skip: bool) -> Any:
    if not isinstance(answer, DataError):
        return answer
    if not skip:
        raise answer
    return {"error": str(answer)}
