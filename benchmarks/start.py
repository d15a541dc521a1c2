"""How long commands take from a fresh process on, on an idle machine.

    python benchmarks/start.py                  commands that only look around
    python benchmarks/start.py predict          `seqpipe --help`, and `seqpipe predict BUNDLE` for one line, beside bars
    python benchmarks/start.py check            `seqpipe check` of shipped pipelines, first and second time
    python benchmarks/start.py check --beside PYTHON --checkout FOLDER   … beside another version, in turn
    python benchmarks/start.py export           export of a 6-layer GPT, the comparison with PyTorch included
    python benchmarks/start.py train            training with default threads and with one, alone and beside two loops

`look` prints the median of wall-clock seconds, and of a Python that does nothing, in the same run. `predict` prints
processor seconds (user and system), the others these and wall-clock seconds.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import common

ROOT = Path(__file__).resolve().parent.parent
PIPELINES = ("ner", "dates", "hull", "gpt", "intent-bert", "describe", "sentiment-cnn", "intent-lstm")
GPT = (
    "name=gpt-6",
    "embedding.dim=384",
    "encoder.layers=6",
    "encoder.heads=6",
    "train.epochs=1",
    "train.epoch_steps=1",
)
HOOK = (
    "from seqpipe.plugin import hookimpl\n\n@hookimpl\n"
    "def register_encoders():\n    return {'acme-%d': 'acme_%d.conv:Conv'}\n"
)


def install(site: Path, count: int) -> None:
    """`count` distributions with a plugin each, as pip would have laid them."""
    for i in range(count):
        info = site / f"acme_{i}-1.0.dist-info"
        info.mkdir()
        (site / f"acme_{i}.py").write_text(HOOK % (i, i))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme-{i}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[seqpipe]\nacme = acme_{i}\n")


def seconds(command: list[str], site: Path, times: int) -> float:
    """The median over `times` processes."""
    taken = []
    for _ in range(times):
        clock = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(site)})
        taken.append(time.perf_counter() - clock)
    return statistics.median(taken)


def look(plugins: int, times: int) -> None:
    seqpipe = str(Path(sys.executable).with_name("seqpipe"))
    with tempfile.TemporaryDirectory() as site:
        install(Path(site), plugins)
        listed = subprocess.run(
            [seqpipe, "plugins"], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": site}
        )
        count = sum(" acme-" in line for line in listed.stdout.splitlines())
        assert count == plugins, listed.stdout
        commands = {"python -c pass": [sys.executable, "-c", "pass"]}
        commands |= {f"seqpipe {name}": [seqpipe, name] for name in ("--help", "plugins")}
        for name, command in commands.items():
            taken = f"{seconds(command, Path(site), times):.3f} s"
            print(f"{name}: {taken} ({plugins} plugins installed)")
            row = f"`{name}`" + " in the same run" * (name == "python -c pass")
            common.record("start", "look", [{"row": row, "figures": {f"with {plugins} plugins installed": taken}}])


def measured(python: str, checkout: Path, arguments: Sequence[str], folder: Path) -> tuple[float, float]:
    """Processor seconds and wall-clock seconds of one seqpipe command."""
    environment: Mapping[str, str] = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(checkout)}
    before, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [python, "-m", "seqpipe", *arguments], cwd=folder, capture_output=True, text=True, env=environment
    )
    wall, after = time.perf_counter() - clock, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{arguments}: {done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def check(names: Sequence[str], times: int, beside: tuple[str, Path] | None) -> None:
    """`seqpipe check` of pipelines."""
    sides = {"before": beside} if beside else {}
    sides["now"] = (sys.executable, ROOT)
    table = common.Table("start", "check", "pipeline", *sides)  # processor / wall seconds
    with tempfile.TemporaryDirectory() as parent:
        for name in names:
            taken: dict[str, list[tuple[float, float]]] = {}
            for _ in range(times):
                for side, (python, checkout) in sides.items():
                    if name == "intent-bert" and not (checkout / "pipelines/data/tiny-bert").exists():
                        train = ("train", str(checkout / "pipelines" / f"{name}.yaml"), "train.epochs=1")  # makes it
                        measured(python, checkout, train, Path(parent))
                    arguments = ("check", str(checkout / "pipelines" / f"{name}.yaml"))
                    taken.setdefault(side, []).append(measured(python, checkout, arguments, Path(parent)))
            cells = (
                tuple(statistics.median(values) for values in zip(*pairs, strict=True)) for pairs in taken.values()
            )
            table.row(f"`{name}`", *(f"{cpu:.1f} / {wall:.1f}" for cpu, wall in cells))


def export(beside: tuple[str, Path] | None) -> None:
    """Export of a 6-layer GPT that was trained one step: traced, compared, written."""
    sides = {"before": beside} if beside else {}
    sides["now"] = (sys.executable, ROOT)
    for side, (python, checkout) in sides.items():
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent)
            measured(python, checkout, ("train", str(checkout / "pipelines/gpt.yaml"), *GPT), folder)
            cpu, wall = measured(python, checkout, ("export", "runs/gpt-6", "-o", "bundle"), folder)
            print(f"export of a 6-layer GPT, {side}: {cpu:.1f} / {wall:.1f}", flush=True)
            figures = {"processor / wall s": f"{cpu:.0f} / {wall:.0f}"}
            common.record("start", "export", [{"row": side, "figures": figures}])


def train(names: Sequence[str], times: int) -> None:
    """An epoch with `train.threads: null` and with one thread in turn, alone and beside two endless loops."""
    columns = ("default threads, CPU s", "one thread, CPU s", "ratio", "wall s", "one thread, wall s")
    table = common.Table("start", "threads", "pipeline", *columns)
    sides = {"default": (), "one": ("train.threads=1",)}
    for name in names:
        for loops in (0, 2):
            others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
            taken: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
            try:
                for _ in range(times):
                    for side, more in sides.items():
                        with tempfile.TemporaryDirectory() as folder:
                            yaml = str(ROOT / "pipelines" / f"{name}.yaml")
                            command = ("train", yaml, "train.epochs=1", *more)
                            taken[side].append(measured(sys.executable, ROOT, command, Path(folder), None))
            finally:
                for process in others:
                    process.kill()
                    process.wait()
            (cpu, wall), (single, single_wall) = (
                map(statistics.median, zip(*taken[side], strict=True)) for side in sides
            )
            row = f"`{name}`" + " beside two endless loops" * (loops > 0)
            table.row(row, f"{cpu:.1f}", f"{single:.1f}", f"{cpu / single:.2f}", f"{wall:.1f}", f"{single_wall:.1f}")


ROWS = {
    "seqpipe --help": "`seqpipe --help`",
    "seqpipe predict BUNDLE, one line": "`seqpipe predict BUNDLE` for one line",
}
BARS = {"seqpipe --help": 0.3, "seqpipe predict BUNDLE, one line": 0.35}  # processor seconds


def predict(times: int) -> None:
    """Processor seconds of a fresh process, the median, beside the bars."""
    seqpipe = str(Path(sys.executable).with_name("seqpipe"))
    with tempfile.TemporaryDirectory() as folder:
        run = [seqpipe, "run", str(ROOT / "pipelines/ner.yaml"), "name=ner", "train.epochs=1", "train.epoch_steps=20"]
        subprocess.run(run, check=True, capture_output=True, cwd=folder)
        # As after an installation, which compiles all modules.
        compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        compiled["PYTHONPYCACHEPREFIX"] = f"{folder}/compiled"
        commands = dict(zip(BARS, ([seqpipe, "--help"], [seqpipe, "predict", "runs/ner/bundle"]), strict=True))
        for name, command in commands.items():
            taken = []
            for _ in range(times + 1):  # the first compiles what was not compiled yet
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                text = b"Wake me at seven\n"
                subprocess.run(command, input=text, check=True, capture_output=True, cwd=folder, env=compiled)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            median = statistics.median(taken[1:])
            print(f"{name}: {median:.2f} s (bar {BARS[name]} s)")
            common.record("start", "predict", [{"row": ROWS[name], "figures": {"CPU s": round(median, 2)}}])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("look", "predict", "check", "export", "train"), default="look")
    parser.add_argument("--plugins", type=int, default=20)
    parser.add_argument("--times", type=int, help="processes each; the median counts (11, of `check` 1)")
    parser.add_argument("--pipelines", nargs="+", help="of `check` and `train`")
    parser.add_argument("--beside", metavar="PYTHON", help="the Python of another version's environment")
    parser.add_argument("--checkout", type=Path, metavar="FOLDER", help="… and its checkout")
    arguments = parser.parse_args()
    beside = (arguments.beside, arguments.checkout.resolve()) if arguments.beside else None
    if arguments.what == "look":
        look(arguments.plugins, arguments.times or 11)
    elif arguments.what == "predict":
        predict(arguments.times or 11)
    elif arguments.what == "check":
        check(arguments.pipelines or PIPELINES, arguments.times or 1, beside)
    elif arguments.what == "train":
        train(arguments.pipelines or ("intent-lstm",), arguments.times or 3)
    else:
        export(beside)


if __name__ == "__main__":
    main()
