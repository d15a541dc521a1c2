"""A process that loads a bundle tells nobody and leaves nothing behind: onnxruntime's telemetry is off."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import seqpipe

VARIABLE = "ORT_DISABLE_TELEMETRY"
WAIT = 14  # seconds in which onnxruntime asks for its maker's host, if it does
ANSWERS = """
import sys, seqpipe
model = seqpipe.load(sys.argv[1], "cpu", threads=1)
assert model("Anna") and model("Anna in Bern")
"""
WAITS = """
import pathlib, time
end = time.monotonic() + {}
while time.monotonic() < end and "AF_INET" not in pathlib.Path({!r}).read_text(errors="replace"): time.sleep(0.1)
"""
COMMAND = "import sys; from seqpipe.commands.app import main; sys.argv[:1] = ['seqpipe', 'verify']; main()"
PACKAGE = Path(seqpipe.__file__).parent
ROOT = PACKAGE.parent


def environment(home: Path, **more: str) -> dict[str, str]:
    """Only what Python needs: where `CI` is set, or a variable like it, onnxruntime keeps quiet by itself."""
    home.mkdir()
    wanted = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR")
    kept = {name: os.environ[name] for name in wanted if name in os.environ}
    return {**kept, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONDONTWRITEBYTECODE": "1", **more}


def run(code: str, bundle: Path, env: Mapping[str, str], *before: str) -> None:
    done = subprocess.run([*before, sys.executable, "-c", code, str(bundle)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def connections(trace: Path) -> list[str]:
    return [line for line in trace.read_text(errors="replace").splitlines() if "AF_INET" in line]


@pytest.mark.parametrize("code", [ANSWERS, COMMAND])
def test_nothing_is_left_in_an_empty_home(code: str, tiny_bundle: Path, tmp_path: Path) -> None:
    run(code, tiny_bundle, environment(tmp_path / "home"))
    assert [*(tmp_path / "home").rglob("*")] == []


def test_with_telemetry_on_something_would_be_left(tiny_bundle: Path, tmp_path: Path) -> None:
    run(ANSWERS, tiny_bundle, environment(tmp_path / "home", **{VARIABLE: "0"}))
    assert [*(tmp_path / "home").rglob("*onnxruntime*")] != []


@pytest.mark.strace
@pytest.mark.parametrize("on", [False, True], ids=["off", "planted: on"])
def test_no_name_is_looked_up_and_no_host_called(on: bool, tiny_bundle: Path, tmp_path: Path) -> None:
    strace = shutil.which("strace")
    assert strace, "strace is not installed; install it, or leave these tests out with -m 'not strace'"
    trace = tmp_path / "trace"
    before = (strace, "-f", "--seccomp-bpf", "-e", "trace=%network", "-o", str(trace))
    code = ANSWERS + WAITS.format(120 if on else WAIT, str(trace))
    run(code, tiny_bundle, environment(tmp_path / "home", **({VARIABLE: "0"} if on else {})), *before)
    assert bool(connections(trace)) is on, connections(trace)[:3]


def printed(code: str, **variables: str) -> str:
    env = {name: value for name, value in os.environ.items() if name != VARIABLE} | variables
    return subprocess.check_output([sys.executable, "-c", code], env=env, text=True)


def test_who_wants_telemetry_may_have_it() -> None:
    code = "import os; from seqpipe.runtime.onnx_runtime import TELEMETRY; print(os.environ[TELEMETRY])"
    assert [printed(code), printed(code, **{VARIABLE: "true"})] == ["1\n", "true\n"]


def test_an_import_that_was_too_early_is_reported() -> None:
    code = "from seqpipe.runtime.environment import examine\nfor note in examine(): print(*vars(note).values())"
    early = f"note telemetry onnxruntime was imported before seqpipe and may have sent data: set {VARIABLE}=1"
    assert early in printed(f"import onnxruntime\n{code}")
    on = f"note telemetry onnxruntime's telemetry is on, since the environment has {VARIABLE}=0"
    assert on in printed(code, **{VARIABLE: "0"})


IMPORT = re.compile(r"^\s*(?:from onnxruntime\b|import (?:[\w.]+(?: as \w+)?, )*onnxruntime\b)", re.MULTILINE)


def test_onnxruntime_is_imported_in_one_place() -> None:
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.txt"), *(ROOT / "plugins").rglob("*.py")]
    assert [path.name for path in files if IMPORT.search(path.read_text(encoding="utf-8"))] == ["onnx_runtime.py"]


def test_an_import_beside_it_would_be_found() -> None:
    planted = ["import onnxruntime as ort", "from onnxruntime.capi import x", "def f():\n  import numpy, onnxruntime"]
    assert all(map(IMPORT.search, planted))
    assert not IMPORT.search("from seqpipe.runtime.onnx_runtime import onnxruntime")


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_a_page_that_imports_onnxruntime_switches_it_off_first(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    places = [text.find(line) for line in ("import onnxruntime", 'import("onnxruntime-node")') if line in text]
    assert 'from "onnxruntime-node"' not in text  # such an import runs before any other line
    assert not places or 0 <= text.find(VARIABLE) < min(places)
