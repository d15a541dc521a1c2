"""The report of a run or of a bundle: collect its content, and write the page."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from seqpipe import files
from seqpipe.answers.metrics.numbers import format_score, metric_of, score_rows
from seqpipe.answers.registry import metric_types
from seqpipe.answers.types import Metric
from seqpipe.config.plugins import Plugins
from seqpipe.config.run_layout import BUNDLE, FACTS, REPORT, YAML
from seqpipe.console import Console
from seqpipe.errors import EnvError, UsageError
from seqpipe.pipeline.run import Run
from seqpipe.pipeline.scoring import open_bundle, open_target
from seqpipe.report.analysis import Row, data_facts, judge, training_findings
from seqpipe.report.page import Report, curves, data_tables, failures, page
from seqpipe.runtime.evaluate import answered, evaluate, headlines, score_answers
from seqpipe.runtime.model import Model
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.progress import outcome_lines

INSTALL = 'the report needs matplotlib and Jinja2: pip install "seqpipe-nlp[report]"'
SECONDS = 0.2  # for which the speed of a bundle is measured
QUIET = Console(-1)


def can_report() -> bool:
    """Return whether the libraries of the extra `report` are installed."""
    return bool(find_spec("matplotlib") and find_spec("jinja2"))


def report_run(run: Run, output: Path | None = None, by: str | None = None) -> Report:
    """Write the report of a run from its files; arguments and errors are those of `Run.report`."""
    artifacts, answers, outcome, facts = Artifacts.load(run.folder), run.answers, run.outcome, run.folder / FACTS
    is_exported = (run.bundle_folder / BUNDLE).exists()
    model = open_bundle(run.bundle_folder, "cpu", QUIET, Plugins()) if is_exported else None
    groups: Row = {}
    if by and (model is None or not answers):
        reason = "has no bundle yet" if model is None else "has no answers, since it is a language model"
        raise UsageError(f"--by: {run.folder} {reason}; use `seqpipe evaluate {run.folder} --by {by}`")
    if by and model:
        for name in dict.fromkeys(row["set"] for row in answers):
            pairs = [(row["record"], row["answer"]) for row in answers if row["set"] == name]
            groups[name] = score_answers(model.predictor, pairs, by=by)
    metrics = model.predictor.metric_types if model else metric_types(artifacts.task)
    content = {
        "name": run.folder.name,
        "scores": run.scores or {},
        "groups": groups,
        "judged": judge(artifacts.task, artifacts.featurizer, answers),
        "tiles": [(outcome["best_epoch"], f"chosen epoch of {outcome['epochs']}")] if outcome else [],
        "curves": curves(run.history, outcome.get("metric"), metrics),
        "findings": training_findings(run.history, outcome.get("metric")),
        "lines": outcome_lines(outcome, metrics, f"seqpipe run {run.folder / YAML}") if outcome else [],
        "data": data_tables(**files.read_json(facts)) if facts.exists() else None,
        "yaml": (run.folder / YAML).read_text(encoding="utf-8"),
    }
    return _write(output or run.folder / REPORT, content, metrics, outcome.get("metric"), model)


def report_bundle(bundle: Path, data: Path, output: Path | None = None, by: str | None = None) -> Report:
    """Write the report of a bundle on a data file; arguments and errors are those of `Bundle.report`."""
    model, (predictor, read, _) = open_bundle(bundle, "cpu", QUIET, Plugins()), open_target(bundle, "cpu", data, QUIET)
    records, pairs = [*read(data)], []
    if predictor.kind.is_generated:  # perplexity needs no answers
        scores = evaluate(predictor, records, by=by)
    else:
        pairs = [*answered(predictor, records)]
        scores = score_answers(predictor, pairs, by=by)
    rows = [{"set": data.name, "record": record, "answer": answer} for record, answer in pairs]
    facts = {data.name: data_facts(predictor.featurizer, predictor.task, records)}
    content = {
        "name": model.manifest.name,
        "scores": {data.name: scores[""]},
        "groups": {data.name: scores} if by else {},
        "judged": judge(predictor.task, predictor.featurizer, rows),
        **dict.fromkeys(("tiles", "curves", "findings", "lines", "yaml"), ()),
        "data": data_tables(facts, []),
    }
    return _write(output or Path(f"{data.stem}-report.html"), content, predictor.metric_types, None, model)


def _write(path: Path, content: Row, metrics: Mapping[str, Metric], metric: str | None, model: Model | None) -> Report:
    """Complete the content, write the page, and return the report."""
    if not can_report():
        raise EnvError(INSTALL)
    tiles = []
    for name, scores in content["scores"].items():
        score, value = next(iter(headlines(scores, metric).items()))
        unit = " %" * metric_of(score, metrics).percent
        tiles.append((f"{format_score(score, value, metrics)}{unit}", f"{score.replace('_', ' ')} on {name}"))
    content["analyses"] = {}
    judged: dict[tuple[str, str], list[Row]] = {}
    for row in content.pop("judged"):
        judged.setdefault((row["set"], row["head"]), []).append(row)
    for (name, head), rows in judged.items():
        analysis = failures(rows)
        content["analyses"].setdefault(name, []).append(analysis)
        if (error := analysis["calibration"]["ece"]) is not None and len(content["analyses"]) == 1:
            tiles.append((f"{100 * error:.1f} %", f"calibration error {head or 'on ' + name}"))
    tiles, bundle, versions = [*tiles, *content["tiles"]], [], []
    if model:
        manifest, size = model.manifest, sum(file.bytes for file in model.manifest.files.values())
        megabytes, rate = f"{size / 1e6:.3g} MB", _speed(model)
        tiles += [(megabytes, "bundle"), *([(f"{rate:,.3g}/s", "answers, one at a time")] if rate else [])]
        bundle = [("", "value"), ("size", megabytes), ("weights", manifest.parity.get("precision", "fp32"))]
        bundle.append(("sha256", model.sha256[:16]))
        made_with: Any = manifest.made_with
        versions = [("package", "version"), *made_with["packages"].items(), *made_with["components"].items()]
    groups = {
        name: score_rows(
            {**by_group[""], "labels": {group: scores for group, scores in by_group.items() if group}}, metrics
        )
        for name, by_group in content["groups"].items()
    }
    dated = {"Date": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")}
    html = page(
        {**content, "groups": groups, "tiles": tiles, "bundle": bundle, "versions": versions, "facts": dated}, metrics
    )
    files.write(path, html)
    return Report(path, html)


def _speed(model: Model) -> float | None:
    """Return the answers per second to the golden examples, one at a time; None without such examples."""
    examples = [example for example in model.manifest.golden if not example.options]
    start = 0.0
    for count, example in enumerate(itertools.cycle(examples)):
        if count and (passed := time.perf_counter() - start) > SECONDS:
            return count / passed
        model.answer_example(example)
        start = start if count else time.perf_counter()  # the first answer is slower
    return None
