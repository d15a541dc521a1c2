"""Cost by size: training, `check` and `predict` of generated data, from ten thousand records to a million.

    python benchmarks/scale.py growth                # an epoch and the time before its first step, by records
    python benchmarks/scale.py memory                # anonymous memory of features and 200 steps, by records
    python benchmarks/scale.py check                 # processor seconds and memory of `check`, by records
    python benchmarks/scale.py mapped --data DATA    # training from mapped features against training from memory
    python benchmarks/scale.py equality              # the same training in one process and in two
    python benchmarks/scale.py devices               # two processes of one core against one
    python benchmarks/scale.py engines               # `predict --engine ray` against `predict --processes`

Words follow Zipf's law with the exponent 1.05 over 200,000 forms, and lengths a lognormal distribution. Processor
seconds and anonymous memory are those of the whole tree of processes, so that a busy machine matters little; the ratios
of `mapped`, `devices` and `engines` need an idle one. Figures are recorded in runs/results.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import classify
import common
import numpy as np
import random_checkpoints
import yaml
from common import HERE, PREPARED, ROOT

FORMS, EXPONENT, LABELS, SEED = 200_000, 1.05, 77, 1
RECORDS = (10_000, 100_000, 300_000)
STEPS = 200
TICKS = os.sysconf("SC_CLK_TCK")

# Generated data.


def vocabulary(draw: np.random.Generator) -> list[str]:
    """Return distinct forms of 2 to 20 letters; common ones are shorter."""
    lengths = np.clip(draw.normal(3 + np.log10(np.arange(1, FORMS + 1)), 1.5), 2, 20).astype(int)
    letters = draw.choice(list("etaoinshrdlucmfwypvbgkjqxz"), lengths.sum())
    ends = np.cumsum(lengths)
    forms = ["".join(letters[end - length : end]) for end, length in zip(ends, lengths, strict=True)]
    positions: dict[str, int] = {}
    return [
        form if (count := positions.setdefault(form, i)) == i else f"{form}{i - count}" for i, form in enumerate(forms)
    ]


def texts(count: int, words: float) -> Iterator[tuple[np.ndarray, list[str]]]:
    """Yield the ranks and the words of texts with this mean length."""
    draw = np.random.default_rng(SEED)
    forms = np.array(vocabulary(draw), object)
    weights = np.arange(1, FORMS + 1) ** -EXPONENT
    bounds = np.cumsum(weights / weights.sum())
    for start in range(0, count, 10_000):
        size = min(10_000, count - start)
        lengths = np.maximum(2, draw.lognormal(math.log(words) - 0.125, 0.5, size).astype(int))
        ranks = np.minimum(np.searchsorted(bounds, draw.random(lengths.sum())), FORMS - 1)
        for part in np.split(ranks, np.cumsum(lengths)[:-1]):
            yield part, forms[part].tolist()


def write_conll(path: Path, count: int) -> None:
    """Write sentences of about 20 words, of which some names of one or two words have tags."""
    with path.open("w", encoding="utf-8") as file:
        for ranks, words in texts(count, 20):
            tags = [f"B-{'XYZ'[rank % 3]}" if rank % 11 == 5 else "O" for rank in ranks.tolist()]
            file.write("".join(f"{word} {tag}\n" for word, tag in zip(words, tags, strict=True)) + "\n")


def write_csv(path: Path, count: int) -> None:
    """Write texts of about 13 words with one of 77 labels, that of a word of the text."""
    with path.open("w", encoding="utf-8") as file:
        file.write("text,label\n")
        for ranks, words in texts(count, 13):
            file.write(f"{' '.join(words)},label{int(ranks.max()) % LABELS}\n")


def conll_pipeline(folder: Path, count: int, **train: Any) -> Path:
    """Write sentences and the YAML of a BiLSTM-CRF whose vocabulary has at most 50,000 words."""
    content = yaml.safe_load((ROOT / "pipelines" / "ner.yaml").read_text(encoding="utf-8"))
    write_conll(folder / "train.conll", count)
    content |= {"name": f"scale-conll-{count}", "data": {"reader": {"use": "conll"}, "train": "train.conll"}}
    content["tokenizer"] = {"use": "words", "max_size": 50_000}
    content["train"] |= {"epochs": 1, "threads": 1, **train}
    path = folder / "conll.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def csv_pipeline(folder: Path, count: int) -> Path:
    """Write texts with labels, and the YAML that `init` writes for them."""
    write_csv(folder / "train.csv", count)
    subprocess.run(command("init", "train.csv", "-o", "csv.yaml"), cwd=folder, check=True, capture_output=True)
    return folder / "csv.yaml"


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "seqpipe", *map(str, arguments)]


# Processor seconds and anonymous memory of a tree of processes.


def tree(root: int) -> set[int]:
    """Return the ids of a process and all its descendants."""
    parents: dict[int, int] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    descendants = {root}
    while more := {pid for pid, parent in parents.items() if parent in descendants} - descendants:
        descendants |= more
    return descendants


def cpu_seconds(root: int) -> float:
    """Return the processor seconds of a tree of processes, with those that have ended."""
    ticks = 0
    for pid in tree(root):
        try:
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
        except OSError:
            continue
    return ticks / TICKS


def anonymous_bytes(root: int) -> int:
    """Return the anonymous memory of a tree of processes now."""
    kibibytes = 0
    for pid in tree(root):
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        kibibytes += sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
    return kibibytes * 1024


class Usage(NamedTuple):
    """What a process and its descendants used, and the last line that it printed as JSON."""

    cpu: float  # seconds
    wall: float
    megabytes: float  # most anonymous memory at one time
    answer: Any


def measure(arguments: Sequence[str], cwd: Path, variables: Mapping[str, str] | None = None) -> Usage:
    """Run a command to its end; SystemExit with its errors if it fails."""
    clock, environment = time.perf_counter(), {**os.environ, **(variables or {})}
    process = subprocess.Popen(
        arguments, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    most, ended = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.05):
            most = max(most, anonymous_bytes(process.pid))

    watcher = threading.Thread(target=watch)
    before = os.times()
    watcher.start()
    output, errors = process.communicate()
    ended.set()
    watcher.join()
    after = os.times()
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}:\n{errors}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    lines = output.strip().splitlines()
    answer = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else None
    return Usage(cpu, time.perf_counter() - clock, most / 1e6, answer)


# A training that ends after some steps, in a process of its own: `scale.py steps YAML COUNT`.


def train_steps(path: Path, most: int) -> None:
    """Train for at most so many steps; print the processor seconds before and in them, and the batches of an epoch."""
    from seqpipe.api.pipeline import Pipeline
    from seqpipe.training.trainer import Trainer

    start, clock, count, original = 0.0, 0.0, 0, Trainer.train_batch

    def train_batch(self: Trainer, *arguments: Any) -> None:
        nonlocal start, clock, count
        start = start or cpu_seconds(os.getpid())
        original(self, *arguments)
        count += 1
        clock = clock or time.perf_counter()  # after the first one
        if count == min(most, len(self._order)):
            step, wall = (cpu_seconds(os.getpid()) - start) / count, (time.perf_counter() - clock) / (count - 1)
            answer = {"before": start, "step": step, "wall": wall, "batches": len(self._order)}
            print(json.dumps(answer), flush=True)
            raise SystemExit

    Trainer.train_batch = train_batch  # type: ignore[method-assign]
    Pipeline(path).train(progress=False, fresh=True)


def measure_steps(path: Path, most: int = STEPS, **variables: str) -> Usage:
    return measure([sys.executable, __file__, "steps", str(path), str(most)], path.parent, variables)


# The measurements.


def growth(sizes: Sequence[int]) -> None:
    """Record the processor seconds of an epoch, extrapolated from its first steps, and of what comes before them."""
    columns = ("before the first step, CPU s", "step, ms", "steps", "epoch, CPU s", "exponent")
    table = common.Table("scale", "growth", "data, records", *columns)
    makers: dict[str, Callable[[Path, int], Path]] = {"CoNLL": conll_pipeline, "CSV, init's default": csv_pipeline}
    for name, make in makers.items():
        smallest: tuple[int, float] | None = None
        for size in sizes:
            with tempfile.TemporaryDirectory() as folder:
                answer = measure_steps(make(Path(folder), size)).answer
            epoch = answer["before"] + answer["step"] * answer["batches"]
            smallest = smallest or (size, epoch)
            exponent = math.log(epoch / smallest[1]) / math.log(size / smallest[0]) if size > smallest[0] else None
            figures = (
                f"{answer['before']:.1f}",
                f"{1000 * answer['step']:.1f}",
                f"{answer['batches']:,}",
                f"{epoch:.0f}",
            )
            table.row(f"{name}, {size:,}", *figures, "" if exponent is None else f"{exponent:.2f}")


def memory(sizes: Sequence[int]) -> None:
    """Record the most anonymous memory of features and 200 steps."""
    table = common.Table("scale", "memory", "records", "most anonymous memory, MB", "CPU s", "against the smallest")
    smallest = None
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            usage = measure_steps(conll_pipeline(Path(folder), size))
        smallest = smallest or usage.megabytes
        table.row(
            f"CoNLL, {size:,}", f"{usage.megabytes:,.0f}", f"{usage.cpu:.0f}", f"{usage.megabytes / smallest:.3f}"
        )


def check(sizes: Sequence[int]) -> None:
    """Record what `check` uses."""
    table = common.Table("scale", "check", "records", "CPU s", "most anonymous memory, MB", "above the smallest, MB")
    smallest = None
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = conll_pipeline(Path(folder), size)
            usage = measure(command("check", path.name), path.parent)
        smallest = smallest or usage.megabytes
        table.row(
            f"CoNLL, {size:,}", f"{usage.cpu:.1f}", f"{usage.megabytes:,.0f}", f"{usage.megabytes - smallest:,.0f}"
        )


MODES = ("memory", "mapped")


def mapped(data: Path | None, rounds: int) -> None:
    """Record the speed of training from mapped features against training from memory, taking turns."""
    table = common.Table("scale", "mapped", "data", "in memory, steps/s", "mapped, steps/s", "mapped / in memory")
    classify.prepare("clinc150", data)
    clinc = {split: str(PREPARED / "clinc150" / f"{split}.jsonl") for split in ("train", "dev", "test")}
    ncbi = {split: str(common.data_path(data, f"ncbi_disease/{split}.tsv")) for split in ("train", "dev", "test")}
    rows: tuple[tuple[str, str, dict[str, str]], ...] = (
        ("clinc150, BiLSTM", "classify/clinc150.yaml", clinc),
        ("clinc150, n-grams of `init`", "", clinc),
        ("ncbi_disease, BiLSTM-CRF", "ner/ncbi.yaml", ncbi),
    )
    for name, file, paths in rows:
        speeds = dict[str, list[float]]({mode: [] for mode in MODES})
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "mapped.yaml"
            if not file:
                init = command("init", paths["train"], "-o", path)
                subprocess.run(init, cwd=folder, check=True, capture_output=True)
            content = yaml.safe_load((HERE / file if file else path).read_text(encoding="utf-8"))
            content["data"] |= paths
            content["train"] |= {"threads": 1}
            path.write_text(yaml.safe_dump(content))
            for mode in MODES * rounds:
                answer = measure_steps(path, 2 * STEPS, SEQPIPE_FEATURES=mode).answer
                speeds[mode].append(1 / answer["wall"])
        memory, maps = (statistics.median(speeds[mode]) for mode in MODES)
        table.row(name, f"{memory:.1f}", f"{maps:.1f}", f"{maps / memory:.2f}")


def devices(rounds: int) -> None:
    """Record the speed of a BERT in two processes of one core against one process of one core, taking turns."""
    table = common.Table("scale", "devices", "model", "one process, tokens/s", "two, tokens/s", "two / one")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = [words for _, words in texts(2000, 20)]
        checkpoint = random_checkpoints.encoder(
            folder / "bert", "bert", "", [" ".join(words) for words in lines[:1000]], vocabulary=2000,
            hidden_size=384, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=6,
        )  # fmt: skip
        common.write_jsonl(folder / "train.jsonl", ({"text": " ".join(w), "label": w[0][0]} for w in lines))
        content = {
            "name": "devices",
            "data": {"reader": {"use": "jsonl"}, "train": "train.jsonl"},
            "tokenizer": {"use": "pretrained", "checkpoint": str(checkpoint)},
            "encoder": {"use": "pretrained", "checkpoint": str(checkpoint)},
            "head": {"use": "label"},
            "train": {"epochs": 1, "threads": 1, "batch_tokens": 2048},
        }
        (folder / "bert.yaml").write_text(yaml.safe_dump(content))
        seconds: dict[int, list[float]] = {1: [], 2: []}
        for count in [*seconds] * rounds:
            more = ("--devices", count) if count > 1 else ()
            measure(command("train", "bert.yaml", "--fresh", "--device", "cpu", *more), folder)
            history = (folder / "runs" / "devices" / "checkpoints" / "metrics.jsonl").read_text().splitlines()
            seconds[count].append(json.loads(history[-1])["seconds"])
        tokens = sum(map(len, lines))
        alone, both = (tokens / statistics.median(seconds[count]) for count in seconds)
        table.row("BERT, 6 layers of 384 units", f"{alone:,.0f}", f"{both:,.0f}", f"{both / alone:.2f}")


ALIKE = {  # overrides: no dropout, and an epoch of about 50 steps
    "ner": (
        "head.dropout=0",
        "embedding.0.dropout=0",
        "embedding.0.word_dropout=0",
        "embedding.1.dropout=0",
        "train.batch_tokens=640",
    ),
    "intent-bert": ("head.dropout=0", "encoder.dropout=0", "train.batch_tokens=820"),
    "dates": ("head.dropout=0", "embedding.dropout=0", "train.batch_tokens=3072"),
    "gpt": ("train.epoch_steps=50",),
}


def equality() -> None:
    """Record the dev loss in fp32 after an epoch in one process and in two, without dropout."""
    columns = ("steps", "dev loss, one process", "two", "relative difference")
    table = common.Table("scale", "equality", "pipeline", *columns)
    for name, overrides in ALIKE.items():
        losses = list[float]()
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(ROOT / "pipelines", Path(folder) / "pipelines")
            for more in ((), ("--devices", 2)):
                train = ("train", f"pipelines/{name}.yaml", "--fresh", "train.epochs=1", "train.threads=1")
                measure(command(*train, "--device", "cpu", *overrides, *more), Path(folder))
                history = Path(folder, "runs", name, "checkpoints", "metrics.jsonl").read_text().splitlines()
                epoch = json.loads(history[-1])
                losses.append(epoch["dev"]["loss"])
        difference = abs(losses[1] / losses[0] - 1)
        table.row(name, epoch["step"], *(f"{loss:.7f}" for loss in losses), f"{difference:.1e}")


def engines(lines: int) -> None:
    """Record the lines a second of two actors of Ray Data and of two processes, by the difference of two inputs.

    So the start of the cluster, of the actors and of the processes is left out.
    """
    columns = ("`--processes 2`, lines/s", "Ray, lines/s", "Ray / processes", "start of both, s")
    table, bundle = common.Table("scale", "engines", "bundle", *columns), bundle_of("ner")
    seconds: dict[str, list[float]] = {"processes": [], "ray": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        answer = ("predict", bundle, "-i", "lines.txt", "--threads", 1, "--processes", 2, "-o")
        subprocess.run(["ray", "start", "--head", "--num-cpus=2"], check=True, capture_output=True)
        try:
            for count in (lines // 10, lines):
                text = "".join(" ".join(words) + "\n" for _, words in texts(count, 15))
                (folder / "lines.txt").write_text(text, encoding="utf-8")
                for engine, more in (("processes", ()), ("ray", ("--engine", "ray"))):
                    output = f"{engine}-{count}"
                    usage = measure(command(*answer, output, *more), folder, {"RAY_ADDRESS": "auto"})
                    seconds[engine].append(usage.wall)
                parts = [sorted((folder / f"{engine}-{count}").glob("part-*.jsonl")) for engine in seconds]
                assert parts[0], "there are no answers"
                assert [part.read_bytes() for part in parts[0]] == [part.read_bytes() for part in parts[1]]
        finally:
            subprocess.run(["ray", "stop"], check=True, capture_output=True)
    speeds = {engine: (lines - lines // 10) / (all_ - few) for engine, (few, all_) in seconds.items()}
    starts = [few - lines // 10 / speeds[engine] for engine, (few, _) in seconds.items()]
    ratio = f"{speeds['ray'] / speeds['processes']:.2f}"
    shown = ", ".join(f"{start:.1f}" for start in starts)
    table.row("ner", f"{speeds['processes']:,.0f}", f"{speeds['ray']:,.0f}", ratio, shown)


def bundle_of(name: str) -> Path:
    """Return the bundle of a shipped pipeline, which is run if there is none."""
    bundle = ROOT / "runs" / name / "bundle"
    if not bundle.exists():
        common.seqpipe("run", f"pipelines/{name}.yaml", "--quiet")
    return bundle


PRICE = 0.04  # dollars of an hour of a core, an assumption
LINES = 20_000


def cost() -> None:
    """Record processor time a sentence of training and of answers, and hours and dollars of many sentences."""
    table = common.Table(
        "scale",
        "cost",
        "work",
        "µs a sentence",
        "10⁸: hours of a core",
        "10⁸: $",
        "10¹⁰: hours of 1,000 cores",
        "10¹⁰: $",
    )

    def row(name: str, seconds: float) -> None:
        hours = 1e8 * seconds / 3600
        table.row(
            name,
            f"{1e6 * seconds:,.0f}",
            f"{hours:,.1f}",
            f"{PRICE * hours:,.2f}",
            f"{hours / 10:,.2f}",
            f"{100 * PRICE * hours:,.0f}",
        )

    for name in ("intent-lstm", "ner", "intent-bert"):
        bundle = bundle_of(name)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "lines.txt"
            path.write_text("".join(" ".join(words) + "\n" for _, words in texts(LINES, 15)), encoding="utf-8")
            few = Path(folder) / "few.txt"
            few.write_text("one line\n")
            answer = ("predict", bundle, "--threads", 1, "-i")
            start = measure(command(*answer, few, "-o", "few.jsonl"), Path(folder)).cpu
            usage = measure(command(*answer, path, "-o", "answers.jsonl"), Path(folder))
        row(f"answers of {name}", (usage.cpu - start) / LINES)
    with tempfile.TemporaryDirectory() as folder:
        size = 20_000
        answer = measure_steps(conll_pipeline(Path(folder), size)).answer
    row("training of ner, an epoch", answer["step"] * answer["batches"] / size)


WORKERS = (1, 10, 100, 1000)


def workers(sizes: Sequence[int]) -> None:
    """Record what a number of workers does to `predict --shard`, by the plan of parts of real files."""
    from seqpipe.batch.shards import plan

    columns = ("parts", "busy share of the workers", "descriptions read at the end", "lost by a kill, s of ner")
    table = common.Table("scale", "workers", "bytes, workers", *columns)
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "lines.txt"
            with path.open("wb") as file:
                for _ in range(size // 1_000_000):
                    file.write((b"x" * 99 + b"\n") * 10_000)
            parts = plan([path], ["text"])
        lengths = {part: part.span[1] - part.span[0] for part in parts if part.span}
        for count in WORKERS:
            shares = [sum(lengths[part] for part in parts[i::count]) for i in range(count)]
            busy, lost = statistics.mean(shares) / max(shares), max(lengths.values()) / 100 * 275e-6 / 2
            table.row(f"{size:.0e}, {count:,}", len(parts), f"{busy:.2f}", f"{len(parts) * count:,}", f"{lost:.1f}")


def shares(budgets: Sequence[int]) -> None:
    """Record how long the processes of a training work while the one with the longest share of a batch does."""
    from seqpipe.config.loader import load_config
    from seqpipe.training.data_forms import data_form
    from seqpipe.training.fit import fit_artifacts

    table = common.Table("scale", "shares", "batch_tokens", *(f"{count:,} processes" for count in WORKERS[1:]))
    for budget in budgets:
        with tempfile.TemporaryDirectory() as folder:
            config = load_config(conll_pipeline(Path(folder), LINES, batch_tokens=budget))
            records = data_form(config).read(config.data.train)
            batches = data_form(config).load(fit_artifacts(config, records), records).batches
            lengths, order = np.array([len(record["words"]) for record in records]), batches.order(0)
        busy = []
        for count in WORKERS[1:]:
            padded = [[int(lengths[rows[i::count]].max(initial=0)) * len(rows[i::count]) for i in range(count)]
                      for rows in map(np.asarray, order)]  # fmt: skip
            busy.append(f"{sum(map(sum, padded)) / sum(count * max(tokens) for tokens in padded):.2f}")
        table.row(f"{budget:,}", *busy)


def main() -> None:
    parser = common.parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    steps = commands.add_parser("steps", help="used by the others: train for some steps")
    steps.add_argument("yaml", type=Path)
    steps.add_argument("most", type=int)
    for name, sizes in (("growth", RECORDS), ("memory", (200_000, 1_000_000)), ("check", (1_000, 300_000))):
        commands.add_parser(name).add_argument("--sizes", type=int, nargs="+", default=sizes)
    commands.add_parser("shares").add_argument("--sizes", type=int, nargs="+", default=(1_024, 16_384, 262_144))
    commands.add_parser("workers").add_argument("--sizes", type=int, nargs="+", default=(10**7, 10**9))
    commands.add_parser("cost")
    commands.add_parser("equality")
    mapping = commands.add_parser("mapped")
    common.add_data_option(mapping)
    for each in (mapping, commands.add_parser("devices")):
        each.add_argument("--rounds", type=int, default=3)
    commands.add_parser("engines").add_argument("--lines", type=int, default=200_000)
    arguments = parser.parse_args()
    if arguments.command == "steps":
        train_steps(arguments.yaml, arguments.most)
    elif arguments.command == "cost":
        cost()
    elif arguments.command == "equality":
        equality()
    elif arguments.command == "mapped":
        mapped(arguments.data, arguments.rounds)
    elif arguments.command == "devices":
        devices(arguments.rounds)
    elif arguments.command == "engines":
        engines(arguments.lines)
    else:
        by_size = {"growth": growth, "memory": memory, "check": check, "workers": workers, "shares": shares}
        by_size[arguments.command](arguments.sizes)


if __name__ == "__main__":
    main()
