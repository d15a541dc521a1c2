"""The folder of a training run: start one, open one, load its trained pipeline."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seqpipe import files
from seqpipe.commands.runs.fingerprint import differences, fingerprint
from seqpipe.commands.runs.run_lock import run_lock
from seqpipe.config.contract import metric_types
from seqpipe.config.loader import Config, load, resolved
from seqpipe.config.run_layout import CHECKPOINTS, LAST, LOCK, OUTCOME, SCORES, STATE, TOKENS, YAML, refuse_other_form
from seqpipe.config.yaml import dump
from seqpipe.console import Console
from seqpipe.errors import ConfigError, UsageError
from seqpipe.training import checkpoint
from seqpipe.training.artifacts import FILE, Artifacts
from seqpipe.training.pipeline import Pipeline
from seqpipe.training.progress import outcome_lines

RUNS = Path("runs")


@dataclass(frozen=True)
class Run:
    """The folder of one training: what it was made from, and everything it made."""

    folder: Path
    config: Config

    @property
    def checkpoints(self) -> Path:
        return self.folder / CHECKPOINTS

    @property
    def bundle(self) -> Path:
        return self.folder / "bundle"

    @property
    def scores(self) -> dict[str, Any] | None:
        path = self.folder / SCORES
        return files.read_json(path) if path.exists() else None

    @property
    def outcome(self) -> dict[str, Any]:
        """How training ended (`seqpipe.training.progress`); empty before."""
        path = self.folder / OUTCOME
        return files.read_json(path) if path.exists() else {}

    def outcome_lines(self) -> list[str]:
        """How training ended, as a person reads it, with the command that trains longer."""
        return outcome_lines(self.outcome, metric_types(self.config.head), f"seqpipe run {self.folder / YAML}")


@contextmanager
def start_run(config: Config, console: Console, fresh: bool = False, runs: Path = RUNS) -> Iterator[Run]:
    """Yield the run of this config, its folder locked until the block ends.

    The folder is a new one, or the one there if it was made from the same. One without a checkpoint holds nothing worth
    keeping: its run starts again.

    Args:
        config: The pipeline; its name is the folder's.
        console: For the message about an old run.
        fresh: Move an old run of this name aside.
        runs: The folder of all runs.

    Raises:
        ConfigError: if a component's `init` names this folder.
        UsageError: if the folder is no run, or was made from something else, or is locked.
    """
    folder = runs / config.name
    _refuse_init_from_itself(config, folder)
    _refuse_other_folder(folder)
    with ExitStack() as locks:
        locks.enter_context(run_lock(folder))
        current = fingerprint(config)
        if fresh and (folder / STATE).exists():
            if os.name == "nt":
                locks.close()  # Windows moves no folder with an open file in it, so nobody else's run either
            console.say(f"the old run is now {files.set_aside(folder)}")
            locks.enter_context(run_lock(folder))
        _prepare_folder(config, folder, current)
        yield Run(folder, config)


def _refuse_init_from_itself(config: Config, folder: Path) -> None:
    for component in config.components:
        source = component.common_keys.get("init")
        if source and source.resolve() == folder.resolve():
            message = f"`init` names this run's own folder, {folder}; give the YAML another name:"
            raise ConfigError([replace(component.problem(message), key=f"{component.key}.init")])


def _refuse_other_folder(folder: Path) -> None:
    """Raise UsageError for a folder with something in it that is not a run."""
    try:
        names = set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # nothing to protect, or the lock says what is wrong
    if STATE not in names and any(name not in (YAML, LOCK) and not name.endswith(".part") for name in names):
        raise UsageError(f"{folder} is there and is not a run; give the YAML another name: or move the folder")


def _prepare_folder(config: Config, folder: Path, current: Mapping[str, Any]) -> None:
    """Write what a run starts with, the fingerprint last: until then the old one stands."""
    is_trained = (folder / CHECKPOINTS / LAST).exists()
    changes = []
    if (folder / STATE).exists():
        changes = differences(files.read_json(folder / STATE)["fingerprint"], current)
    if changes and is_trained:
        listed = "".join(f"\n  {line}" for line in changes)
        raise UsageError(
            f"{folder} was made from something else:{listed}\n"
            "run with --fresh to move it aside, or give the YAML another name:"
        )
    if changes:
        _remove_fitted_artifacts(folder)
    _refuse_older_run(folder)
    if not is_trained:
        files.write(folder / YAML, dump(resolved(config, folder)))
        files.write(folder / STATE, json.dumps({"fingerprint": current}, indent=1, ensure_ascii=False))


def _refuse_older_run(folder: Path) -> None:
    """Raise UsageError for a run whose fitted artifacts have another form than this seqpipe reads."""
    if (folder / FILE).exists():
        refuse_other_form(folder / FILE, files.read_json(folder / FILE).get("form", 1))


def _remove_fitted_artifacts(folder: Path) -> None:
    for path in (folder / FILE, *folder.glob("*tokenizer*.json")):
        path.unlink(missing_ok=True)
    if (folder / TOKENS).exists():
        shutil.rmtree(folder / TOKENS)


def open_run(folder: Path, console: Console, need_data: bool = True, sets: Sequence[str] = ()) -> Run:
    """Return the run in a folder, its YAML with these overrides; print its notes.

    The runs that it was initialised from need not be there any more.
    """
    if not (folder / STATE).exists():
        raise UsageError(f"{folder}: not a run (no {STATE}); a run is what `seqpipe train` or `seqpipe run` writes")
    _refuse_older_run(folder)
    config = load(folder / YAML, sets, files=need_data, runs=False)
    for note in config.notes:
        console.say(note)
    return Run(folder, config)


def load_trained(run: Run) -> Pipeline:
    """Return the pipeline of a run with its best weights; UsageError if it was not trained."""
    weights = checkpoint.load_best(run.checkpoints)
    pipeline = Pipeline(run.config, Artifacts.load(run.folder))
    pipeline.load_state_dict(weights)
    return pipeline.eval()
