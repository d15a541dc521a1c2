"""Writing texts: quality on SCAN and two translation sets, and the speed of the search in the graph.

    python benchmarks/seq2seq.py quality scan-simple --seeds 1 2 3   # trains and tests; bundle and PyTorch must agree
    python benchmarks/seq2seq.py quality all
    python benchmarks/seq2seq.py speed --run runs/bench-small_parallel_enja-1   # beside the same search in PyTorch
    python benchmarks/seq2seq.py quality transformer-enja   # --epochs 1: for its sizes alone
    python benchmarks/seq2seq.py peer --run runs/bench-transformer-enja-1   # beside CTranslate2 on the same weights

BLEU is sacrebleu's over the tokens as the sets have them (`tokenize="none"`), beam 5. `peer` installs CTranslate2 into
.peers-seq2seq, or takes the environment that `--environment` names. Run it on an otherwise idle machine. Its figures
are recorded in runs/results.
"""

from __future__ import annotations

import gzip
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import common
from common import HERE, PREPARED, ROOT

SETS = ("scan-simple", "scan-length", "tanaka10k_ja_en", "small_parallel_enja")
TRANSFORMER = "transformer-enja"  # the set of small_parallel_enja
PEERS = ROOT / ".peers-seq2seq"
BEAMS, LONGEST = 5, 60
TEXTS, SINGLY = 320, 40  # that are written in batches, and one at a time


def prepare(name: str, data: Path | None) -> None:
    """Makes JSON lines of SCAN; the others are read as they are."""
    folder = PREPARED / name
    if not name.startswith("scan-") or folder.exists():
        return
    parts: dict[str, list[dict[str, str]]] = {"train": [], "dev": [], "test": []}
    for split in ("train", "test"):
        packed = common.data_path(data, f"scan/{name.removeprefix('scan-')}/{split}.txt.gz").read_bytes()
        for number, line in enumerate(gzip.decompress(packed).decode().splitlines()):
            text, _, target = line.removeprefix("IN: ").partition(" OUT: ")
            part = "dev" if split == "train" and number % 10 == 9 else split
            parts[part].append({"text": text.strip(), "target": target.strip()})
    for part, rows in parts.items():
        common.write_jsonl(folder / f"{part}.jsonl", rows)


def quality(name: str, seeds: Sequence[int], threads: int | None, epochs: int | None, data: Path | None) -> None:
    prepare(name, data)
    yaml = HERE / "seq2seq" / f"{name}.yaml"
    files = common.data_overrides(yaml, data)
    every: list[tuple[float, float]] = []
    for seed in seeds:
        run, clock = ROOT / "runs" / f"bench-{name}-{seed}", time.perf_counter()
        overrides = [f"name={run.name}", f"train.seed={seed}"]
        overrides += [f"train.{key}={value}" for key, value in (("threads", threads), ("epochs", epochs)) if value]
        common.seqpipe("run", yaml, *overrides, *files)
        minutes = (time.perf_counter() - clock) / 60
        scores = _scores(name, run, data)
        shown = "; ".join(
            f"beam {beams}: exact {exact:.2f}, BLEU {bleu:.2f}" for beams, (exact, bleu) in scores.items()
        )
        print(f"{name} seed {seed}: {shown}, {minutes:.1f} min", flush=True)
        greedy, beam = (scores[beams][0 if name.startswith("scan-") else 1] for beams in (1, BEAMS))
        every.append((greedy, beam))
    greedy, beam = (round(statistics.mean(values), 2) for values in zip(*every, strict=True))
    figures: dict[str, Any] = {"test, beam 1": greedy, "test, beam 5": beam, "minutes": round(minutes)}
    if len(every) > 1:
        figures["by seed"] = [round(beam, 2) for _, beam in every]
    common.record("seq2seq", "quality", [{"row": name, "figures": figures}], ["sacrebleu"])


def _scores(name: str, run: Path, data: Path | None) -> dict[int, tuple[float, float]]:
    """The exact match and BLEU in percent by the number of beams."""
    import sacrebleu

    import seqpipe

    model, (texts, gold) = seqpipe.load(run / "bundle", "cpu"), _pairs(name, data)
    scores = {}
    for beams in (1, BEAMS):
        answers = [answer["generated_text"] for answer in model(texts, beams=beams, length_penalty=1.0)]
        equal = sum(a == b for a, b in zip(answers, gold, strict=True)) / len(gold)
        bleu = sacrebleu.corpus_bleu(answers, [gold], tokenize="none").score
        scores[beams] = (100 * equal, bleu)
    return scores


