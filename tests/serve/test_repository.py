"""Bundles by name under one folder, and their versions exchanged while clients ask."""

import asyncio
import contextlib
import http.client
import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Server, call_in_threads, metric_value, send_request
from toy_bundles import STUCK, manifest_content, write_bundle, write_stuck_bundle

from seqpipe import Model, load
from seqpipe.errors import UsageError
from seqpipe.runtime import bundle
from seqpipe.serve.admin import Repository
from seqpipe.serve.http import HttpError
from seqpipe.serve.metrics import Metrics
from seqpipe.serve.repository import Location, bundles, locate_bundle, names, versions
from seqpipe.serve.service import Catalog
from seqpipe.serve.settings import Settings

TEXTS = ["Anna meets Ben in New York .", "Bern", "Anna calls Ben"]
LOAD, UNLOAD = "/v2/repository/models/toy/load", "/v2/repository/models/toy/unload"


def renamed(source: Path, path: Path, city: str, golden: str | None = None) -> Path:
    """The toy, which calls a city otherwise; its golden example may claim another name."""
    content = bundle.read(source)
    text = json.dumps(manifest_content(content.manifest))
    text = text.replace("-city", f"-{city}").replace('"city"', f'"{golden or city}"')
    return write_bundle(path, content.files, json.loads(text))


