"""The report as one self-contained HTML page in the style of the server's page, without scripts."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from seqpipe.answers.comparison import SPAN_KINDS, Row
from seqpipe.answers.metrics.numbers import format_score, metric_of, score_rows
from seqpipe.answers.types import Metric
from seqpipe.explain.html import STYLE
from seqpipe.features.vocabulary import replace_surrogates
from seqpipe.files import json_bytes, write
from seqpipe.report import plots
from seqpipe.report.analysis import BINS, calibration, confusion, errors, histogram, scored
from seqpipe.runtime.evaluate import headlines
from seqpipe.version import VERSION

STYLES = STYLE / "page.css", Path(__file__).with_name("page.css")
WORST = 20  # errors that are shown of each set
MOST_LABELS = 24  # of a confusion matrix
LONGEST, BEFORE = 600, 150  # characters of a text that are shown, and of those before its first error
_WORDS = re.compile(r"\s+|[^\W\u2e80-\uffff]+|.")  # each character of Chinese, Japanese and Korean by itself


@dataclass(frozen=True)
class Report(os.PathLike[str]):
    """A report: the path of its HTML file, and the page, which a notebook shows."""

    path: Path
    html: str = field(repr=False)

    def __fspath__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        style = "width: 100%; height: 45rem; border: 0"
        return f'<iframe title="Report" style="{style}" srcdoc="{escape(self.html)}"></iframe>'


def write_page(path: Path, content: Mapping[str, Any], metrics: Mapping[str, Metric], metric: str | None) -> Report:
    """Write the page; the template documents the keys of its content. `metric` selected the weights."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder, hues = Path(__file__).parent, dict[str, int]()
    icon = (STYLE / "icon.svg").read_text(encoding="utf-8")
    loader = FileSystemLoader(folder)
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    html = pages.get_template("page.html.jinja").render(
        content,
        style="".join(file.read_text(encoding="utf-8") for file in STYLES),
        icon=re.sub(r' xmlns="[^"]*"', ' width="28" height="28" aria-hidden="true"', icon).strip(),
        score_rows=partial(score_rows, metrics=metrics),
        headline=lambda scores: next(iter(headlines(scores, metric).items())),
        format_score=partial(format_score, metrics=metrics),
        is_percent=lambda name: metric_of(name, metrics).percent,
        hue=lambda label: round((255 + hues.setdefault(label, len(hues)) * 137.508) % 360),
        version=VERSION,
    )
    html = replace_surrogates(html).replace("\0", "\ufffd")
    write(path, html)
    return Report(path, html)


def curves(history: Sequence[Row], metric: str | None, metrics: Mapping[str, Metric]) -> list[str]:
    """Return the plots of a training by epoch: losses, the metric, learning rate, gradient norms by stage."""
    chosen = next((row["epoch"] for row in reversed(history) if row["best"]), None)

    def series(name: str, part: str = "", unit: float = 1.0) -> dict[int, float]:
        values = {row["epoch"]: (row.get(part, {}) if part else row).get(name) for row in history}
        return {epoch: unit * value for epoch, value in values.items() if value is not None}

    shown = {"Loss": {"train": series("loss"), "dev": series("loss", "dev")}}
    if metric and metric != "loss":
        unit = 100.0 if metric_of(metric, metrics).percent else 1.0
        values = {"train (sample)": series(metric, "train", unit), "dev": series(metric, "dev", unit)}
        shown[metric.replace("_", " ") + " in %" * (unit == 100)] = values
    shown["Learning rate"] = {"rate": series("lr")}
    stages = dict.fromkeys(stage for row in history for stage in row["gradients"])
    norms = {stage: {x: y for x, y in series(stage, "gradients").items() if y} for stage in stages}
    drawn = [plots.lines(title, values, chosen) for title, values in shown.items() if any(values.values())]
    return drawn + [plots.lines("Gradient norms", norms, chosen, log=True)] * any(norms.values())


