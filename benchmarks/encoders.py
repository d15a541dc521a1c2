"""Every encoder of ours, side by side: how fast it trains beside PyTorch's own layers, and what it makes of clinc150.

    python benchmarks/encoders.py training                # time of ours over torch's layer on packed rows
    python benchmarks/encoders.py table                   # accuracy, parameters, training time and bundle latency
    python benchmarks/encoders.py table --only lstm --set train.epochs=1 --labels 10

Run it on an otherwise idle machine. Its figures are recorded in runs/results; see report.py.
"""

from __future__ import annotations

import inspect
import json
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import common
import torch
import yaml
from common import HERE, PREPARED, ROOT, RUNS
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import seqpipe
from seqpipe.config.plugins import BUILTIN, Plugins
from seqpipe.config.signature import construct

BATCH, DIM, REPEATS = 32, 100, 7
LENGTHS, UNITS = ((20, 32), (1, 60)), (64, 200)

# What a row is called, the encoder, and its options where each of two directions has so many units.
ENCODERS: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "bag": ("bag", lambda units: {"hidden": 2 * units}),
    "cnn": ("cnn", lambda units: {"filters": 2 * units // 3}),
    "conv": ("conv", lambda units: {"hidden": 2 * units}),
    "conv, gated": ("conv", lambda units: {"hidden": 2 * units, "gated": True}),
    "gru": ("gru", lambda units: {"hidden": units}),
    "gru, reset before": ("gru", lambda units: {"hidden": units, "reset": "before"}),
    "lstm": ("lstm", lambda units: {"hidden": units}),
    "lstm, peephole": ("lstm", lambda units: {"hidden": units, "peephole": True}),
    "lstm, coupled": ("lstm", lambda units: {"hidden": units, "coupled": True}),
    "lstm, both": ("lstm", lambda units: {"hidden": units, "peephole": True, "coupled": True}),
    "nested-lstm": ("nested-lstm", lambda units: {"hidden": units}),
    "rnn": ("rnn", lambda units: {"hidden": units}),
    "self-attention": ("self-attention", lambda _: {"heads": 4, "residual": True, "positions": "sinusoidal"}),
    "transformer": ("transformer", lambda units: {"hidden": 2 * units}),
}
PEERS: dict[str, type[nn.RNNBase]] = {"gru": nn.GRU, "rnn": nn.RNN}  # the others stand beside nn.LSTM
# They encode sentences, words, pairs of texts, pictures or sounds, or need a checkpoint or a language model.
NOT_HERE = {"bilm", "compare", "fine-tuned", "fine-tuned-reader", "sentences", "words"}
NOT_HERE |= {"lenet", "resnet", "pyramid", "subsample", "pretrained", "pretrained-decoder", "pretrained-seq2seq"}


def training() -> None:
    """Processor time of forward and backward pass on one thread, ours over torch's, for each length and width.

    A transformer stands beside `nn.TransformerEncoder` of the same sizes, self-attention and the others beside an LSTM.
    """
    torch.set_num_threads(1)
    torch.manual_seed(1)
    columns = [f"time / that of torch, lengths {low} to {high}" for low, high in LENGTHS]
    table = common.Table("encoders", "training", "encoder", *columns)
    for label, (name, options) in ENCODERS.items():
        ratios = [[_ratio(name, options(units), low, high, units) for units in UNITS] for low, high in LENGTHS]
        table.row(label, *(" / ".join(f"{ratio:.2f}" for ratio in widths) for widths in ratios))


def _ratio(name: str, options: dict[str, Any], low: int, high: int, units: int) -> float:
    lengths = torch.randint(low, high + 1, (BATCH,)).clamp(max=high)
    x, mask = torch.randn(BATCH, int(lengths.max()), DIM), torch.arange(int(lengths.max()))[None] < lengths[:, None]
    cls = _class(name)
    sizes = {"sizes": {}} if "sizes" in inspect.signature(cls).parameters else {}  # of initial states, which none has
    encoder = construct(cls, DIM, **sizes, **options)
    is_transformer = name == "transformer"
    peer = PEERS.get(name, nn.LSTM)(DIM, units, batch_first=True, bidirectional=True)
    layer = nn.TransformerEncoderLayer(2 * units, 4, 8 * units, 0.1, batch_first=True, norm_first=True)
    stack = nn.TransformerEncoder(layer, 2, nn.LayerNorm(2 * units), enable_nested_tensor=False)
    linear = nn.Linear(DIM, 2 * units)

    def ours() -> None:
        output = encoder(x, mask)
        (output["x"] if isinstance(output, dict) else output).square().sum().backward()

    def theirs() -> None:
        if is_transformer:
            stack(linear(x), src_key_padding_mask=~mask).square().sum().backward()
            return
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        pad_packed_sequence(peer(packed)[0], batch_first=True)[0].square().sum().backward()

    pairs = [(_seconds(ours), _seconds(theirs)) for _ in range(REPEATS)]  # in turn: what else runs meets both
    return statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)


