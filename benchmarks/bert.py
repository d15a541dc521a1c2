"""A BERT classifier as a bundle, side by side: its scores beside transformers', its speed beside Optimum's.

    python benchmarks/bert.py logits --checkpoint FOLDER                    # the 3,080 test texts of Banking77
    python benchmarks/bert.py speed --checkpoint FOLDER                     # installs the peers into .peers-bert
    python benchmarks/bert.py speed --checkpoint FOLDER --peers ENVIRONMENT  # or takes one that is there
    python benchmarks/bert.py training --checkpoint FOLDER                  # fine-tuning, and a layer of a Transformer

FOLDER has the weights of all-MiniLM-L6-v2. The first two train a few steps first, or `--run` names a run that
was made with classify/banking77-bert.yaml. Time on an otherwise idle machine; figures are recorded in runs/results.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import common
from common import HERE, PREPARED, ROOT

PEERS, RUN = ROOT / ".peers-bert", ROOT / "runs" / "bench-bert"
NEAR = 1e-4  # how far log-probabilities may be apart
SINGLY = 300  # texts that are also answered one at a time


def logits(run: Path, checkpoint: Path, texts: list[str]) -> None:
    """The bundle's log-probabilities beside those of plain PyTorch with the run's weights, on all test texts."""
    import torch

    ours = _scores(run / "bundle", texts)
    broken = _reference(run, checkpoint, texts[:64], shift=1)
    shifted_by = (broken - ours[:64]).abs().max().item()
    if shifted_by < NEAR:
        raise SystemExit(f"positions moved by one change no more than {shifted_by:.1g}: this comparison sees nothing")
    theirs = _reference(run, checkpoint, texts)
    far = (theirs - ours).abs().max().item()
    same = int((theirs.argmax(1) == ours.argmax(1)).sum())
    summary = f"log-probabilities differ by {far:.2g} at most, {same:,} of {len(ours):,} labels are equal"
    print(f"{summary}; with positions moved by one they differ by {shifted_by:.2g}")
    measured = {
        "labels that are equal": f"{same:,} of {len(ours):,}",
        "greatest difference of log-probabilities": f"{far:.2g}",
        "the same with every position moved by one (a planted fault)": round(shifted_by, 1),
    }
    rows = [{"row": row, "figures": {"measured": value}} for row, value in measured.items()]
    common.record("bert", "logits", rows, ["transformers"])
    torch.testing.assert_close(ours, theirs, rtol=0, atol=NEAR)


def _reference(run: Path, checkpoint: Path, texts: list[str], shift: int = 0) -> Any:
    """(N, L) by transformers' model and tokenizer, mean pooling and a linear layer."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    (best,) = (run / "checkpoints").glob("best-*.safetensors")
    weights = load_file(best)
    inner = {name.removeprefix("encoder.0.model."): w for name, w in weights.items() if name.startswith("encoder.0.")}
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModel.from_pretrained(checkpoint, add_pooling_layer=False).eval()
    table = inner["embeddings.word_embeddings.weight"]
    vocabulary = json.loads((run / "bundle" / "tokenizer.json").read_text())["model"]["vocab"]
    names = dict(zip(("[PAD]", "[UNK]", "[CLS]", "[SEP]"), ("[PAD]", "[UNK]", "[BOS]", "[EOS]"), strict=True))
    order = tokenizer.convert_ids_to_tokens(range(len(table)))
    inner["embeddings.word_embeddings.weight"] = table[[vocabulary[names.get(token, token)] for token in order]]
    places = "embeddings.position_embeddings.weight"
    inner[places] = inner[places].roll(shift, 0)
    model.load_state_dict(inner, strict=True)
    rows = []
    with torch.no_grad():
        for text in texts:
            x = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, 1:-1]  # (T, D)
            head = weights["heads.0.output.weight"], weights["heads.0.output.bias"]
            rows.append(torch.nn.functional.linear(x.mean(0), *head).log_softmax(0))
    return torch.stack(rows)


