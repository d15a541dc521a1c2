"""Language models: perplexity, training beside a plain PyTorch loop, and writing beside `transformers`' generate.

    python benchmarks/language_models.py quality shakespeare   # nanoGPT's recipe for a CPU
    python benchmarks/language_models.py quality tang          # verse, against the 4-gram's perplexity of 195.3
    python benchmarks/language_models.py training              # seconds a step, the same model both ways
    python benchmarks/language_models.py writing               # tokens/s of a GPT of 6 layers, 384 wide, 5,000 tokens
    python benchmarks/language_models.py writing --peers ENV   # the same beside CTranslate2; ENV is made if missing
    python benchmarks/language_models.py writing --peers ENV --batches 1 --threads 2   # the same, two threads each
    python benchmarks/language_models.py t5                    # the same of a T5, and whether the texts are the same

Run it on an otherwise idle machine. Its figures are recorded in runs/results; see report.py.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from common import HERE, PREPARED
from plain_gpt import PlainGpt

STEPS, WRITTEN, PROMPT = 100, 128, 16
INT8 = "perplexity of texts drawn from the GPT of `writing`, of random weights"
FIRST = "streaming: the first token, in steps, of a prompt of 8 tokens, which is read first"
SHAKESPEARE = "tinyshakespeare/input.txt"


def shakespeare(data: Path | None) -> None:
    """The first 90 % of the characters to learn from, the rest to judge by, as nanoGPT has it."""
    folder = PREPARED / "tinyshakespeare"
    folder.mkdir(parents=True, exist_ok=True)
    text = common.data_path(data, SHAKESPEARE).read_text(encoding="utf-8")
    cut = int(0.9 * len(text))
    for name, part in (("train", text[:cut]), ("dev", text[cut:])):
        (folder / f"{name}.txt").write_text(part, encoding="utf-8", newline="\n")


def tang(data: Path | None) -> None:
    """JSON lines of the poems, their lines apart; the end stands for the last line break."""
    for name, file in (("train", "train.jsonl.gz"), ("dev", "dev.jsonl"), ("test", "test.jsonl")):
        content = common.data_path(data, f"tang_poems/{file}").read_bytes()
        rows = (gzip.decompress(content) if file.endswith(".gz") else content).decode().splitlines()
        poems = ({"text": "\n".join(json.loads(row)["lines"])} for row in rows)
        common.write_jsonl(PREPARED / "tang_poems" / f"{name}.jsonl", poems)


KEPT = {"shakespeare": "loss", "tang": "perplexity"}  # the score of a set that is recorded, and its decimals
DIGITS = {"shakespeare": 3, "tang": 1}
SETS: dict[str, Callable[[Path | None], None]] = {"shakespeare": shakespeare, "tang": tang}


def quality(name: str, seeds: Sequence[int], overrides: Sequence[str], data: Path | None) -> None:
    SETS[name](data)
    every: list[list[float]] = []
    for seed in seeds:
        run, clock = f"bench-{name}-{seed}", time.perf_counter()
        path = HERE / "language_models" / f"{name}.yaml"
        result = common.seqpipe_json("run", path, f"name={run}", f"train.seed={seed}", *overrides)
        scores = next(iter(result["scores"].values()))
        figures = ", ".join(f"{key} {value:.4f}" for key, value in scores.items() if isinstance(value, float))
        print(f"{name} seed {seed}: {figures}, {(time.perf_counter() - clock) / 60:.1f} min", flush=True)
        every.append([part[KEPT[name]] for part in result["scores"].values()])
    means = [statistics.mean(values) for values in zip(*every, strict=True)]
    recorded = {"measured": " / ".join(f"{value:.{DIGITS[name]}f}" for value in means)}
    if len(every) > 1:
        recorded["by seed or round"] = ", ".join(f"{values[0]:.{DIGITS[name]}f}" for values in every)
    common.record("language_models", "quality", [{"row": name, "figures": recorded}])


def training(data: Path | None) -> None:
    """Seconds of a step, here and in a plain loop over the same model, in turns."""
    from seqpipe.config.loader import load_config
    from seqpipe.training.datasets import Records, in_memory
    from seqpipe.training.fit import fit_artifacts
    from seqpipe.training.network import Network

    torch.set_num_threads(1)
    shakespeare(data)
    path = HERE / "language_models" / "shakespeare.yaml"
    config = load_config(path)
    records = Records(config.data.reader, config.data.train)
    learned = fit_artifacts(config, records)
    tokens = torch.from_numpy(in_memory(learned, records))
    model = PlainGpt(len(learned.vocabulary), 128, 4, 4, 64)
    count = sum(p.numel() for p in Network(config, learned).parameters())
    print(f"{sum(p.numel() for p in model.parameters()):,} weights, of seqpipe's model {count:,}")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True)

    def plain() -> float:
        clock = time.perf_counter()
        for _ in range(STEPS):
            starts = torch.randint(len(tokens) - 64, (12,))
            ids = torch.stack([tokens[i : i + 65] for i in starts.tolist()])
            model.loss(ids[:, :-1], ids[:, 1:]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return (time.perf_counter() - clock) / STEPS

    def ours() -> float:
        with tempfile.TemporaryDirectory() as folder:
            call = [sys.executable, "-m", "seqpipe", "train", str(path), "train.epochs=2", "train.threads=1"]
            subprocess.run([*call, f"train.epoch_steps={STEPS}", "-q"], check=True, cwd=folder)
            rows = (Path(folder) / "runs" / "bench-shakespeare" / "checkpoints" / "metrics.jsonl").read_text()
            return float(json.loads(rows.splitlines()[-1])["seconds"]) / STEPS

    plain()
    ratios = []
    for _ in range(3):
        plain_seconds, our_seconds = plain(), ours()
        milliseconds = f"plain loop {1000 * plain_seconds:.1f} ms a step, seqpipe {1000 * our_seconds:.1f} ms"
        print(f"{milliseconds}, ratio {plain_seconds / our_seconds:.2f}", flush=True)
        ratios.append(round(plain_seconds / our_seconds, 2))
    rounds = {"by seed or round": ", ".join(f"{ratio:.2f}" for ratio in ratios) + " times"}
    row = {"row": "training that GPT", "figures": rounds, "ratio": [min(ratios), max(ratios)]}
    common.record("language_models", "quality", [row])


def writing(
    batches: Sequence[int], precisions: Sequence[str], peers: Path | None, data: Path | None, threads: int
) -> None:
    """Tokens a second of the same weights, greedy: `transformers`, CTranslate2, and the bundle in onnxruntime."""
    from random_checkpoints import gpt2

    from seqpipe.export.passes.int8 import in_int8, input_ranges

    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = common.data_path(data, SHAKESPEARE)
        theirs = gpt2(folder / "gpt", text)
        (folder / "text.txt").write_text(text.read_text()[:100_000])
        (folder / "gpt.yaml").write_text(
            "name: gpt\ndata: {reader: text, train: text.txt}\n"
            "tokenizer: {use: pretrained, checkpoint: gpt}\n"
            "encoder: {use: pretrained-decoder, checkpoint: gpt}\nhead: {use: lm, context: 64}\n"
        )

        def calibrated(graph: bytes, network: Any) -> bytes:
            (doc,) = network.artifacts.featurizer.docs([{"text": (folder / "text.txt").read_text()}])
            rows = np.array(doc.ids[:4096]).reshape(-1, 1, 64)
            inputs = ({"ids": ids, "mask": np.ones(ids.shape, bool)} for ids in rows)
            return in_int8(graph, input_ranges(graph, inputs))

        ways = [lambda graph, network: graph, calibrated]
        model, small = exported(folder / "gpt.yaml", *ways, folder=folder, threads=threads)
        figures = perplexities(folder / "texts.npy", float32=model, int8=small)
        for rows in batches:
            beside(model, theirs, rows, threads)
            for precision in precisions if peers else ():
                bundle_model = small if precision == "int8" else model
                their_perplexity = beside_ctranslate2(bundle_model, folder, peers, precision, rows, threads)
                figures[f"CTranslate2, {precision}"] = round(their_perplexity, 1)
    row = {"row": INT8, "figures": {"measured": ", ".join(f"{name} {value}" for name, value in figures.items())}}
    common.record("language_models", "size", [row])
    step = min(common.seconds(partial(model.graph.run_alone, feeds(model, 1))) for _ in range(3)) / WRITTEN
    first = min(common.seconds(lambda: next(model.stream("First Citizen:\nBefore we proceed any"))) for _ in range(9))
    print(
        f"one step {1000 * step:.2f} ms; streaming's first token after {1000 * first:.2f} ms, {first / step:.2f} steps"
    )
    row = {"row": FIRST + in_threads(threads), "figures": {"measured": round(first / step, 2)}}
    common.record("language_models", "size", [row])


def exported(path: Path, *ways: Callable[[bytes, Any], bytes], folder: Path, threads: int = 1) -> list[Any]:
    """The models of a pipeline that was not trained, one for each way to rewrite its graph, given the pipeline."""
    import seqpipe
    from seqpipe.config.loader import load_config
    from seqpipe.export.exporter import bundle_files, bundle_manifest
    from seqpipe.export.graph import to_onnx
    from seqpipe.runtime import bundle
    from seqpipe.training.datasets import load_records
    from seqpipe.training.evaluation import TrainedPipeline
    from seqpipe.training.fit import fit_artifacts
    from seqpipe.training.network import Network

    config = load_config(path)
    network = Network(config, fit_artifacts(config, load_records(config.data.reader, config.data.train, 9))).eval()
    pipeline = TrainedPipeline(network, config)
    clock = time.perf_counter()
    graph = to_onnx(pipeline)
    weights = 4 * sum(p.numel() for p in network.parameters())
    print(f"exported in {time.perf_counter() - clock:.0f} s, {len(graph):,} bytes, the weights {weights:,}")
    manifest = bundle_manifest(pipeline)
    models: list[Any] = []
    for number, way in enumerate(ways):
        bundle.write_bundle(folder / f"bundle-{number}", bundle_files(pipeline, way(graph, network)), manifest)
        models.append(seqpipe.load(folder / f"bundle-{number}", "cpu", threads))
    return models


def t5(data: Path | None) -> None:
    """A T5 of random weights in `transformers` and in the bundle: the same texts, and seconds for all of them."""
    import random_checkpoints

    torch.set_num_threads(1)
    words, random = common.data_path(data, SHAKESPEARE).read_text().split(), np.random.default_rng(0)
    texts = [" ".join(words[50 * i : 50 * i + int(random.integers(2, 50))]) for i in range(200)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer, theirs = random_checkpoints.t5(folder / "t5", words)
        (folder / "train.jsonl").write_text("".join(json.dumps({"text": t, "target": t}) + "\n" for t in texts[:9]))
        (folder / "t5.yaml").write_text(
            "name: t5\ndata: {reader: jsonl, train: train.jsonl}\n"
            "tokenizer: {use: pretrained, checkpoint: t5}\n"
            "encoder: {use: pretrained-seq2seq, checkpoint: t5}\n"
            "head: {use: pretrained-seq2seq, checkpoint: t5, target_tokenizer: same}\n"
        )
        (model,) = exported(folder / "t5.yaml", lambda graph, network: graph, folder=folder)
    for beams in (1, 4):
        begun, expected = time.perf_counter(), []
        for text in texts:
            ids = tokenizer(text, return_tensors="pt")["input_ids"]
            settings = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 40, "do_sample": False}
            search = {"num_beams": beams, "length_penalty": 0.0, "early_stopping": "never"} if beams > 1 else {}
            written = theirs.generate(ids, **settings, **search)[0, 1:].tolist()
            written = written[: written.index(1)] if 1 in written else written
            expected.append(tokenizer.decode([token for token in written if token > 2]))
        their_seconds, begun = time.perf_counter() - begun, time.perf_counter()
        answers = [model(text, beams=beams, max_length=40)["generated_text"] for text in texts]
        our_seconds, begun = time.perf_counter() - begun, time.perf_counter()
        together = [answer["generated_text"] for answer in model(texts, beams=beams, max_length=40)]
        batched = time.perf_counter() - begun
        same = sum(a == b == c for a, b, c in zip(expected, answers, together, strict=True))
        print(
            f"{beams} beams: {same} of {len(texts)} texts the same; transformers {their_seconds:.1f} s, "
            f"the bundle {our_seconds:.1f} s (ratio {their_seconds / our_seconds:.2f}), "
            f"all in one call {batched:.1f} s",
            flush=True,
        )
        seconds = {"seqpipe": round(our_seconds, 1), "peer's": round(their_seconds, 1)}
        row = {"row": "T5, greedy" if beams == 1 else f"T5, {beams} beams", "figures": seconds, "unit": "s"}
        facts = {"peer": "transformers", "ratio": round(their_seconds / our_seconds, 2)}
        common.record("language_models", "writing", [{**row, **facts}], ["transformers"])


def feeds(model: Any, rows: int) -> dict[str, Any]:
    """Prompts of one length, and options by which each text has all its tokens."""
    from seqpipe.runtime.decode_options import option_arrays

    ids = np.random.default_rng(0).integers(300, 4900, (rows, PROMPT))
    sizes = option_arrays(model.manifest.options, {"max_length": WRITTEN, "min_length": WRITTEN - 1})
    return {"ids": ids, "mask": np.ones(ids.shape, bool)} | sizes


def in_threads(threads: int) -> str:
    """The end of a row's name."""
    return f", {threads} threads" if threads > 1 else ""


