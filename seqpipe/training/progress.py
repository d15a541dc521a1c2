"""Progress of a training, its interruption and its outcome."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from seqpipe.answers.metrics.numbers import format_score
from seqpipe.answers.types import Metric
from seqpipe.config.contract import metric_types
from seqpipe.config.loader import Config
from seqpipe.config.schema import Train
from seqpipe.console import in_notebook
from seqpipe.evaluation.scores import deciding, is_perfect


@dataclass
class TrainingProgress:
    """Position of a run; with the weights and the optimiser it is the complete state."""

    epoch: int = 0
    position: int = 0  # batches done in this epoch
    step: int = 0  # optimiser steps in all
    best: float | None = None
    best_loss: float | None = None  # the dev loss of the best epoch
    best_epoch: int = 0
    best_file: str = ""
    best_sha256: str = ""
    first: float | None = None  # the metric at the first evaluation that gave a number
    is_learning: bool = False  # whether the metric has moved since
    plateau: int = 0  # evaluations without a better metric, counted once the pipeline is learning
    factor: float = 1.0  # of the learning rate, lowered on plateaus
    first_loss: float | None = None  # of the first step of the run
    loss: float = 0.0  # summed over this epoch's steps
    seconds: float = 0.0  # spent in this epoch
    gradients: list[dict[str, float]] = field(default_factory=list)  # norms at some steps of this epoch, by stage
    done: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)

    def is_better(self, metric: float, loss: float | None) -> bool:
        """Return whether a dev score is better than the best one, or equal to it with a lower dev loss."""
        if self.best is None or not math.isfinite(metric):
            return math.isfinite(metric)
        has_lower_loss = loss is not None and self.best_loss is not None and loss < self.best_loss
        return metric > self.best or (metric == self.best and has_lower_loss)

    def improve(self, metric: float, loss: float | None = None) -> None:
        """Make this epoch the best one; patience is not reset if only the loss is better."""
        if self.best is None or metric > self.best:
            self.plateau = 0
        self.best, self.best_loss, self.best_epoch = metric, loss, self.epoch
        self.best_file = f"best-{self.epoch + 1:04d}.safetensors"

    def begin_patience(self, metric: float, is_perfect: bool) -> None:
        """Record whether the dev metric shows that learning has begun.

        Learning has begun once the metric differs from its first value: a score may stay at 0, or at that of the most
        frequent label, for many epochs while the loss falls. A perfect score cannot improve, so patience begins at
        once.
        """
        if self.first is None and math.isfinite(metric):
            self.first = metric
        if self.first is not None and (metric != self.first or is_perfect):
            self.is_learning = True

    def next_epoch(self, settings: Train, improved: bool) -> None:
        """Move to the next epoch; lower the learning rate on a plateau, and stop after too many evaluations on it."""
        if not improved and self.is_learning:
            self.plateau += 1
            if settings.schedule.use == "plateau" and self.plateau % settings.schedule.patience == 0:
                self.factor *= settings.schedule.factor
        self.epoch, self.position, self.loss, self.seconds = self.epoch + 1, 0, 0.0, 0.0
        self.gradients = []
        is_out_of_patience = bool(settings.patience and self.plateau >= settings.patience)
        self.done = self.epoch >= settings.epochs or is_out_of_patience


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Context manager that records the first signal, so that training can save its state; a second one kills."""

    received: int | None = None

    def __enter__(self) -> Interrupts:
        # Python allows handlers in the main thread only; a pipeline in another thread leaves signals to its caller.
        is_main = threading.current_thread() is threading.main_thread()
        numbers = STOP_SIGNALS if is_main else ()
        self._handlers: dict[int, Any] = {number: signal.signal(number, self._receive) for number in numbers}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: object) -> None:
        if self.received is not None:  # a second one ends the process, but of a notebook only the cell
            signal.signal(number, self._handlers[number] if in_notebook() else signal.SIG_DFL)
            signal.raise_signal(number)
        self.received = number


# The outcome of training: its best epoch and metric, why it stopped, and whether more epochs may help.

# An epoch's loss over this many times the first, plus 1, or that of a uniform guess, shows that a learning rate is too
# high. Labels that no text tells may keep it a little above that of a guess.
DIVERGED_RISE, DIVERGED_EXCESS = 3, 1.1
LONGER = 2  # factor of epochs advised for a training that was still improving


