"""A damaged bundle is refused before anything parses it, and one that is opened touches nothing but the processor."""

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import onnxruntime
import pytest
from tiny_pipelines import tiers

from seqpipe import load
from seqpipe.errors import BundleError
from seqpipe.runtime import bundle

FILES = ("bundle.json", "model.onnx", "tokenizer.json")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every call of onnxruntime or tokenizers, all of which fail."""
    calls: list[str] = []

    def forbid(what: str) -> Callable[..., None]:
        def called(*_: object, **__: object) -> None:
            calls.append(what)
            raise RuntimeError(what)

        return called

    monkeypatch.setattr(onnxruntime, "InferenceSession", forbid("onnxruntime"))
    monkeypatch.setattr("seqpipe.runtime.bundle.Tokenizer.from_buffer", forbid("tokenizers"))
    return calls


def flips(data: bytes, bits: int = 1) -> Iterator[bytes]:
    """Each byte in turn with a bit of it changed, another one each time; with `bits`, so many of its bits in turn."""
    for i in range(len(data)):
        for bit in range(i, i + bits):
            yield data[:i] + bytes([data[i] ^ 1 << bit % 8]) + data[i + 1 :]


def refused(path: Path) -> bool:
    try:
        load(path, "cpu", threads=1)
    except BundleError:
        return True
    return False


@pytest.mark.parametrize("bits", tiers(1, long=8))
def test_every_flipped_byte_of_the_manifest_is_refused_unparsed(bits: int, copy: Path, opened: list[str]) -> None:
    manifest = copy / "bundle.json"
    for data in flips(manifest.read_bytes(), bits):
        manifest.write_bytes(data)
        assert refused(copy)
    assert opened == []


@pytest.mark.parametrize("count", tiers(500, long=5_000))
def test_mutations_of_any_file_are_refused_unparsed(count: int, copy: Path, opened: list[str]) -> None:
    dice = random.Random(1)
    originals = {name: (copy / name).read_bytes() for name in FILES}
    for _ in range(count):
        name = dice.choice(FILES)
        (copy / name).write_bytes(mutated(originals[name], dice))
        assert refused(copy)
        (copy / name).write_bytes(originals[name])
    assert opened == []


def mutated(data: bytes, dice: random.Random) -> bytes:
    """Some bytes flipped, put in, taken out, or all that follows cut off; never the same again."""
    at, size = dice.randrange(len(data)), dice.choice((1, 1, 2, 30, 1000))
    before, byte, after = data[:at], data[at : at + 1], data[at + 1 :]
    forms = {
        "flip": before + bytes([data[at] ^ dice.randint(1, 255)]) + after,
        "insert": before + dice.randbytes(size) + data[at:],
        "delete": before + data[at + size :],
        "cut": before,
    }
    if byte != data[:1]:
        forms["swap"] = byte + before[1:] + data[:1] + after
    return forms[dice.choice([*forms])]


def test_a_whole_bundle_is_seen_being_opened(copy: Path, opened: list[str]) -> None:
    assert refused(copy)
    assert opened == ["tokenizers"]


def test_a_reader_without_hashes_would_be_found(copy: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "sha256", Anything)
    monkeypatch.setattr("seqpipe.runtime.manifest.sha256", Anything)
    manifest = copy / "bundle.json"
    for data in islice(flips(manifest.read_bytes()), 0, None, 20):
        manifest.write_bytes(data)
        refused(copy)
    assert len(opened) > 20


class Anything(str):
    """The planted fault: a hash that is equal to every other."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


WATCHED = """
import os, sys
import onnxruntime, seqpipe
from seqpipe.api.model import load
load(sys.argv[1], "cpu", threads=2)("warm")  # whatever is imported late is imported now
seen = []
def watch(event, args):
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or event.split(".")[0] in ("socket", "subprocess", "exec", "ctypes", "import", "compile",
        "tempfile") or event in ("os.mkdir",
        "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.remove", "os.rename", "os.putenv"):
        seen.append((event, *map(repr, args)))
sys.addaudithook(watch)
model = load(sys.argv[1], "cpu", threads=2)
assert [span["word"] for span in model(["Anna in Bern"] * 40)[7]] == ["Anna", "Bern"] and not model.verify()
if seen: sys.exit(repr(seen[:5]))
{planted}
sys.exit(repr(seen) if seen else 0)
"""


def watched(path: Path, planted: str = "") -> subprocess.CompletedProcess[str]:
    code = WATCHED.replace("{planted}", planted)
    return subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, cwd=path)


def test_loading_and_predicting_runs_nothing_writes_nothing_and_calls_nobody(copy: Path) -> None:
    done = watched(copy)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("planted", "event"), [("import tempfile; tempfile.mkdtemp()", "'os.mkdir'"), ("open('x', 'w')", "'open'")]
)
def test_the_watch_sees_a_folder_or_a_file_being_written(copy: Path, planted: str, event: str) -> None:
    done = watched(copy, planted)
    assert (done.returncode, event in done.stderr) == (1, True)


def test_a_bundle_that_cannot_be_written_to_still_runs(copy: Path) -> None:
    for path in (*copy.iterdir(), copy):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert load(copy, "cpu", threads=1).verify() == []
    finally:
        copy.chmod(0o755)
