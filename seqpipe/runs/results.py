"""The folder of a run as data: its settings, history, scores and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from seqpipe import files
from seqpipe.config.contract import metric_types
from seqpipe.config.loader import Config, load_config
from seqpipe.config.run_layout import (
    ANSWERS,
    CHECKPOINTS,
    CONTEXTS,
    HISTORY,
    OUTCOME,
    ROUNDS_FILE,
    SCORES_FILE,
    STATE,
    YAML,
)
from seqpipe.errors import UsageError
from seqpipe.evaluation.significance import ScoreContext
from seqpipe.files import Rows
from seqpipe.training.progress import outcome_lines

RUNS = Path("runs")  # folder of all runs


class RunFolder:
    """Folder of one training, with all its results, which are read at each access.

    Args:
        folder: Folder of the run.
        config: Settings of the run; by default they are read from the folder at first use.

    Raises:
        UsageError: if the folder is not a run.
    """

    def __init__(self, folder: str | Path, config: Config | None = None):
        self.folder = Path(folder)
        self._config = config
        if config is None and not (self.folder / STATE).exists():
            raise UsageError(
                f"{self.folder}: not a run (no {STATE}); name a folder that `seqpipe train` or `seqpipe run` wrote"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    def __fspath__(self) -> str:
        return str(self.folder)

    def _read(self, name: str, missing: Any) -> Any:
        """Return the content of a JSON file of the run, or `missing` if it is not there."""
        path = self.folder / name
        return files.read_json(path) if path.exists() else missing

    @cached_property
    def config(self) -> Config:
        """The checked settings; the data and the runs that this one was initialised from may be missing."""
        return self._config or load_config(self.folder / YAML, files=False, runs=False)

    @property
    def scores(self) -> dict[str, Any] | None:
        """The scores on each test set by its name, on `dev` if there is none; None before they are computed."""
        return self._read(SCORES_FILE, None)

    @property
    def contexts(self) -> dict[str, list[ScoreContext]]:
        """The main scores of each set with their intervals; empty before they are computed."""
        stored = self._read(CONTEXTS, {})
        return {name: [ScoreContext(**row) for row in rows] for name, rows in stored.items()}

    @property
    def outcome(self) -> dict[str, Any]:
        """The outcome of training (`seqpipe.training.progress.outcome_of`); empty before its end."""
        return self._read(OUTCOME, {})

    @property
    def history(self) -> Rows:
        """The epochs trained so far, a row for each.

        Keys: `epoch`, its number, from 1; `step`, optimiser steps so far; `loss`, mean loss of its batches; `lr`,
        learning rate at its end; `seconds`, time without the scoring of dev data; `best`, whether its weights were the
        best so far; `gradients`, the mean norm of the gradients at some steps by stage; with dev data `dev`, the scores
        on it, None for one that is not finite, and `train`, those on a sample of the training records. A run that
        diverged has a last row with the reason as `diverged`.
        """
        return Rows(json_lines(self.checkpoints / HISTORY))

    @property
    def answers(self) -> Rows:
        """The records of the test sets, of dev if there is none, and the answers: rows of `set`, `record`, `answer`.

        Empty before they are evaluated, and for language models, whose score needs no answers.
        """
        return Rows(json_lines(self.folder / ANSWERS))

    @property
    def self_training(self) -> Rows:
        """The trainings of `train.self_training`, a row for each; empty for others.

        Keys: `round`, 0 without unlabelled texts; `threshold`; `texts`, unlabelled ones that were training data; `dev`,
        the score on dev; `kept`, whether this training is that of the run.
        """
        return Rows(self._read(ROUNDS_FILE, ()))

    @property
    def folds(self) -> list[Path]:
        """Folders of the runs whose answers this run of `Pipeline.run_folds` has, by fold; empty for others."""
        return [self.folder.parent / name for name in files.read_json(self.folder / STATE).get("folds", ())]

    @property
    def parent(self) -> Path | None:
        """Folder of the run that this one, with more data, was initialised from (`Pipeline.run(data_add=...)`)."""
        name = files.read_json(self.folder / STATE).get("parent")
        return self.folder.parent / name if name else None

    @property
    def bundle_folder(self) -> Path:
        """Folder of the bundle, which exists once the run is exported."""
        return self.folder / "bundle"

    @property
    def checkpoints(self) -> Path:
        """Folder of the training state and the best weights."""
        return self.folder / CHECKPOINTS

    def outcome_lines(self) -> list[str]:
        """Return the outcome of training as text, with the command that trains longer."""
        return outcome_lines(self.outcome, metric_types(self.config.head), f"seqpipe run {self.folder / YAML}")


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSONL file; none if there is no such file."""
    if path.exists():
        with path.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)
