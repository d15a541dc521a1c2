"""What runs where training is not installed, and how little is imported before there is work."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Install

TRAINING = {"torch", "onnx", "onnxscript", "torchcrf", "safetensors"}
RUNTIME = {"numpy", "tokenizers", "onnxruntime"}


def imported(code: str, *arguments: str) -> set[str]:
    """The top-level modules that a fresh Python has after this code."""
    tail = "\nimport sys; sys.stderr.write('\\n' + ' '.join({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code + tail, *arguments], capture_output=True, text=True, timeout=60, check=True
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


def test_importing_seqpipe_imports_nothing_heavy() -> None:
    assert imported("import seqpipe; seqpipe.__version__, seqpipe.DataError").isdisjoint(TRAINING | RUNTIME)
    markers = "from seqpipe.plugin import Checkpoint, DataError, Folder, Probability, Size, Tokens, Uniform, hookimpl"
    assert imported(markers).isdisjoint(TRAINING | RUNTIME)


def test_every_public_name_is_there_without_torch() -> None:
    assert imported("import seqpipe\nfor name in seqpipe.__all__: getattr(seqpipe, name)").isdisjoint(TRAINING)


def test_loading_a_bundle_and_predicting_imports_nothing_of_training(tiny_bundle: Path) -> None:
    code = "import sys, seqpipe; assert len(seqpipe.load(sys.argv[1])('Anna in Bern')) == 2"
    found = imported(code, str(tiny_bundle))
    assert found.isdisjoint({*TRAINING, "pluggy", "yaml"})
    assert found >= RUNTIME  # the list is of what was really imported


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["plugins"], ["predict", "-h"]])
def test_looking_around_imports_neither_torch_nor_onnxruntime(arguments: list[str]) -> None:
    assert imported(command(*arguments)).isdisjoint(TRAINING | RUNTIME)


@pytest.mark.parametrize("words", ["train.ep", "encoder=ls"])
def test_completion_imports_neither_torch_nor_onnxruntime(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_SEQPIPE_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"seqpipe run x.yaml {words}")
    assert imported(command()).isdisjoint(TRAINING | RUNTIME)


def test_twenty_plugins_are_listed_without_torch(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = "from seqpipe.plugin import hookimpl\n\n@hookimpl\n"
    hook += "def register_encoders():\n    return {'acme-%d': 'torch:nn'}\n"
    for i in range(20):
        install(f"acme-{i}", hook % i)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    listing = "\nfrom seqpipe.config.plugins import Plugins\nassert len(Plugins().names('encoder')) >= 21"
    assert imported(command("plugins") + listing).isdisjoint(TRAINING | RUNTIME)


@pytest.mark.parametrize("name", ["predict", "verify"])
def test_commands_on_bundles_import_nothing_of_training(name: str, tiny_bundle: Path) -> None:
    source = [] if name == "verify" else ["-i", str(tiny_bundle / "tokenizer.json"), "--format", "text"]
    assert imported(command(name), str(tiny_bundle), *source).isdisjoint(TRAINING)


def test_evaluating_a_bundle_imports_nothing_of_training(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("Anna B-person\n\n")
    found = imported(command("evaluate"), str(tiny_bundle), "--data", str(tmp_path / "a.conll"), "--device", "cpu")
    assert found.isdisjoint(TRAINING)


def test_a_bundle_runs_where_training_is_not_installed(tiny_bundle: Path) -> None:
    hidden = f"import sys\nfor name in {sorted(TRAINING)!r}: sys.modules[name] = None\n"
    imported(hidden + "import seqpipe; assert seqpipe.load(sys.argv[1]).verify() == []", str(tiny_bundle))
    imported(hidden + command("plugins"))
    imported(hidden + command("doctor"))


@pytest.mark.parametrize("name", ["predict", "verify", "evaluate", "doctor", "--help"])
def test_deployment_imports_no_lock(name: str, tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("Anna B-person\n\n")
    data = ["--data", str(tmp_path / "a.conll"), "--device", "cpu"]
    more = {"predict": ["-i", str(tiny_bundle / "tokenizer.json"), "--format", "text"], "evaluate": data}
    given = [] if name in ("doctor", "--help") else [str(tiny_bundle), *more.get(name, [])]
    imported(
        command(name, *given)
        + "\nassert 'seqpipe.errors' in sys.modules and 'seqpipe.pipeline.lock' not in sys.modules"
    )


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


def test_an_import_of_torch_would_be_found() -> None:
    assert "torch" in imported("import seqpipe.nn.crf")


def test_writing_files_for_another_server_needs_neither_training_nor_a_server_here(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    found = imported(command("deploy", "docker", "-o", str(tmp_path / "docker")), str(tiny_bundle))
    assert found.isdisjoint(TRAINING | {"starlette", "granian", "prometheus_client"})
    assert (tmp_path / "docker" / "Dockerfile").exists()