def _pairs(name: str, data: Path | None) -> tuple[list[str], list[str]]:
    if name.startswith("scan-"):
        rows = [json.loads(line) for line in (PREPARED / name / "test.jsonl").read_text().splitlines()]
        return [row["text"] for row in rows], [row["target"] for row in rows]
    folder, _, direction = name.replace(TRANSFORMER, "small_parallel_enja").rpartition("_")
    source, target = ("ja", "en") if direction == "en" else ("en", "ja")
    folder = common.data_path(data, f"{folder}_{direction}")
    texts, gold = ((folder / f"test.{side}").read_text(encoding="utf-8").splitlines() for side in (source, target))
    return texts, gold


def speed(run: Path, rounds: int, threads: int, data: Path | None) -> None:
    """Texts a second of the graph and of the same search in eager PyTorch, on as many cores each, in turn."""
    import torch

    from seqpipe.training.evaluation import predictor

    torch.set_num_threads(threads)
    pipeline, model, docs, options = _opened(run, data, threads)
    eager = predictor(pipeline.network)
    sides: dict[str, Any] = {"graph": model.run, "eager PyTorch": eager.run}
    for size in (1, 32):
        batches = _batches(model, docs, size)
        calls = {side: partial(_seconds, call, batches, options) for side, call in sides.items()}
        row = {"row": f"{_set_name(run)}, batch {size}", "peer": "eager PyTorch"}
        facts = _in_turn(size, calls, rounds, sum(len(batch["mask"]) for batch in batches))
        common.record("seq2seq", "speed", [{**row, **facts}])


def peer(run: Path, environment: Path, rounds: int, data: Path | None) -> None:
    """Texts a second of the graph and of CTranslate2 with the same weights, one core each, in turn."""
    import numpy as np
    import torch

    torch.set_num_threads(1)
    pipeline, model, docs, options = _opened(run, data)
    head, encoder = pipeline.network.heads[0], pipeline.network.encoder[0]
    arrays = {name: tensor.numpy() for name, tensor in pipeline.network.state_dict().items()}
    arrays |= {"never": head.logit_mask.numpy(), "positions": head.positions.at(torch.arange(500)).numpy()}
    learned = pipeline.artifacts
    tokens = [
        tokenizer.get_vocab() for tokenizer in (learned.featurizer.tokenizer, *learned.target_tokenizers.values())
    ]
    source, target = (sorted(vocabulary, key=vocabulary.__getitem__) for vocabulary in tokens)
    layers = {"encoder_layers": len(encoder.layers), "layers": len(head.layers), "heads": head.layers[0].itself.heads}
    few = _batches(model, docs, 1)
    texts = [[source[i] for i in feed["ids"][0]] for feed in (model.predictor.featurizer.collate([d]) for d in docs)]
    task = {"sizes": {**layers, "source": source, "target": target}, "texts": texts, "singly": len(few)}
    folder = ROOT / "runs" / "bench-ctranslate2"
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "weights.npz", **arrays)
    (folder / "task.json").write_text(json.dumps(task | {"beams": BEAMS, "longest": LONGEST}), encoding="utf-8")
    python = common.peer_python(environment, "requirements-seq2seq.txt")
    with common.Peer([python, HERE / "peers" / "ctranslate2_seq2seq.py", "--folder", folder]) as peer:
        for way, beams in (("greedy 32", 1), ("beam 32", BEAMS)):
            ours = _written(model, docs, target, beams)
            theirs = peer.ask(f"tokens {way}")
            same = sum(a == b for a, b in zip(ours, theirs, strict=True))
            several = len({token for text in ours for token in text})
            print(f"{way}: {same} of {len(ours)} texts are the same, of {several} tokens", flush=True)
        for size in (1, 32):
            batches = _batches(model, docs, size)
            calls = {
                "graph": partial(_seconds, model.run, batches, options),
                "CTranslate2": partial(peer.ask, f"beam {size}"),
            }
            row = {"row": f"batch {size}", "peer": "CTranslate2"}
            facts = _in_turn(size, calls, rounds, sum(len(batch["mask"]) for batch in batches))
            versions = common.peer_versions(python, "ctranslate2")
            common.record("seq2seq", "ctranslate2", [{**row, **facts}], (), versions)


