"""Run a pipeline from its YAML to its bundle: train, evaluate, export, verify, show answers; once, or under seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqpipe import files
from seqpipe.answers.metrics.numbers import shown
from seqpipe.commands.runs.examples import print_answers
from seqpipe.commands.runs.held_out import held_out_records, score_test_sets
from seqpipe.commands.runs.run_folder import RUNS, Run, start_run
from seqpipe.commands.runs.training_run import train_run
from seqpipe.config.contract import metric_types
from seqpipe.config.loader import Config
from seqpipe.config.run_layout import SCORES
from seqpipe.console import Console
from seqpipe.export.exporter import export
from seqpipe.export.graph_cache import GraphCache
from seqpipe.runtime import bundle
from seqpipe.runtime.evaluate import headlines
from seqpipe.training.evaluation import predictor


def run_all(
    config: Config,
    console: Console,
    device: str = "auto",
    fresh: bool = False,
    cache: GraphCache | None = None,
    runs: Path = RUNS,
) -> dict[str, Any]:
    """Train, evaluate, export, verify and show answers; an unchanged, finished run is left as it is.

    A graph that the cache has is not traced again.
    """
    with start_run(config, console, fresh, runs) as run:
        scores = run.scores
        if run.bundle.exists() and scores is not None:
            bundle.read(run.bundle)
            console.say(f"{run.folder} is finished and nothing changed: nothing to do (--fresh trains again)")
        else:
            scores = _train_and_export(run, console, device, cache)
        _print_scores(run, scores, console)
        console.say(f"\nnext: seqpipe predict {run.bundle}")
        return {"run": str(run.folder), "bundle": str(run.bundle), "training": run.outcome, "scores": scores}


def _print_scores(run: Run, scores: Mapping[str, Any], console: Console) -> None:
    """Print how training ended, then by test set the score of the metric that chose the weights, and others."""
    metrics, outcome = metric_types(run.config.head), run.outcome
    console.say("")
    for line in run.outcome_lines():
        console.say(line)
    if "dev" in outcome and "dev" not in scores:
        console.result(f"dev {outcome['metric']} {shown(outcome['metric'], outcome['dev'], metrics)}")
    for name, values in scores.items():
        listed = headlines(values, outcome.get("metric")).items()
        console.result(f"{name} {', '.join(f'{metric} {shown(metric, value, metrics)}' for metric, value in listed)}")


def _train_and_export(run: Run, console: Console, device: str, cache: GraphCache | None) -> dict[str, Any]:
    config = run.config
    pipeline = train_run(run, console, device)
    scores = score_test_sets(run, predictor(pipeline, config), console)
    files.write(run.folder / SCORES, json.dumps(files.finite(scores), indent=1, ensure_ascii=False))
    model = export(pipeline, config, held_out_records(run), run.bundle, console, scores, cache, run.outcome)
    print_answers(model, console)
    return scores


def run_seeds(
    load_with: Callable[[Sequence[str]], Config],
    name: str,
    seeds: int,
    console: Console,
    device: str,
    fresh: bool,
    cache: GraphCache | None = None,
) -> dict[str, Any]:
    """Run the same YAML under seeds 1 to n; return mean and standard deviation of every test set's metric."""
    results = []
    for seed in range(1, seeds + 1):
        console.say(f"\n== seed {seed} of {seeds}")
        config = load_with([f"train.seed={seed}", f"name={name}-seed{seed}"])
        results.append(run_all(config, console, device, fresh, cache))
    summary: dict[str, Any] = {}
    for test in results[0]["scores"]:
        by_seed = [headlines(result["scores"][test], result["training"].get("metric")) for result in results]
        metric = next(iter(by_seed[0]))
        values = [scores[metric] for scores in by_seed]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        summary[test] = {"metric": metric, "mean": statistics.mean(values), "deviation": spread, "values": values}
        metrics = metric_types(config.head)
        mean, deviation = (shown(metric, value, metrics) for value in (summary[test]["mean"], spread))
        console.result(f"{test} {metric}: {mean} ± {deviation} over {seeds} seeds")
    return summary
