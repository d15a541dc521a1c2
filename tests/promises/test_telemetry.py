"""A process that loads a bundle tells nobody and leaves nothing behind: onnxruntime's telemetry is off."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import seqpipe

VARIABLE = "ORT_DISABLE_TELEMETRY"
WAIT = 14  # seconds in which onnxruntime asks for its maker's host, if it does
ANSWERS = f"""
import sys, time
import seqpipe
model = seqpipe.load(sys.argv[1], "cpu", threads=1)
assert model("Anna") and model("Anna in Bern")
time.sleep({WAIT})
"""
COMMAND = "import sys; from seqpipe.commands.app import main; sys.argv[:1] = ['seqpipe', 'verify']; main()"
PACKAGE = Path(seqpipe.__file__).parent
ROOT = PACKAGE.parent
PORT_OF_NAMES = "sin_port=htons(53)"
FAMILIES = ("AF_INET", "AF_INET6")


def environment(home: Path, **more: str) -> dict[str, str]:
    """Only what Python needs: where `CI` is set, or a variable like it, onnxruntime keeps quiet by itself."""
    home.mkdir()
    wanted = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR")
    kept = {name: os.environ[name] for name in wanted if name in os.environ}
    return {**kept, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONDONTWRITEBYTECODE": "1", **more}


def run(code: str, bundle: Path, env: Mapping[str, str], *before: str) -> None:
    done = subprocess.run([*before, sys.executable, "-c", code, str(bundle)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def left_in(home: Path) -> list[str]:
    return [str(path.relative_to(home)) for path in home.rglob("*")]


def connections(trace: Path) -> list[str]:
    lines = trace.read_text(errors="replace").splitlines()
    return [line for line in lines if any(family in line for family in FAMILIES)]


@pytest.mark.parametrize("code", [ANSWERS.replace("time.sleep", "#"), COMMAND])
def test_nothing_is_left_in_an_empty_home(code: str, tiny_bundle: Path, tmp_path: Path) -> None:
    run(code, tiny_bundle, environment(tmp_path / "home"))
    assert left_in(tmp_path / "home") == []


def test_with_telemetry_on_something_would_be_left(tiny_bundle: Path, tmp_path: Path) -> None:
    run(ANSWERS.replace("time.sleep", "#"), tiny_bundle, environment(tmp_path / "home", **{VARIABLE: "0"}))
    assert any("onnxruntime" in path for path in left_in(tmp_path / "home"))


@pytest.mark.strace
@pytest.mark.parametrize("on", [False, True], ids=["off", "planted: on"])
def test_no_name_is_looked_up_and_no_host_called(on: bool, tiny_bundle: Path, tmp_path: Path) -> None:
    strace = shutil.which("strace")
    assert strace, "strace is not installed; install it, or leave these tests out with -m 'not strace'"
    trace = tmp_path / "trace"
    before = (strace, "-f", "--seccomp-bpf", "-e", "trace=%network", "-o", str(trace))
    run(ANSWERS, tiny_bundle, environment(tmp_path / "home", **({VARIABLE: "0"} if on else {})), *before)
    assert bool(connections(trace)) is on, connections(trace)[:3]


def test_who_wants_telemetry_may_have_it() -> None:
    code = "import os; from seqpipe.runtime.onnx_runtime import TELEMETRY; print(os.environ[TELEMETRY])"
    for given, expected in (({}, "1"), ({VARIABLE: "0"}, "0"), ({VARIABLE: "true"}, "true")):
        env = {name: value for name, value in os.environ.items() if name != VARIABLE} | given
        assert subprocess.check_output([sys.executable, "-c", code], env=env, text=True).strip() == expected


def test_what_was_imported_too_early_is_told() -> None:
    code = "import onnxruntime\nfrom seqpipe.runtime.environment import examine\n"
    code += "for found in examine(): print(*vars(found).values())"
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.check_output([sys.executable, "-c", code], env=env, text=True)
    assert f"note telemetry onnxruntime was imported before seqpipe and may have sent data: set {VARIABLE}=1" in done
    env[VARIABLE] = "0"
    done = subprocess.check_output([sys.executable, "-c", code.partition("\n")[2]], env=env, text=True)
    assert f"note telemetry onnxruntime's telemetry is on, since the environment has {VARIABLE}=0" in done


def imports_of_onnxruntime(path: Path) -> list[int]:
    """The lines of a file that import onnxruntime itself."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        if any(name.split(".")[0] == "onnxruntime" for name in names):
            found.append(node.lineno)
    return found


def test_onnxruntime_is_imported_in_one_place() -> None:
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]
    assert [path.name for path in files if imports_of_onnxruntime(path)] == ["onnx_runtime.py"]
    texts = {path.name for path in PACKAGE.rglob("*.txt") if "import onnxruntime" in path.read_text(encoding="utf-8")}
    assert texts == set()


def test_an_import_beside_it_would_be_found(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    for line in (
        "import onnxruntime as ort",
        "from onnxruntime.capi import x",
        "def f():\n  import numpy, onnxruntime",
    ):
        planted.write_text(line)
        assert imports_of_onnxruntime(planted)
    planted.write_text("from seqpipe.runtime.onnx_runtime import onnxruntime")
    assert not imports_of_onnxruntime(planted)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_a_page_that_imports_onnxruntime_switches_it_off_first(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    places = [text.find(line) for line in ("import onnxruntime", 'import("onnxruntime-node")') if line in text]
    assert 'from "onnxruntime-node"' not in text  # such an import runs before any other line
    assert not places or 0 <= text.find(VARIABLE) < min(places)
