"""Reports of shipped pipelines: numbers beside `evaluate --json`, faults in Chromium, size; and what a report costs.

    python benchmarks/reports.py                     # every pipeline, one epoch each: an hour
    python benchmarks/reports.py --only ner hull     # some of them
    python benchmarks/reports.py --cost              # the time of what a run does for its report

Needs Chromium, and the extras of development.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import common
from common import ROOT, RUNS

sys.path.insert(0, str(ROOT / "tests" / "support"))
COSTS = {"ner": 4, "intent-lstm": 6}  # pipelines and their epochs
LONG = 75  # seconds of a run for which the ratio is computed


def rows_of(scores: Mapping[str, Any], metrics: Any) -> Iterator[Any]:
    """Yield the rows of the tables of scores, those of each head too."""
    from seqpipe.answers.metrics.numbers import score_rows

    for name, value in scores.items():
        if isinstance(value, Mapping) and name != "labels":
            yield from rows_of(value, metrics)
    yield from score_rows(scores, metrics)


def reports(names: list[str], epochs: int) -> None:
    """Train each pipeline, and record what its report is like."""
    from rendered_pages import page_faults, table_rows

    import seqpipe
    from seqpipe.config.plugins import Plugins
    from seqpipe.console import Console
    from seqpipe.runs.scoring import open_bundle

    for name in names:
        pipeline = seqpipe.Pipeline(ROOT / "pipelines" / f"{name}.yaml", {"train.epochs": epochs})
        run = pipeline.run(device="cpu", runs=RUNS / "reports")
        clock = time.perf_counter()
        report = run.report()
        seconds = time.perf_counter() - clock
        metrics = open_bundle(run.bundle_folder, "cpu", Console(-1), Plugins()).predictor.metric_types
        scores = common.seqpipe_json("evaluate", run.bundle.path, "-q")
        expected = [row for values in scores.values() for row in rows_of(values, metrics)]
        shown, faults = table_rows(report.html), page_faults(report.path.absolute())
        unequal = sum(row not in shown for row in expected)
        figures: dict[str, Any] = {"faults": len(faults), "rows of scores": len(expected), "unequal": unequal}
        figures |= {"s": round(seconds, 2), "kB": len(report.html) // 1000}
        print(name, figures, *faults, flush=True)
        row = {"row": name, "figures": figures, "met": not (faults or unequal)}
        common.record("reports", "reports", [row])


def cost() -> None:
    """Record the processor time that a run spends for its report: norms of gradients, scores of train, facts, page."""
    import torch

    import seqpipe
    from seqpipe.runs import train as training
    from seqpipe.training import optim

    spent: dict[str, float] = {}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any) -> Any:
            clock = time.process_time()
            result = function(*arguments)
            spent[name] += time.process_time() - clock
            return result

        return measured

    torch.set_num_threads(1)
    os.environ["SEQPIPE_REPORT"] = "off"  # the report is written, and timed, after the run
    make_sample = training.sample_scores

    def sample_scores(*arguments: Any) -> Any:
        function = make_sample(*arguments)
        return function and timed("scores of train", function)

    vars(optim)["gradient_norms"] = timed("norms", optim.gradient_norms)
    vars(training)["sample_scores"] = sample_scores
    vars(training)["data_facts"] = timed("facts", training.data_facts)
    for name, epochs in COSTS.items():
        spent |= dict.fromkeys(("norms", "scores of train", "facts", "report"), 0.0)
        pipeline = seqpipe.Pipeline(ROOT / "pipelines" / f"{name}.yaml", {"train.epochs": epochs, "train.threads": 1})
        clock = time.process_time()
        run = pipeline.run(device="cpu", fresh=True, runs=RUNS / "reports-cost")
        timed("report", run.report)()
        whole = time.process_time() - clock
        figures = {f"{part}, s": round(seconds, 2) for part, seconds in spent.items()} | {"run, s": round(whole, 1)}
        once = spent["facts"] + spent["report"]
        share = (spent["norms"] + spent["scores of train"]) / (whole - once)  # of the training, however long
        ratio = LONG / ((LONG - once) * (1 - share))
        figures |= {f"ratio at {LONG} s": round(ratio, 3)}
        print(name, figures, flush=True)
        common.record(
            "reports", "cost", [{"row": f"{name}, {epochs} epochs", "figures": figures, "met": ratio <= 1.02}]
        )


def main() -> None:
    parser = common.parser(__doc__)
    every = sorted(path.stem for path in (ROOT / "pipelines").glob("*.yaml"))
    parser.add_argument("--only", nargs="+", choices=every, default=every, metavar="PIPELINE")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--cost", action="store_true", help="what a run spends for its report instead")
    arguments = parser.parse_args()
    if arguments.cost:
        cost()
    else:
        reports(arguments.only, arguments.epochs)


if __name__ == "__main__":
    main()