def outcome_of(progress: TrainingProgress, config: Config, uniform_loss: float | None = None) -> dict[str, Any]:
    """Return the outcome of a finished training as plain values; epochs are counted from 1.

    - `ended_by`: `epochs`, `patience` or `callback`; `epochs`: number of trained ones; `max_epochs`: `train.epochs`.
    - `losses`: the training loss of the first step, its mean in the last epoch, and the highest mean of an epoch after
      the first; `uniform_loss`: that of a uniform guess, if the only head states it and has no teacher.
    - `learning_rates`: those of the optimizer and of stages, by their keys, the highest first.
    - `best_epoch`, `best_step`: those of the kept weights: the best on dev, or the last without dev data.
    - With dev data `metric` and `dev`, the name and best value of the score that selected them; `waited`: evaluations
      without a better one at the end; `has_moved`: whether it ever changed from its first value; `still_improving`:
      whether the last of several evaluations was the best, and is not perfect.
    """
    best, settings, losses = progress.history[progress.best_epoch], config.train, [r["loss"] for r in progress.history]
    early = "patience" if settings.patience and progress.plateau >= settings.patience else "callback"
    outcome = {
        "ended_by": "epochs" if progress.epoch >= settings.epochs else early,
        "epochs": progress.epoch,
        "max_epochs": settings.epochs,
        "losses": [progress.first_loss, progress.history[-1]["loss"], max(losses[1:] or losses)],
        "uniform_loss": uniform_loss if len(config.head) == 1 and not settings.teacher else None,
        "learning_rates": config.learning_rates,
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


def rise_of_loss(outcome: Mapping[str, Any]) -> str:
    """Return a warning if the training loss rose, which a learning rate that is too high makes it do; else "".

    A loss that begins above that of a uniform guess, as with large random weights or weighted labels, must exceed its
    first value too.
    """
    first, *later = outcome.get("losses", (0.0, 0.0))  # a bundle with other candidates has no outcome
    uniform, highest = outcome.get("uniform_loss"), max(later)
    if highest <= (max(DIVERGED_EXCESS * uniform, first) if uniform else DIVERGED_RISE * first + 1):
        return ""
    guess = f", above the {uniform:.4g} of a uniform guess" if uniform else ""
    rise = f"the training loss rose from {first:.4g} at the first step to {highest:.4g}{guess}"
    rates = ", ".join(f"{key}: {rate:g}" for key, rate in outcome.get("learning_rates", {}).items())
    return f"{rise}: the learning rate is too high; divide by ten: {rates}"


def outcome_lines(outcome: Mapping[str, Any], metrics: Mapping[str, Metric], command: str = "") -> list[str]:
    """Return the outcome as text, with advice; empty without dev data, unless the loss rose.

    `command` runs the pipeline, if it is known.
    """
    if rise := rise_of_loss(outcome):
        return [f"warning: {rise}"]
    if "dev" not in outcome:
        return []
    epochs, metric = outcome["epochs"], outcome["metric"]
    value = format_score(metric, outcome["dev"], metrics)
    best = f"the best dev {metric} is {value}, of epoch {outcome['best_epoch']} (step {outcome['best_step']:,})"
    if outcome["ended_by"] == "patience":
        waited = outcome["waited"]
        return [f"stopped by patience after {waited} evaluation{'s' * (waited > 1)} without improvement: {best}"]
    if outcome["ended_by"] == "callback":
        return [f"stopped by on_epoch after {epochs} epoch{'s' * (epochs > 1)}: {best}"]
    epochs_more = (LONGER - 1) * outcome["max_epochs"]
    longer = f"{command} --more {epochs_more}" if command else f"set train.epochs={LONGER * outcome['max_epochs']}"
    if outcome["still_improving"]:
        return [f"still improving when it stopped, after all {epochs} epochs: {best}", f"to train longer: {longer}"]
    if epochs > 1 and not outcome["has_moved"]:
        stayed = f"the dev {metric} stayed at {value} in all {epochs} epochs"
        if outcome["losses"][1] >= outcome["losses"][0]:
            return [stayed, "nor did the training loss fall: raise or lower train.optimizer.lr, or check the data"]
        return [stayed, f"the training loss was falling: train longer: {longer}"]
    return [f"ended after {f'all {epochs} epochs' if epochs > 1 else '1 epoch'}: {best}"]
