"""Several runs: the table of those in a folder, and the comparison of runs and bundles."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from operator import itemgetter
from pathlib import Path
from timeit import repeat
from typing import Any

from seqpipe.config import yaml
from seqpipe.config.run_layout import BUNDLE, SCORES, STATE, YAML
from seqpipe.console import Console
from seqpipe.errors import SeqpipeError, UsageError
from seqpipe.files import Rows
from seqpipe.pipeline.run import RUNS, Run
from seqpipe.pipeline.scoring import open_target
from seqpipe.report.compare import RESAMPLES, AnsweredSets, SetComparison, compare_answers
from seqpipe.runtime.evaluate import answered, headlines
from seqpipe.runtime.manifest import Limits
from seqpipe.runtime.model import Bundle
from seqpipe.runtime.predictor import Predictor
from seqpipe.training.artifacts import Artifacts

TEXTS, ROUNDS = 256, 5  # of the measurement of speed: the fastest round counts


@dataclass(frozen=True)
class Comparison:
    """Comparison of runs or bundles with the first of them."""

    tests: list[SetComparison]  # of each other one and each test set
    settings: Rows  # those that differ: `key`, and the value of each run by its name
    cost: Rows  # of each bundle: `target`, `bundle_bytes`, and if measured `texts_per_second`, `tokens_per_second`


def compare(
    *targets: str | Path | Run | Bundle,
    data: str | Path | None = None,
    by: str | None = None,
    examples: int = 3,
    resamples: int = RESAMPLES,
    speed: bool = True,
    device: str = "auto",
) -> Comparison:
    """Compare runs or bundles with the first one: scores on the same records, changed answers, settings and cost.

    The stored answers of a run are compared, also for its bundle. One in int8 or outside of runs answers the records.

    Args:
        targets: Two or more.
        data: A file that all answer, in place of the stored answers.
        by: A field of the records; the main score is also compared for each of its values.
        examples: Maximum number of examples of each sort of changed answers.
        resamples: Number of samples for the intervals and for p.
        speed: Measure the speed of bundles.
        device: Device of models that answer.

    Raises:
        UsageError: if there are no answers to the same records with the same references.
    """
    paths = [t.folder if isinstance(t, Run) else t.path if isinstance(t, Bundle) else Path(t) for t in targets]
    if len({*paths}) < max(2, len(paths)):
        raise UsageError("name two or more different runs or bundles to compare")
    bundles = [path if (path / BUNDLE).exists() else path / "bundle" for path in paths]
    folders = [Run(path).folder if path != bundle else path.parent for path, bundle in zip(paths, bundles, strict=True)]
    runs = [Run(folder) if (folder / STATE).exists() else None for folder in folders]
    stored = [run.answers if run else Rows() for run in runs]
    lent = next(filter(None, stored), Rows())
    sides = [
        _answer(path, bundle, run if rows else None, rows or lent, Path(data) if data else None, device)
        for path, bundle, run, rows in zip(paths, bundles, runs, stored, strict=True)
    ]
    tests = [test for side in sides[1:] for test in compare_answers(sides[0], side, by, examples, resamples)]
    names = [side.name for side in sides]
    settings = [_settings(run.folder) if run else {} for run in runs]
    differing, cost = Rows(), Rows()
    for key in dict.fromkeys(key for some in settings for key in some if key != "name"):
        values = [some.get(key) for some in settings]
        if any(value != values[0] for value in values):
            differing.append({"key": key, **dict(zip(names, values, strict=True))})
    records = [record for answers in sides[0].sets.values() for record, _ in answers][:TEXTS]
    for name, path in zip(names, bundles, strict=True):
        if (path / BUNDLE).exists():
            cost.append({"target": name, "bundle_bytes": _size(path)})
            if speed:
                model = Bundle(path).load(device)
                texts = [model.predictor.task.question(record) for record in records]
                seconds = min(repeat(partial(model, texts), number=1, repeat=ROUNDS))
                tokens = sum(len(doc.ids) for doc in model.predictor.docs(texts))
                cost[-1] |= {"texts_per_second": len(texts) / seconds, "tokens_per_second": tokens / seconds}
    return Comparison(tests, differing, cost)


def _answer(path: Path, bundle: Path, run: Run | None, rows: Rows, data: Path | None, device: str) -> AnsweredSets:
    """Return the answers that a run stored, or those of a model to a file or to stored records."""
    sets: dict[str, Any] = {}
    for row in rows:
        sets.setdefault(row["set"], []).append((row["record"], row["answer"]))
    if data:
        predictor, read, _ = open_target(bundle if bundle.exists() else path, device, data, Console(-1))
        sets = {data.name: answered(predictor, read(data))}
    elif run and not (bundle == path and Bundle(path).manifest.parity.get("precision") == "int8"):
        fitted = Artifacts.load(run.folder)
        predictor = Predictor(fitted.featurizer, fitted.kind, dict, {}, Limits(tokens=1))
    elif rows and (bundle / BUNDLE).exists():
        predictor = Bundle(bundle).load(device).predictor
        sets = {name: answered(predictor, [record for record, _ in pairs]) for name, pairs in sets.items()}
    else:
        reason = "an unfinished run has none yet, a language model never; name a file of records: --data FILE"
        raise UsageError(f"{path}: there are no stored answers to compare: {reason}")
    if predictor.kind.is_generated:
        raise UsageError(f"{path}: the perplexity of a language model is not a score of records; use `evaluate`")
    return AnsweredSets(str(path), predictor, {name: [*pairs] for name, pairs in sets.items()})


def _settings(run: Path) -> dict[str, Any]:
    return dict(yaml.flatten(yaml.parse((run / YAML).read_bytes(), str(run / YAML)).data))


def _size(bundle: Path) -> int:
    return sum(file.stat().st_size for file in bundle.iterdir())


# The table of the runs of a folder.

COLUMNS = ("name", "state", "data", "model", "metric", "score", "bundle_bytes", "seconds", "when", "parent", "problem")


def runs(folder: str | Path = RUNS, *, sort: str = "name") -> Rows:
    """Return a row for each run of a folder, sorted by a key; scores from the highest.

    Keys: `name`; `state`: `finished`, `trained` without scores or bundle, `unfinished`, or `damaged`; `data`, the
    training data; `model`, encoder and head; `metric` and `score`, of the first test set, or of dev; `bundle_bytes`;
    `seconds` of training; `when` it was written; `parent`, the run that it continues with more data; `problem` of a
    damaged run, or epochs of an unfinished one; `scores`.
    """
    if not Path(folder).is_dir():
        raise UsageError(f"{folder}: no such folder; name a folder of runs")
    if sort not in COLUMNS[:-1]:
        raise UsageError(f"sort: must be one of {', '.join(COLUMNS[:-1])}, not {sort!r}")
    paths = [path for path in sorted(Path(folder).iterdir()) if (path / STATE).exists() or (path / YAML).exists()]
    rows = [*map(_row, paths)]
    with_value = sorted((row for row in rows if row[sort] is not None), key=itemgetter(sort), reverse=sort == "score")
    return Rows([*with_value, *(row for row in rows if row[sort] is None)])


def _row(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys((*COLUMNS, "scores")) | {"name": folder.name}
    try:
        run, settings = Run(folder), _settings(folder)
        scores, outcome, history = run.scores, run.outcome, run.history
        is_exported, metric = (run.bundle_folder / BUNDLE).exists(), outcome.get("metric")
        row["parent"] = run.parent and run.parent.name
        row["data"] = Path(str(settings["data.train"])).name
        stages = [(key.split("."), use) for key, use in settings.items() if key.startswith(("encoder", "head"))]
        row["model"] = " + ".join(str(use) for key, use in stages if len(key) == 1 or key[-1] == "use")
        written = (folder / (SCORES if scores else STATE)).stat().st_mtime
        row["when"] = datetime.fromtimestamp(written).isoformat(" ", "minutes")
        row["seconds"] = sum(epoch["seconds"] for epoch in history)
        row["scores"], row["metric"], row["score"] = scores, metric, outcome.get("dev")
        if scores:
            row["metric"], row["score"] = next(iter(headlines(next(iter(scores.values())), metric).items()))
        if is_exported and Bundle(run.bundle_folder).manifest.name:  # refuses a damaged one
            row["bundle_bytes"] = _size(run.bundle_folder)
        row["state"] = "finished" if scores and (is_exported or run.folds) else "trained" if outcome else "unfinished"
        if row["state"] == "unfinished":
            row["problem"] = f"running or interrupted, after {len(history)} of {settings.get('train.epochs')} epochs"
    except (SeqpipeError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        row |= {"state": "damaged", "problem": str(error) or type(error).__name__}
    return row
