"""Commands where training is not installed, and imports before there is work."""

import subprocess
import sys
from pathlib import Path

import pytest

TRAINING = {"torch", "onnx", "onnxscript", "torchcrf", "safetensors"}
RUNTIME = {"numpy", "tokenizers", "onnxruntime"}
SERVER = {"starlette", "granian", "prometheus_client"}
LOCK = {"seqpipe.runs.lock"}


def imported(code: str, *arguments: str) -> set[str]:
    """The modules that a fresh Python has after this code."""
    tail = "\nimport sys; sys.stderr.write('\\n' + ' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code + tail, *arguments], capture_output=True, text=True, timeout=300, check=True
    )
    return set(done.stderr.splitlines()[-1].split())


def command(*arguments: str) -> str:
    return (
        f"import sys; sys.argv = ['seqpipe', *{list(arguments)!r}, *sys.argv[1:]]\n"
        "from seqpipe.commands.app import main\n"
        "try: main()\n"
        "except SystemExit as end:\n"
        "    if end.code: raise\n"
    )


MARKERS = "from seqpipe.plugin import Checkpoint, DataError, Folder, Probability, Size, Tokens, Uniform, hookimpl"


def test_importing_seqpipe_imports_nothing_heavy() -> None:
    code = f"import seqpipe; seqpipe.__version__, seqpipe.DataError\n{MARKERS}"
    assert imported(code).isdisjoint(TRAINING | RUNTIME | SERVER)
    assert imported("import seqpipe\nfor name in seqpipe.__all__: getattr(seqpipe, name)").isdisjoint(TRAINING)
    assert "torch" in imported("import seqpipe.nn.crf")  # the planted fault


def test_loading_a_bundle_and_predicting_imports_nothing_of_training(tiny_bundle: Path) -> None:
    code = "import sys, seqpipe; assert len(seqpipe.load(sys.argv[1])('Anna in Bern')) == 2"
    modules = imported(code, str(tiny_bundle))
    assert modules.isdisjoint({*TRAINING, *SERVER, "pluggy", "yaml"})
    assert modules >= RUNTIME


COMMANDS = {
    "--help": TRAINING | RUNTIME | LOCK,
    "run --help": TRAINING | RUNTIME,
    "plugins": TRAINING | RUNTIME,
    "predict -h": TRAINING | RUNTIME,
    "predict BUNDLE -i BUNDLE/tokenizer.json --format text": TRAINING | SERVER | LOCK,
    "verify BUNDLE": TRAINING | SERVER | LOCK,
    "evaluate BUNDLE --data DATA --device cpu": TRAINING | SERVER | LOCK,
    "deploy docker BUNDLE -o OUTPUT": TRAINING | SERVER,
    "doctor": LOCK,
}


@pytest.mark.parametrize(("line", "forbidden"), COMMANDS.items())
def test_a_command_imports_what_it_needs(line: str, forbidden: set[str], tiny_bundle: Path, tmp_path: Path) -> None:
    """Neither PyTorch nor a server to use a bundle, no onnxruntime to look around, no lock in a deployment."""
    (tmp_path / "a.conll").write_text("Anna B-person\n\n")
    paths = {"BUNDLE": str(tiny_bundle), "DATA": str(tmp_path / "a.conll"), "OUTPUT": str(tmp_path / "docker")}
    for name, path in paths.items():
        line = line.replace(name, path)
    modules = imported(command(*line.split()))
    assert "seqpipe.errors" in modules
    assert modules.isdisjoint(forbidden)


@pytest.mark.parametrize("words", ["train.ep", "encoder=ls"])
def test_completion_imports_neither_torch_nor_onnxruntime(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_SEQPIPE_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"seqpipe run x.yaml {words}")
    assert imported(command()).isdisjoint(TRAINING | RUNTIME)


def test_a_bundle_runs_where_training_is_not_installed(tiny_bundle: Path) -> None:
    hidden = f"import sys\nfor name in {sorted(TRAINING)!r}: sys.modules[name] = None\n"
    imported(hidden + "import seqpipe; assert seqpipe.load(sys.argv[1]).verify() == []", str(tiny_bundle))
    imported(hidden + command("plugins"))
    imported(hidden + command("doctor"))


# Modules, signals and functions of Linux that Windows or macOS lack. Libraries that are imported first may use them.
ELSEWHERE = """
import importlib, os, pkgutil, signal, sys
import numpy, onnxruntime, tokenizers, click, yaml, pydantic
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "spwd", "crypt", "readline"):
    sys.modules[name] = None
for name in ("SIGKILL", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGPIPE", "SIGQUIT", "SIGCHLD"):
    delattr(signal, name)
for name in ("fork", "killpg", "setsid", "sched_getaffinity", "geteuid", "getuid", "mkfifo", "getpgid", "uname"):
    delattr(os, name)
"""


def test_the_runtime_needs_nothing_that_windows_or_macos_lack(tiny_bundle: Path) -> None:
    code = """
import seqpipe, seqpipe.runtime, seqpipe.answers, seqpipe.features
for package in (seqpipe.runtime, seqpipe.answers, seqpipe.features):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
model = seqpipe.load(sys.argv[1], "cpu")
assert len(model("Anna in Bern")) == 2 and model.verify() == []
"""
    imported(ELSEWHERE + code, str(tiny_bundle))
    imported(ELSEWHERE + command("verify"), str(tiny_bundle))


@pytest.mark.parametrize("line", ["import fcntl", "import resource", "signal.SIGKILL", "os.sched_getaffinity(0)"])
def test_what_windows_lacks_would_be_found(line: str) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        imported(f"{ELSEWHERE}\n{line}")
