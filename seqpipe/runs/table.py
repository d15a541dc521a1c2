"""The table of the runs of a folder, and the mapped features that no run uses."""

from __future__ import annotations

import shutil
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from seqpipe.config.run_layout import BUNDLE, FEATURES, MAPPED, SCORES_FILE, STATE, YAML
from seqpipe.errors import SeqpipeError, UsageError
from seqpipe.evaluation.scores import headlines
from seqpipe.files import Rows, locked, read_json
from seqpipe.runs.compare import bundle_bytes, yaml_settings
from seqpipe.runs.results import RUNS, RunFolder
from seqpipe.runtime.bundle import read_manifest

RUN_KEYS: tuple[str, ...] = ("name", "state", "data", "model", "set", "metric", "score", "interval")
RUN_KEYS += ("bundle_bytes", "seconds", "when", "parent", "problem")


def list_runs(folder: str | Path = RUNS, *, sort: str = "name") -> Rows:
    """Return a row for each run of a folder, sorted by a key; scores from the highest.

    Keys: `name`; `state`: `finished`, `trained` without scores or bundle, `unfinished`, or `damaged`; `data`, the
    training data; `model`, encoder and head; `set`, the first test set, or dev, with its `metric`, `score` and
    `interval` (95 %, as text); `bundle_bytes`;
    `seconds` of training; `when` it was written; `parent`, the run that it continues with more data; `problem` of a
    damaged run, or epochs of an unfinished one; `scores`; `percent`, whether the score is a fraction.
    """
    if not Path(folder).is_dir():
        raise UsageError(f"{folder}: no such folder; name a folder of runs")
    if sort not in RUN_KEYS[:-1]:
        raise UsageError(f"sort: must be one of {', '.join(RUN_KEYS[:-1])}, not {sort!r}")
    paths = [path for path in sorted(Path(folder).iterdir()) if (path / STATE).exists() or (path / YAML).exists()]
    rows = [*map(_row, paths)]
    with_value = sorted((row for row in rows if row[sort] is not None), key=itemgetter(sort), reverse=sort == "score")
    return Rows([*with_value, *(row for row in rows if row[sort] is None)])


def _row(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys((*RUN_KEYS, "scores", "percent")) | {"name": folder.name}
    try:
        run, settings = RunFolder(folder), yaml_settings(folder)
        scores, outcome, history = run.scores, run.outcome, run.history
        is_exported, metric = (run.bundle_folder / BUNDLE).exists(), outcome.get("metric")
        row["parent"] = run.parent and run.parent.name
        row["data"] = Path(str(settings.get("data.train") or settings["data.train.0"])).name
        stages = [(key.split("."), use) for key, use in settings.items() if key.startswith(("encoder", "head"))]
        row["model"] = " + ".join(str(use) for key, use in stages if len(key) == 1 or key[-1] == "use")
        written = (folder / (SCORES_FILE if scores else STATE)).stat().st_mtime
        row["when"] = datetime.fromtimestamp(written).isoformat(" ", "minutes")
        row["seconds"] = sum(epoch["seconds"] for epoch in history)
        row["scores"], row["metric"], row["score"] = scores, metric, outcome.get("dev")
        row["set"] = "dev" if "dev" in outcome else None
        if scores:
            row["set"], main = next(iter(scores.items()))
            row["metric"], row["score"] = next(iter(headlines(main, metric).items()))
        if of_set := run.contexts.get(row["set"]):
            row["interval"], row["percent"] = of_set[0].interval, of_set[0].percent
        if is_exported and read_manifest(run.bundle_folder)[0].name:  # refuses a damaged one
            row["bundle_bytes"] = bundle_bytes(run.bundle_folder)
        row["state"] = "finished" if scores and (is_exported or run.folds) else "trained" if outcome else "unfinished"
        if row["state"] == "unfinished":
            row["problem"] = f"running or interrupted, after {len(history)} of {settings.get('train.epochs')} epochs"
    except (SeqpipeError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        row |= {"state": "damaged", "problem": str(error) or type(error).__name__}
    return row


# Mapped features


def prune_features(folder: str | Path = RUNS, *, dry_run: bool = False) -> dict[str, int]:
    """Remove the mapped features that no run of a folder uses, and return their names and sizes in bytes.

    With `dry_run` they stay. Features that a process is making stay too.
    """
    if not Path(folder).is_dir():
        raise UsageError(f"{folder}: no such folder; name a folder of runs")
    removed = {}
    for lock in sorted(Path(folder, FEATURES).glob("*.lock")):
        features = lock.with_suffix("")
        with locked(lock, wait=False) as is_locked:
            # The runs are read while the lock is held: one that begins now makes its features again.
            if not is_locked or any(features.name in read_json(path) for path in Path(folder).glob(f"*/{MAPPED}")):
                continue
            removed[features.name] = bundle_bytes(features) if features.is_dir() else 0
            if not dry_run:
                shutil.rmtree(features, ignore_errors=True)
                lock.unlink()
    return removed
