"""Labels and tags, side by side: quality from scratch on eight data sets, and every encoder on one of them.

    python benchmarks/classify.py quality clinc150 --seeds 3   # trains and tests; bundle and PyTorch must agree
    python benchmarks/classify.py quality all
    python benchmarks/classify.py encoders                     # on clinc150: a row an encoder

Run it on an otherwise idle machine. The figures it prints go into RESULTS.md by hand.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
DATA = ROOT.parent / "shared" / "data"
PREPARED = ROOT / "runs" / "data"  # git ignores it
SINGLE = 300  # texts that are timed one by one
REPEATS = 3

FIGURES: Mapping[str, tuple[str, ...]] = {
    "clinc150": ("accuracy",),
    "snips": ("intent.accuracy", "slots.f1", "exact"),
    "ud_english_ewt": ("accuracy",),
    "sentence_polarity": ("accuracy",),
    "subjectivity": ("accuracy",),
    "movie_reviews": ("accuracy",),
    "movie_reviews-bag": ("accuracy",),
    "crosswoz_intent": ("micro_f1", "exact_match"),
}
ENCODERS: Mapping[str, str] = {
    "none": "null",
    "bag": "{use: bag, pool: mean, hidden: 256, dropout: 0.3}",
    "cnn": "{use: cnn, filters: 100, widths: [2, 3, 4]}",
    "conv": "{use: conv}",
    "rnn": "{use: rnn, hidden: 128}",
    "gru": "{use: gru, hidden: 128}",
    "lstm": "{use: lstm, hidden: 128}",
    "lstm, peephole": "{use: lstm, hidden: 128, peephole: true}",
    "lstm, coupled": "{use: lstm, hidden: 128, coupled: true}",
    "nested-lstm": "{use: nested-lstm, hidden: 128}",
    "self-attention": "{use: self-attention}",
    "transformer": "{use: transformer}",
}


def quality(name: str, seeds: int, device: str, threads: int | None) -> None:
    """Runs classify/NAME.yaml under seeds 1 to n, then scores each bundle with onnxruntime beside its run."""
    prepare(name)
    for seed in range(1, seeds + 1):
        run = f"bench-{name}-{seed}"
        minutes = _trained(name, run, device, threads, f"train.seed={seed}")
        told = ", ".join(f"{who} {_told(name, ROOT / 'runs' / run / part)}" for who, part in PARTS)
        print(f"{name} seed {seed}: {told}, {minutes:.1f} min", flush=True)


def encoders(device: str, threads: int | None) -> None:
    """clinc150.yaml with one encoder after the other, all else as it stands."""
    prepare("clinc150")
    for number, (name, encoder) in enumerate(ENCODERS.items()):
        run = f"bench-encoders-{number}"
        minutes = _trained("clinc150", run, device, threads, f"encoder={encoder}")
        told = ", ".join(f"{who} {_told('clinc150', ROOT / 'runs' / run / part)}" for who, part in PARTS)
        size, single = _size_and_time(ROOT / "runs" / run)
        print(f"{name:16}{told}, {size:,} parameters, {minutes:.1f} min, {single:.2f} ms a text", flush=True)


def prepare(name: str) -> None:
    """Makes JSON lines of CLINC150's one file; all other sets are read as they are."""
    folder = PREPARED / name
    if name != "clinc150" or folder.exists():
        return
    splits = json.loads((DATA / name / "data_full.json").read_text())
    folder.mkdir(parents=True)
    for split, file in (("train", "train"), ("val", "dev"), ("test", "test"), ("oos_test", "test-oos")):
        lines = (json.dumps({"text": text, "label": label}) + "\n" for text, label in splits[split])
        (folder / f"{file}.jsonl").write_text("".join(lines))


PARTS = (("PyTorch", "."), ("bundle", "bundle"))


def _trained(name: str, run: str, device: str, threads: int | None, *more: str) -> float:
    """Runs the YAML under another name; how many minutes it took, export and tests included."""
    clock = time.perf_counter()
    given = [f"name={run}", *more] + ([f"train.threads={threads}"] if threads else [])
    _seqpipe("run", HERE / "classify" / f"{name}.yaml", *given, "--device", device)
    return (time.perf_counter() - clock) / 60


def _told(name: str, target: Path) -> str:
    scores = _scores(target)
    return " / ".join(f"{100 * _figure(scores, figure):.2f}" for figure in FIGURES[name])


def _figure(scores: Any, path: str) -> float:
    for key in path.split("."):
        scores = scores[key]
    return float(scores)


def _size_and_time(run: Path) -> tuple[int, float]:
    """The numbers that were learned, and how many milliseconds the bundle takes for one text, one by one."""
    from safetensors import safe_open

    import seqpipe

    weights = safe_open(next((run / "checkpoints").glob("best-*.safetensors")), "numpy")
    size = sum(math.prod(weights.get_slice(key).get_shape()) for key in weights.keys())  # noqa: SIM118
    lines = (PREPARED / "clinc150" / "test.jsonl").read_text().splitlines()[:SINGLE]
    texts = [json.loads(line)["text"] for line in lines]
    model = seqpipe.load(run / "bundle", "cpu")
    seconds = []
    for _ in range(REPEATS):
        clock = time.perf_counter()
        for text in texts:
            model(text)
        seconds.append(time.perf_counter() - clock)
    return size, 1000 * statistics.median(seconds) / len(texts)


def _seqpipe(*arguments: Any) -> None:
    subprocess.run([sys.executable, "-m", "seqpipe", *map(str, arguments)], check=True, cwd=ROOT, env={**os.environ})


def _scores(target: Path) -> Any:
    command = [sys.executable, "-m", "seqpipe", "evaluate", target, "--json", "-q"]
    found = json.loads(subprocess.run(command, check=True, cwd=ROOT, capture_output=True).stdout)
    return next(iter(found.values()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("quality")
    one.add_argument("name", choices=(*FIGURES, "all"))
    one.add_argument("--seeds", type=int, default=1)
    two = commands.add_parser("encoders")
    for command in (one, two):
        command.add_argument("--device", default="auto")
        command.add_argument("--threads", type=int)
    given = parser.parse_args()
    if given.command == "encoders":
        encoders(given.device, given.threads)
    else:
        for name in FIGURES if given.name == "all" else (given.name,):
            quality(name, given.seeds, given.device, given.threads)