@pytest.fixture(scope="module")
def folder(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository: `toy` in versions, of which 10 answers its golden example otherwise and 11 is damaged; `plain`."""
    root = tmp_path_factory.mktemp("repository")
    renamed(tiny_bundle, root / "toy" / "2", "city")
    renamed(tiny_bundle, root / "toy" / "9", "town")
    renamed(tiny_bundle, root / "plain", "place")
    (root / "notes").mkdir()
    (root / "README").write_text("no bundle")
    return root


@pytest.fixture(scope="module")
def broken(tiny_bundle: Path, folder: Path, server: Server) -> None:
    """Newer versions of `toy`, after the server has started: 10 answers otherwise than it says, 11 is damaged."""
    renamed(tiny_bundle, folder / "toy" / "10", "hamlet", golden="village")
    path = renamed(tiny_bundle, folder / "toy" / "11", "hamlet")
    (path / "model.onnx").write_bytes((path / "model.onnx").read_bytes()[:-1])


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with Server("--repository", folder) as running:
        yield running


@pytest.fixture(scope="module")
def models(folder: Path) -> dict[str, Model]:
    return {version: load(folder / "toy" / version, "cpu", threads=1) for version in ("2", "9")}


def entry(server: Server, name: str) -> dict[str, str]:
    return next(entry for entry in server.post("/v2/repository/index", {}).json if entry["name"] == name)


def to(version: str) -> dict[str, Any]:
    return {"parameters": {"version": version}}


def request(path: str, body: Any) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def words(server: Server) -> Any:
    return server.post("/v1/toy", {"inputs": TEXTS}).json["answers"]


# Names


def test_a_name_is_a_folder_or_its_newest_version(folder: Path, tmp_path: Path) -> None:
    assert names(folder) == ["plain", "toy"]
    assert locate_bundle(folder, "plain").folder == folder / "plain"
    assert locate_bundle(folder, "toy", "2") == Location(folder / "toy" / "2", "2")
    (tmp_path / "toy" / "100").mkdir(parents=True)  # not passed over while it is copied
    (tmp_path / "toy" / "9").mkdir()
    assert bundles(tmp_path) == {"toy": tmp_path / "toy" / "100"}


def test_versions_are_ordered_as_numbers(tmp_path: Path) -> None:
    for name in ("10", "9", "v9.1", "2026-11-23", "tmp", ".3", "9.1.1", "x1", "1a"):
        (tmp_path / name).mkdir()
    assert versions(tmp_path) == ["9", "v9.1", "9.1.1", "10", "2026-11-23"]


def test_no_name_leads_elsewhere(folder: Path) -> None:
    for name in ("..", ".", "", "../toy", "toy/2", "/etc", "toy\0", "toy\n", "-x", "models", "a" * 101):
        with pytest.raises(UsageError):
            locate_bundle(folder, name)


@pytest.mark.parametrize("version", ["..", "../plain", "2/../..", "", "3", "/", "2/"])
def test_no_version_leads_elsewhere(folder: Path, version: str) -> None:
    with pytest.raises(HttpError, match="there is: 2, 9") as error:
        locate_bundle(folder, "toy", version)
    assert error.value.status == 404


def test_links_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "toy").symlink_to(folder / "toy")
    (tmp_path / "other").mkdir()
    shutil.copytree(folder / "toy" / "2", tmp_path / "other" / "1")
    (tmp_path / "other" / "2").symlink_to(folder / "toy" / "9")
    for name in ("toy", "other"):
        with pytest.raises(HttpError, match="is a link") as error:
            locate_bundle(tmp_path, name)
        assert error.value.status == 422
    assert names(tmp_path) == ["other"]
    assert locate_bundle(tmp_path, "other", "1").folder == tmp_path / "other" / "1"


# The server


def test_all_bundles_are_served_from_the_start(server: Server) -> None:
    assert server.post("/v2/repository/index", {}).json == [
        {"name": "plain", "version": "", "state": "READY", "reason": ""},
        {"name": "toy", "version": "9", "state": "READY", "reason": ""},
    ]
    assert server.post("/v1/plain", {"inputs": "Bern"}).json["answer"][0]["entity_group"] == "place"


def test_versions_take_over_while_clients_ask(server: Server, models: dict[str, Model]) -> None:
    expected = {version: [model(text) for text in TEXTS] for version, model in models.items()}
    ended, seen = threading.Event(), {"2": 0, "9": 0}

    def client() -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
            while not ended.is_set():
                reply = send_request(connection, "POST", "/v1/toy", {"inputs": TEXTS})
                assert reply.status == 200, reply.body
                (version,) = [version for version, answers in expected.items() if answers == reply.json["answers"]]
                seen[version] += 1

    def operator() -> None:
        try:
            for version in ("2", "9") * 8:
                assert server.post(LOAD, to(version)).json["version"] == version
                assert words(server) == expected[version]
        finally:
            ended.set()

    call_in_threads([operator, *[client] * 4])
    assert min(seen.values()) > 3


def test_a_request_that_came_before_is_answered_by_the_version_after(server: Server, models: dict[str, Model]) -> None:
    server.post(LOAD, to("9"))
    whole = request("/v1/toy", {"inputs": TEXTS})
    with server.connection() as client:
        client.sendall(whole[:-9])
        assert server.post(LOAD, to("2")).status == 200
        client.sendall(whole[-9:])
        response = http.client.HTTPResponse(client)
        response.begin()
        assert json.loads(response.read())["answers"] == models["2"](TEXTS)


BROKEN = [("10", "answers differ"), ("11", "damaged"), (None, "damaged"), ("12", "there is: 2, 9, 10, 11")]


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(("version", "reason"), BROKEN)
def test_a_bundle_that_is_refused_leaves_the_old_one(
    server: Server, models: dict[str, Model], folder: Path, version: str | None, reason: str
) -> None:
    def refused_loads() -> float:
        page = server.get("/metrics").body
        return metric_value(page, "seqpipe_bundle_loads_total", bundle="toy", result="refused") or 0

    server.post(LOAD, to("9"))
    counted = refused_loads()
    reply = server.post(LOAD, to(version) if version else {})
    is_there = version != "12"
    assert reply.status == (422 if is_there else 404)
    assert reason in reply.json["error"]
    assert str(folder) not in reply.json["error"]
    assert ("still answers" in reply.json["error"]) == is_there
    assert words(server) == models["9"](TEXTS)
    assert server.get("/v2/health/ready").status == 200
    assert refused_loads() == counted + is_there
    shown = entry(server, "toy")
    assert (shown["version"], shown["state"]) == ("9", "READY")
    assert (reason in shown["reason"]) == is_there
    server.post(LOAD, to("9"))
    assert entry(server, "toy")["reason"] == ""


def test_a_bundle_is_unloaded_and_loaded_again(server: Server) -> None:
    assert server.post(UNLOAD, {"parameters": {"unload_dependents": False}}).json["state"] == "UNAVAILABLE"
    assert server.post("/v1/toy", {"inputs": "Bern"}).status == 404
    assert server.post(UNLOAD, {}).status == 404
    assert [entry["name"] for entry in server.post("/v2/repository/index", {"ready": True}).json] == ["plain"]
    assert entry(server, "toy") == {"name": "toy", "version": "", "state": "UNAVAILABLE", "reason": "not loaded"}
    page = server.get("/metrics").body
    assert metric_value(page, "seqpipe_bundle_loaded_timestamp_seconds", bundle="toy") == 0
    assert server.post(LOAD, to("2")).json["state"] == "READY"
    assert server.post("/v1/toy", {"inputs": "Bern"}).status == 200


def test_a_load_goes_on_when_its_client_leaves(server: Server) -> None:
    def wait_for(*states: str) -> None:
        end = time.monotonic() + 60
        while entry(server, "toy")["state"] not in states:
            assert time.monotonic() < end
            time.sleep(0.001)

    server.post(UNLOAD, {})
    with server.connection() as client:
        client.sendall(request(LOAD, to("2")))
        wait_for("LOADING", "READY")  # a request whose client leaves before it is read may be dropped
    wait_for("READY")
    assert server.post("/v1/toy", {"inputs": "Bern"}).status == 200


UNLOADABLE: list[tuple[str, Any, int]] = [
    (LOAD, {"parameters": {"config": "{}"}}, 422),
    (LOAD, {"parameters": {"file:model.onnx": "AA=="}}, 422),
    (LOAD, {"parameters": {"version": 2}}, 422),
    (LOAD, {"parameters": []}, 422),
    (LOAD, {"path": "/tmp/bundle"}, 422),
    (LOAD, [], 422),
    ("/v2/repository/models/..%2F..%2Fetc/load", {}, 404),
    ("/v2/repository/models/%2e%2e/load", {}, 422),
    ("/v2/repository/models/notes/load", {}, 422),
    ("/v2/repository/models/none/load", {}, 404),
    ("/v2/repository/models/README/load", {}, 404),
]


@pytest.mark.parametrize(("path", "body", "status"), UNLOADABLE)
def test_nothing_else_can_be_loaded(server: Server, path: str, body: Any, status: int) -> None:
    before = server.get("/v1").json
    reply = server.post(path, body)
    assert (reply.status, bool(reply.json["error"])) == (status, True)
    assert server.get("/v1").json == before


def test_a_change_waits_for_no_other_bundle(tiny_bundle: Path, tmp_path: Path) -> None:
    renamed(tiny_bundle, tmp_path / "toy" / "1", "city")
    write_stuck_bundle(tiny_bundle, tmp_path / "stuck" / "1")
    with Server("--repository", tmp_path, "--timeout", "60") as changing, changing.connection() as unloading:
        reply = changing.post("/v1/stuck", {"inputs": STUCK}, headers={"X-Request-Timeout": "0.5"})
        assert reply.status == 504
        unloading.sendall(request("/v2/repository/models/stuck/unload", {}))
        while entry(changing, "stuck")["state"] == "READY":
            time.sleep(0.01)
        for path in (LOAD, UNLOAD, LOAD):
            assert changing.post(path, {}).status == 200
        unloading.setblocking(False)
        with pytest.raises(BlockingIOError):
            unloading.recv(100)  # it waits a minute for the worker
        assert changing.post("/v2/repository/models/none/unload", {}).status == 404


def test_bundles_are_loaded_side_by_side(
    tiny: Model, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes of one name follow one another: the last requested one is served."""
    may_end, began = threading.Event(), list[str]()

    def open_model(folder: Path, settings: Settings) -> Model:
        began.append(folder.parent.name)
        assert folder.parent.name == "b" or may_end.wait(60)
        return tiny

    monkeypatch.setattr("seqpipe.serve.service.open_model", open_model)

    async def use(root: Path) -> None:
        catalog = Catalog(Settings())
        repository = Repository(root, catalog, Metrics(), {})
        slow = [asyncio.create_task(repository.load("a")) for _ in range(2)]
        while not began:
            await asyncio.sleep(0.01)
        assert (await repository.load("b"))["state"] == "READY"
        assert (began, [*catalog.services]) == (["a", "b"], ["b"])
        may_end.set()
        assert [entry["state"] for entry in await asyncio.gather(*slow)] == ["READY", "READY"]
        assert began == ["a", "b", "a"]
        await catalog.stop()

    for name in ("a", "b"):
        shutil.copytree(tiny_bundle, tmp_path / name / "1")
    asyncio.run(use(tmp_path))


def test_a_page_of_another_site_changes_nothing(server: Server) -> None:
    reply = server.post(UNLOAD, {}, headers={"Sec-Fetch-Site": "cross-site", "Origin": "https://example.org"})
    assert (reply.status, "--cors" in reply.json["error"]) == (403, True)
    assert server.post(UNLOAD, {}, headers={"Host": "evil.example", "Origin": "http://evil.example"}).status == 421
    assert server.post("/v1/toy", {"inputs": "Bern"}).status == 200
    assert server.post("/v2/repository/index", {}, headers={"Origin": server.url}).status == 200