def beside(model: Any, theirs: Any, rows: int, threads: int) -> None:
    inputs = feeds(model, rows)
    ids = torch.from_numpy(inputs["ids"])
    run, pairs = partial(model.graph.run_alone if rows == 1 else model.run, inputs), []
    run()  # opens the session
    settings = {"max_new_tokens": WRITTEN, "min_new_tokens": WRITTEN, "do_sample": False, "pad_token_id": 0}
    for _ in range(3):
        with torch.no_grad():
            generate = partial(theirs.generate, ids, attention_mask=torch.ones_like(ids), **settings)
            their_seconds = common.seconds(generate)
        our_seconds = common.seconds(run)
        their_speed, our_speed = (rows * WRITTEN / seconds for seconds in (their_seconds, our_seconds))
        speeds = f"transformers {their_speed:.0f} tokens/s, bundle {our_speed:.0f}"
        print(f"batch {rows}: {speeds}, ratio {their_seconds / our_seconds:.2f}")
        pairs.append((our_speed, their_speed))
    record_writing(rows, "transformers" + in_threads(threads), pairs, f"transformers {version('transformers')}")


def perplexities(path: Path, **models: Any) -> dict[str, float]:
    """Perplexity of each model on texts that the first one draws; the checkpoint's ids of these go to a file."""
    from seqpipe.features.checkpoint_tokenizer import pretrained_tokenizer
    from seqpipe.runtime.decode_options import option_arrays

    random, (model, *_) = np.random.default_rng(1), models.values()
    prompts, drawn = random.integers(300, 4900, (32, 8)), 56
    options = option_arrays(model.manifest.options, {"max_length": drawn, "min_length": drawn - 1})
    options |= {"top_k": np.zeros(5000, np.int64), "uniform": random.random((32, 1, drawn), np.float32)}
    tokens = model.run({"ids": prompts, "mask": np.ones(prompts.shape, bool)} | options)["tokens"][:, 0]
    texts = np.concatenate([prompts, tokens], 1)
    np.save(path, np.array(pretrained_tokenizer(path.parent / "gpt").ids)[texts])
    options = option_arrays(model.manifest.options, {"max_length": 1, "score_prompt": True})
    inputs = {"ids": texts, "mask": np.ones(texts.shape, bool)} | options
    scores = {name: model.run(inputs)["prompt_scores"][:, 7:] for name, model in models.items()}
    figures = {name: round(float(np.exp(-score.mean())), 1) for name, score in scores.items()}
    print(f"perplexity of drawn texts {figures}")
    return figures


