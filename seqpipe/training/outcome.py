"""How training ended: its best epoch, by which metric, why it stopped, and whether more epochs may help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqpipe.answers.metrics.table import shown
from seqpipe.answers.types import Metric
from seqpipe.config.head_answers import metric_types
from seqpipe.config.loader import Config
from seqpipe.runtime.evaluate import deciding, is_perfect
from seqpipe.training.progress import Progress

LONGER = 2  # times the epochs that a training which was still improving is told to take


def outcome_of(progress: Progress, config: Config) -> dict[str, Any]:
    """The outcome of a training that has ended, as plain values; epochs are counted from 1.

    - `ended_by`: `epochs` or `patience`; `epochs`: how many were trained; `max_epochs`: `train.epochs`.
    - `best_epoch`, `best_step`: whose weights were kept: the best on dev, without dev data the last.
    - With dev data `metric` and `dev`, the name and best value of the score that chose them; `waited`: evaluations
      without a better one at the end; `has_moved`: whether it ever left its first value; `still_improving`: whether
      the last of several evaluations was the best, and is not perfect.
    """
    best, settings = progress.history[progress.best_epoch], config.train
    outcome = {
        "ended_by": "epochs" if progress.epoch >= settings.epochs else "patience",
        "epochs": progress.epoch,
        "max_epochs": settings.epochs,
        "best_epoch": best["epoch"],
        "best_step": best["step"],
    }
    if "dev" not in best:
        return outcome
    metric, value = deciding(best["dev"], settings.metric)
    may_improve = not is_perfect(best["dev"], settings.metric, metric_types(config.head))
    return outcome | {
        "metric": metric,
        "dev": value,
        "waited": progress.plateau,
        "has_moved": progress.is_learning,
        "still_improving": may_improve and 1 < best["epoch"] == progress.epoch,
    }


def outcome_lines(outcome: Mapping[str, Any], metrics: Mapping[str, Metric], command: str = "") -> list[str]:
    """The outcome as a person reads it, and what to do about it; none without dev data.

    Args:
        outcome: As `outcome_of` gives it.
        metrics: What is known of each score, by name.
        command: That which trains the pipeline again, where it is known.
    """
    if "dev" not in outcome:
        return []
    epochs, metric = outcome["epochs"], outcome["metric"]
    value = shown(metric, outcome["dev"], metrics)
    best = f"the best dev {metric} is {value}, of epoch {outcome['best_epoch']} (step {outcome['best_step']:,})"
    if outcome["ended_by"] == "patience":
        waited = outcome["waited"]
        return [f"stopped by patience after {waited} evaluation{'s' * (waited > 1)} without improvement: {best}"]
    longer = f"train.epochs={LONGER * outcome['max_epochs']}"
    longer = f"{command} {longer} --fresh" if command else f"set {longer}"
    if outcome["still_improving"]:
        return [f"still improving when it stopped, after all {epochs} epochs: {best}", f"to train longer: {longer}"]
    if epochs > 1 and not outcome["has_moved"]:
        stayed = f"the dev {metric} stayed at {value} in all {epochs} epochs"
        return [stayed, f"check the data and train.optimizer.lr, or, if the loss was falling, train longer: {longer}"]
    return [f"ended after {f'all {epochs} epochs' if epochs > 1 else '1 epoch'}: {best}"]
