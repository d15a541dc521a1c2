"""Pictures, sounds and bundles of them that would fill the memory, hang or open a file: each is refused in time."""

import json
import math
import struct
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from media_bundles import GREY, IMAGE, MEL, REFUSED_ENTRIES, image_file, in_base64, png, wav, write_media_bundle
from serving import Server
from toy_bundles import manifest_content, write_bundle

from seqpipe import Model, load
from seqpipe.errors import BundleError, DataError
from seqpipe.files import sha256
from seqpipe.runtime import bundle

# Of a processor, and bytes, for one refusal; a decoded picture of 10⁵ × 10⁵ has 10 GB.
MOST_SECONDS, MOST_MEMORY = 5, 100 << 20
PIXELS = np.random.default_rng(3).integers(0, 256, (9, 7, 3))
TONE = np.sin(np.arange(2_000) / 9) / 2


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("media")
    kinds = {"picture": IMAGE, "grey": GREY, "sound": MEL}
    return {name: load(write_media_bundle(folder / name, kind), "cpu", threads=1) for name, kind in kinds.items()}


# Bundles


def stated(path: Path, entry: dict[str, Any], changes: dict[str, Any], **content: Any) -> Path:
    """A bundle of this kind with a changed entry, and other changes of its manifest; all hashes are right."""
    read = bundle.read(write_media_bundle(path, entry))
    manifest = manifest_content(read.manifest)
    manifest["inputs"]["rows"] |= changes
    return write_bundle(path, read.files, manifest | content)


@pytest.mark.parametrize("name", REFUSED_ENTRIES)
def test_a_kind_of_absurd_sizes_is_refused(name: str, tmp_path: Path) -> None:
    entry, changes = REFUSED_ENTRIES[name]
    path = write_media_bundle(tmp_path / "bundle", entry)
    content = json.loads((path / "bundle.json").read_text(encoding="utf-8"))
    content["inputs"]["rows"] |= changes
    if name.endswith("overflows"):  # JSON has no infinity, but numbers that become one
        text = json.dumps(content).replace("-Infinity", "-1e999").replace("Infinity", "1e999")
        body = text[: text.rindex(', "sha256"')].encode()
        sealed = body + f',\n "sha256": "{sha256(body)}"\n}}\n'.encode()
        (path / "bundle.json").write_bytes(sealed)
    else:
        stated(path, entry, changes)
    began = time.process_time()
    with pytest.raises(BundleError, match=r"bundle\.json|matrix|image|mel"):
        load(path, "cpu", threads=1)
    assert time.process_time() - began < MOST_SECONDS


def test_a_picture_needs_version_4_of_the_format(tmp_path: Path) -> None:
    assert load(write_media_bundle(tmp_path, GREY), "cpu", threads=1).manifest.version == 4
    stated(tmp_path, GREY, {}, version=3)
    with pytest.raises(BundleError, match="its version is 3, but pictures and sounds are inputs from version 4 on"):
        load(tmp_path, "cpu", threads=1)


def test_two_features_that_read_one_value_differently_are_refused(tmp_path: Path) -> None:
    read = bundle.read(write_media_bundle(tmp_path, GREY))
    manifest = manifest_content(read.manifest)
    matrix = {"kind": "matrix", "means": [0.0], "deviations": [1.0], "axes": [], "dtype": "float32"}
    manifest["inputs"]["more"] = matrix
    write_bundle(tmp_path, read.files, manifest)
    with pytest.raises(BundleError, match="whose features read its numbers in different ways"):
        load(tmp_path, "cpu", threads=1)


# Inputs

WHOLE = image_file(PIXELS)
HEADER = struct.pack("<HHIIHH", 1, 1, 16_000, 32_000, 2, 16)