def beside_ctranslate2(model: Any, folder: Path, peers: Path, precision: str, rows: int, threads: int) -> float:
    program = HERE / "peers" / "ctranslate2_gpt.py"
    python = common.peer_python(peers.absolute(), "requirements-seq2seq.txt")
    texts = folder / "texts.npy"
    call = [python, program, folder / "gpt", precision, str(rows), str(PROMPT), str(WRITTEN), texts, str(threads)]
    run, pairs = partial(model.graph.run_alone if rows == 1 else model.run, feeds(model, rows)), []
    for _ in range(3):
        done = subprocess.run(
            call, check=True, stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": f"{threads}"}
        )
        theirs, perplexity = map(float, done.stdout.split())
        ours = rows * WRITTEN / min(common.seconds(run) for _ in range(4))
        speeds = f"CTranslate2 {theirs:.0f} tokens/s (perplexity {perplexity:.1f}), bundle {ours:.0f}"
        print(f"batch {rows}, {precision}: {speeds}, ratio {ours / theirs:.2f}", flush=True)
        pairs.append((ours, theirs))
    ctranslate2 = common.peer_versions(python, "ctranslate2")
    record_writing(rows, f"CTranslate2, {precision}{in_threads(threads)}", pairs, ctranslate2)
    return perplexity


