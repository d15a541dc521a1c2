"""Copying: summaries of SciTLDR from scratch, with a head that copies and with the same one that does not.

    python benchmarks/copying.py quality copying        # trains, tests, and compares the bundle with PyTorch
    python benchmarks/copying.py quality without

ROUGE is rouge-score's mean F1 with stems, of several references the greatest, as `seqpipe evaluate` gives it; here also
under a beam. Its figures are recorded in runs/results.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Sequence
from pathlib import Path

import common
from common import HERE, PREPARED, ROOT

FOLDER = PREPARED / "scitldr_a"
SHOWN = {
    "copying": "pointer-generator with coverage (`copy-seq2seq`)",
    "without": "the same without copying (`seq2seq`)",
}
BEAM = {"beams": 4, "length_penalty": 1.0, "min_length": 10, "no_repeat_ngram_size": 3}


def prepare(data: Path | None) -> None:
    """Makes JSON lines: the abstract as one text in lower case, and its summaries, of which the first is learned."""
    for part in ("train", "dev", "test"):
        packed = common.data_path(data, f"scitldr_a/{part}.jsonl.gz").read_bytes()
        rows = map(json.loads, gzip.decompress(packed).splitlines())
        common.write_jsonl(
            FOLDER / f"{part}.jsonl",
            (
                {"text": " ".join(row["source"]).lower(), "target": [summary.lower() for summary in row["target"]]}
                for row in rows
            ),
        )


def quality(name: str, seeds: Sequence[int], overrides: Sequence[str], data: Path | None) -> None:
    prepare(data)
    for seed in seeds:
        run, clock = ROOT / "runs" / f"bench-scitldr-{name}-{seed}", time.perf_counter()
        common.seqpipe("run", HERE / "copying" / f"{name}.yaml", f"name={run.name}", f"train.seed={seed}", *overrides)
        minutes = (time.perf_counter() - clock) / 60
        print(f"{name} seed {seed}, {minutes:.1f} min", flush=True)
        print_scores(run, name)


def print_scores(run: Path, name: str) -> None:
    """The test scores of a bundle, greedy and under a beam."""
    import seqpipe
    from seqpipe.answers.metrics.numbers import scores_table

    model = seqpipe.load(run / "bundle", "cpu")
    records = [json.loads(line) for line in (FOLDER / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    task = model.predictor.task.parts[""]
    figures: dict[str, str] = {}
    for options in ({}, BEAM):
        counts = task.counter()
        for record, answer in zip(records, model(records, **options), strict=True):
            counts.add(task.gold(record), task.predicted(answer))
        result = counts.result()
        print(options or "greedy", scores_table(result, task.metrics), sep="\n", flush=True)
        scores = " / ".join(f"{100 * result[key]:.2f}" for key in ("rouge_1", "rouge_2", "rouge_l"))
        figures["beam 4" if options else "ROUGE-1 / 2 / L, greedy"] = scores
    common.record("copying", "scitldr", [{"row": SHOWN[name], "figures": figures}], ["rouge-score"])


if __name__ == "__main__":
    parser = common.parser(__doc__)
    what = parser.add_subparsers(required=True, dest="what")
    trained = what.add_parser("quality")
    trained.add_argument("name", choices=("copying", "without"))
    trained.add_argument("--seeds", type=int, nargs="+", default=[1])
    trained.add_argument("--set", nargs="*", default=[], dest="overrides")
    shown = what.add_parser("scores")
    shown.add_argument("run", type=Path)
    shown.add_argument("--name", choices=("copying", "without"), default="copying", help="what the run is")
    common.add_data_option(trained)
    options = parser.parse_args()
    if options.what == "scores":
        print_scores(options.run, options.name)
    else:
        quality(options.name, options.seeds, options.overrides, options.data)
