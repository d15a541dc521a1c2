"""What holds for every target: a bundle that answers right, a name that it takes, a folder whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import forged
import pytest
from conftest import Build, manifest
from deployed import deploy
from factory import Done, seqpipe

from seqpipe.commands import deploy as shared
from seqpipe.runtime.model import verify_bundle

IMAGE = ("--image", "registry.example.com/toy:1")
KINDS = {"triton": (), "docker": (), "systemd": (), "kserve": IMAGE}
BUNDLE_IN = {"triton": "toy/1/bundle", "docker": "bundle", "systemd": "bundle", "kserve": "image/bundle"}
every_kind = pytest.mark.parametrize("kind", KINDS)


def refused(kind: str, bundle: Path, output: Path, *options: str) -> Done:
    """The command, which fails and leaves nothing behind."""
    before = sorted(output.parent.rglob("*"))
    done = seqpipe("deploy", kind, bundle, "-o", output, *KINDS[kind], *options)
    assert done.code
    assert sorted(output.parent.rglob("*")) == before
    return done


@every_kind
def test_the_bundle_is_copied_whole_and_every_account_may_read_it(kind: str, tiny_bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "deployed"
    deploy(kind, tiny_bundle, output, *KINDS[kind])
    copy = output / BUNDLE_IN[kind]
    assert verify_bundle(copy)["sha256"] == verify_bundle(tiny_bundle)["sha256"]
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == {
        path.name: path.read_bytes() for path in tiny_bundle.iterdir()
    }
    for path in (output, *output.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644)


@every_kind
def test_an_empty_folder_is_taken_and_any_other_refused(kind: str, tiny_bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "deployed"
    output.mkdir()
    deploy(kind, tiny_bundle, output, *KINDS[kind])
    done = refused(kind, tiny_bundle, output)
    assert (done.code, "exists and is not empty" in done.err) == (2, True)
    file = tmp_path / "file"
    file.write_text("mine")
    done = refused(kind, tiny_bundle, file)
    assert (done.code, "exists and is not a folder" in done.err) == (2, True)
    assert file.read_text() == "mine"


@every_kind
def test_a_bundle_of_int8_is_refused_for_cuda_and_not_for_the_cpu(kind: str, tiny_bundle: Path, tmp_path: Path) -> None:
    files = {name: (tiny_bundle / name).read_bytes() for name in ("model.onnx", "tokenizer.json")}
    bundle = forged.write(tmp_path / "int8", files, manifest() | {"parity": {"precision": "int8"}})
    done = refused(kind, bundle, tmp_path / "deployed", "--cuda")
    assert (done.code, "--cuda: onnxruntime has no CUDA kernels for the int8 of this bundle" in done.err) == (2, True)
    deploy(kind, bundle, tmp_path / "deployed", *KINDS[kind])


@every_kind
def test_a_bundle_that_answers_otherwise_is_refused(kind: str, build: Build, tmp_path: Path) -> None:
    done = refused(kind, build(tmp_path / "leaks", leaks=True), tmp_path / "deployed")
    assert done.code == 6
    assert "answers differ on this machine" in done.err


@every_kind
def test_a_damaged_bundle_is_refused(kind: str, tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(tiny_bundle, tmp_path / "bundle")
    (bundle / "tokenizer.json").write_text("{}")
    done = refused(kind, bundle, tmp_path / "deployed")
    assert (done.code, "damaged" in done.err) == (6, True)


@every_kind
def test_nothing_is_left_when_the_disk_is_full(
    kind: str, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bytes, written = Path.write_bytes, []

    def full(path: Path, data: bytes) -> int:
        if path.name == "tokenizer.json":
            raise OSError(28, "No space left on device")
        written.append(path)
        return write_bytes(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    done = refused(kind, tiny_bundle, tmp_path / "deployed")
    assert written
    assert (done.code, "the disk is full" in done.err) == (7, True)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, name) for kind in KINDS for name in ("", "-a", "a b", "a/b", "../a", "ä", "a" * 101, "embeddings")),
        *(("docker", name) for name in ("Toy", "a__-b", "a-", "a..b")),
        *(("kserve", name) for name in ("Toy", "a_b", "a.b", "1a", "a-", "a" * 41)),
        *(("triton", name) for name in ("a" * 91,)),
    ],
)
def test_a_name_that_the_target_does_not_take_is_refused(
    kind: str, name: str, tiny_bundle: Path, tmp_path: Path
) -> None:
    done = refused(kind, tiny_bundle, tmp_path / "deployed", f"--name={name}")
    assert done.code == 2
    assert repr(name) in done.err


@every_kind
def test_a_name_that_the_target_takes_is_used(kind: str, tiny_bundle: Path, tmp_path: Path) -> None:
    said = deploy(kind, tiny_bundle, tmp_path / "deployed", *KINDS[kind], "--name", "people-1")
    files = [path for path in (tmp_path / "deployed").rglob("*") if path.is_file() and "bundle" not in path.parts]
    assert any("people-1" in path.read_text(errors="ignore") or "people-1" in str(path) for path in files)
    assert said


def test_the_version_that_wrote_the_files_is_the_one_that_runs_them() -> None:
    assert shared.requirement(False, "serve") == f"seqpipe-nlp[cpu,serve]=={shared.VERSION}"
    assert shared.requirement(True) == f"seqpipe-nlp[gpu]=={shared.VERSION}"
