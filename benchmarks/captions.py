"""Captions of scenes of handwritten digits by the number of training scenes, also of neighbours that none of them has.

    python benchmarks/captions.py                    # the first 500, 2,000 and all 12,000 scenes
    python benchmarks/captions.py --scenes 1000 4000 --steps 1500

Scenes are the first of pipelines/data/captions/train.jsonl, of training digits and pairs alone; each number is trained
on for as many steps as the pipeline takes with all of them. Both test sets are the shipped ones; answers are those of
the bundles (`seqpipe evaluate`, onnxruntime), exact if the whole caption is right. Its figures are recorded in
runs/results.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import common
from common import ROOT

DATA = ROOT / "pipelines" / "data" / "captions"
TESTS = ("test", "new-pairs")


def measure(scenes: int, epochs: int, folder: Path, overrides: list[str]) -> dict[str, Any]:
    """Train on the first scenes, as many as asked; return the scores of the bundle by test set."""
    train = folder / "runs" / "captions" / f"train-{scenes}.jsonl"
    train.parent.mkdir(parents=True, exist_ok=True)
    with (DATA / "train.jsonl").open(encoding="utf-8") as file:
        train.write_text("".join(itertools.islice(file, scenes)), encoding="utf-8")
    settings = [f"name=bench-caption-{scenes}", f"data.train={train}", f"train.epochs={epochs}", *overrides]
    result = common.seqpipe_json("run", ROOT / "pipelines" / "caption.yaml", *settings, "--device", "cpu")
    scores: dict[str, Any] = common.seqpipe_json("evaluate", result["bundle"], "--device", "cpu")
    return scores


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--scenes", type=int, nargs="+", default=[500, 2_000, 12_000], metavar="N")
    parser.add_argument("--steps", type=int, default=3_000, help="of training, with 32 scenes each")
    parser.add_argument("overrides", nargs="*", help="such as train.threads=1")
    arguments = parser.parse_args()
    table = common.Table(
        "captions", "scenes", "training scenes", "epochs", *(f"{name}, exact, %" for name in TESTS), "minutes"
    )
    for scenes in arguments.scenes:
        epochs = max(1, round(arguments.steps * 32 / scenes))
        clock = time.perf_counter()
        scores = measure(scenes, epochs, Path.cwd(), arguments.overrides)
        exact = (f"{100 * scores[name]['exact_match']:.1f}" for name in TESTS)
        table.row(f"{scenes:,}", epochs, *exact, f"{(time.perf_counter() - clock) / 60:.1f}")


if __name__ == "__main__":
    main()
