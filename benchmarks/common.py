"""What the benchmark scripts share: the option --data, running seqpipe, processes of peers, and timing."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RUNS = ROOT / "runs"
PREPARED = RUNS / "data"  # git ignores it
VARIABLE = "SEQPIPE_DATA"
PLACEHOLDER = "../data/"  # what paths into the folder of --data begin with in the YAMLs


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help shows the script's docstring as it is written."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_data_option(*parsers: argparse.ArgumentParser) -> None:
    """Give each parser the option `--data FOLDER`."""
    for each in parsers:
        each.add_argument(
            "--data",
            type=Path,
            metavar="FOLDER",
            default=os.environ.get(VARIABLE) or None,
            help=f"folder of the data sets; default: the environment variable {VARIABLE}",
        )


def data_path(folder: Path | None, name: str) -> Path:
    """The path of a file or folder of the data sets; ends the script if it is not there."""
    if folder is None:
        raise SystemExit(f"no folder of data sets: give --data FOLDER, or set the environment variable {VARIABLE}")
    path = folder.absolute() / name
    if not path.exists():
        raise SystemExit(f"{path}: not found; --data or {VARIABLE} must name the folder that holds {name}")
    return path


def data_overrides(config: Path, folder: Path | None) -> list[str]:
    """Overrides that replace the placeholder in the data paths of a YAML by the folder of --data."""
    data = yaml.safe_load(config.read_text(encoding="utf-8"))["data"]
    overrides = []
    for part in ("train", "dev", "test"):
        file = data.get(part)
        if isinstance(file, str) and file.startswith(PLACEHOLDER):
            path = data_path(folder, file.removeprefix(PLACEHOLDER))
            overrides.append(f"data.{part}={json.dumps(str(path), ensure_ascii=False)}")
    return overrides


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def seqpipe(*arguments: object) -> None:
    """Run a command of seqpipe in the checkout."""
    subprocess.run([sys.executable, "-m", "seqpipe", *map(str, arguments)], check=True, cwd=ROOT)


def seqpipe_json(*arguments: object) -> Any:
    """Run a command of seqpipe in the checkout and return the JSON that it prints."""
    command = [sys.executable, "-m", "seqpipe", *map(str, arguments), "--json"]
    return json.loads(subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE).stdout)


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    clock = time.perf_counter()
    work()
    return time.perf_counter() - clock


def peer_python(environment: Path, requirements: str, *first: str) -> Path:
    """The Python of a peer's environment, which is made if it is not there: `first` is installed before the rest."""
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        pip: list[str | Path] = [python, "-m", "pip", "install", "-q"]
        if first:
            subprocess.run([*pip, *first], check=True)
        subprocess.run([*pip, "-r", HERE / "peers" / requirements], check=True)
    return python


class Peer:
    """A process in a peer's environment that answers one line of text with one line of JSON, and waits in between."""

    def __init__(self, command: Sequence[object]):
        self.command = [*map(str, command)]

    def __enter__(self) -> Peer:
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.greeting = self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()

    def ask(self, request: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the peer stopped with {self.process.wait()}: {' '.join(self.command)}")
        return json.loads(line)
