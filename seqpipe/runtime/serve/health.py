"""Whether the server lives, and whether it takes requests."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from seqpipe.runtime.serve.catalog import Catalog
from seqpipe.runtime.serve.settings import Settings


def routes(catalog: Catalog, settings: Settings) -> list[BaseRoute]:
    """`/v2/health/live` and `/v2/health/ready`."""

    async def live(request: Request) -> JSONResponse:
        return JSONResponse({"live": True})

    async def ready(request: Request) -> JSONResponse:
        return JSONResponse({"ready": not catalog.state}, 503 if catalog.state else 200)

    return [Route("/v2/health/live", live), Route("/v2/health/ready", ready)]