def _scores(bundle: Path, texts: list[str]) -> Any:
    """(N, L) by onnxruntime, in the order of the texts."""
    import torch

    import seqpipe

    model = seqpipe.load(bundle, "cpu")
    feeds = _feeds(model, texts)
    scores = torch.empty(len(texts), len(model.predictor.kind.parts[""].labels))
    for rows, feed in feeds:
        scores[rows] = torch.from_numpy(model.run(feed)["scores"]).log()
    return scores


def speed(run: Path, checkpoint: Path, environment: Path, rounds: int, texts: list[str]) -> None:
    """Texts a second, every side in turn, `rounds` times; medians, and the ratios of the promises."""
    ours = _ours(run / "bundle", texts)
    seconds: dict[str, list[float]] = {}
    with peer_process(environment, checkpoint, texts) as peers:
        ways = peers.greeting
        for side in (*ours, *ways):
            peers.ask(side) if side in ways else ours[side]()  # to warm up
        # Sides that are compared follow each other: other programs slow the machine for seconds.
        order = sorted((*ours, *ways), key=lambda side: side.endswith("singly"))
        for _ in range(rounds):
            for side in order:
                time.sleep(0.1)  # idle threads of Optimum's sessions wait actively for 40 ms, and slow the next side
                taken = float(peers.ask(side)) if side in ways else common.seconds(ours[side])
                seconds.setdefault(side, []).append(taken)
    few = len(texts[:SINGLY])
    sizes = {side: few if side.endswith("singly") else len(texts) for side in seconds}
    rates = {side: [sizes[side] / each for each in taken] for side, taken in seconds.items()}
    for side, each in rates.items():
        print(f"{side:44}{statistics.median(each):9,.0f} texts/s  ({min(each):,.0f} to {max(each):,.0f})")
    versions = common.peer_versions(environment / "bin" / "python", "optimum", "onnxruntime", "openvino")
    speeds = {side: round(statistics.median(each)) for side, each in rates.items()}
    rows = [{"row": side, "figures": {"texts/s": value}} for side, value in speeds.items()]
    common.record("bert", "speed", rows, (), f"of the peers: {versions}")
    best = max(
        (side for side in rates if side.startswith("optimum, sorted")), key=lambda side: statistics.median(rates[side])
    )
    for mine, peer, row in (
        ("seqpipe", "optimum, pipeline", "a list of texts"),
        ("seqpipe", "optimum, pipeline in 32s", "a list of texts, in 32s"),
        ("seqpipe", best, "a list of texts, sorted by length, in 32s"),
        ("seqpipe", "optimum, sorted in 32s, a run a core", "a list of texts, and one run a core"),
        ("seqpipe", "openvino, sorted in 32s", "a list of texts, OpenVINO"),
        ("seqpipe, int8", best, "a list of texts in int8, beside fp32"),
        ("seqpipe, int8", "openvino, sorted in 32s", "a list of texts in int8, OpenVINO"),
        ("seqpipe's graph alone", "optimum's graph alone", "the graph alone"),
        ("seqpipe, singly", "optimum, pipeline, singly", "one text at a time"),
        ("seqpipe, int8, singly", "optimum, pipeline, singly", "one text at a time in int8, beside fp32"),
        ("seqpipe's graph alone, singly", "optimum's graph alone, singly", "the graph alone, one text at a time"),
    ):
        ratio = statistics.median(a / b for a, b in zip(rates[mine], rates[peer], strict=True))
        print(f"{mine} / {peer}: {ratio:.2f}")
        facts = {
            "figures": {"seqpipe, texts/s": speeds[mine], "peer's": speeds[peer]},
            "peer": peer,
            "ratio": round(ratio, 2),
        }
        common.record("bert", "ratios", [{"row": row, **facts}], (), f"of the peers: {versions}")


