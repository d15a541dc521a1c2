"""Comparison of runs and bundles: scores on the same records, changed answers, settings and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from os import PathLike
from pathlib import Path
from timeit import Timer
from typing import Any

from seqpipe.config import yaml
from seqpipe.config.plugins import Plugins
from seqpipe.config.run_layout import BUNDLE, STATE, YAML
from seqpipe.errors import UsageError
from seqpipe.evaluation.scores import answered
from seqpipe.evaluation.significance import RESAMPLES, AnsweredSets, SetComparison, compare_answers
from seqpipe.files import Rows
from seqpipe.runs.results import RunFolder
from seqpipe.runs.scoring import QUIET, add_own_metrics, open_target, open_with_metrics
from seqpipe.runtime.bundle import read_manifest
from seqpipe.runtime.manifest import Limits
from seqpipe.runtime.opened import open_bundle
from seqpipe.runtime.predictor import Predictor
from seqpipe.training.artifacts import Artifacts

TIMED_TEXTS, TIMED_ROUNDS = 256, 5  # of the measurement of speed: the fastest round counts


@dataclass(frozen=True)
class Comparison:
    """Comparison of runs or bundles with the first of them."""

    tests: list[SetComparison]  # of each other one and each test set
    settings: Rows  # those that differ: `key`, and the value of each run by its name
    cost: Rows  # of each bundle: `target`, `bundle_bytes`, and if measured `texts_per_second`, `tokens_per_second`

    def _repr_html_(self) -> str:
        content = ""
        for test in self.tests:
            scores = Rows(asdict(score) for score in [*test.scores, *test.labels, *test.groups])
            names = test.first, test.second
            changed = Rows(row | dict(zip(names, row["answers"], strict=True)) for row in test.examples)
            for row in changed:
                del row["answers"]
            content += f"<p>{escape(test.data)}: {escape(test.sentence)}</p>{scores.to_html()}{changed.to_html()}"
        return content + self.settings.to_html() + self.cost.to_html()


def compare(
    *targets: str | PathLike[str],
    data: str | Path | None = None,
    by: str | None = None,
    examples: int = 3,
    resamples: int = RESAMPLES,
    speed: bool = True,
    device: str = "auto",
    plugins: Sequence[Path] = (),
) -> Comparison:
    """Compare runs or bundles with the first one: scores on the same records, changed answers, settings and cost.

    The stored answers of a run are compared, also for its bundle. One in int8 or outside of runs answers the records; a
    language model, which stores none, scores the texts of its test sets. A metric of a plugin's head is resampled if it
    is a mean over records.

    Args:
        targets: Two or more: a `Run`, a `Bundle`, or the folder of one.
        data: A file that all answer, in place of the stored answers.
        by: A field of the records; the main score is also compared for each of its values.
        examples: Maximum number of examples of each sort of changed answers.
        resamples: Number of samples for the intervals and for p.
        speed: Measure the speed of bundles.
        device: Device of models that answer.
        plugins: Python files with components, such as the head whose metrics are compared.

    Raises:
        UsageError: if there are no answers to the same records with the same references.
    """
    paths, file = [*map(Path, targets)], None if data is None else Path(data)
    if len({*paths}) < max(2, len(paths)):
        raise UsageError("name two or more different runs or bundles to compare")
    bundles = [path if (path / BUNDLE).exists() else path / "bundle" for path in paths]
    pairs = zip(paths, bundles, strict=True)
    folders = [path.parent if path == bundle else RunFolder(path).folder for path, bundle in pairs]
    runs = [RunFolder(folder) if (folder / STATE).exists() else None for folder in folders]
    stored = [run.answers if run else Rows() for run in runs]
    first_stored = next(filter(None, stored), Rows())  # a bundle outside of runs answers its records
    sides = [
        _answer(path, bundle, run if rows else None, rows or first_stored, file, device, plugins)
        for path, bundle, run, rows in zip(paths, bundles, runs, stored, strict=True)
    ]
    tests = [test for side in sides[1:] for test in compare_answers(sides[0], side, by, examples, resamples)]
    names = [side.name for side in sides]
    settings = [yaml_settings(run.folder) if run else {} for run in runs]
    differing, cost = Rows(), Rows()
    for key in dict.fromkeys(key for run_settings in settings for key in run_settings if key != "name"):
        values = [run_settings.get(key) for run_settings in settings]
        if any(value != values[0] for value in values):
            differing.append({"key": key, **dict(zip(names, values, strict=True))})
    records = [record for answers in sides[0].sets.values() for record, _ in answers][:TIMED_TEXTS]
    models = {name: path for name, path in zip(names, bundles, strict=True) if (path / BUNDLE).exists()}
    cost += [{"target": name, "bundle_bytes": bundle_bytes(path)} for name, path in models.items()]
    if speed:
        loaded = [open_bundle(path, device).predictor for path in models.values()]
        timers = [Timer(lambda p=predictor: [*answered(p, records)]) for predictor in loaded]  # type: ignore[misc]
        rounds = [[timer.timeit(1) for timer in timers] for _ in range(TIMED_ROUNDS)]  # in turns
        for row, predictor, times in zip(cost, loaded, zip(*rounds, strict=True), strict=True):
            tokens = sum(len(doc.ids) for doc in predictor.featurizer.docs(records))
            row |= {"texts_per_second": len(records) / min(times), "tokens_per_second": tokens / min(times)}
    return Comparison(tests, differing, cost)


def _answer(
    path: Path, bundle: Path, run: RunFolder | None, rows: Rows, data: Path | None, device: str, files: Sequence[Path]
) -> AnsweredSets:
    """Return the answers that a run stored, or those of a model to stored records or, if there are none, to files."""
    sets: dict[str, Any] = {}
    for row in rows:
        sets.setdefault(row["set"], []).append((row["record"], row["answer"]))
    plugins, has_bundle = Plugins(files=files), (bundle / BUNDLE).exists()
    if data or not rows:
        opened = open_target(bundle if has_bundle else path, device, data, QUIET, files)
        predictor = opened.predictor
        sets = {name: answered(predictor, opened.read(file)) for name, file in opened.test_sets.items()}
    elif run and not (bundle == path and read_manifest(path)[0].parity.get("precision") == "int8"):
        fitted = Artifacts.load(run.folder)
        predictor = Predictor(fitted.featurizer, fitted.kind, dict, {}, Limits(tokens=1))
        if has_bundle:
            add_own_metrics(predictor, read_manifest(bundle)[0], plugins, QUIET)
    elif has_bundle:
        predictor = open_with_metrics(bundle, device, QUIET, plugins).predictor
        sets = {name: answered(predictor, [record for record, _ in pairs]) for name, pairs in sets.items()}
    else:
        raise UsageError(f"{path}: has neither stored answers nor a bundle; name a file of records: --data FILE")
    return AnsweredSets(str(path), predictor, {name: [*pairs] for name, pairs in sets.items()})


def yaml_settings(run: Path) -> dict[str, Any]:
    return dict(yaml.flatten(yaml.parse_tree((run / YAML).read_bytes(), str(run / YAML)).data))


def bundle_bytes(bundle: Path) -> int:
    return sum(file.stat().st_size for file in bundle.iterdir())
