"""The bearer token, and the hosts and sites that a request names."""

import asyncio
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import Message

from seqpipe.errors import UsageError
from seqpipe.serve.auth import SiteCheck, TokenCheck, check_hosts, exposure_warning, read_token
from seqpipe.serve.settings import Settings

TOKEN = "0123456789abcdef-TOKEN"


@pytest.fixture
def client() -> TestClient:
    paths = ("/v1", "/v2/health/live", "/v2/health/ready", "/metrics", "/", "/page/page.js")
    return TestClient(TokenCheck(Starlette(routes=[Route(path, PlainTextResponse("hello")) for path in paths]), TOKEN))


def test_the_token_opens_and_health_and_the_page_need_none(client: TestClient) -> None:
    for scheme in ("Bearer", "bearer"):
        assert client.get("/v1", headers={"Authorization": f"{scheme} {TOKEN}"}).text == "hello"
    for path in ("/v2/health/live", "/v2/health/ready", "/", "/page/page.js"):
        assert client.get(path).text == "hello"


WRONG = [None, "", TOKEN, "Bearer", "Bearer ", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}"]


@pytest.mark.parametrize("header", WRONG)
@pytest.mark.parametrize("path", ["/v1", "/metrics", "/unknown", "/v2/health/ready/x", "//v2/health/live", "/page"])
def test_without_the_token_is_401(client: TestClient, path: str, header: str | None) -> None:
    response = client.get(path, headers={} if header is None else {"Authorization": header})
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert "Authorization: Bearer" in response.json()["error"]


def test_two_authorizations_and_bytes_that_are_no_text_are_401(client: TestClient) -> None:
    for tokens in (("wrong", TOKEN), (TOKEN, "wrong"), (TOKEN, TOKEN)):
        headers = [("Authorization", f"Bearer {token}") for token in tokens]
        assert client.get("/v1", headers=headers).status_code == 401
    assert client.get("/v1", headers=[(b"authorization", b"Bearer \xff\xfe")]).status_code == 401


def test_a_file_goes_before_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(file, {"SEQPIPE_TOKEN": "another-token-of-the-environment"}) == TOKEN
    assert read_token(None, {"SEQPIPE_TOKEN": f" {TOKEN} "}) == TOKEN
    assert read_token(None, {}) is None
    with pytest.raises(UsageError, match=r"--token-file: .*/none"):
        read_token(tmp_path / "none", {"SEQPIPE_TOKEN": TOKEN})


WORD, LENGTH = "one word", "5 characters, fewer than 16"
BAD = {"": WORD, "\n": WORD, "two words of a token": WORD, "é" * 20: WORD, f"{TOKEN}\n{TOKEN}": WORD, "short": LENGTH}


@pytest.mark.parametrize(("content", "message"), BAD.items())
def test_a_bad_token_is_refused_with_a_cure(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "token"
    file.write_text(content, encoding="utf-8")
    for given in ((file, {}), (None, {"SEQPIPE_TOKEN": content})):
        with pytest.raises(UsageError, match=message) as error:
            read_token(*given)
        assert "openssl rand" in str(error.value)
        assert content not in str(error.value) or not content.strip()


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("127.8.0.1", False), ("0.0.0.0", True)])
def test_an_address_that_others_reach_is_warned_of(host: str, warned: bool) -> None:
    warning = exposure_warning(host, None)
    assert (warning is not None) == warned
    if warning is not None:
        assert host in warning
        assert "SEQPIPE_TOKEN" in warning
    assert exposure_warning(host, TOKEN) is None


def status(settings: Settings, headers: list[tuple[str, str]], method: str = "POST", path: str = "/v1/toy") -> int:
    """The status of a request with just these headers."""

    async def send(message: Message) -> None:
        statuses.append(message.get("status", 0))

    async def receive() -> Message:
        return {"type": "http.request"}

    statuses: list[int] = []
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    scope = {"type": "http", "http_version": "1.1", "method": method, "path": path, "headers": raw}
    asyncio.run(SiteCheck(PlainTextResponse("answered"), settings)(scope, receive, send))
    return statuses[0]


LOCAL, OPEN = Settings(), Settings(host="0.0.0.0")


NAMES = "localhost LOCALHOST:8000 127.0.0.1 127.0.0.1:8000 127.8.0.1:1 [::1] [::1]:8000"


@pytest.mark.parametrize("host", NAMES.split())
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_server_at_a_loopback_address_answers_to_its_names(host: str, method: str) -> None:
    assert status(LOCAL, [("Host", host)], method) == 200


