"""Several runs: the table of those in a folder, and the comparison of runs and bundles."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from seqpipe.config import yaml
from seqpipe.config.run_layout import BUNDLE, SCORES, STATE, YAML
from seqpipe.console import Console
from seqpipe.errors import SeqpipeError, UsageError
from seqpipe.features.document import Record
from seqpipe.files import Rows
from seqpipe.pipeline.run import RUNS, Run
from seqpipe.pipeline.scoring import open_target
from seqpipe.report.compare import RESAMPLES, AnsweredSets, SetComparison, compare_answers
from seqpipe.runtime.evaluate import answered, headlines
from seqpipe.runtime.manifest import Limits
from seqpipe.runtime.model import Bundle, Model
from seqpipe.runtime.predictor import Predictor
from seqpipe.training.artifacts import Artifacts

TEXTS, ROUNDS = 256, 5  # of the measurement of speed: in turns, and the fastest of the rounds counts


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
    paths = [_path(target) for target in targets]
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
    names, settings = [str(path) for path in paths], [dict(_flat(_settings(run.folder))) if run else {} for run in runs]
    differing = Rows()
    for key in dict.fromkeys(key for some in settings for key in some if key != "name"):
        values = [some.get(key) for some in settings]
        if any(value != values[0] for value in values):
            differing.append({"key": key, **dict(zip(names, values, strict=True))})
    exported = {name: Bundle(path) for name, path in zip(names, bundles, strict=True) if (path / BUNDLE).exists()}
    cost = Rows({"target": name, "bundle_bytes": _size(bundle.path)} for name, bundle in exported.items())
    if speed and exported:
        models = [bundle.load(device) for bundle in exported.values()]
        records = [record for answers in sides[0].sets.values() for record, _ in answers][:TEXTS]
        inputs = [[model.predictor.task.question(record) for record in records] for model in models]
        seconds = [min(times) for times in zip(*(map(_time, models, inputs) for _ in range(ROUNDS)), strict=True)]
        for row, model, texts, taken in zip(cost, models, inputs, seconds, strict=True):
            row["texts_per_second"] = len(texts) / taken
            row["tokens_per_second"] = sum(len(doc.ids) for doc in model.predictor.docs(texts)) / taken
    return Comparison(tests, differing, cost)


def _path(target: str | Path | Run | Bundle) -> Path:
    return target.folder if isinstance(target, Run) else target.path if isinstance(target, Bundle) else Path(target)


def _answer(path: Path, bundle: Path, run: Run | None, rows: Rows, data: Path | None, device: str) -> AnsweredSets:
    """Return the answers that a run stored, or those of a model to a file or to stored records."""
    sets: dict[str, list[Any]] = {}
    for row in rows:
        sets.setdefault(row["set"], []).append((row["record"], row["answer"]))
    has_own = run and not (bundle == path and Bundle(path).manifest.parity.get("precision") == "int8")
    if data:
        predictor, read, _ = open_target(bundle if bundle.exists() else path, device, data, Console(-1))
        sets = {data.name: [(record, None) for record in read(data)]}
    elif run and has_own:
        fitted = Artifacts.load(run.folder)
        predictor = Predictor(fitted.featurizer, fitted.kind, dict, {}, Limits(tokens=1))
    elif rows and (bundle / BUNDLE).exists():
        predictor = Bundle(bundle).load(device).predictor
    else:
        reason = "an unfinished run has none yet, a language model never; name a file of records: --data FILE"
        raise UsageError(f"{path}: there are no stored answers to compare: {reason}")
    if predictor.kind.is_generated:
        raise UsageError(f"{path}: the perplexity of a language model is not a score of records; use `evaluate`")
    if data or not has_own:
        sets = {name: [*answered(predictor, [record for record, _ in some])] for name, some in sets.items()}
    return AnsweredSets(str(path), predictor, sets)


def _settings(run: Path) -> Any:
    return yaml.parse((run / YAML).read_bytes(), str(run / YAML)).data


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings with dotted keys."""
    if isinstance(value, (Mapping, list)) and value:
        for name, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _flat(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def _size(bundle: Path) -> int:
    return sum(file.stat().st_size for file in bundle.iterdir())


def _time(model: Model, inputs: Sequence[Record]) -> float:
    clock = time.perf_counter()
    model(inputs)
    return time.perf_counter() - clock


# The table of the runs of a folder.

COLUMNS = ("name", "state", "data", "model", "metric", "score", "bundle_bytes", "seconds", "when", "scores", "problem")


def runs(folder: str | Path = RUNS, *, sort: str = "name") -> Rows:
    """Return a row for each run of a folder, sorted by a key; scores from the highest.

    Keys: `name`; `state`: `finished`, `trained` without scores or bundle, `unfinished`, or `damaged`; `data`, the
    training data; `model`, encoder and head; `metric` and `score`, of the first test set, or of dev; `bundle_bytes`;
    `seconds` of training; `when` it was written; `scores`; `problem` of a damaged run, or epochs of an unfinished one.
    """
    if not Path(folder).is_dir():
        raise UsageError(f"{folder}: no such folder; name a folder of runs")
    if sort not in COLUMNS[:-2]:
        raise UsageError(f"sort: must be one of {', '.join(COLUMNS[:-2])}, not {sort!r}")
    paths = [path for path in sorted(Path(folder).iterdir()) if (path / STATE).exists() or (path / YAML).exists()]
    rows = [*map(_row, paths)]
    with_value = sorted((row for row in rows if row[sort] is not None), key=itemgetter(sort), reverse=sort == "score")
    return Rows([*with_value, *(row for row in rows if row[sort] is None)])


def _row(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(COLUMNS) | {"name": folder.name}
    try:
        run, settings = Run(folder), _settings(folder)
        scores, outcome, history = run.scores, run.outcome, run.history
        is_exported = (run.bundle_folder / BUNDLE).exists()
        row["data"] = Path(str(settings["data"]["train"])).name
        row["model"] = " + ".join(filter(None, (_uses(settings.get(stage)) for stage in ("encoder", "head"))))
        written = (folder / (SCORES if scores else STATE)).stat().st_mtime
        row["when"] = datetime.fromtimestamp(written).isoformat(" ", "minutes")
        row["seconds"] = sum(epoch["seconds"] for epoch in history)
        row["scores"], row["metric"], row["score"] = scores, outcome.get("metric"), outcome.get("dev")
        if scores:
            values = next(iter(scores.values()))
            row["metric"], row["score"] = next(iter(headlines(values, outcome.get("metric")).items()))
        if is_exported and Bundle(run.bundle_folder).manifest.name:  # refuses a damaged one
            row["bundle_bytes"] = _size(run.bundle_folder)
        row["state"] = "finished" if scores and is_exported else "trained" if outcome else "unfinished"
        if row["state"] == "unfinished":
            row["problem"] = f"running or interrupted, after {len(history)} of {settings['train'].get('epochs')} epochs"
    except (SeqpipeError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        row |= {"state": "damaged", "problem": str(error) or type(error).__name__}
    return row


def _uses(stage: Any) -> str:
    """Return the names of the components of a stage."""
    if isinstance(stage, list):
        return ", ".join(map(_uses, stage))
    return str(stage.get("use", "")) if isinstance(stage, Mapping) else str(stage or "")