def _set_name(run: Path) -> str:
    """The data set whose run this is, after the name that `quality` gives a run."""
    return run.name.removeprefix("bench-").rpartition("-")[0]


def _opened(run: Path, data: Path | None, threads: int = 1) -> tuple[Any, Any, list[Any], Any]:
    """The pipeline and its bundle, texts by length, and the options that they are answered with."""
    import seqpipe
    from seqpipe.console import Console
    from seqpipe.runs.run_folder import load_trained, open_run
    from seqpipe.runtime.decode_options import option_arrays

    opened = open_run(run, Console(-1), need_data=False)
    model = seqpipe.load(run / "bundle", "cpu", threads=threads)
    texts, _ = _pairs(_set_name(run), data)
    docs = sorted(model.predictor.featurizer.docs([{"text": text} for text in texts[:TEXTS]]), key=len)
    options = option_arrays(model.manifest.options, {"beams": BEAMS, "max_length": LONGEST})
    return load_trained(opened), model, docs, options


def _batches(model: Any, docs: Sequence[Any], size: int) -> list[Any]:
    few = docs if size > 1 else docs[:: len(docs) // SINGLY][:SINGLY]
    return [model.predictor.featurizer.collate(few[at : at + size]) for at in range(0, len(few), size)]


def _in_turn(size: int, calls: Mapping[str, Callable[[], float]], rounds: int, count: int) -> dict[str, Any]:
    """Prints texts a second of each side, and how much the first is faster than the second; returns both."""
    seconds: dict[str, list[float]] = {side: [] for side in calls}
    for number in range(rounds + 1):
        for side, call in calls.items():
            taken = call()
            if number:  # the first warms up
                seconds[side].append(taken)
    medians = {side: statistics.median(taken) for side, taken in seconds.items()}
    speeds = ", ".join(f"{side} {count / median:.1f} texts/s" for side, median in medians.items())
    ours, theirs = medians.values()
    print(f"beam {BEAMS}, batch {size}: {speeds}: {theirs / ours:.2f} times", flush=True)
    figures = {"seqpipe, texts/s": round(count / ours, 1), "peer's": round(count / theirs, 1)}
    return {"figures": figures, "ratio": round(theirs / ours, 2)}


def _seconds(call: Any, batches: Sequence[Any], options: Any) -> float:
    clock = time.perf_counter()
    for batch in batches:
        call(batch | options)
    return time.perf_counter() - clock


def _written(model: Any, docs: Sequence[Any], target: Sequence[str], beams: int) -> list[list[str]]:
    """Of each text the tokens of the best answer, without its end."""
    from seqpipe.runtime.decode_options import option_arrays

    options = option_arrays(model.manifest.options, {"beams": beams, "max_length": LONGEST})
    texts = []
    for batch in _batches(model, docs, 32):
        for row in model.run(batch | options)["tokens"][:, 0]:
            tokens = [target[i] for i in row if i]
            texts.append(tokens[: tokens.index("[EOS]")] if "[EOS]" in tokens else tokens)
    return texts


if __name__ == "__main__":
    parser = common.parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    quality_parser = commands.add_parser("quality")
    quality_parser.add_argument("name", choices=(*SETS, TRANSFORMER, "all"))
    quality_parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    quality_parser.add_argument("--threads", type=int)
    quality_parser.add_argument("--epochs", type=int)
    two, three = commands.add_parser("speed"), commands.add_parser("peer")
    for each in (two, three):
        each.add_argument("--run", type=Path, required=True)
        each.add_argument("--rounds", type=int, default=5)
    two.add_argument("--threads", type=int, default=1)
    three.add_argument("--environment", type=Path, default=PEERS)
    common.add_data_option(quality_parser, two, three)
    arguments = parser.parse_args()
    if arguments.command == "speed":
        speed(arguments.run, arguments.rounds, arguments.threads, arguments.data)
    elif arguments.command == "peer":
        peer(arguments.run, arguments.environment, arguments.rounds, arguments.data)
    else:
        for name in SETS if arguments.name == "all" else (arguments.name,):
            quality(name, arguments.seeds, arguments.threads, arguments.epochs, arguments.data)
