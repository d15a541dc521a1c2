"""Where training stands: its position, its best epoch so far, and when it stops."""

from __future__ import annotations

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
    plateau: int = 0  # epochs since the rate was lowered or the metric rose
    factor: float = 1.0  # of the learning rate, lowered on plateaus
    loss: float = 0.0  # summed over this epoch's batches
    seconds: float = 0.0  # spent in this epoch
    done: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)

    def improve(self, metric: float) -> None:
        """Make this epoch the best one."""
        self.best, self.best_epoch, self.plateau = metric, self.epoch, 0
        self.best_file = f"best-{self.epoch + 1:04d}.safetensors"

    def next_epoch(self, settings: Train, improved: bool, has_dev: bool) -> None:
        """Move to the next epoch; on a plateau lower the learning rate, after too many epochs stop."""
        if not improved:
            self.plateau += 1
            if settings.schedule.use == "plateau" and self.plateau % settings.schedule.patience == 0:
                self.factor *= settings.schedule.factor
        waited = self.epoch - self.best_epoch
        self.epoch, self.position, self.loss, self.seconds = self.epoch + 1, 0, 0.0, 0.0
        is_out_of_patience = bool(settings.patience and has_dev and waited >= settings.patience)
        self.done = self.epoch >= settings.epochs or is_out_of_patience
