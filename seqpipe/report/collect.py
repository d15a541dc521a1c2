"""The report of a run or of a bundle: collect its content, and write the page."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from timeit import Timer
from typing import Any

from seqpipe import files
from seqpipe.answers.answer_types import Answer
from seqpipe.answers.comparison import Row
from seqpipe.answers.registry import task_metrics
from seqpipe.answers.task import Task
from seqpipe.answers.types import Pair
from seqpipe.config.plugins import Plugins
from seqpipe.config.run_layout import BUNDLE, FACTS, REPORT, YAML
from seqpipe.console import Console
from seqpipe.errors import EnvError, UsageError, install_command
from seqpipe.evaluation.analysis import data_facts, judge, training_findings
from seqpipe.evaluation.scores import answered, robustness, score_answers
from seqpipe.evaluation.scores import swap as swap_words
from seqpipe.evaluation.significance import score_contexts
from seqpipe.features.document import Record
from seqpipe.features.sources import InputSource
from seqpipe.files import Rows
from seqpipe.report.page import HtmlReport, analyse, curves, write_page
from seqpipe.runs.results import RunFolder
from seqpipe.runs.scoring import QUIET, open_target, open_with_metrics
from seqpipe.runtime.opened import OpenedBundle
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.progress import outcome_lines

TIMED_SECONDS = 0.1  # for which the speed of a bundle is measured


Pairs = Sequence[tuple[str, str]]  # of words that are swapped


def report_run(
    run: RunFolder, output: Path | None = None, by: str | None = None, perturb: Sequence[str] = (), swap: Pairs = ()
) -> HtmlReport:
    """Write the report of a run from its files; arguments and errors are those of `Run.report`."""
    artifacts, outcome, facts = Artifacts.load(run.folder), run.outcome, run.folder / FACTS
    metric, sets = outcome.get("metric"), dict[str, Any]()
    for row in run.answers:
        sets.setdefault(row["set"], []).append((row["record"], row["answer"]))
    model = (
        open_with_metrics(run.bundle_folder, "cpu", QUIET, Plugins()) if (run.bundle_folder / BUNDLE).exists() else None
    )
    if (by or perturb or swap) and not (model and sets):
        reason = "has no answers, since it is a language model" if model else "has no bundle yet"
        raise UsageError(f"by, perturb, swap: {run.folder} {reason}; use `seqpipe evaluate {run.folder}`")
    metrics = model.predictor.metric_types if model else task_metrics(artifacts.task)
    contexts, findings = run.contexts, training_findings(run.history, metric)
    content = _content(model, artifacts.task, artifacts.featurizer, sets, by, perturb, swap) | {
        "name": run.folder.name,
        "scores": run.scores or {},
        "outcome": outcome,
        "curves": curves(run.history, metric, metrics),
        # Advice about the size of a model that has learned nothing would mislead.
        "findings": [] if any(of_set[0].is_chance for of_set in contexts.values()) else findings,
        "contexts": contexts,
        "lines": outcome_lines(outcome, metrics, f"seqpipe run {run.folder / YAML}") if outcome else [],
        "data": files.read_json(facts) if facts.exists() else {"sets": {}, "warnings": []},
        "yaml": (run.folder / YAML).read_text(encoding="utf-8"),
    }
    return write_page(output or run.folder / REPORT, content, metrics, metric)


def report_bundle(
    bundle: Path, data: Path, output: Path | None, by: str | None, perturb: Sequence[str], swap: Pairs
) -> HtmlReport:
    """Write the report of a bundle on a data file; arguments and errors are those of `Bundle.report`."""
    model, opened = open_with_metrics(bundle, "cpu", QUIET, Plugins()), open_target(bundle, "cpu", data, QUIET)
    predictor, records = opened.predictor, [*opened.read(data)]
    pairs, compared = [*answered(predictor, records)], list[Pair]()
    scores = score_answers(predictor, pairs, pairs=compared)[""]
    task, featurizer = predictor.task, predictor.featurizer
    content = _content(model, task, featurizer, {data.name: pairs}, by, perturb, swap) | {
        "name": model.manifest.name,
        "scores": {data.name: scores},
        "contexts": {data.name: score_contexts(predictor, compared, scores)},
        "data": {"sets": {data.name: data_facts(featurizer, task, records)}, "warnings": []},
        **dict.fromkeys(("outcome", "curves", "findings", "lines", "yaml"), ()),
    }
    return write_page(output or Path(f"{data.stem}-report.html"), content, predictor.metric_types, None)


def _content(
    model: OpenedBundle | None,
    task: Task,
    featurizer: InputSource,
    sets: Mapping[str, Sequence[tuple[Record, Answer]]],
    by: str | None,
    perturb: Sequence[str],
    swap: Pairs,
) -> dict[str, Any]:
    """Return the content of a report about the answers to sets and the bundle; EnvError without the libraries."""
    if not (find_spec("matplotlib") and find_spec("jinja2")):
        raise EnvError(f"the report needs matplotlib and Jinja2: {install_command('report')}")
    analyses: dict[str, list[Row]] = {}
    groups, changes = dict[str, Any](), dict[str, Rows]()
    for name, pairs in sets.items():
        rows = [{"set": name, "record": record, "answer": answer} for record, answer in pairs]
        by_head = defaultdict[str, list[Row]](list)
        for row in judge(task, featurizer, rows):
            by_head[row["head"]].append(row)
        analyses |= {name: [*map(analyse, by_head.values())]} if by_head else {}
        records = [record for record, _ in pairs]
        if model and by:
            groups[name] = score_answers(model.predictor, pairs, by=by)
        if model and perturb:
            changes[f"{name}, perturbed texts"] = robustness(model.predictor, records, perturb)
        if model and swap:
            changes[f"{name}, swapped words"] = swap_words(model.predictor, records, swap)
    rate = None
    if model and (golden := [example for example in model.manifest.golden if not example.options]):
        examples = cycle(golden)
        timer = Timer(lambda: model.answer_example(next(examples)))
        timer.timeit(1)  # the first answer is slower
        count = 1 + int(TIMED_SECONDS / timer.timeit(1))
        rate = count / timer.timeit(count)
    measured = {"analyses": analyses, "groups": groups, "robustness": changes, "model": model, "rate": rate}
    return {**measured, "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M}"}


def write_report(run: RunFolder, console: Console) -> None:
    """Write the report of a finished run, or print why there is none; SEQPIPE_REPORT=off writes none."""
    if os.environ.get("SEQPIPE_REPORT", "").lower() == "off":
        return
    try:
        console.say(f"\n{report_run(run).path}: where the model is right and wrong")
    except EnvError as error:  # matplotlib is not installed
        console.say(f"\nno {REPORT}: {error}")
    except Exception as error:  # of a plotting library, or of a plugin's metrics
        console.warn(f"no {REPORT}: {type(error).__name__}: {error}; `seqpipe --debug report {run.folder}` shows where")
