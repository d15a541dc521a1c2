"""Named entities, side by side: quality from scratch on three data sets, speed beside Flair and spaCy, same cores.

    python benchmarks/ner.py quality ncbi --seeds 3   # trains and tests; bundle and PyTorch must agree
    python benchmarks/ner.py speed                    # Flair's sizes; installs the peers into .peers
    python benchmarks/ner.py step                     # a training step by the size of the vocabulary
    python benchmarks/ner.py rows                     # dev F1 with sparse gradients of words, and with dense ones

Run it on an otherwise idle machine. Its figures are recorded in runs/results; see report.py.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import common
from common import HERE, ROOT

PEERS = ROOT / ".peers"
REPEATS = 5
STEPS = 20
SHOWN = {"ncbi": "NCBI-disease", "bc5cdr": "BC5CDR", "weibo": "Weibo NER"}


def quality(name: str, seeds: int, device: str, data: Path | None) -> None:
    """Runs benchmarks/ner/NAME.yaml under seeds 1 to n, then scores each bundle with onnxruntime beside its run."""
    yaml = HERE / "ner" / f"{name}.yaml"
    files = common.data_overrides(yaml, data)
    every = []
    for seed in range(1, seeds + 1):
        clock = time.perf_counter()
        run = f"bench-{name}-{seed}"
        common.seqpipe("run", yaml, f"name={run}", f"train.seed={seed}", *files, "--device", device)
        minutes = (time.perf_counter() - clock) / 60
        scores = [_scores(ROOT / "runs" / run / part) for part in (".", "bundle")]
        f1, bundle_f1 = (100 * next(iter(s.values()))["f1"] for s in scores)
        raw = _scores(ROOT / "runs" / run / "bundle", "--raw")
        raw_f1 = 100 * next(value for key, value in raw.items() if key.endswith("(raw)"))["f1"]
        print(
            f"{name} seed {seed}: PyTorch {f1:.2f}, bundle {bundle_f1:.2f}, raw text {raw_f1:.2f}, {minutes:.1f} min",
            flush=True,
        )
        every.append(f1)
        parts = {"PyTorch": f1, "bundle": bundle_f1, "raw text": raw_f1}
        figures = {part: round(value, 2) for part, value in parts.items()} | {"minutes": round(minutes, 1)}
        common.record("ner", "quality", [{"row": f"{SHOWN[name]}, seed {seed}", "figures": figures}])
    if seeds == 3:
        figures = {"PyTorch": round(statistics.mean(every), 2)}
        common.record("ner", "quality", [{"row": f"{SHOWN[name]}, mean of three seeds", "figures": figures}])


def speed(epochs: int, peers: bool, data: Path | None) -> None:
    """Training and tagging speed at Flair's sizes: ours, the peers', ours again."""
    for name in ("flair-size", "small"):
        yaml = HERE / "ner" / f"{name}.yaml"
        common.seqpipe("run", yaml, *common.data_overrides(yaml, data))
    folder = common.data_path(data, "ncbi_disease")
    run = ROOT / "runs" / "bench-flair-size"
    rows = [("seqpipe", _ours(run, folder)), ("seqpipe, small", _ours(ROOT / "runs" / "bench-small", folder))]
    if peers:
        for peer in ("flair", "spacy"):
            rows.append((peer, _peer(peer, epochs, folder)))
        rows.append(("seqpipe again", _ours(run, folder)))
    for name, row in rows:
        print(f"{name:14}" + "".join(f"  {key} {value:,.2f}" for key, value in row.items()))
    versions = ""
    if peers:
        versions = common.peer_versions(
            common.peer_python(PEERS, "requirements.txt", "torch==2.13.0"), "flair", "spacy"
        )
    shown = {"flair": "Flair", "spacy": "spaCy, CNN"}
    recorded = [
        {"row": shown.get(name, name), "figures": {key: round(value, 2) for key, value in row.items()}}
        for name, row in rows
    ]
    common.record("ner", "speed", recorded, (), versions)
    if peers:
        common.record("ner", "ratios", _ratios(dict(rows)), (), versions)


def step(sizes: list[int]) -> None:
    """Processor time of a step of 500 words on one thread, sparse against dense gradients, at each vocabulary."""
    import numpy as np
    import torch

    from seqpipe.config.loader import load_config
    from seqpipe.console import Console
    from seqpipe.training import optim
    from seqpipe.training.datasets import Batches, examples, load_records
    from seqpipe.training.fit import fit_artifacts
    from seqpipe.training.network import Network
    from seqpipe.training.trainer import Trainer

    torch.set_num_threads(1)
    common.PREPARED.mkdir(parents=True, exist_ok=True)
    path, random, trainers = common.PREPARED / "step.tsv", np.random.default_rng(1), {}
    for size in sizes:
        share = 1 / np.arange(2, size + 2) ** 1.05  # Zipf's law
        drawn = random.choice(size, (25 * STEPS, 20), p=share / share.sum())
        every = np.arange(size).reshape(-1, 20)  # the vocabulary has no limit, and each word occurs
        sentences = ("".join(f"w{word}\tO\n" for word in row) for part in (drawn, every) for row in part)
        path.write_text("B\tB-x\nI\tI-x\n\n" + "\n".join(sentences))
        files = [f"data.{part}={json.dumps(str(path))}" for part in ("train", "dev", "test")]
        config = load_config(
            HERE / "ner" / "small.yaml", [*files, "embedding.0.dim=100", "tokenizer.fold_digits=false"]
        )
        records = load_records(config.data.reader, config.data.train)
        artifacts = fit_artifacts(config, records)
        data = examples(config, artifacts, records[1 : 1 + len(drawn)])
        for is_sparse in (True, False):
            optim.DENSE_ROWS = 0 if is_sparse else 2 * size
            batches = Batches(artifacts, data, 500, None, 1)
            network = Network(config, artifacts)
            trainers[size, is_sparse] = Trainer(network, config, batches, None, path.parent, Console(-1))
    times: dict[tuple[int, bool], list[float]] = {key: [] for key in trainers}
    for position in range(STEPS):
        for key, trainer in trainers.items():
            batch = trainer.batches(range(25 * position, 25 * position + 25))
            clock = time.process_time()
            trainer.train_batch(batch)
            times[key].append(1000 * (time.process_time() - clock))
    table = common.Table("ner", "step", "words", "sparse, ms a step", "dense, ms a step", "sparse / that of the first")
    medians = {key: statistics.median(values) for key, values in times.items()}
    for size in sizes:
        sparse, dense = medians[size, True], medians[size, False]
        table.row(f"{size:,}", f"{sparse:.1f}", f"{dense:.1f}", f"{sparse / medians[sizes[0], True]:.2f}")


def rows(seeds: int, data: Path | None) -> None:
    """Dev F1 of benchmarks/ner/small.yaml after three epochs, with sparse and with dense gradients of words."""
    yaml = HERE / "ner" / "small.yaml"
    files = common.data_overrides(yaml, data)
    table = common.Table("ner", "rows", "gradients", "mean dev F1", "standard deviation", "dev F1 of each seed")
    for label, limit in (("sparse", 0), ("dense", 10**9)):
        patch = f"from seqpipe.training import optim; optim.DENSE_ROWS = {limit}"
        program = f"{patch}; from seqpipe.commands.app import main; main()"
        scores = []
        for seed in range(1, seeds + 1):
            run = f"bench-rows-{label}-{seed}"
            settings = [f"name={run}", f"train.seed={seed}", "train.epochs=3", "train.threads=1", *files]
            command = [sys.executable, "-c", program, "train", yaml, *settings, "--fresh", "-q", "--device", "cpu"]
            subprocess.run(command, check=True, cwd=ROOT)
            history = (ROOT / "runs" / run / "checkpoints" / "metrics.jsonl").read_text().splitlines()
            scores.append(100 * json.loads(history[-1])["dev"]["f1"])
        each = ", ".join(f"{score:.2f}" for score in scores)
        table.row(label, f"{statistics.mean(scores):.2f}", f"{statistics.stdev(scores):.2f}", each)


def _ratios(rows: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """The ratios to the peers: Flair at its sizes, spaCy against the small model."""
    batches, single, epoch = "tokens/s in batches", "sentences/s one by one", "an epoch, s"
    flair, spacy, ours, small = (rows[name] for name in ("flair", "spacy", "seqpipe", "seqpipe, small"))
    ratios = {
        "tagging in batches": ("Flair", ours[batches] / flair[batches]),
        "tagging in batches, at a higher F1": ("spaCy, CNN", small[batches] / spacy[batches]),
        "one sentence at a time": ("Flair", ours[single] / flair[single]),
        "one sentence at a time, at a higher F1": ("spaCy, CNN", small[single] / spacy[single]),
        "training, an epoch": ("Flair", flair[epoch] / ours[epoch]),
    }
    return [{"row": row, "peer": peer, "ratio": round(ratio, 2)} for row, (peer, ratio) in ratios.items()]


def _ours(run: Path, data: Path) -> dict[str, float]:
    sys.path.insert(0, str(ROOT))
    import seqpipe
    from seqpipe.runtime.predictor import batches, cores
    from seqpipe_plugins.readers.conll import Conll

    model = seqpipe.load(run / "bundle", "cpu")
    records = [{"words": r["words"], "text": r["text"]} for r in Conll().read(data / "test.tsv")]
    texts = [{"text": record["text"]} for record in records]
    tokens = sum(len(record["words"]) for record in records)
    docs = model.predictor.featurizer.docs(records)
    feeds = [
        model.predictor.featurizer.collate([docs[i] for i in rows]) for rows in batches([len(doc) for doc in docs])
    ]
    with ThreadPoolExecutor(cores()) as pool:
        bare = _median(lambda: list(pool.map(model.run, feeds)))
    words, raw = _median(lambda: model(records)), _median(lambda: model(texts))
    single = _median(lambda: [model(record) for record in records[:300]])
    history = [json.loads(line) for line in (run / "checkpoints" / "metrics.jsonl").read_text().splitlines()]
    f1 = json.loads((run / "metrics.json").read_text())["test"]["f1"]
    return {
        "tokens/s in batches": tokens / words,
        "from raw text": tokens / raw,
        "sentences/s one by one": 300 / single,
        "x bare onnxruntime": words / bare,
        "x bare, raw": raw / bare,
        "an epoch, s": statistics.median(row["seconds"] for row in history),
        "test F1": 100 * f1,
    }


def _peer(name: str, epochs: int, data: Path) -> dict[str, float]:
    python = common.peer_python(PEERS, "requirements.txt", "torch==2.13.0")
    out = ROOT / "runs" / f"bench-{name}.json"
    program = HERE / "peers" / f"{name}_ner.py"
    command = [python, program, "--data", data, "--train-epochs", str(epochs), "--one-by-one", "300", "--out", out]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    result: dict[str, Any] = json.loads(out.read_text())
    tag = result["tag"]
    return {
        "tokens/s in batches": tag["batched_tokens_per_s"],
        "sentences/s one by one": tag["one_by_one_sentences_per_s"],
        "an epoch, s": statistics.median(result["train"]["epoch_seconds"]),
        "test F1": 100 * result["test_f1"],
    }


def _median(work: Callable[[], object]) -> float:
    work()
    return statistics.median(common.seconds(work) for _ in range(REPEATS))


def _scores(target: Path, *more: str) -> dict[str, Any]:
    scores: dict[str, Any] = common.seqpipe_json("evaluate", target, "-q", *more)
    return scores


if __name__ == "__main__":
    parser = common.parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    quality_parser = commands.add_parser("quality")
    quality_parser.add_argument("name", choices=("ncbi", "bc5cdr", "weibo"))
    quality_parser.add_argument("--seeds", type=int, default=1)
    quality_parser.add_argument("--device", default="auto")
    two = commands.add_parser("speed")
    two.add_argument("--peer-epochs", type=int, default=2)
    two.add_argument("--no-peers", action="store_true")
    three = commands.add_parser("step")
    three.add_argument("--words", nargs="+", type=int, default=[10_000, 100_000, 1_000_000])
    four = commands.add_parser("rows")
    four.add_argument("--seeds", type=int, default=3)
    common.add_data_option(quality_parser, two, four)
    arguments = parser.parse_args()
    if arguments.command == "quality":
        quality(arguments.name, arguments.seeds, arguments.device, arguments.data)
    elif arguments.command == "step":
        step(arguments.words)
    elif arguments.command == "rows":
        rows(arguments.seeds, arguments.data)
    else:
        speed(arguments.peer_epochs, not arguments.no_peers, arguments.data)
