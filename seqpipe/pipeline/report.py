"""The report of a run or of a bundle: collect its content, and write the page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from timeit import Timer
from typing import Any

from seqpipe import files
from seqpipe.answers.comparison import Row
from seqpipe.answers.registry import metric_types
from seqpipe.config.plugins import Plugins
from seqpipe.config.run_layout import BUNDLE, FACTS, REPORT, YAML
from seqpipe.errors import EnvError, UsageError
from seqpipe.features.document import Record
from seqpipe.files import Rows
from seqpipe.pipeline.run import Run
from seqpipe.pipeline.scoring import QUIET, open_bundle, open_target
from seqpipe.report.analysis import data_facts, judge, training_findings
from seqpipe.report.page import Report, analyse, curves, write_page
from seqpipe.runtime.evaluate import answered, score_answers
from seqpipe.runtime.model import Model
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.progress import outcome_lines

SECONDS = 0.1  # for which the speed of a bundle is measured


def report_run(
    run: Run,
    output: Path | None = None,
    by: str | None = None,
    perturb: Sequence[str] = (),
    swap: Sequence[tuple[str, str]] = (),
) -> Report:
    """Write the report of a run from its files; arguments and errors are those of `Run.report`."""
    artifacts, answers, outcome, facts = Artifacts.load(run.folder), run.answers, run.outcome, run.folder / FACTS
    metric = outcome.get("metric")
    model = open_bundle(run.bundle_folder, "cpu", QUIET, Plugins()) if (run.bundle_folder / BUNDLE).exists() else None
    groups: dict[str, Any] = {}
    tables: dict[str, Rows] = {}
    if by or perturb or swap:
        if model is None or not answers:
            reason = "has no bundle yet" if model is None else "has no answers, since it is a language model"
            raise UsageError(f"by, perturb, swap: {run.folder} {reason}; use `seqpipe evaluate {run.folder}`")
        for name in dict.fromkeys(row["set"] for row in answers):
            of_set = [(row["record"], row["answer"]) for row in answers if row["set"] == name]
            if by:
                groups[name] = score_answers(model.predictor, of_set, by=by)
            tables |= _robustness(model, name, [record for record, _ in of_set], perturb, swap)
    metrics = model.predictor.metric_types if model else metric_types(artifacts.task)
    content = _content(model, [*judge(artifacts.task, artifacts.featurizer, answers)]) | {
        "name": run.folder.name,
        "scores": run.scores or {},
        "groups": groups,
        "robustness": tables,
        "outcome": outcome,
        "curves": curves(run.history, metric, metrics),
        "findings": training_findings(run.history, metric),
        "lines": outcome_lines(outcome, metrics, f"seqpipe run {run.folder / YAML}") if outcome else [],
        "data": files.read_json(facts) if facts.exists() else {"sets": {}, "warnings": []},
        "yaml": (run.folder / YAML).read_text(encoding="utf-8"),
    }
    return write_page(output or run.folder / REPORT, content, metrics, metric)


def report_bundle(
    bundle: Path,
    data: Path,
    output: Path | None = None,
    by: str | None = None,
    perturb: Sequence[str] = (),
    swap: Sequence[tuple[str, str]] = (),
) -> Report:
    """Write the report of a bundle on a data file; arguments and errors are those of `Bundle.report`."""
    model, (predictor, read, _) = open_bundle(bundle, "cpu", QUIET, Plugins()), open_target(bundle, "cpu", data, QUIET)
    records = [*read(data)]
    pairs = [*answered(predictor, records)]
    scores = score_answers(predictor, pairs, by=by)
    rows = [{"set": data.name, "record": record, "answer": answer} for record, answer in pairs]
    content = _content(model, [*judge(predictor.task, predictor.featurizer, rows)]) | {
        "name": model.manifest.name,
        "scores": {data.name: scores[""]},
        "groups": {data.name: scores} if by else {},
        "robustness": _robustness(model, data.name, records, perturb, swap),
        "data": {"sets": {data.name: data_facts(predictor.featurizer, predictor.task, records)}, "warnings": []},
        **dict.fromkeys(("outcome", "curves", "findings", "lines", "yaml"), ()),
    }
    return write_page(output or Path(f"{data.stem}-report.html"), content, predictor.metric_types, None)


def _robustness(
    model: Model, name: str, records: Sequence[Record], perturb: Sequence[str], swap: Sequence[tuple[str, str]]
) -> dict[str, Rows]:
    """Return the rows of `Model.robustness` and `Model.swap` on a set, as far as they are asked for."""
    tables = {f"{name}, perturbed texts": model.robustness(records, perturb)} if perturb else {}
    return tables | {f"{name}, swapped words": model.swap(records, swap)} if swap else tables


def _content(model: Model | None, judged: Sequence[Row]) -> dict[str, Any]:
    """Return the content of a report about these answers and the bundle; EnvError without the libraries."""
    if not (find_spec("matplotlib") and find_spec("jinja2")):
        raise EnvError('the report needs matplotlib and Jinja2: pip install "seqpipe-nlp[report]"')
    analyses: dict[str, list[Row]] = {name: [] for name in dict.fromkeys(row["set"] for row in judged)}
    for name, head in dict.fromkeys((row["set"], row["head"]) for row in judged):
        analyses[name].append(analyse([row for row in judged if (row["set"], row["head"]) == (name, head)]))
    rate = None
    if model and (golden := [example for example in model.manifest.golden if not example.options]):
        examples = cycle(golden)
        timer = Timer(lambda: model.answer_example(next(examples)))
        timer.timeit(1)  # the first answer is slower
        count = 1 + int(SECONDS / timer.timeit(1))
        rate = count / timer.timeit(count)
    return {"analyses": analyses, "model": model, "rate": rate, "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M}"}
