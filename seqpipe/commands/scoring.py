"""Score a run or a bundle and print its scores: one code path for PyTorch and onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqpipe.answers.data_warnings import Census
from seqpipe.answers.metrics.numbers import table
from seqpipe.answers.metrics.text import has
from seqpipe.answers.types import Metric
from seqpipe.commands.options import parse_decode_options
from seqpipe.config import yaml
from seqpipe.config.contract import Metrics, build_component, head_metrics, member
from seqpipe.config.plugins import Plugins
from seqpipe.config.signature import options_model, validate, values
from seqpipe.console import Console
from seqpipe.errors import PluginError, UsageError
from seqpipe.features.document import Overlaps, Record, resolve_overlaps
from seqpipe.runtime import bundle
from seqpipe.runtime.bundle import reader_from
from seqpipe.runtime.evaluate import evaluate
from seqpipe.runtime.manifest import MetricsOwner
from seqpipe.runtime.model import load
from seqpipe.runtime.predictor import Predictor

ReadRecords = Callable[[Path], Iterator[Record]]


def score_target(
    target: Path,
    console: Console,
    *,
    data: Path | None = None,
    raw: bool = False,
    by: str | None = None,
    errors: Path | None = None,
    device: str = "auto",
    options: Sequence[str] = (),
) -> dict[str, Any]:
    """Return and print the scores of `target` on the file `data`, or on the test sets of its run.

    The decode options are KEY=VALUE items.
    """
    predictor, read, test_sets = open_target(target, device, data, console)
    if errors and len(test_sets) > 1:
        names = ", ".join(map(str, test_sets.values()))
        raise UsageError(f"--errors needs one data file; give one of {names} with --data")
    decode_options = parse_decode_options(options, {}, predictor.options)
    result: dict[str, Any] = {}
    for name, path in test_sets.items():
        census = Census(predictor.kind)
        records = census.watch(read(path))
        scores = evaluate(predictor, records, by=by, errors=None if raw else errors, options=decode_options)
        result[name] = scores if by else scores[""]
        _print_scores(name, scores, predictor.metric_types, console)
        for warning in census.warnings(name):
            console.say(f"warning: {warning}")
        if raw:
            label = f"{name} (raw)"
            records = read(path)
            scores = evaluate(predictor, records, raw=True, by=by, errors=errors, options=decode_options)
            result[label] = scores if by else scores[""]
            _print_scores(label, scores, predictor.metric_types, console)
    _report_absent_metrics(predictor, console)
    return result


def open_target(
    target: Path, device: str, data: Path | None, console: Console
) -> tuple[Predictor, ReadRecords, dict[str, Path]]:
    """Return the predictor of a run or bundle, the function that reads its records, and the files to score it on."""
    open_one = _open_bundle if (target / bundle.MANIFEST).exists() else _open_run
    return open_one(target, device, data, console)


def _print_scores(label: str, scores: Mapping[str, Any], metrics: Mapping[str, Metric], console: Console) -> None:
    """Print the scores of each group of records; without `--by` all of them are one group with an empty name."""
    for group, group_scores in scores.items():
        console.say(f"\n{label}{f', {group}' if group else ''}\n{table(group_scores, metrics)}")


def _report_absent_metrics(predictor: Predictor, console: Console) -> None:
    packages: dict[str, str] = {}
    for part in predictor.kind.parts.values():
        packages |= part.metric_packages
    for package, metrics in packages.items():
        if not has(package):
            console.say(f"note: {metrics} are absent here: pip install {package.replace('_', '-')}")


def _open_run(
    folder: Path, device: str, data: Path | None, console: Console
) -> tuple[Predictor, ReadRecords, dict[str, Path]]:
    """Return the predictor of a run, the function that reads its records, and the files to score it on."""
    from seqpipe.commands.runs.run_folder import load_trained, open_run
    from seqpipe.commands.runs.training_run import resolve_device
    from seqpipe.training.evaluation import predictor

    run, device = open_run(folder, console, data is None), resolve_device(device)
    test_sets = {data.name: data} if data else dict(run.config.data.tests)
    if not test_sets:
        raise UsageError(f"{folder} has no test set; name a file with --data")
    return (
        predictor(load_trained(run).to(device), run.config, device),
        _reading(build_component(run.config.data.reader), run.config.data.overlaps),
        test_sets,
    )


def _open_bundle(
    path: Path, device: str, data: Path | None, console: Console
) -> tuple[Predictor, ReadRecords, dict[str, Path]]:
    """Return the predictor of a bundle, the function that reads its records, and the files to score it on."""
    model, plugins = load(path, device), Plugins()
    reader = reader_from(model.manifest.reader, plugins)
    for head, origin in model.manifest.own_metrics.items():
        if loaded := _load_metrics(origin, plugins, console):
            model.predictor.metrics[head], score_types = loaded
            model.predictor.metric_types |= score_types
    return (
        model.predictor,
        _reading(reader, _overlaps_beside(path)),
        {data.name: data} if data else _test_sets_beside(path),
    )


def _load_metrics(
    origin: MetricsOwner, plugins: Plugins, console: Console
) -> tuple[Metrics, Mapping[str, Metric]] | None:
    """Load the metrics of the head that the bundle was trained with; None where they are not installed, with a note."""
    name = f"{origin.distribution}/{origin.use}"
    try:
        cls = plugins.find("head", name).load()
        options, mistakes = validate(options_model(cls), origin.options)
        if options is None:
            raise PluginError(
                "; ".join(f"{'.'.join(map(str, mistake.where))}: {mistake.message}" for mistake in mistakes)
            )
    except PluginError as error:
        console.say(f"note: the metrics of head {name} {origin.version} are absent here: {error}")
        return None
    metrics = head_metrics(cls, values(options), f"head {name!r}")
    return (metrics, member(cls, "score_types")) if metrics else None


def _test_sets_beside(path: Path) -> dict[str, Path]:
    """Return the test sets of the run that the bundle lies in, read from its YAML without loading any component."""
    file = path.resolve().parent / "pipeline.yaml"
    if not file.exists():
        raise UsageError(f"{path} stands in no run, so its test set is not known; name a file with --data")
    content: Any = yaml.parse(file.read_bytes(), str(file)).data
    tests = content["data"].get("test") or {}
    if not tests:
        raise UsageError(f"the run of {path} has no test set; name a file with --data")
    return {
        name: Path(os.path.abspath(file.parent / where))
        for name, where in ({"test": tests} if isinstance(tests, str) else tests).items()
    }


def _overlaps_beside(path: Path) -> Overlaps:
    """Return `data.overlaps` of the run that the bundle lies in; `error` where it lies in none."""
    file = path.resolve().parent / "pipeline.yaml"
    if not file.exists():
        return "error"
    content: Any = yaml.parse(file.read_bytes(), str(file)).data
    rule: Overlaps = content["data"].get("overlaps", "error")
    return rule


def _reading(reader: Any, overlaps: Overlaps) -> ReadRecords:
    return lambda path: resolve_overlaps(reader.read(path), overlaps)
