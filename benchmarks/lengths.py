"""Inputs of other lengths than in training: a model trained on one length against one trained on mixed lengths.

    python benchmarks/lengths.py hull sort reverse   # trains pipelines/NAME.yaml on 10 points, and on some to 10
    python benchmarks/lengths.py hull --epochs 20 --records 8000

`reverse` is trained with attention, on strings of 10 letters. A line tells the first score on generated test records of
5, 10, 15 and 20 points or letters. Its figures are recorded in
runs/results.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import common
from common import PREPARED, ROOT, RUNS, write_jsonl

LONGEST, TESTED = 10, (5, 10, 15, 20)
SHORTEST = {"hull": 5, "sort": 3, "reverse": 1}
OVERRIDES = {"reverse": ["head.attention=additive"]}
HELD_OUT = 500  # records of dev and of each test set


def generated(task: str, name: str, lengths: tuple[int, int], records: int, seed: int) -> Path:
    """A file of records with lengths from this range, or for points a recipe of them."""
    path = PREPARED / "lengths" / f"{task}-{name}.json"
    if task != "reverse":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"task": task, "points": lengths, "records": records, "seed": seed}) + "\n")
        return path
    draw = random.Random(seed)
    texts = ("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(*lengths))) for _ in range(records))
    write_jsonl(path.with_suffix(".jsonl"), ({"text": text, "reversed": text[::-1]} for text in texts))
    return path.with_suffix(".jsonl")


def trained(task: str, name: str, lengths: tuple[int, int], epochs: int, records: int) -> Path:
    """The folder of a run that is trained on records with lengths from this range."""
    train = generated(task, name, lengths, records, seed=1)
    dev = generated(task, f"{name}-dev", lengths, HELD_OUT, seed=2)
    data = (f"data.train={train}", f"data.dev={dev}", f"data.test={dev}", *OVERRIDES.get(task, []))
    run = f"lengths-{task}-{name}"
    common.seqpipe("train", ROOT / f"pipelines/{task}.yaml", f"name={run}", *data, f"train.epochs={epochs}")
    return RUNS / run


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("tasks", nargs="+", choices=SHORTEST)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--records", type=int, default=4000)
    arguments = parser.parse_args()
    for task in arguments.tasks:
        tests = [generated(task, f"test-{n}", (n, n), HELD_OUT, seed=3) for n in TESTED]
        for name, lengths in {"fixed": (LONGEST, LONGEST), "mixed": (SHORTEST[task], LONGEST)}.items():
            run = trained(task, name, lengths, arguments.epochs, arguments.records)
            results = [common.seqpipe_json("evaluate", run, "--data", test) for test in tests]
            scores = [next(iter(result.values())) for result in results]
            metric = next(iter(scores[0]))
            shown = ", ".join(f"{n}: {score[metric]:.1%}" for n, score in zip(TESTED, scores, strict=True))
            print(f"{task}, {name} lengths: {metric} at {shown}", flush=True)
            row = f"{task}, {LONGEST}" if name == "fixed" else f"{task}, {lengths[0]} to {LONGEST}"
            percent = [round(100 * score[metric], 1) for score in scores]
            figures = dict(zip(map(str, TESTED), percent, strict=True))
            common.record("lengths", "lengths", [{"row": row, "figures": figures}])


if __name__ == "__main__":
    main()