def _ours(bundle: Path, texts: list[str]) -> dict[str, Callable[[], object]]:
    import seqpipe
    from seqpipe.runtime.predictor import cores

    model, int8 = seqpipe.load(bundle, "cpu"), seqpipe.load(bundle.with_name("bundle-int8"), "cpu")
    feeds = [feed for _, feed in _feeds(model, texts)]
    single = [feed for text in texts[:SINGLY] for _, feed in _feeds(model, [text])]
    pool = ThreadPoolExecutor(cores())
    return {
        "seqpipe": lambda: model(texts),
        "seqpipe, singly": lambda: [model(text) for text in texts[:SINGLY]],
        "seqpipe, int8": lambda: int8(texts),
        "seqpipe, int8, singly": lambda: [int8(text) for text in texts[:SINGLY]],
        "seqpipe's graph alone": lambda: list(pool.map(model.run, feeds)),
        "seqpipe's graph alone, singly": lambda: [model.run(feed) for feed in single],
    }


def _feeds(model: Any, texts: list[str]) -> list[tuple[list[int], Any]]:
    from seqpipe.runtime.predictor import batches

    docs = model.predictor.featurizer.docs([{"text": text} for text in texts])
    parts = batches([len(doc) for doc in docs])
    return [(rows, model.predictor.featurizer.collate([docs[i] for i in rows])) for rows in parts]


def peer_process(environment: Path, checkpoint: Path, texts: list[str]) -> common.Peer:
    """A process in the peers' environment that names its ways first, and times one way when asked."""
    python = common.peer_python(environment, "requirements-bert.txt", "torch==2.13.0")
    folder = ROOT / "runs" / "bench-bert-peer"
    file = folder.with_suffix(".json")
    file.write_text(json.dumps(texts))
    options = ["--checkpoint", checkpoint, "--folder", folder, "--texts", file, "--one-by-one", SINGLY]
    return common.Peer([python, HERE / "peers" / "optimum_bert.py", *options])


def train(run: Path, checkpoint: Path, data: Path | None) -> None:
    """A run of a few steps: its head is no longer what it began with, its sizes are those of the real thing."""
    if (run / "bundle-int8").exists():
        return
    few = PREPARED / "banking77-few.csv"
    few.parent.mkdir(parents=True, exist_ok=True)
    rows = list(_rows(common.data_path(data, "banking77/train.csv")))
    with few.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text", "category"], *rows[:: len(rows) // 800]])
    yaml = HERE / "classify" / "banking77-bert.yaml"
    overrides = [
        *common.data_overrides(yaml, data),
        f"name={run.name}",
        f"data.train={few}",
        "train.epochs=1",
        "train.batch_size=16",
    ]
    overrides += [f"{part}.checkpoint={checkpoint}" for part in ("tokenizer", "encoder")]
    common.seqpipe("run", yaml, *overrides, "--device", "cpu")
    common.seqpipe("export", run, "--output", run / "bundle-int8", "--set", "export.precision=int8")