def analyse(judged: Sequence[Row]) -> Row:
    """Return the analysis of one head's answers to a set, rows of `judge`, for the template."""
    pairs, wrong, counts = scored(judged), errors(judged), confusion(judged)
    measured, drawn, fields = calibration(pairs), list[str](), dict.fromkeys(row.get("field") for row in counts)
    if pairs:
        means = [(row["confidence"], row["accuracy"]) for row in measured["bins"] if row["count"]]
        drawn.append(plots.diagonal("Reliability", means, "mean probability", "share that is right", "o-"))
        by_score = histogram(pairs, [i / BINS for i in range(BINS + 1)])
        drawn.append(plots.stacked("Probability of right and wrong answers", by_score, "probability of the answer"))
    numbers = [(row["gold"], row["predicted"]) for row in judged if isinstance(row["predicted"], float)]
    if numbers:
        drawn.append(plots.diagonal("Numbers", numbers, "reference", "answer"))
    elif most := max(row["tokens"] for row in judged):
        edges = [0.5 + i * -(-most // BINS) for i in range(BINS + 1)]
        by_length = histogram([(row["tokens"], row["right"]) for row in judged], edges)
        drawn.append(plots.stacked("Length of right and wrong records", by_length, "tokens"))
    kinds = {kind: sum(row["count"] for row in counts if row.get("kind") == kind) for kind in SPAN_KINDS}
    return {
        "head": judged[0]["head"],
        "kinds": kinds if any(kinds.values()) else {},
        "confusions": [_matrix([row for row in counts if row.get("field") == name], name) for name in fields],
        "plots": drawn,
        "calibration": measured,
        "sure": [right for score, right in pairs if score > 0.9],
        "errors": [_error(row) for row in wrong[:WORST]],
        "wrong": len(wrong),
        "count": len(judged),
    }


def _matrix(rows: Sequence[Row], name: str | None) -> Row:
    """Return the counts of a confusion matrix, without columns if there are too many labels for one."""
    counts, gold, got = Counter[Any](), Counter[Any](), Counter[Any]()
    for row in rows:
        counts[row["gold"], row["predicted"]] += row["count"]
        gold[row["gold"]] += row["count"]
        got[row["predicted"]] += row["count"]
    labels = [label for label, _ in (gold + got).most_common() if label is not None]
    confused = [(*pair, count) for pair, count in counts.most_common() if pair[0] != pair[1]][:WORST]
    lines, columns = ([*labels, *[None] * (None in part)] for part in (gold, got))
    columns = columns if len(labels) <= MOST_LABELS else []
    return {"field": name, "counts": counts, "gold": gold, "lines": lines, "columns": columns, "confused": confused}


def _error(row: Row) -> Row:
    """Return a wrong answer: its place and score, and segments of text by title, each with a mark or None."""
    spans, text = [item for item in row["items"] if "gold_span" in item], row["text"]
    lines: dict[str, list[tuple[str, str | None]]] = {"reference": [], "answer": []}
    if spans:
        start = max(0, min((item["gold_span"] or item["predicted_span"])[1] for item in spans) - BEFORE)
        for name, key in (("reference", "gold_span"), ("answer", "predicted_span")):
            at, end = start, start + LONGEST
            for label, first, last in sorted((item[key] for item in spans if item[key]), key=lambda span: span[1:]):
                if at <= first < end:
                    lines[name] += [(text[at:first], None), (text[first:last], label)]
                    at = last
            lines[name] = [("…" * (start > 0), None), *lines[name], (text[at:end] + "…" * (end < len(text)), None)]
    else:
        # The words that differ are marked.
        gold, got = (_WORDS.findall(_plain(row[key])[:LONGEST]) for key in ("gold", "predicted"))
        for kind, a, b, c, d in SequenceMatcher(None, gold, got, autojunk=False).get_opcodes():
            lines["reference"].append(("".join(gold[a:b]), None if kind == "equal" else "del"))
            lines["answer"].append(("".join(got[c:d]), None if kind == "equal" else "ins"))
        lines = {"input": [(text[:LONGEST] + "…" * (len(text) > LONGEST), None)], **lines}
    score = max((item["score"] for item in row["items"] if item["score"] is not None), default=row["score"])
    return {"where": str(row["record"].get("where", "")).rpartition("/")[2], "score": score, "lines": lines}


def _plain(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return " | ".join(value)
    return value if isinstance(value, str) else "(none)" if value is None else json_bytes(value, default=str).decode()