FOREIGN = (
    "evil.example evil.example:8000 localhost.evil.example 127.0.0.1.evil.example 10.0.0.5 [::2] "
    ":8000 localhost:x localhost@evil.example [::1 ::1 [127.0.0.1]x [ \xff"
)


@pytest.mark.parametrize("host", [*FOREIGN.split(), "a" * 9_000])
@pytest.mark.parametrize("path", ["/v1/toy", "/", "/v2/health/ready", "/v2/repository/index"])
def test_a_server_at_a_loopback_address_answers_to_no_other_name(host: str, path: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        assert status(LOCAL, [("Host", host)], method, path) == 421
    same = [("Host", host), ("Origin", f"http://{host}"), ("Sec-Fetch-Site", "same-origin")]  # DNS rebinding
    assert status(LOCAL, same, path=path) == 421


def test_a_name_that_is_allowed_is_answered_to() -> None:
    named = Settings(hosts=check_hosts(["Bundles.Example", "[2001:db8::1]"]))
    for host in ("bundles.example", "BUNDLES.example:8000", "[2001:db8::1]:80", "localhost"):
        assert status(named, [("Host", host)]) == 200
    assert status(named, [("Host", "www.bundles.example")]) == 421


def test_elsewhere_any_name_is_answered_to_unless_some_are_named(tmp_path: Path) -> None:
    for settings in (OPEN, Settings(host="192.168.0.9"), Settings(uds=tmp_path / "socket")):
        assert status(settings, [("Host", "bundles.example")]) == 200
    for settings in (Settings(host="0.0.0.0", hosts=("a.example",)), Settings(uds=tmp_path, hosts=("a.example",))):
        assert [status(settings, [("Host", name)]) for name in ("a.example", "b.example")] == [200, 421]


@pytest.mark.parametrize("name", ["", "a b", "example.org:80", "https://example.org", "example.org/", "*", "[::1]:80"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"--allow-host: .* is not a host name; write it without a port"):
        check_hosts([name])


@pytest.mark.parametrize("settings", [LOCAL, OPEN])
@pytest.mark.parametrize("hosts", [[], [""], ["localhost", "localhost"], ["localhost", "evil.example"]])
def test_a_request_has_one_host(settings: Settings, hosts: list[str]) -> None:
    assert status(settings, [("Host", host) for host in hosts]) == 400


PATHS = "/v1/toy /v1/completions /v2/models/toy/infer /v2/repository/models/toy/unload"


@pytest.mark.parametrize("path", PATHS.split())
def test_a_page_of_another_site_may_not_ask(path: str) -> None:
    """Browsers send Sec-Fetch-Site to addresses that are localhost or have TLS; Origin always."""
    for settings, host in ((LOCAL, "localhost:8000"), (OPEN, "10.0.0.5:8000")):
        foreign = ("http://evil.example", "https://evil.example", "null", "", f"http://{host}0", "http://localhost")
        for origin in foreign:
            for sites in ([], ["same-origin"], ["cross-site"], ["same-site"], ["none"]):
                headers = [("Host", host), ("Origin", origin), *(("Sec-Fetch-Site", site) for site in sites)]
                assert status(settings, headers, path=path) == 403
                assert status(settings, headers, "DELETE", path) == 403
        for site in ("cross-site", "same-site"):
            assert status(settings, [("Host", host), ("Sec-Fetch-Site", site)], path=path) == 403
        for own in (f"http://{host}", f"https://{host}"):  # behind a proxy, the server does not know of TLS
            assert status(settings, [("Host", host), ("Origin", own)], path=path) == 200
        assert status(settings, [("Host", host.upper()), ("Origin", f"http://{host}")], path=path) == 200
        assert status(settings, [("Host", host), ("Sec-Fetch-Site", "none")], path=path) == 200


def test_a_page_of_an_allowed_site_may_ask() -> None:
    foreign = [("Host", "localhost:8000"), ("Origin", "https://app.example"), ("Sec-Fetch-Site", "cross-site")]
    unload = "/v2/repository/models/toy/unload"
    for settings, change in ((Settings(cors=("https://app.example",)), 200), (Settings(cors=("*",)), 403)):
        assert (status(settings, foreign), status(settings, foreign, path=unload)) == (200, change)
        own = [("Host", "localhost:8000"), ("Origin", "http://localhost:8000")]
        assert (status(settings, own), status(settings, own, path=unload)) == (200, 200)


def test_another_site_may_link_to_the_page() -> None:
    """Request of a browser for a link; no page may read the response to a GET of another site."""
    assert status(LOCAL, [("Host", "localhost:8000"), ("Sec-Fetch-Site", "cross-site")], "GET", "/") == 200