def training(checkpoint: Path, data: Path | None, rounds: int) -> None:
    """Seconds of an epoch of 1,600 texts in batches of 32 and of a step of an encoder, both sides in turn."""
    import torch

    rows = list(_rows(common.data_path(data, "banking77/train.csv")))
    rows = rows[:: len(rows) // 1600][:1600]
    PREPARED.mkdir(parents=True, exist_ok=True)
    few = PREPARED / "banking77-1600.csv"
    with few.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text", "category"], *rows])
    yaml, run = HERE / "classify" / "banking77-bert.yaml", "bench-bert-training"
    settings = [
        *common.data_overrides(yaml, data),
        f"name={run}",
        f"data.train={few}",
        f"data.test={few}",
        "train.batch_size=32",
    ]
    settings += ["train.epochs=2", *(f"{part}.checkpoint={checkpoint}" for part in ("tokenizer", "encoder"))]
    epochs: dict[str, list[float]] = {"seqpipe": [], "plain loop": []}
    for _ in range(rounds):
        common.seqpipe("train", yaml, *settings, "--fresh", "-q", "--device", "cpu")
        history = (ROOT / "runs" / run / "checkpoints" / "metrics.jsonl").read_text().splitlines()
        epochs["seqpipe"].append(json.loads(history[-1])["seconds"])
        epochs["plain loop"].append(_plain_epoch(checkpoint, rows))
    seconds: dict[str, list[float]] = {"our layers": [], "torch's layers": []}
    steps = _encoder_steps(torch)
    for _ in range(max(rounds, 5)):
        for side, step in steps.items():
            seconds[side].append(common.seconds(lambda step=step: [step() for _ in range(5)]) / 5)
    for what, peer, sides in (
        ("MiniLM fine-tuned, 1,600 texts in batches of 32", "plain loop", epochs),
        ("step of a Transformer encoder, 4 layers of 256, 32 texts of 10 to 60 tokens", "torch's layers", seconds),
    ):
        ours, theirs = sides.values()
        ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
        print(f"{what}: {statistics.median(ours):.3f} s, {peer} {statistics.median(theirs):.3f} s: {ratio:.2f}")
        figures = {"seqpipe, s": round(statistics.median(ours), 3), "peer, s": round(statistics.median(theirs), 3)}
        common.record("bert", "training", [{"row": what, "peer": peer, "figures": figures, "ratio": round(ratio, 2)}])


def _plain_epoch(checkpoint: Path, rows: list[list[str]]) -> float:
    """Seconds of the second epoch of a plain loop: random batches, padded to their longest text."""
    import random

    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    labels = {label: i for i, label in enumerate(sorted({label for _, label in rows}))}
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=len(labels)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0002)
    for _ in range(2):
        random.shuffle(rows)
        clock = time.perf_counter()
        for start in range(0, len(rows), 32):
            batch = rows[start : start + 32]
            inputs = tokenizer([text for text, _ in batch], padding=True, return_tensors="pt")
            loss = model(**inputs, labels=torch.tensor([labels[label] for _, label in batch])).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        taken = time.perf_counter() - clock
    return taken


def _encoder_steps(torch: Any) -> dict[str, Callable[[], object]]:
    """A training step (forward and backward) of our Transformer and of `torch.nn.TransformerEncoder`, dropout 0.1."""
    from seqpipe.nn.attention import attention_weights
    from seqpipe_plugins.encoders.transformer import Transformer

    torch.manual_seed(1)
    ours = Transformer(256, layers=4, heads=4, norm="pre", positions="none").train()
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, 0.1, batch_first=True, norm_first=True)
    theirs = torch.nn.TransformerEncoder(layer, 4, torch.nn.LayerNorm(256), enable_nested_tensor=False).train()
    lengths = torch.randint(10, 61, (32,))
    x, mask = torch.randn(32, 60, 256), torch.arange(60)[None] < lengths[:, None]

    def step(answer: Callable[[], Any], module: Any) -> None:
        module.zero_grad()
        with attention_weights(needed=False):
            answer().square().mean().backward()

    return {
        "our layers": lambda: step(lambda: ours(x, mask)["x"], ours),
        "torch's layers": lambda: step(lambda: theirs(x, src_key_padding_mask=~mask), theirs),
    }


def _rows(path: Path) -> Iterator[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from list(csv.reader(file))[1:]


def test_texts(data: Path | None) -> list[str]:
    return [text for text, _ in _rows(common.data_path(data, "banking77/test.csv"))]


if __name__ == "__main__":
    parser = common.parser(__doc__)
    parser.add_argument("what", choices=("logits", "speed", "training"))
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--run", type=Path, default=RUN)
    parser.add_argument("--peers", type=Path, default=PEERS, help="the peers' environment")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--limit", type=int, help="first test texts only, to try it out")
    common.add_data_option(parser)
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if arguments.what == "training":
        training(arguments.checkpoint.absolute(), arguments.data, 3)
        raise SystemExit
    train(arguments.run, arguments.checkpoint.absolute(), arguments.data)
    texts = test_texts(arguments.data)
    if arguments.what == "logits":
        logits(arguments.run, arguments.checkpoint, texts)
    else:
        speed(
            arguments.run, arguments.checkpoint.absolute(), arguments.peers, arguments.rounds, texts[: arguments.limit]
        )
