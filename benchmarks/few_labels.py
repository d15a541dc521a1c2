"""Eight texts a label of Banking77: contrastive against plain fine-tuning of MiniLM, and self-training.

    python benchmarks/few_labels.py contrastive --checkpoint FOLDER   # measured: all-MiniLM-L6-v2
    python benchmarks/few_labels.py contrastive --checkpoint FOLDER --rates 0.0001 --seeds 3
    python benchmarks/few_labels.py self-training                     # n-grams, from scratch
    python benchmarks/few_labels.py self-training --checkpoint FOLDER

For each label, in an order drawn by the seed, the first eight training texts are training data, the next eight dev, and
the rest has no labels. Both kinds of fine-tuning read as many texts in as many updates; the settings of each are those
with the best accuracy on dev, and only these are tested. Figures are recorded in runs/results; see report.py.
"""

from __future__ import annotations

import csv
import json
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import common
from common import HERE, PREPARED, ROOT

CONFIG = HERE / "classify" / "banking77-few.yaml"
SHOTS = 8
UPDATES, TEXTS = 120, 64  # of a training, and of an update
RATES = (0.00003, 0.0001, 0.0003)  # of the encoder
NAMES = {"plain": "plain fine-tuning", "contrastive": "contrastive fine-tuning"}


def prepare(seed: int, data: Path | None) -> Path:
    """Return the folder of the training, dev and test sets, and of the texts without labels."""
    folder, by_label = PREPARED / f"banking77-few-{seed}", defaultdict[str, list[dict[str, str]]](list)
    for split in ("test", "train"):
        with common.data_path(data, f"banking77/{split}.csv").open(encoding="utf-8", newline="") as file:
            rows = [{"text": row["text"], "label": row["category"]} for row in csv.DictReader(file)]
        if split == "test":
            common.write_jsonl(folder / "test.jsonl", rows)
    random.Random(seed).shuffle(rows)
    for row in rows:
        by_label[row["label"]].append(row)
    parts: dict[str, list[dict[str, str]]] = {"train": [], "dev": [], "unlabelled": []}
    for _, texts in sorted(by_label.items()):
        parts["train"] += texts[:SHOTS]
        parts["dev"] += texts[SHOTS : 2 * SHOTS]
        parts["unlabelled"] += [{"text": row["text"]} for row in texts[2 * SHOTS :]]
    for name, part in parts.items():
        common.write_jsonl(folder / f"{name}.jsonl", part)
    return folder


def settings(kind: str, rate: float, checkpoint: Path) -> Iterator[str]:
    """Yield the overrides of a training: as many texts in an update, with pairs half as many anchors."""
    pairs = kind == "contrastive"
    rows = TEXTS // 2 if pairs else TEXTS
    yield from (f"tokenizer.checkpoint={checkpoint}", f"encoder.checkpoint={checkpoint}", f"encoder.lr={rate}")
    yield from (f"train.batch_size={rows}", f"train.epochs={round(UPDATES / -(-77 * SHOTS // rows))}")
    if pairs:
        yield "head={use: label, pool: mean, contrastive: 0.1}"


def accuracy(run: str, data: Path) -> float:
    scores = common.seqpipe_json("evaluate", ROOT / "runs" / run, "--data", data, "-q")
    return 100 * float(next(iter(scores.values()))["accuracy"])


def contrastive(checkpoint: Path, rates: Sequence[float], seeds: int, data: Path | None) -> None:
    """Train both kinds with each learning rate under the first seed; test the best ones under all."""
    table = common.Table("classify", "few_labels", "training", "learning rate", "dev", "test")
    for kind in NAMES:
        dev: dict[float, list[float]] = {}
        for rate in rates:
            dev[rate] = [_train(f"{kind}-{rate}", 1, data, *settings(kind, rate, checkpoint))]
        best = max(rates, key=lambda rate: dev[rate][0])
        more = range(2, seeds + 1)
        dev[best] += [_train(f"{kind}-{best}", seed, data, *settings(kind, best, checkpoint)) for seed in more]
        tests = [accuracy(f"bench-few-{kind}-{best}-{n}", prepare(n, data) / "test.jsonl") for n in range(1, seeds + 1)]
        table.row(NAMES[kind], best, f"{statistics.mean(dev[best]):.2f}", f"{statistics.mean(tests):.2f}")


def _train(name: str, seed: int, data: Path | None, *overrides: str) -> float:
    """Train, unless an earlier call has, and return the accuracy on dev."""
    run, folder = f"bench-few-{name}-{seed}", prepare(seed, data)
    common.seqpipe("train", CONFIG, f"name={run}", f"data.train={folder / 'train.jsonl'}", *overrides)
    score = accuracy(run, folder / "dev.jsonl")
    print(f"{name}, seed {seed}: dev {score:.2f}", flush=True)
    return score


def self_training(checkpoint: Path | None, seed: int, data: Path | None) -> None:
    """Train with and without the texts that have no labels; the rounds' thresholds are chosen on dev."""
    folder = prepare(seed, data)
    config, name = HERE / "classify" / "banking77-few-ngrams.yaml", "n-grams from scratch"
    overrides: Sequence[str] = ()
    if checkpoint:
        config, name = CONFIG, "contrastive fine-tuning"
        overrides = [*settings("contrastive", 0.0001, checkpoint)]
    files = [f"data.{part}={folder / part}.jsonl" for part in ("train", "dev", "unlabelled")]
    run = f"bench-few-self-training{'-minilm' * bool(checkpoint)}-{seed}"
    rounds = "train.self_training={rounds: 1, thresholds: [0.3, 0.5, 0.7]}"
    common.seqpipe("train", config, f"name={run}", *files, *overrides, rounds)
    common.seqpipe("train", config, f"name={run}-before", *files[:2], *overrides)
    rows = json.loads((ROOT / "runs" / run / "self-training.json").read_text(encoding="utf-8"))
    table = common.Table("classify", "self_training", "model", "texts added", "dev", "test")
    kept = next(row for row in rows if row["kept"])
    before, after = rows[0]["dev"], kept["dev"]
    test = [accuracy(which, folder / "test.jsonl") for which in (f"{run}-before", run)]
    table.row(f"{name}, the labelled texts alone", 0, f"{100 * before:.2f}", f"{test[0]:.2f}")
    table.row(f"{name}, self-training", kept["texts"], f"{100 * after:.2f}", f"{test[1]:.2f}")


if __name__ == "__main__":
    parser = common.parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    few, rounds = commands.add_parser("contrastive"), commands.add_parser("self-training")
    few.add_argument("--checkpoint", type=Path, required=True)
    rounds.add_argument("--checkpoint", type=Path)
    few.add_argument("--rates", type=float, nargs="+", default=RATES, help="learning rates of the encoder to try")
    few.add_argument("--seeds", type=int, default=1)
    rounds.add_argument("--seed", type=int, default=1)
    common.add_data_option(few, rounds)
    arguments = parser.parse_args()
    folder = arguments.checkpoint and arguments.checkpoint.absolute()
    if arguments.command == "contrastive":
        contrastive(folder, arguments.rates, arguments.seeds, arguments.data)
    else:
        self_training(folder, arguments.seed, arguments.data)
