"""Time two source trees against each other: check, run, the start of predict, loading and answering.

    git worktree add ../before COMMIT
    python benchmarks/before_after.py ../before -o before_after.json

The trees take turns, and processes are judged by their CPU time, so other load on the machine changes both alike. The
environment that runs this has the dependencies of both trees; each tree is put first on the path.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import common
from server_process import Process, cores

ROOT = Path(__file__).resolve().parents[1]
TEXT = "Wake me at seven in Lausanne"
TEXTS = 20_000  # of a file
CLIENTS, LOADS, LOAD_SECONDS = 64, 12, 2.0  # of the server, whose loads take turns
IN_PROCESS = """
import sys, time, json
import seqpipe
def best(function, count, rounds=15):
    times = []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(count):
            function()
        times.append((time.process_time() - start) / count)
    return min(times)
model = seqpipe.load(sys.argv[1])
text, texts = sys.argv[2], [f"{sys.argv[2]} number {i}" for i in range(256)]
model(text), model(texts)
print(json.dumps({
    "`load`": best(lambda: seqpipe.load(sys.argv[1]), 5),
    "one text": best(lambda: model(text), 100),
    "256 texts": best(lambda: model(texts), 1),
}))
"""


def environment(tree: Path, cache: Path) -> dict[str, str]:
    """The variables under which the packages of a tree are imported, whose plugins may be in `.types` or `plugins`.

    An earlier tree keeps graphs in the folder `cache`.
    """
    paths = [tree, *(tree / name for name in (".types", "plugins") if (tree / name / "seqpipe_plugins").exists())]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(map(str, paths)), "SEQPIPE_CACHE": str(cache)}


def cpu_seconds(command: list[str], cwd: Path, variables: Mapping[str, str], text: str = "") -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=cwd, env=variables, input=text, text=True, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(tree: Path, folder: Path, bundle: Path) -> dict[str, float]:
    """CPU seconds of each measurement of one tree, once."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "pipelines", folder / "pipelines", ignore=shutil.ignore_patterns("runs"))
    variables, seqpipe = environment(tree, folder / "cache"), [sys.executable, "-m", "seqpipe"]
    check = [*seqpipe, "check", "pipelines/ner.yaml"]
    run = [*seqpipe, "run", "pipelines/ner.yaml", "train.epochs=2"]
    times = {
        "`check`": cpu_seconds(check, folder, variables),
        "`run`, two epochs, after `check`": cpu_seconds(run, folder, variables),
        "`run`, two epochs": cpu_seconds([*run, "name=alone"], folder, environment(tree, folder / "empty")),
        "`predict`, one sentence": cpu_seconds([*seqpipe, "predict", str(bundle)], folder, variables, TEXT + "\n"),
    }
    (folder / "texts.txt").write_text("".join(f"{TEXT} number {i}\n" for i in range(TEXTS)), encoding="utf-8")
    predict = [*seqpipe, "predict", str(bundle), "-i", "texts.txt", "-o", "answers.jsonl", "--threads", "1"]
    times[f"`predict`, {TEXTS:,} texts"] = cpu_seconds(predict, folder, variables)
    command = [sys.executable, "-c", IN_PROCESS, str(bundle), TEXT]
    inside = subprocess.run(command, cwd=folder, env=variables, text=True, check=True, capture_output=True)
    return {**times, **json.loads(inside.stdout)}


def request_times(trees: Mapping[str, Path], bundle: Path, folder: Path) -> list[dict[str, float]]:
    """CPU seconds of a request to `seqpipe serve`, on one core, for each load of both trees in turn."""
    texts, rounds = [f"{TEXT} number {i}" for i in range(256)], []
    with contextlib.ExitStack() as stack:
        servers = {}
        for name, tree in trees.items():
            command = [sys.executable, "-m", "seqpipe", "serve", f"ner={bundle}", "--port", "{port}"]
            variables = environment(tree, folder / "cache")
            servers[name] = stack.enter_context(Process(command, cores()[0], path="/v1/ner", variables=variables))
        for _ in range(LOADS):
            times = {}
            for name, server in servers.items():
                server.closed_loop(texts, CLIENTS, LOAD_SECONDS / 4)
                before = server.cpu()
                count = server.closed_loop(texts, CLIENTS, LOAD_SECONDS)["total"]
                times[name] = (server.cpu() - before) / count
            rounds.append(times)
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("-n", "--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    trees = {"before": arguments.before.resolve(), "after": ROOT}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shutil.copytree(ROOT / "pipelines", folder / "pipelines", ignore=shutil.ignore_patterns("runs"))
        variables = environment(trees["before"], folder / "cache")
        command = [sys.executable, "-m", "seqpipe", "run", "pipelines/ner.yaml", "train.epochs=2"]
        cpu_seconds(command, folder, variables)  # both trees answer with the bundle of the earlier one
        for _ in range(arguments.rounds):
            for name, tree in trees.items():
                rounds[name].append(measure(tree, folder / "work", folder / "runs/ner/bundle"))
        served = request_times(trees, folder / "runs/ner/bundle", folder)
    rows = {
        what: {name: statistics.median(times[what] for times in rounds[name]) for name in trees}
        for what in rounds["after"][0]
    }
    rows["`serve`, one request"] = {name: statistics.median(times[name] for times in served) for name in trees}
    table = common.Table("before_after", "cpu", "command", "before", "after", "after / before")  # CPU seconds
    for what, row in rows.items():
        table.row(what, f"{row['before']:.3g}", f"{row['after']:.3g}", f"{row['after'] / row['before']:.2f}")
    if arguments.output:
        arguments.output.write_text(
            json.dumps({"rows": rows, "rounds": rounds, "served": served}, indent=1), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
