"""Captions of scenes of handwritten digits by the number of training scenes, also of neighbours that none of them has.

    python benchmarks/captions.py                    # 500 shipped and 12,000 scenes
    python benchmarks/captions.py --scenes 2000 8000

Scenes are those of pipelines/data/make_digits.py, of training digits and pairs alone. The shipped ones are used as in
the pipeline, others for `--steps` steps. Both test sets are the shipped ones; answers are those of the bundles
(`seqpipe evaluate`, onnxruntime), exact if the whole caption is right. Its figures are recorded in runs/results.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import common
from common import ROOT

CODE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import make_digits
make_digits.write(Path(sys.argv[2]), make_digits.scenes("train", int(sys.argv[3]), make_digits.SEED + 1))
"""
SHIPPED, TESTS = 500, ("test", "new-pairs")


def measure(scenes: int, epochs: int, folder: Path, overrides: list[str]) -> dict[str, Any]:
    """Train on this number of scenes; return the scores of the bundle by test set."""
    train = folder / "runs" / "captions" / f"train-{scenes}.jsonl"
    subprocess.run([sys.executable, "-c", CODE, ROOT / "pipelines" / "data", train, str(scenes)], check=True)
    settings = [f"name=bench-caption-{scenes}", f"data.train={train}", f"train.epochs={epochs}", *overrides]
    result = common.seqpipe_json("run", ROOT / "pipelines" / "caption.yaml", *settings, "--device", "cpu")
    scores: dict[str, Any] = common.seqpipe_json("evaluate", result["bundle"], "--device", "cpu")
    return scores


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--scenes", type=int, nargs="+", default=[SHIPPED, 12_000], metavar="N")
    parser.add_argument("--steps", type=int, default=1_875, help="of training, with 32 scenes each")
    parser.add_argument("overrides", nargs="*", help="such as train.threads=1")
    arguments = parser.parse_args()
    table = common.Table(
        "captions", "scenes", "training scenes", "epochs", *(f"{name}, exact, %" for name in TESTS), "minutes"
    )
    for scenes in arguments.scenes:
        epochs = 40 if scenes == SHIPPED else max(1, round(arguments.steps * 32 / scenes))
        clock = time.perf_counter()
        scores = measure(scenes, epochs, Path.cwd(), arguments.overrides)
        exact = (f"{100 * scores[name]['exact_match']:.1f}" for name in TESTS)
        table.row(f"{scenes:,}", epochs, *exact, f"{(time.perf_counter() - clock) / 60:.1f}")


if __name__ == "__main__":
    main()