def record_writing(rows: int, peer: str, pairs: Sequence[tuple[float, float]], versions: str) -> None:
    """Record tokens a second of each round, here and there."""
    ratios = [round(ours / theirs, 2) for ours, theirs in pairs]
    sides = {side: [round(pair[place]) for pair in pairs] for place, side in enumerate(("seqpipe", "peer's"))}
    row = {"row": f"GPT, batch {rows}, beside {peer}", "figures": sides, "unit": "tokens/s", "peer": peer}
    common.record("language_models", "writing", [{**row, "ratio": [min(ratios), max(ratios)]}], (), versions)


if __name__ == "__main__":
    parser = common.parser(__doc__)
    what = parser.add_subparsers(required=True, dest="what")
    trained = what.add_parser("quality")
    trained.add_argument("name", choices=[*SETS])
    trained.add_argument("--seeds", type=int, nargs="+", default=[1])
    trained.add_argument("--set", nargs="*", default=[], dest="overrides")
    written = what.add_parser("writing")
    written.add_argument("--peers", type=Path)
    written.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    written.add_argument("--threads", type=int, default=1, help="of each side, for batches of one text")
    written.add_argument("--precisions", nargs="+", choices=["float32", "int8"], default=["float32", "int8"])
    common.add_data_option(trained, what.add_parser("training"), written, what.add_parser("t5"))
    options = parser.parse_args()
    if options.what == "quality":
        quality(options.name, options.seeds, options.overrides, options.data)
    elif options.what == "writing":
        writing(options.batches, options.precisions, options.peers, options.data, options.threads)
    else:
        {"training": training, "t5": t5}[options.what](options.data)
