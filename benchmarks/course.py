"""Figures of the course: how far recurrent cells remember, and names that a translation copies.

    python benchmarks/course.py memory                  # accuracy by distance of rnn, lstm and gru, and its chart
    python benchmarks/course.py memory --cells lstm --distances 100 --seeds 1 2 3
    python benchmarks/course.py names                   # trains pipelines/translate-names.yaml with and without copying

`memory` trains one layer to recall the first symbol of a sequence (one of eight, so that chance is 12.5 %) after random
symbols, and scores it on new sequences. The figures of both are recorded in runs/results.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import common
import torch
from common import ROOT, RUNS
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(ROOT))

from seqpipe import load
from seqpipe.config.signature import construct
from seqpipe_plugins.encoders.gru import GRU
from seqpipe_plugins.encoders.lstm import LSTM
from seqpipe_plugins.encoders.rnn import RNN

ENCODERS: Mapping[str, Any] = {"rnn": RNN, "lstm": LSTM, "gru": GRU}
DISTANCES = (10, 20, 50, 100)
SYMBOLS, BATCH, DIM, HIDDEN, LEARNING_RATE = 8, 64, 16, 64, 0.003
STEPS, CHECKED, TESTED = 1500, 50, 2000  # training steps at most, steps between two checks, sequences of a test
NAMES = ROOT / "pipelines" / "data" / "translation-names"
PLAIN_HEAD = {"use": "seq2seq", "hidden": 160, "embedding_dim": 96, "dropout": 0.2}
PLAIN_HEAD |= {"target_tokenizer": {"use": "words", "min_count": 6, "detokenize": True}}


class Recall(nn.Module):
    """Predict a symbol from the last state of one recurrent layer."""

    def __init__(self, cell: str, distance: int):
        super().__init__()
        options = {} if cell == "rnn" else {"longest_dependency": distance}
        self.embedding, self.output = nn.Embedding(SYMBOLS, DIM), nn.Linear(HIDDEN, SYMBOLS)
        self.encoder = construct(ENCODERS[cell], DIM, {}, hidden=HIDDEN, direction="forward", **options)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:  # (B, T) -> (B, SYMBOLS)
        logits: torch.Tensor = self.output(self.encoder(self.embedding(ids), torch.ones_like(ids).bool())["state"])
        return logits


def recall(cell: str, distance: int, seed: int) -> tuple[float, int]:
    """Train until new sequences are all answered rightly, or for `STEPS`; return the accuracy and the steps."""
    torch.manual_seed(seed)
    model = Recall(cell, distance)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    def accuracy() -> float:
        ids = torch.randint(SYMBOLS, (TESTED, distance + 1))
        with torch.no_grad():
            return float((model(ids).argmax(1) == ids[:, 0]).double().mean())

    for step in range(1, STEPS + 1):
        ids = torch.randint(SYMBOLS, (BATCH, distance + 1))
        optimizer.zero_grad()
        F.cross_entropy(model(ids), ids[:, 0]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % CHECKED == 0 and accuracy() == 1:
            break
    return accuracy(), step


def memory(cells: Sequence[str], distances: Sequence[int], seeds: Sequence[int], output: Path | None) -> None:
    """Measure the accuracy by cell and distance: one seed, and all seeds for the longest distance."""
    torch.set_num_threads(1)
    table = common.Table("course", "memory", "cell", *(f"distance {distance}" for distance in distances))
    curves: dict[str, list[float]] = {}
    for cell in cells:
        figures = []
        for distance in distances:
            chosen = seeds if distance == max(distances) else seeds[:1]
            runs = [recall(cell, distance, seed) for seed in chosen]
            figures.append(" / ".join(f"{100 * accuracy:.1f} % ({steps} steps)" for accuracy, steps in runs))
            curves.setdefault(cell, []).append(100 * sum(accuracy for accuracy, _ in runs) / len(runs))
        table.row(f"`{cell}`", *figures)
    if output:
        draw(curves, distances, output)


def draw(curves: Mapping[str, Sequence[float]], distances: Sequence[int], output: Path) -> None:
    """Write the chart of accuracies by distance, an SVG."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams |= {"svg.hashsalt": "course", "svg.fonttype": "none"}
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    styles = (("#0072b2", "o-"), ("#d55e00", "s--"), ("#009e73", "^:"))  # Okabe and Ito (2008)
    for (cell, values), (colour, style) in zip(curves.items(), styles, strict=False):
        axes.plot(distances, values, style, color=colour, label=cell)
    axes.axhline(100 / SYMBOLS, color="#777777", linewidth=1, label="chance")
    axes.set(xlabel="distance of the symbol to be recalled", ylabel="accuracy, %", ylim=(0, 105), xticks=distances)
    axes.legend()
    figure.savefig(output, metadata={"Date": None})


def names() -> None:
    """Train with and without copying, and measure BLEU and the share of unseen names that are in the translation."""
    rows = [json.loads(line) for line in (NAMES / "test-new-names.jsonl").read_text(encoding="utf-8").splitlines()]
    known = {*re.findall(r"\w+", (NAMES / "train.jsonl").read_text(encoding="utf-8"))}
    table = common.Table("course", "names", "head", "unseen names copied", "BLEU, unseen names", "BLEU, known names")
    for head, overrides in {"copy-seq2seq": [], "seq2seq": [f"head={json.dumps(PLAIN_HEAD)}"]}.items():
        folder = RUNS / f"course-names-{head}"
        if not (folder / "bundle").exists():
            yaml = ROOT / "pipelines" / "translate-names.yaml"
            common.seqpipe("run", yaml, f"name={folder.name}", "train.threads=1", *overrides)
        scores = common.seqpipe_json("evaluate", folder / "bundle")
        answers = load(folder / "bundle")([row["text"] for row in rows])
        wanted = copied = 0
        for row, answer in zip(rows, answers, strict=True):
            unseen = {*re.findall(r"\w+", row["text"])} & {*re.findall(r"\w+", row["target"])} - known
            wanted, copied = (
                wanted + len(unseen),
                copied + len(unseen & {*re.findall(r"\w+", answer["generated_text"])}),
            )
        bleu = [f"{100 * scores[part]['bleu']:.1f}" for part in ("new-names", "test")]
        table.row(f"`{head}`", f"{100 * copied / wanted:.1f} % of {wanted}", *bleu)


def main() -> None:
    parser = common.parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    of_memory = commands.add_parser("memory")
    of_memory.add_argument("--cells", nargs="+", choices=[*ENCODERS], default=[*ENCODERS])
    of_memory.add_argument("--distances", nargs="+", type=int, default=DISTANCES)
    of_memory.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of the longest distance")
    of_memory.add_argument("--output", type=Path, help="the chart, an SVG")
    commands.add_parser("names")
    arguments = parser.parse_args()
    if arguments.command == "memory":
        memory(arguments.cells, arguments.distances, arguments.seeds, arguments.output)
    else:
        names()


if __name__ == "__main__":
    main()
