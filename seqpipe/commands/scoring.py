"""A run or a bundle in, its scores out and printed: one command and one code path for PyTorch and onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seqpipe.answers.base import Text
from seqpipe.answers.data_warnings import Census
from seqpipe.answers.metrics.counters import table
from seqpipe.answers.metrics.text import has
from seqpipe.answers.multi_head import Joint
from seqpipe.config import yaml
from seqpipe.config.component import build_component
from seqpipe.config.contract import Metrics, head_metrics
from seqpipe.config.plugins import Plugins
from seqpipe.config.signature import options_model, validate, values
from seqpipe.console import Console
from seqpipe.errors import PluginError, UsageError
from seqpipe.features.document import Record
from seqpipe.runtime import bundle
from seqpipe.runtime.bundle_reader import reader_from
from seqpipe.runtime.evaluate import evaluate
from seqpipe.runtime.model import load
from seqpipe.runtime.predictor import Predictor


def score_target(
    target: Path,
    console: Console,
    *,
    data: Path | None = None,
    raw: bool = False,
    by: str | None = None,
    errors: Path | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Scores of `target` on the file `data`, or on every test set of the run that it is or stands in."""
    predictor, reader, tests = (_bundle if (target / bundle.MANIFEST).exists() else _run)(target, device, data, console)
    if errors and len(tests) > 1:
        raise UsageError(f"--errors needs one data file; give one of {', '.join(map(str, tests.values()))} with --data")
    result: dict[str, Any] = {}
    for name, path in tests.items():
        for label, unsplit in ((name, False), *([(f"{name} (raw)", True)] if raw else [])):
            listed = errors if unsplit == raw else None
            census = Census(predictor.kind)
            found = evaluate(predictor, census.watch(_records(reader, path)), raw=unsplit, by=by, errors=listed)
            result[label] = found if by else found[""]
            for group, scores in found.items():
                console.say(f"\n{label}{f', {group}' if group else ''}\n{table(scores)}")
            for warning in () if unsplit else census.warnings(name):
                console.say(f"warning: {warning}")
    parts = predictor.kind.parts.values() if isinstance(predictor.kind, Joint) else [predictor.kind]
    if any(isinstance(part, Text) for part in parts):
        for absent, package in (("bleu and chrf", "sacrebleu"), ("ROUGE", "rouge_score")):
            if not has(package):
                console.say(f"note: {absent} are absent here: pip install {package.replace('_', '-')}")
    return result


def _run(folder: Path, device: str, data: Path | None, console: Console) -> tuple[Predictor, Any, dict[str, Path]]:
    from seqpipe.commands.run_folder import load_trained, open_run
    from seqpipe.commands.training_run import resolve_device
    from seqpipe.training.pipeline import predictor

    run, place = open_run(folder, console, data is None), resolve_device(device)
    reader = run.config.data.reader
    tests = {data.name: data} if data else dict(run.config.data.tests)
    if not tests:
        raise UsageError(f"{folder} has no test set; name a file with --data")
    return predictor(load_trained(run).to(place), run.config, place), build_component(reader), tests


def _bundle(path: Path, device: str, data: Path | None, console: Console) -> tuple[Predictor, Any, dict[str, Path]]:
    model, plugins = load(path, device), Plugins()
    reader = reader_from(model.manifest["reader"], plugins)
    if "own_metrics" in model.manifest:
        owners = model.manifest["own_metrics"]
        found = {head: _own_metrics(owner, plugins, console) for head, owner in owners.items()}
        model.predictor.metrics = {head: own for head, own in found.items() if own}
    return model.predictor, reader, {data.name: data} if data else _tests_beside(path)


def _own_metrics(owner: Mapping[str, Any], plugins: Plugins, console: Console) -> Metrics | None:
    """The metrics of the head that the bundle was trained with; where they cannot be had, that is said."""
    name = f"{owner['distribution']}/{owner['use']}"
    try:
        cls = plugins.find("head", name).load()
        options, mistakes = validate(options_model(cls), owner["options"])
        if options is None:
            raise PluginError("; ".join(f"{'.'.join(map(str, one.where))}: {one.message}" for one in mistakes))
    except PluginError as error:
        console.say(f"note: the metrics of head {name} {owner['version']} are absent here: {error}")
        return None
    return head_metrics(cls, values(options), f"head {name!r}")


def _tests_beside(path: Path) -> dict[str, Path]:
    """The test sets of the run that the bundle stands in, read from its YAML without loading any component."""
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


def _records(reader: Any, path: Path) -> Iterator[Record]:
    found: Iterator[Record] = reader.read(path)
    return found
