"""The page to try bundles in: its files, and what it has to know of a bundle to draw a form and answers."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from seqpipe.features.sources import NumericSource, columns, fields_of, sources_of
from seqpipe.runtime.model import Model
from seqpipe.runtime.serve.catalog import Catalog
from seqpipe.runtime.serve.settings import Settings

HEADERS = {
    "Cache-Control": "no-cache",  # asked again with its ETag: an update of seqpipe shows at once
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class _Files(StaticFiles):
    """The files beside this module, with headers that allow nothing from elsewhere."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(HEADERS)
        return response


def routes(catalog: Catalog, settings: Settings) -> list[BaseRoute]:
    """`GET /` and the files that it names."""
    files = _Files(packages=[("seqpipe.runtime.serve", "page")])

    async def index(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    return [Route("/", index), Mount("/page", files)]


def page_description(model: Model) -> dict[str, Any]:
    """The input fields, each with what it holds (text, category or rows of numbers), and how answers are drawn."""
    source = model.predictor.featurizer
    kinds = dict.fromkeys(columns(source), "category")
    kinds |= {part.field: "rows" for part in sources_of(source).values() if isinstance(part, NumericSource)}
    inputs = [{"name": field, "type": kinds.get(field, "text")} for field in fields_of(source)]
    return {"inputs": inputs, "drawing": model.predictor.kind.drawing}
