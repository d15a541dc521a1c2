"""What each part of an LSTM is worth: the nine variants of Greff et al. (2017) on two data sets.

    python benchmarks/lstm_ablations.py                  # one seed
    python benchmarks/lstm_ablations.py --seeds 3
    python benchmarks/lstm_ablations.py --only V NFG --data-sets snips

The baseline V has peephole connections; each variant is V with one part left out or added. Sentences of `subjectivity`
are classified by the last state of one direction (accuracy), slots of `snips` are tagged from both directions (F1 of
entities). All have the same sizes, learning rate and epochs. Its figures are recorded in runs/results.
"""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import common
import yaml
from common import HERE, RUNS

# The names of the paper, and how each differs from V. Without peepholes, the names stay: NP is our plain LSTM.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "V": ("peephole LSTM", {}),
    "NIG": ("no input gate", {"input_gate": False}),
    "NFG": ("no forget gate", {"forget_gate": False}),
    "NOG": ("no output gate", {"output_gate": False}),
    "NIAF": ("no input activation", {"input_activation": False}),
    "NOAF": ("no output activation", {"output_activation": False}),
    "CIFG": ("coupled input and forget gate", {"coupled": True}),
    "NP": ("no peepholes", {"peephole": False}),
    "FGR": ("full gate recurrence", {"full_gate_recurrence": True}),
}
DATA_SETS = {"subjectivity": "accuracy", "snips": "f1"}
SHOWN = {"accuracy": "accuracy", "f1": "F1"}


def table(variants: list[str], data_sets: list[str], seeds: int, data: Path | None) -> None:
    """Train each variant on each data set and print the scores on the test part, in percent, and their distance to V.

    With several seeds a cell has the mean and the standard deviation.
    """
    columns = [column for name in data_sets for column in (f"{name}, {SHOWN[DATA_SETS[name]]}", f"to V, {name}")]
    rows = common.Table("lstm_ablations", "variants", "variant", *columns)
    baseline: dict[str, float] = {}
    for variant in variants:
        meaning, changes = VARIANTS[variant]
        cells = []
        for name in data_sets:
            scores = [_score(name, variant, {"peephole": True} | changes, seed, data) for seed in range(1, seeds + 1)]
            mean = statistics.mean(scores)
            baseline.setdefault(name, mean)
            spread = f" ± {statistics.stdev(scores):.2f}" if seeds > 1 else ""
            cells += [f"{mean:.2f}{spread}", f"{mean - baseline[name]:+.2f}"]
        rows.row(f"{variant}, {meaning}", *cells)


def _score(name: str, variant: str, options: dict[str, Any], seed: int, data: Path | None) -> float:
    """The score in percent on the test part of one training."""
    template = HERE / "encoders" / f"ablation-{name}.yaml"
    overrides = common.data_overrides(template, data)
    run = RUNS / f"bench-ablation-{name}-{variant}-{seed}"
    content = yaml.safe_load(template.read_text(encoding="utf-8")) | {"name": run.name}
    content["encoder"] |= options
    config = run.with_suffix(".yaml")
    config.parent.mkdir(exist_ok=True)
    config.write_text(json.dumps(content), encoding="utf-8")
    shutil.rmtree(run, ignore_errors=True)
    common.seqpipe("train", config, f"train.seed={seed}", *overrides, "--device", "cpu", "-q")
    scores: dict[str, Any] = common.seqpipe_json("evaluate", run, "-q", "--device", "cpu")
    return 100 * float(scores["test"][DATA_SETS[name]])


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=tuple(VARIANTS), default=[*VARIANTS], metavar="VARIANT")
    parser.add_argument("--data-sets", nargs="+", choices=tuple(DATA_SETS), default=[*DATA_SETS], metavar="NAME")
    parser.add_argument("--seeds", type=int, default=1)
    common.add_data_option(parser)
    arguments = parser.parse_args()
    variants = ["V", *(name for name in arguments.only if name != "V")]  # all are compared with V
    table(variants, arguments.data_sets, arguments.seeds, arguments.data)


if __name__ == "__main__":
    main()
