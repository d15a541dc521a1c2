"""Translation: a Transformer and a recurrent model with attention, beside the same recurrent model without.

    python benchmarks/translate.py                              # trains the three, one seed (ten minutes of a core)
    python benchmarks/translate.py --seeds 3 --models rnn none  # seeds 1 to 3 of two of them

Without attention the encoder's last state is all that the decoder gets; sizes, data, number of epochs and batches are
the same. BLEU and chrF are sacrebleu's, of greedy search. Its figures are recorded in runs/results.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import common
from common import ROOT

MODELS = {  # pipeline, overrides
    "transformer": ("translate", []),
    "rnn": ("translate-rnn", []),
    "none": ("translate-rnn", ["head.attention=none", "export.explain=false"]),
}
SHOWN = {
    "transformer": "Transformer",
    "rnn": "recurrent with attention",
    "none": "recurrent without attention",
}
METRICS = {"BLEU": "bleu", "chrF": "chrf", "exact": "exact_match"}
TESTS = ("test", "new-templates")
BAR = 15  # points of BLEU on `test` above the model without attention


def measure(model: str, seed: int, overrides: Sequence[str]) -> dict[str, dict[str, float]]:
    """Train one model and return its scores, in per cent, by test set and metric."""
    pipeline, differences = MODELS[model]
    settings = [*differences, f"name=bench-translate-{model}-{seed}", f"train.seed={seed}", *overrides]
    clock = time.perf_counter()
    result = common.seqpipe_json("run", ROOT / "pipelines" / f"{pipeline}.yaml", *settings, "--device", "cpu")
    minutes = (time.perf_counter() - clock) / 60
    scores = {test: {shown: 100 * result["scores"][test][name] for shown, name in METRICS.items()} for test in TESTS}
    print(f"{model} seed {seed}: {described(scores)}, {minutes:.1f} min", flush=True)
    return scores


def described(scores: dict[str, dict[str, float]]) -> str:
    parts = []
    for test, values in scores.items():
        parts.append(f"{test} " + ", ".join(f"{metric} {value:.1f}" for metric, value in values.items()))
    return "; ".join(parts)


def summary(measured: dict[str, list[dict[str, dict[str, float]]]]) -> None:
    """Print means over the seeds, and how much more BLEU attention gives."""
    means = {
        model: {test: {m: statistics.mean(run[test][m] for run in runs) for m in METRICS} for test in TESTS}
        for model, runs in measured.items()
    }
    rows = []
    for model, scores in means.items():
        figures = {f"{test} {metric}": round(value, 1) for test in TESTS for metric, value in scores[test].items()}
        rows.append({"row": SHOWN[model], "figures": figures})
    common.record("translate", "attention", rows, ["sacrebleu"])
    for model, scores in means.items():
        print(f"mean of {len(measured[model])}, {model}: {described(scores)}")
    for model in means:
        if "none" in means and model != "none":
            more = means[model]["test"]["BLEU"] - means["none"]["test"]["BLEU"]
            verdict = "meets" if more >= BAR else "misses"
            print(f"{model}: {more:+.1f} BLEU beside no attention; {verdict} the bar of {BAR}")


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="seeds 1 to N")
    parser.add_argument("overrides", nargs="*", help="of all models, such as train.epochs=1")
    arguments = parser.parse_args()
    seeds = range(1, arguments.seeds + 1)
    summary({name: [measure(name, seed, arguments.overrides) for seed in seeds] for name in arguments.models})


if __name__ == "__main__":
    main()
