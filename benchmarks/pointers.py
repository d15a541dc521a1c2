"""Pointer networks: convex hulls and round trips, of points as Vinyals, Fortunato and Jaitly (2015) drew them.

    python benchmarks/pointers.py hull-5 hull-10 tour-5 tour-10   # trains where that is not done, and tests
    python benchmarks/pointers.py hull-50 tour-20   # the greater ones
    python benchmarks/pointers.py hull-10 --threads 2 --epochs 40

Training data are made as training goes, from the recipes in benchmarks/pointers; the test files are read
from the folder `pointer_nets` of --data.
Each line tells the scores greedily and with beams, the minutes of training, and how many test records, cut to any
number of points, onnxruntime and PyTorch answer alike. Run it on an otherwise idle machine. Its figures are
recorded in runs/results.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import common
from common import HERE, ROOT

SETS = ("hull-5", "hull-10", "hull-50", "tour-5", "tour-10", "tour-20")
BEAMS = (1, 5)
SHOWN = {
    "hull": ("hull_accuracy", "area_covered", "valid"),
    "tour": ("tour_length", "optimal_length", "valid"),
}


def quality(name: str, threads: int | None, epochs: int | None, data: Path | None) -> None:
    overrides = [f"train.{key}={value}" for key, value in (("threads", threads), ("epochs", epochs)) if value]
    yaml = HERE / "pointers" / f"{name}.yaml"
    common.seqpipe("run", yaml, *overrides, *common.data_overrides(yaml, data))
    run = ROOT / "runs" / f"bench-{name}"
    history = map(json.loads, (run / "checkpoints" / "metrics.jsonl").read_text().splitlines())
    minutes = sum(row["seconds"] for row in history) / 60
    scores = _scores(run)
    shown = "; ".join(f"beam {beams}: {', '.join(f'{k} {v}' for k, v in row.items())}" for beams, row in scores.items())
    print(f"{name}: {shown}; {minutes:.1f} min of training; {_same(run)}", flush=True)
    kept = SHOWN[name.partition("-")[0]][: 2 if name.startswith("hull") else 1]
    greedy, beam = (", ".join(scores[beams][key] for key in kept) for beams in BEAMS)
    figures = {"greedy": greedy, "beam 5": beam, "minutes": round(minutes, 1)}
    common.record("pointers", "quality", [{"row": name, "figures": figures}])


def _opened(run: Path) -> tuple[Any, Any, list[dict[str, Any]]]:
    """The run, its bundle, and the records of its test file."""
    import seqpipe
    from seqpipe.console import Console
    from seqpipe.runs.run_folder import open_run
    from seqpipe.training.datasets import load_records

    opened = open_run(run, Console(-1))
    data = opened.config.data
    return opened, seqpipe.load(run / "bundle", "cpu", threads=1), load_records(data.reader, data.tests["test"])


def _scores(run: Path) -> dict[int, dict[str, str]]:
    """The scores as they are shown, by the number of beams."""
    from seqpipe.answers.metrics.numbers import format_score

    opened, model, records = _opened(run)
    (head,), task = opened.config.head, model.predictor.task
    every = {}
    for beams in BEAMS:
        predicted = [task.predicted(answer) for answer in model(iter(records), beams=beams)]
        scores = head.cls.metrics(head.options, [task.gold(record) for record in records], predicted)
        names = SHOWN[head.options["task"]]
        every[beams] = {name: format_score(name, scores[name], head.cls.score_types) for name in names}
    return every


def _same(run: Path) -> str:
    """Of how many records, cut to any number of points, onnxruntime and PyTorch point at the same."""
    from seqpipe.runs.run_folder import load_trained
    from seqpipe.training.evaluation import predictor

    opened, model, records = _opened(run)
    dice = random.Random(1)
    cut = [{"points": record["points"][: dice.randint(1, len(record["points"]))]} for record in records]
    theirs = predictor(load_trained(opened).network).stream(cut)
    pairs: Iterable[tuple[Any, Any]] = zip(model(iter(cut)), theirs, strict=True)
    same = sum(ours["pointers"] == reference["pointers"] for ours, reference in pairs)
    return f"{same} of {len(cut)} the same in onnxruntime and PyTorch"


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("names", nargs="+", choices=SETS)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--epochs", type=int)
    common.add_data_option(parser)
    arguments = parser.parse_args()
    for name in arguments.names:
        quality(name, arguments.threads, arguments.epochs, arguments.data)


if __name__ == "__main__":
    main()