def _seconds(work: Callable[[], None]) -> float:
    clock = time.process_time()
    work()
    return time.process_time() - clock


def _class(name: str) -> Any:
    return next(o for o in Plugins().offers if (o.kind, o.name, o.distribution) == ("encoder", name, BUILTIN)).load()


def table(only: list[str], settings: list[str], labels: int | None, data: Path | None) -> None:
    """Runs encoders/clinc150.yaml with each encoder.

    Minutes are processor time of `seqpipe train`; latency is the median over test texts, one by one, one thread.
    """
    _prepare(labels, data)
    columns = ("parameters", "test accuracy", "processor minutes to train", "ms a text")
    rows = common.Table("encoders", "table", "encoder", *columns)
    for label in only or ENCODERS:
        name, options = ENCODERS[label]
        run = RUNS / f"bench-encoder-{label.replace(', ', '-').replace(' ', '-')}"
        path = run.with_suffix(".yaml")
        template = yaml.safe_load((HERE / "encoders" / "clinc150.yaml").read_text())
        path.write_text(json.dumps(template | {"name": run.name, "encoder": {"use": name, **options(100)}}))
        shutil.rmtree(run, ignore_errors=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        for command in ("train", "run"):  # the second only exports what the first has trained
            call = [sys.executable, "-m", "seqpipe", command, path, *settings, "-q", "--device", "cpu"]
            subprocess.run(call, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if command == "train":
                minutes = (resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before) / 60
        accuracy = json.loads((run / "metrics.json").read_text())["test"]["accuracy"]
        parameters = sum(p.numel() for p in _class(name)(DIM, **options(100)).parameters())
        rows.row(label, f"{parameters:,}", f"{100 * accuracy:.2f}", f"{minutes:.1f}", f"{_latency(run):.2f}")


def _prepare(labels: int | None, data: Path | None) -> None:
    """The in-scope part of clinc150 as JSON lines, of all labels or the first so many."""
    content = json.loads(common.data_path(data, "clinc150/data_full.json").read_text())
    kept = sorted({label for _, label in content["train"]})[:labels]
    for part, source in {"train": "train", "dev": "val", "test": "test"}.items():
        rows = [{"text": text, "label": label} for text, label in content[source] if label in kept]
        common.write_jsonl(PREPARED / "encoders" / f"{part}.jsonl", rows)


def _latency(run: Path) -> float:
    model = seqpipe.load(run / "bundle", "cpu", threads=1)
    lines = (PREPARED / "encoders" / "test.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines[:500]]
    return 1000 * statistics.median(common.seconds(partial(model, text)) for text in texts)


def main() -> None:
    parser = common.parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("training")
    two = commands.add_parser("table")
    two.add_argument("--only", nargs="+", choices=tuple(ENCODERS), default=[], metavar="ROW")
    two.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides for `seqpipe run`")
    two.add_argument("--labels", type=int, help="labels of the data, the first so many; all by default")
    common.add_data_option(two)
    arguments = parser.parse_args()
    installed = {o.name for o in Plugins().offers if (o.kind, o.distribution) == ("encoder", BUILTIN)}
    named = {name for name, _ in ENCODERS.values()} | NOT_HERE
    for name in sorted(installed - named):
        print(f"no row for {name}: name its options in ENCODERS", file=sys.stderr)
    if arguments.command == "training":
        training()
    else:
        table(arguments.only, arguments.set, arguments.labels, arguments.data)


if __name__ == "__main__":
    main()
