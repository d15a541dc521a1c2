"""The bearer token."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from seqpipe.errors import UsageError
from seqpipe.serve.auth import TokenCheck, exposure, read_token

TOKEN = "0123456789abcdef-TOKEN"


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


@pytest.fixture
def client() -> TestClient:
    routes = [
        Route(path, hello) for path in ("/v1", "/v2/health/live", "/v2/health/ready", "/metrics", "/", "/page/page.js")
    ]
    return TestClient(TokenCheck(Starlette(routes=routes), TOKEN))


def test_the_token_opens(client: TestClient) -> None:
    for scheme in ("Bearer", "bearer"):
        assert client.get("/v1", headers={"Authorization": f"{scheme} {TOKEN}"}).text == "hello"


@pytest.mark.parametrize(
    "given", [None, "", TOKEN, "Bearer", "Bearer ", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}"]
)
@pytest.mark.parametrize("path", ["/v1", "/metrics", "/unknown", "/v2/health/ready/x", "//v2/health/live", "/page"])
def test_without_the_token_is_401(client: TestClient, path: str, given: str | None) -> None:
    response = client.get(path, headers={} if given is None else {"Authorization": given})
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert "Authorization: Bearer" in response.json()["error"]


def test_two_authorizations_are_none(client: TestClient) -> None:
    headers = [("Authorization", "Bearer wrong"), ("Authorization", f"Bearer {TOKEN}")]
    assert client.get("/v1", headers=headers).status_code == 401


def test_bytes_that_are_no_text_are_401(client: TestClient) -> None:
    assert client.get("/v1", headers=[(b"authorization", b"Bearer \xff\xfe")]).status_code == 401


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/", "/page/page.js"])
def test_health_and_the_page_need_no_token(client: TestClient, path: str) -> None:
    assert client.get(path).text == "hello"


def test_a_file_goes_before_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(file, {"SEQPIPE_TOKEN": "another-token-of-the-environment"}) == TOKEN
    assert read_token(None, {"SEQPIPE_TOKEN": f" {TOKEN} "}) == TOKEN
    assert read_token(None, {}) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "one word"),
        ("\n", "one word"),
        ("two words of a token", "one word"),
        ("é" * 20, "one word"),
        (f"{TOKEN}\n{TOKEN}", "one word"),
        ("short", "5 characters, fewer than 16"),
    ],
)
def test_a_bad_token_is_refused_with_a_cure(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "token"
    file.write_text(content, encoding="utf-8")
    for given in ((file, {}), (None, {"SEQPIPE_TOKEN": content})):
        with pytest.raises(UsageError, match=message) as error:
            read_token(*given)
        assert "openssl rand" in str(error.value)
        assert content not in str(error.value) or not content.strip()


def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--token-file: .*/none"):
        read_token(tmp_path / "none", {"SEQPIPE_TOKEN": TOKEN})


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("127.8.0.1", False), ("0.0.0.0", True)])
def test_an_address_that_others_reach_is_warned_of(host: str, warned: bool) -> None:
    warning = exposure(host, None)
    assert (warning is not None) == warned
    if warning is not None:
        assert host in warning
        assert "SEQPIPE_TOKEN" in warning
    assert exposure(host, TOKEN) is None
