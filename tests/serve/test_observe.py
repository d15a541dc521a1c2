"""Request ids, the access log and the counts of what goes through the outermost layer."""

import asyncio
import io
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2 as httpx
import pytest
from serving import metric_value
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from seqpipe.serve.app import Observed
from seqpipe.serve.metrics import Metrics
from seqpipe.serve.observe import AccessLog, current_request
from seqpipe.serve.settings import Settings


class Server:
    """The layer around a handler, its log in memory."""

    def __init__(self, handler: Callable[[Request], Awaitable[Any]], stream: Any = None, **settings: Any):
        self.metrics, self.stream = Metrics(), stream or io.StringIO()
        routes = [Route("/v1/{name}", handler, methods=["POST"]), Route("/v2/health/live", handler)]
        self.app = Observed(Starlette(routes=routes), self.metrics, AccessLog(self.stream), Settings(**settings))

    async def ask(self, path: str = "/v1/ner", method: str = "POST", **headers: str) -> httpx.Response:
        named = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]

        async def app(scope: Any, *channels: Any) -> None:
            await self.app(scope | {"asgi": {"version": "3.0", "spec_version": "2.4"}}, *channels)

        transport = httpx.ASGITransport(app, client=("192.0.2.7", 5000))
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.request(method, f"{path}?text=secret", headers=named, content=b"secret")
        finally:
            await asyncio.sleep(0)  # the log writes in the next turn of the loop

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


async def answer(request: Request) -> JSONResponse:
    record = current_request()
    assert record is not None
    record.bundle, record.items, record.tokens, record.queued = "ner", 1, 7, 0.25
    return JSONResponse({"answer": "secret", "id": record.id})


def test_a_request_is_one_line_without_texts() -> None:
    server = Server(answer)
    asyncio.run(server.ask(x_request_id="job-7"))
    (line,) = server.lines
    seconds = line.pop("seconds")
    assert seconds > 0
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "id": "job-7", "method": "POST", "route": "/v1/{name}", "bundle": "ner", "status": 200, "items": 1,
        "tokens": 7, "queued": 0.25, "peer": "192.0.2.7",
    }  # fmt: skip
    assert "secret" not in server.stream.getvalue()
    assert metric_value(server.metrics.render()[0], "seqpipe_requests_total", bundle="ner", code="200") == 1


def test_the_path_of_no_route_is_not_logged() -> None:
    server = Server(answer)
    for path in ("/v1/a/secret", "/secret"):
        asyncio.run(server.ask(path))
    assert [(line["status"], line["route"], line["bundle"]) for line in server.lines] == [(404, None, None)] * 2
    assert "secret" not in server.stream.getvalue() + server.metrics.render()[0].decode()


@pytest.mark.parametrize("sent_id", ["", "a b", 'a"', "a\n", "é", "a" * 129])
def test_an_invalid_request_id_is_replaced(sent_id: str) -> None:
    id_out = asyncio.run(Server(answer).ask(x_request_id=sent_id)).headers["x-request-id"]
    assert re.fullmatch("[0-9A-Za-z]{32}", id_out)


def test_requests_at_the_same_time_keep_their_own_records() -> None:
    async def wait(request: Request) -> JSONResponse:
        await asyncio.sleep(0.01)
        return await answer(request)

    async def ask_all() -> list[Any]:
        server = Server(wait)
        return await asyncio.gather(*(server.ask(x_request_id=f"a{i}/B:2") for i in range(20)))

    for i, response in enumerate(asyncio.run(ask_all())):
        assert response.json()["id"] == response.headers["x-request-id"] == f"a{i}/B:2"


def test_health_is_logged_only_when_it_fails() -> None:
    async def ready(request: Request) -> JSONResponse:
        return JSONResponse({}, 503 if request.headers.get("fail") else 200)

    server = Server(ready)
    asyncio.run(server.ask("/v2/health/live", "GET"))
    assert server.lines == []
    asyncio.run(server.ask("/v2/health/live", "GET", fail="1"))
    assert [line["status"] for line in server.lines] == [503]


def test_an_error_is_a_500_and_still_raised_and_a_client_that_leaves_a_499() -> None:
    async def fail(request: Request) -> JSONResponse:
        raise ValueError("secret")

    async def leave(request: Request) -> JSONResponse:
        raise asyncio.CancelledError

    for handler, error, status in ((fail, ValueError, 500), (leave, asyncio.CancelledError, 499)):
        server = Server(handler)
        with pytest.raises(error):
            asyncio.run(server.ask())
        assert [line["status"] for line in server.lines] == [status]
        assert "secret" not in server.stream.getvalue()


def test_a_stream_is_logged_at_its_end() -> None:
    async def stream(request: Request) -> StreamingResponse:
        async def pieces() -> Any:
            for piece in "ab":
                await asyncio.sleep(0.02)
                yield piece

        return StreamingResponse(pieces())

    server = Server(stream)
    asyncio.run(server.ask())
    (line,) = server.lines
    assert line["status"] == 200
    assert line["seconds"] >= 0.04


ENDLESS = 1e6  # seconds


@pytest.mark.parametrize("settings", [{"read_s": 0.3}, {"idle_s": 0.3}, {"max_connections": 1}])
def test_a_large_response_goes_in_pieces_and_ends_when_its_client_stops_reading(settings: dict[str, Any]) -> None:
    """With one connection, 300 KB are over what may be unread: then a second ends it."""

    async def large(request: Request) -> JSONResponse:
        return JSONResponse("x" * 300_000)

    async def send(message: Any) -> None:
        sizes.append(len(message.get("body", b"")))
        if len(sizes) == 4:
            await asyncio.Event().wait()

    async def receive() -> Any:
        return {"type": "http.request"} if not sizes else await asyncio.Event().wait()

    sizes: list[int] = []
    server = Server(large, **{"read_s": ENDLESS, "idle_s": ENDLESS, **settings})
    assert asyncio.run(server.ask()).content == b'"' + b"x" * 300_000 + b'"'
    scope = {"type": "http", "method": "POST", "path": "/v1/ner", "headers": []}
    asyncio.run(asyncio.wait_for(server.app(scope, receive, send), 60))
    assert (len(sizes), max(sizes) <= 1 << 15, server.lines[-1]["status"]) == (4, True, 499)


def test_requests_that_end_together_are_written_at_once() -> None:
    class Counted(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            self.writes += 1
            return super().write(text)

    server = Server(answer, Counted())

    async def ask_all() -> None:
        await asyncio.gather(*(server.ask() for _ in range(30)))

    asyncio.run(ask_all())
    assert len(server.lines) == 30
    assert server.stream.writes < 10
