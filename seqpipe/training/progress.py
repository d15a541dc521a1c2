"""Where training stands: its position, its best epoch so far, and when it stops."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from seqpipe.config.schema import Train


@dataclass
class Progress:
    """The position of a run; with the weights and the optimiser it is the whole state."""

    epoch: int = 0
    position: int = 0  # batches done in this epoch
    step: int = 0  # optimiser steps in all
    best: float | None = None
    best_epoch: int = 0
    best_file: str = ""
    best_sha256: str = ""
    first: float | None = None  # the metric at the first evaluation that gave a number
    is_learning: bool = False  # whether the metric has moved since
    plateau: int = 0  # evaluations without a better metric, counted once the pipeline is learning
    factor: float = 1.0  # of the learning rate, lowered on plateaus
    loss: float = 0.0  # summed over this epoch's batches
    seconds: float = 0.0  # spent in this epoch
    done: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)

    def improve(self, metric: float) -> None:
        """Make this epoch the best one."""
        self.best, self.best_epoch, self.plateau = metric, self.epoch, 0
        self.best_file = f"best-{self.epoch + 1:04d}.safetensors"

    def begin_patience(self, metric: float, is_perfect: bool) -> None:
        """Note whether learning has begun, as far as the dev metric shows it.

        It has once the metric differs from its first value: a score may stay at 0, or at that of the most frequent
        label, for many epochs while the loss falls. A perfect score waits for nothing better.
        """
        if self.first is None and math.isfinite(metric):
            self.first = metric
        if self.first is not None and (metric != self.first or is_perfect):
            self.is_learning = True

    def next_epoch(self, settings: Train, improved: bool) -> None:
        """Move to the next epoch; on a plateau lower the learning rate, after too many evaluations on it stop."""
        if not improved and self.is_learning:
            self.plateau += 1
            if settings.schedule.use == "plateau" and self.plateau % settings.schedule.patience == 0:
                self.factor *= settings.schedule.factor
        self.epoch, self.position, self.loss, self.seconds = self.epoch + 1, 0, 0.0, 0.0
        is_out_of_patience = bool(settings.patience and self.plateau >= settings.patience)
        self.done = self.epoch >= settings.epochs or is_out_of_patience
