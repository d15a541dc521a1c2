"""Shared by the benchmarks: the option --data, running seqpipe, processes of peers, timing, and records of figures."""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RUNS = ROOT / "runs"
PREPARED = RUNS / "data"  # git ignores it
RECORDED = RUNS / "results"  # figures of the last runs; `report.py --add FILE` takes them over
RESULTS = HERE / "results"
PACKAGES = ("seqpipe", "torch", "onnxruntime", "numpy")
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


def record(
    benchmark: str, question: str, rows: Iterable[Mapping[str, Any]], peers: Sequence[str] = (), versions: str = ""
) -> None:
    """Merge rows that this run has measured into runs/results/BENCHMARK.json.

    A row is a mapping with `row`, its name, and `figures`, by what they are figures of; it may also have `unit`,
    `peer`, `ratio` (a number, or the least and the most), `asked`, `met` (false where it falls short) and `note`. The
    date, the commit, the machine, the versions and the command are added here. `peers` names packages of this
    environment, `versions` those of another.
    """
    RECORDED.mkdir(parents=True, exist_ok=True)
    path = RECORDED / f"{benchmark}.json"
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"runs": {}, "questions": {}}
    run = provenance(peers, versions)
    name = run_name(run)
    new = {"runs": {name: run}, "questions": {question: {"rows": [{**row, "run": name} for row in rows]}}}
    write_json(path, merged(content, new))


def merged(content: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a file of results with newer rows, which replace those of the same question and name in place.

    What only a person can say of a row is kept: what was asked, whether it falls short, its peer, unit and note.
    """
    result = json.loads(json.dumps(content))  # a copy
    for key, question in new["questions"].items():
        known = result["questions"].setdefault(key, {"rows": []})
        places = {row["row"]: place for place, row in enumerate(known["rows"])}
        for row in question["rows"]:
            if row["row"] in places:
                before = known["rows"][places[row["row"]]]
                kept = {key: before[key] for key in ("unit", "peer", "asked", "met", "note") if key in before}
                known["rows"][places[row["row"]]] = {**kept, **row}
            else:
                known["rows"].append(row)
    used = {row["run"] for question in result["questions"].values() for row in question["rows"]}
    result["runs"] = {name: run for name, run in {**result["runs"], **new["runs"]}.items() if name in used}
    return result


def run_name(run: Mapping[str, str]) -> str:
    """The key of a run in a file: its date, and a hash, so that two runs have one key only if they say the same."""
    return f"{run['date']}-{hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:6]}"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def provenance(peers: Sequence[str], versions: str) -> dict[str, str]:
    """The date, commit, machine, versions and command of this process; an absolute path is shortened to its end."""
    packages = [f"Python {platform.python_version()}"]
    for package in (*PACKAGES, *peers):
        try:
            packages.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue  # a benchmark of plain Python needs none of them
    arguments = [f"…/{Path(word).name}" if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return {
        "date": datetime.date.today().isoformat(),
        "commit": _git("rev-parse", "--short=8", "HEAD") + (" and changes" if _git("status", "--porcelain") else ""),
        "machine": machine(),
        "versions": ", ".join([*packages, *([versions] if versions else [])]),
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *arguments]),
    }


def machine() -> str:
    """The processor as Linux names it, how many of its cores this process may use, and its vector instructions.

    Variables of the environment that set numbers of threads are named too.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}"
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = facts.get("flags", "").split()
    vectors = next((shown for flag, shown in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), "no AVX2")
    more = {"avx512_vnni": "VNNI", "avx_vnni": "AVX-VNNI", "avx512_bf16": "bf16", "amx_tile": "AMX"}
    vectors = ", ".join([vectors, *(shown for flag, shown in more.items() if flag in flags)])
    threads = [f"{name}={os.environ[name]}" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in os.environ]
    cores = len(os.sched_getaffinity(0))
    return f"{cores} core{'s' * (cores > 1)} of {facts.get('model name', platform.machine())}, " + ", ".join(
        [vectors, *threads, "no GPU used"]
    )


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


class Table:
    """A Markdown table that is printed row by row, and recorded: the first cell of a row is its name.

    Args:
        benchmark: The name of the file of results.
        question: The key of the question in it.
        columns: The heads of the table; but for the first they are what the figures are figures of.
        versions: Versions of packages in the environment of a peer.
    """

    def __init__(self, benchmark: str, question: str, *columns: str, versions: str = ""):
        self.benchmark, self.question, self.columns, self.versions = benchmark, question, columns, versions
        print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns), flush=True)

    def row(self, *cells: object, **facts: Any) -> None:
        """Print and record a row; `facts` are keys of `record`, such as `peer` and `ratio`."""
        print("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |", flush=True)
        figures = dict(zip(self.columns[1:], map(figure, cells[1:]), strict=True))
        record(self.benchmark, self.question, [{"row": str(cells[0]), "figures": figures, **facts}], (), self.versions)


def figure(cell: object) -> Any:
    """A number where a cell is nothing but one, such as "1,204" or "0.97"; else its text."""
    text = str(cell)
    if re.fullmatch(r"\d{1,3}(,\d{3})+|\d+", text):
        return int(text.replace(",", ""))
    return float(text) if re.fullmatch(r"\d+\.\d+", text) else text


def peer_versions(python: Path, *packages: str) -> str:
    """The versions of packages in the environment of a peer, as `record` takes them."""
    code = "import sys, importlib.metadata as m; print(', '.join(f'{p} {m.version(p)}' for p in sys.argv[1:]))"
    return subprocess.run([python, "-c", code, *packages], check=True, capture_output=True, text=True).stdout.strip()
