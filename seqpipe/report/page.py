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
from seqpipe.evaluation.analysis import HISTOGRAM_BINS, calibration, confusion, errors, scored
from seqpipe.evaluation.scores import headlines
from seqpipe.explain.html import STYLE, draw_spans, icon
from seqpipe.features.vocabulary import replace_surrogates
from seqpipe.files import json_bytes, write
from seqpipe.version import VERSION

STYLES = STYLE / "page.css", Path(__file__).with_name("page.css")
WORST = 20  # errors that are shown of each set
MOST_LABELS = 24  # of a confusion matrix
SHOWN_CHARS, CHARS_BEFORE_ERROR = 600, 150  # characters of a text that are shown, and of those before its first error
_WORDS = re.compile(r"\s+|[^\W\u2e80-\uffff]+|.")  # each character of Chinese, Japanese and Korean by itself


@dataclass(frozen=True)
class HtmlReport(os.PathLike[str]):
    """A report: the path of its HTML file, and the page, which a notebook shows."""

    path: Path
    html: str = field(repr=False)

    def __fspath__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        style = "width: 100%; height: 45rem; border: 0"
        return f'<iframe title="Report" style="{style}" srcdoc="{escape(self.html)}"></iframe>'


def write_page(path: Path, content: Mapping[str, Any], metrics: Mapping[str, Metric], metric: str | None) -> HtmlReport:
    """Write the page; the template documents the keys of its content. `metric` selected the weights."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    html = pages.get_template("page.html.jinja").render(
        content,
        style="".join(file.read_text(encoding="utf-8") for file in STYLES),
        icon=icon(),
        score_rows=partial(score_rows, metrics=metrics),
        headline=lambda scores: next(iter(headlines(scores, metric).items())),
        format_score=partial(format_score, metrics=metrics),
        is_percent=lambda name: metric_of(name, metrics).percent,
        version=VERSION,
    )
    html = replace_surrogates(html).replace("\0", "\ufffd")
    write(path, html)
    return HtmlReport(path, html)


def curves(history: Sequence[Row], metric: str | None, metrics: Mapping[str, Metric]) -> list[str]:
    """Return the plots of a training by epoch: losses, the metric, learning rate, gradient norms by stage."""
    from seqpipe.report import plots

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
    shown["Gradient norms"] = norms
    drawn = {title: values for title, values in shown.items() if any(values.values())}
    return [plots.trends(title, values, chosen, log=values is norms) for title, values in drawn.items()]


def analyse(judged: Sequence[Row]) -> Row:
    """Return the analysis of one head's answers to a set, rows of `judge`, for the template."""
    from seqpipe.report import plots

    pairs, wrong, counts = scored(judged), errors(judged), confusion(judged)
    measured, drawn, fields = calibration(pairs), list[str](), dict.fromkeys(row.get("field") for row in counts)
    labels = [*dict.fromkeys(row[side] for row in counts for side in ("gold", "predicted"))]
    if pairs:
        means = [(row["confidence"], row["accuracy"]) for row in measured["bins"]]
        drawn.append(plots.diagonal("Reliability", means, "mean probability", "fraction that is right", "o-", (0, 1)))
        edges = [i / HISTOGRAM_BINS for i in range(HISTOGRAM_BINS + 1)]
        drawn.append(plots.histogram("Probability of right and wrong answers", pairs, edges, "probability of answers"))
    numbers = [(row["gold"], row["predicted"]) for row in judged if isinstance(row["predicted"], float)]
    if numbers:
        drawn.append(plots.diagonal("Numbers", numbers, "reference", "answer"))
    elif most := max(row["tokens"] for row in judged):
        edges = [0.5 + i * -(-most // HISTOGRAM_BINS) for i in range(HISTOGRAM_BINS + 1)]
        lengths = [(row["tokens"], row["right"]) for row in judged]
        drawn.append(plots.histogram("Length of right and wrong records", lengths, edges, "tokens"))
    kinds = {kind: sum(row["count"] for row in counts if row.get("kind") == kind) for kind in SPAN_KINDS}
    return {
        "head": judged[0]["head"],
        "kinds": kinds if any(kinds.values()) else {},
        "confusions": [_matrix([row for row in counts if row.get("field") == name], name) for name in fields],
        "plots": drawn,
        "calibration": measured,
        "sure": [right for score, right in pairs if score > 0.9],
        "errors": [_error(row, labels) for row in wrong[:WORST]],
        "wrong": len(wrong),
        "count": len(judged),
    }


NUMBER = re.compile(r"-?\d+(\.\d+)?")


def _matrix(rows: Sequence[Row], name: str | None) -> Row:
    """Return the counts of a confusion matrix, without columns if there are too many labels for one."""
    counts, gold, got = Counter[Any](), Counter[Any](), Counter[Any]()
    for row in rows:
        counts[row["gold"], row["predicted"]] += row["count"]
        gold[row["gold"]] += row["count"]
        got[row["predicted"]] += row["count"]
    labels = [label for label, _ in (gold + got).most_common() if label is not None]
    if all(NUMBER.fullmatch(str(label)) for label in labels):  # of a rating
        labels.sort(key=float)
    confused = [(*pair, count) for pair, count in counts.most_common() if pair[0] != pair[1]][:WORST]
    lines, columns = ([*labels, *[None] * (None in part)] for part in (gold, got))
    columns = columns if len(labels) <= MOST_LABELS else []
    return {"field": name, "counts": counts, "gold": gold, "lines": lines, "columns": columns, "confused": confused}


def _error(row: Row, labels: Sequence[str]) -> Row:
    """Return a wrong answer: its place and score, and HTML of its input, reference and answer by title."""
    spans, text, lines = [item for item in row["items"] if "gold_span" in item], row["text"], dict[str, str]()
    if spans:
        start = max(0, min((item["gold_span"] or item["predicted_span"])[1] for item in spans) - CHARS_BEFORE_ERROR)
        end, shift = start + SHOWN_CHARS, start - (start > 0)
        shown = "…" * (start > 0) + text[start:end] + "…" * (end < len(text))
        for title, key in (("reference", "gold_span"), ("answer", "predicted_span")):
            places = [item[key] for item in spans if item[key] and start < item[key][2] and item[key][1] < end]
            drawn = [{"label": x, "start": max(a, start) - shift, "end": min(b, end) - shift} for x, a, b in places]
            lines[title] = draw_spans(shown, drawn, labels)
    else:
        lines["input"] = escape(text[:SHOWN_CHARS] + "…" * (len(text) > SHOWN_CHARS))
        gold, got = (_WORDS.findall(_plain(row[key])[:SHOWN_CHARS]) for key in ("gold", "predicted"))
        for change, a, b, c, d in SequenceMatcher(None, gold, got, autojunk=False).get_opcodes():
            for title, tag, words in (("reference", "del", gold[a:b]), ("answer", "ins", got[c:d])):
                part = escape("".join(words))
                lines[title] = lines.get(title, "") + (part if change == "equal" else f"<{tag}>{part}</{tag}>")
    score = max((item["score"] for item in row["items"] if item["score"] is not None), default=row["score"])
    return {"where": str(row["record"].get("where", "")).rpartition("/")[2], "score": score, "lines": lines}


def _plain(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return " | ".join(value)
    return value if isinstance(value, str) else "(none)" if value is None else json_bytes(value, default=str).decode()