def chunked(*chunks: tuple[bytes, bytes]) -> bytes:
    """A WAV of these chunks."""
    body = b"WAVE" + b"".join(name + struct.pack("<I", len(data)) + data for name, data in chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


# The bundle's kind, the value as JSON has it (bytes in base64), and words of the error.
HOSTILE: dict[str, tuple[str, Any, str]] = {
    "a PNG of 10⁵ × 10⁵ pixels": ("picture", png(10**5, 10**5, bytes(1000)), "pixels"),
    "a decompression bomb": ("picture", png(9_000, 9_000, bytes(9_001 * 9_000)), "81,000,000|9,000 x 9,000"),
    "a PNG without pixels": ("picture", png(0, 9), "cannot be decoded|without pixels"),
    "a truncated JPEG": ("grey", image_file(PIXELS, "JPEG")[:-40], "cannot be decoded as PNG or JPEG"),
    "a PNG of few lines": ("grey", png(100, 100, bytes(300)), "cannot be decoded as PNG or JPEG"),
    "a GIF": ("picture", image_file(PIXELS, "GIF"), "cannot be decoded as PNG or JPEG"),
    "no byte of a picture": ("picture", "", "cannot be decoded as PNG or JPEG"),
    "an address": ("picture", "https://example.org/a.png", "not base64"),
    "pixels of 10⁴⁰⁰": ("grey", [[1, 10**400]], "must be a picture"),
    "pixels that are texts": ("grey", [["1", "2"]], "must be a picture"),
    "pixels that are objects": ("grey", [[{}, None]], "must be a picture"),
    "pixels of four channels": ("picture", [[[1, 2, 3, 4]]], "must be a picture"),
    "no pixels": ("grey", [], "must be a picture|without pixels"),
    "a million columns": ("grey", [[0] * 10**5], "100,000 x 1 pixels"),
    "lists a hundred deep": ("grey", json.loads("[" * 100 + "]" * 100), "must be a picture|without pixels"),
    "samples of 12 bits": ("sound", chunked((b"fmt ", HEADER[:-2] + b"\x0c\0"), (b"data", b"1234")), "12 bits"),
    "no channel": ("sound", chunked((b"fmt ", HEADER[:2] + b"\0\0" + HEADER[4:]), (b"data", b"12")), "0 channels"),
    "65,535 channels": ("sound", chunked((b"fmt ", HEADER[:2] + b"\xff\xff" + HEADER[4:]), (b"data", b"12")), "65535"),
    "half a sample": ("sound", chunked((b"fmt ", HEADER), (b"data", b"123")), "ends within a sample"),
    "data before its format": ("sound", chunked((b"data", b"1234"), (b"fmt ", HEADER)), "without a format"),
    "chunks without data": ("sound", chunked(*[(b"junk", b"")] * 10_000), "states that it has more than its"),
    "samples that are NaN": ("sound", wav([0, math.nan], kind=3, bits=32), "not finite"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_picture_or_sound_is_refused_within_limits(name: str, models: dict[str, Model]) -> None:
    model, value, message = HOSTILE[name]
    if isinstance(value, bytes):
        value = in_base64(value)
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(DataError, match=message) as refused:
            models[model]({"it": value})
        assert time.process_time() - began < MOST_SECONDS
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) < 500
    assert "field 'it'" in str(refused.value)


# Files of the host


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files that are opened, as Python's audit events state them."""
    files: list[str] = []
    watching = [True]

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if watching and event == "open":
            files.append(str(args[0]))

    sys.addaudithook(watch)  # stays until the process ends
    yield files
    watching.clear()


@pytest.mark.parametrize("kind", ["picture", "sound"])
def test_a_text_never_opens_a_file(kind: str, models: dict[str, Model], opened: list[str], folder: Path) -> None:
    whole = WHOLE if kind == "picture" else wav(TONE)
    path = folder / "abcd"  # which is base64, too
    path.write_bytes(whole)
    opened.clear()
    for text in ("abcd", "./abcd", str(path), f"file://{path}", f"data:image/png;base64,{path}", f"data:{path}"):
        with pytest.raises(DataError):
            models[kind]({"it": text})
    assert [file for file in opened if "abcd" in file] == []
    answer = models[kind]({"it": path})
    assert answer == models[kind]({"it": in_base64(whole)})
    assert [file for file in opened if "abcd" in file] != []  # so the watch would have seen one


# The server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    kinds = {"picture": IMAGE, "sound": MEL}
    with Server(*(f"{name}={write_media_bundle(folder / name, kind)}" for name, kind in kinds.items())) as running:
        yield running


def test_a_server_refuses_what_is_hostile_and_answers_the_rest(server: Server, models: dict[str, Model]) -> None:
    for name in ("picture", "sound"):
        good = in_base64(WHOLE if name == "picture" else wav(TONE))
        values = [value for kind, value, _ in HOSTILE.values() if kind == name]
        values = [in_base64(value) if isinstance(value, bytes) else value for value in values]
        bodies = [json.dumps({"inputs": {"it": value}}) for value in values]
        for body in bodies:
            reply = server.post(f"/v1/{name}", body.encode())
            if "NaN" not in body and reply.status != 413:
                assert (reply.status, "record 1: field 'it'" in reply.json["error"]) == (422, True), reply.json
        assert len(bodies) > 6
        reply = server.post(f"/v1/{name}", {"inputs": [{"it": good}, {"it": "abcd"}], "on_error": "skip"})
        assert reply.json["answers"][0] == models[name]({"it": good})
        assert "error" in reply.json["answers"][1]
        assert server.post(f"/v1/{name}", {"inputs": good}).json == {"answer": models[name]({"it": good})}


def test_a_file_over_the_limits_of_a_request_is_refused_and_one_of_megabytes_answered(server: Server) -> None:
    minute = in_base64(wav(np.zeros(16_000 * 60)))  # 1.9 MB
    assert server.post("/v1/sound", {"inputs": {"it": minute}}).status == 200
    assert server.post("/v1/sound", {"inputs": {"it": minute * 2}}).status == 413
    noise = np.random.default_rng(1).integers(0, 256, (900, 1000, 3))
    assert server.post("/v1/picture", {"inputs": {"it": in_base64(image_file(noise))}}).status == 200  # 2.7 MB


def test_the_server_describes_the_forms_of_a_picture_and_of_a_sound(server: Server) -> None:
    from jsonschema import Draft202012Validator

    document = server.get("/openapi.json").json
    for name in ("picture", "sound"):
        assert server.get(f"/v1/{name}").json["inputs"] == [{"name": "it", "type": name}]
        valid = Draft202012Validator(document["components"]["schemas"][f"{name}.Input"]).is_valid
        assert [*map(valid, ({"it": "aGVsbG8="}, "aGVsbG8=", {"it": 7}, {}))] == [True, True, False, False]
    picture = Draft202012Validator(document["components"]["schemas"]["picture.Input"]).is_valid
    assert [picture({"it": it}) for it in ([[0, 255], [1, 2]], [[[0, 1, 2]]], [[256]])] == [True, True, False]


def test_the_open_inference_protocol_has_a_picture_as_text(server: Server, models: dict[str, Model]) -> None:
    good = in_base64(WHOLE)
    for text in (good, json.dumps(PIXELS.tolist())):
        tensor = {"name": "it", "shape": [1], "datatype": "BYTES", "data": [text]}
        reply = server.post("/v2/models/picture/infer", {"inputs": [tensor]})
        vector = next(output for output in reply.json["outputs"] if output["name"] == "vector")
        assert vector["data"] == pytest.approx(models["picture"]({"it": good})["vector"], rel=1e-5)
