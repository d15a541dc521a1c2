"""Bundles written, sealed and read again; forged ones, whose hashes are right, against what a reader checks."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seqpipe.errors import BundleError, UsageError
from seqpipe.files import sha256
from seqpipe.runtime import bundle
from seqpipe.runtime.manifest import MANIFEST, seal, unseal

REQUIRED = (
    *("name", "files", "inputs", "outputs", "options", "answer", "limits", "field", "reader", "golden", "metrics"),
    *("parity", "made_with"),
)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 123\n"
BOM = b"\xef\xbb\xbf"
Forge = Callable[[Path], None]


def reseal(path: Path, entries: dict[str, Any], /, **changes: Any) -> None:
    """Write the manifest again with these files and other changes, without what is None, and hashes that are right."""
    manifest = json.loads((path / MANIFEST).read_bytes())
    files = {k: v for k, v in (manifest.pop("files") | entries).items() if v is not None}
    manifest |= {"sha256": None, "files": files, **changes}
    (path / MANIFEST).write_bytes(seal({k: v for k, v in manifest.items() if v is not None}))


def sealed(body: bytes) -> bytes:
    """Any bytes, with the seal that they should have."""
    return body + f',\n "sha256": "{sha256(body)}"\n}}\n'.encode()


def test_a_bundle_that_was_written_is_read_again(tmp_path: Path, tiny_bundle: Path) -> None:
    content = bundle.read(tiny_bundle)
    bundle.write_bundle(tmp_path / "again", content.files, content.manifest)
    again = bundle.read(tmp_path / "again")
    assert (again.manifest, again.files) == (content.manifest, content.files)
    assert (tmp_path / "again" / MANIFEST).read_bytes() == (tiny_bundle / MANIFEST).read_bytes()


def test_a_bundle_is_replaced_and_no_other_file_or_folder(copy: Path, tmp_path: Path) -> None:
    content = bundle.read(copy)
    bundle.write_bundle(copy, dict(content.files) | {"README.md": b"# toy"}, content.manifest)
    assert (copy / "README.md").read_bytes() == b"# toy"
    assert [path.name for path in copy.parent.iterdir()] == ["bundle"]
    (tmp_path / "thesis").mkdir()
    for name, file in (("thesis", "thesis/thesis.tex"), ("notes", "notes")):
        (tmp_path / file).write_text("precious")
        with pytest.raises(UsageError, match=f"{name}: exists and is not a bundle; name another folder"):
            bundle.write_bundle(tmp_path / name, content.files, content.manifest)
        assert (tmp_path / file).read_text() == "precious"
    (tmp_path / "empty").mkdir()
    bundle.write_bundle(tmp_path / "empty", content.files, content.manifest)


def test_texts_with_lone_surrogates_can_be_sealed() -> None:
    manifest = {"golden": [{"record": {"text": "a\ud800 你"}}]}
    assert unseal(seal(manifest), "x") == manifest


def test_a_run_is_pointed_to_its_bundle(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"has no bundle.json; did you mean .*/bundle\?"):
        bundle.read(tmp_path)
    with pytest.raises(BundleError, match="no such folder; name a folder that"):
        bundle.read(tmp_path / "nothing")
    with pytest.raises(BundleError, match="not a folder"):
        bundle.read(copy / "model.onnx")


def linked(name: str) -> Forge:
    def forge(path: Path) -> None:
        shutil.move(path / name, path.parent / name)
        (path / name).symlink_to(path.parent / name)

    return forge


def replaced(name: str, write: Forge) -> Forge:
    def forge(path: Path) -> None:
        (path / name).unlink()
        write(path / name)

    return forge


def rewritten(name: str, change: Callable[[bytes], bytes]) -> Forge:
    return lambda path: (path / name).write_bytes(change((path / name).read_bytes())) and None


def crlf(data: bytes) -> bytes:
    return data.replace(b"\n", b"\r\n")


def too_big(name: str, size: int) -> Forge:
    return lambda path: os.truncate(path / name, size)  # sparse: it takes no room


def raw(data: bytes) -> Forge:
    return lambda path: (path / MANIFEST).write_bytes(data) and None


def changed(**changes: Any) -> Forge:
    return lambda path: reseal(path, {}, **changes)


def with_file(name: str, entry: Any = None) -> Forge:
    """Names one more file; it stands there with a right hash wherever that can be."""

    def forge(path: Path) -> None:
        (path.parent / "secret").write_bytes(b"secret")
        reseal(path, {name: entry or {"sha256": sha256(b"secret"), "bytes": 6}})

    return forge


def without_file(name: str) -> Forge:
    return lambda path: reseal(path, {name: None})


FORGED: dict[str, tuple[Forge, str]] = {
    "model is a link": (linked("model.onnx"), "model.onnx: not a regular file; a bundle has no links"),
    "manifest is a link": (linked("bundle.json"), "bundle.json: not a regular file"),
    "tokenizer is a pipe": (replaced("tokenizer.json", os.mkfifo), "tokenizer.json: not a regular file"),
    "model is a folder": (replaced("model.onnx", Path.mkdir), "model.onnx: not a regular file"),
    "model is missing": (lambda path: (path / "model.onnx").unlink(), "model.onnx: cannot be read: No such file"),
    "manifest too big": (too_big("bundle.json", bundle.MOST_MANIFEST + 1), "bytes are over the limit of 67,108,864"),
    "model too big": (too_big("model.onnx", bundle.MOST_FILE + 1), "bytes are over the limit of 1,900,000,000"),
    "model longer than stated": (too_big("model.onnx", 1_000_000), "model.onnx: damaged"),
    "model is a pointer": (rewritten("model.onnx", lambda _: POINTER), "model.onnx: is a pointer of Git LFS, not the "),
    "manifest is a pointer": (raw(POINTER), "bundle.json: is a pointer of Git LFS, not the file itself; run `git lfs"),
    "line ends of Windows": (rewritten(MANIFEST, crlf), "core.autocrlf; write the line `*.json -text` in"),
    "a BOM": (rewritten(MANIFEST, lambda data: BOM + data), "bundle.json: an editor wrote a byte order mark"),
    "a BOM in a tokenizer": (rewritten("tokenizer.json", lambda data: BOM + data), "tokenizer.json: an editor wrote"),
    "line ends and more": (rewritten(MANIFEST, lambda data: crlf(data[1:])), "cut short or not a bundle.json"),
    "manifest empty": (raw(b""), "cut short or not a bundle.json"),
    "manifest of another kind": (raw(b'{"format": "x"}\n'), "cut short or not a bundle.json"),
    "only a seal": (raw(sealed(b"")), "not valid JSON"),
    "not JSON": (raw(sealed(b'{"format": seqpipe')), "not valid JSON"),
    "not UTF-8": (raw(sealed(b'{"format": "\xff"')), "not valid JSON"),
    "UTF-16": (raw(sealed('{"format": 1'.encode("utf-16"))), "not valid JSON"),
    "a key twice": (raw(sealed(b'{"format": "seqpipe-bundle", "format": "x"')), "the key 'format' is given twice"),
    "a key twice, deep": (raw(sealed(b'{"files": [{"a": 1, "a": 2}]')), "the key 'a' is given twice"),
    "NaN": (raw(sealed(b'{"format": NaN')), "NaN is not JSON"),
    "nested lists": (raw(sealed(b'{"a": ' + b"[" * 100_000 + b"]" * 100_000)), "not valid JSON"),
    "nested objects": (raw(sealed(b'{"a": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000)), "not valid JSON"),
    "endless number": (raw(sealed(b'{"version": ' + b"9" * 100_000)), "not valid JSON"),
    "other format": (changed(format="zip"), "its format is 'zip', not 'seqpipe-bundle'"),
    "newer version": (changed(version=6), "format version 6; this seqpipe reads versions 2 to 5: update seqpipe"),
    "older version": (changed(version=1), "format version 1; this seqpipe reads versions 2 to 5: create the bundle"),
    "version as text": (changed(version="2"), "bundle format version '2'"),
    "version as a fraction": (changed(version=2.0), "bundle format version 2.0"),
    "further graphs": (changed(graphs={}), "graphs: other graphs beside model.onnx, which this seqpipe does not read"),
    "shared weights": (changed(weights=[]), "weights: weights that several graphs share, which this seqpipe does not"),
    "cache as an object": (changed(cache={}), "cache: must be a list"),
    "files as a list": (changed(files=["model.onnx"]), "files: must be an object"),
    "no model": (without_file("model.onnx"), "files: model.onnx is missing"),
    "no tokenizer": (without_file("tokenizer.json"), "files: tokenizer.json is missing"),
    "entry of another kind": (with_file("x", "secret"), "files.x: must be an object with only `sha256` and `bytes`"),
    "entry with a path": (with_file("x", {"sha256": "", "bytes": 0, "path": "/"}), "and `bytes`; its `path` is"),
    "size of another kind": (with_file("x", {"sha256": [], "bytes": {}}), "files.x: must be an object with only"),
    **{f"lacks {key}": (changed(**{key: None}), f"{key}: missing") for key in REQUIRED},
    **{
        f"file named {name[:9]!r}": (with_file(name), "is not the plain name of a file in the bundle")
        for name in (
            *("../secret", "..", ".", "", "a/../../secret", "/etc/passwd", "sub/x", "..\\secret", "C:\\secret", "~"),
            *("bundle.json", ".hidden", "-rf", "a" * 101, "model.onnx\n", "nul\0", "é", "a b", "$HOME", "file:x"),
        )
    },
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_bundle_is_refused_with_its_own_error(name: str, copy: Path) -> None:
    forge, message = FORGED[name]
    forge(copy)
    with pytest.raises(BundleError) as raised:
        bundle.read(copy)
    assert message in str(raised.value)


def test_a_forger_who_changes_nothing_is_not_found(copy: Path) -> None:
    reseal(copy, {})
    assert bundle.read(copy).manifest.name == "toy"
