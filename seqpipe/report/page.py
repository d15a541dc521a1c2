"""The report as one self-contained HTML page in the style of the server's page, without scripts."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from seqpipe.answers.metrics.numbers import metric_of, score_rows
from seqpipe.answers.types import Metric
from seqpipe.explain.html import STYLE
from seqpipe.features.vocabulary import replace_surrogates
from seqpipe.files import json_bytes
from seqpipe.report import plots
from seqpipe.report.analysis import BINS, SPAN_KINDS, Row, Span, calibration, confusion, errors, histogram, scored
from seqpipe.version import VERSION

WORST = 20  # errors that are shown of each set
MOST_LABELS = 24  # of a confusion matrix
LONGEST, BEFORE = 600, 150  # characters of a text that are shown, and of those before its first error


class Report(os.PathLike[str]):
    """A report: the path of its HTML file, and the page (`html`), which a notebook shows."""

    def __init__(self, path: Path, html: str):
        self.path, self.html = path, html

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Report({str(self.path)!r})"

    def _repr_html_(self) -> str:
        style = "width: 100%; height: 45rem; border: 0"
        return f'<iframe title="Report" style="{style}" srcdoc="{escape(self.html)}"></iframe>'


def page(content: Mapping[str, Any], metrics: Mapping[str, Metric]) -> str:
    """Return the page with this content, whose keys are the names in the template `page.html.jinja`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = Path(__file__).parent
    loader = FileSystemLoader(folder)
    template = Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("page.html.jinja")
    icon, hues = (STYLE / "icon.svg").read_text(encoding="utf-8"), dict[str, int]()
    html = template.render(
        content,
        style="".join((place / "page.css").read_text(encoding="utf-8") for place in (STYLE, folder)),
        icon=re.sub(r' xmlns="[^"]*"', ' width="28" height="28" aria-hidden="true"', icon).strip(),
        score_rows=partial(score_rows, metrics=metrics),
        hue=lambda label: round((255 + hues.setdefault(label, len(hues)) * 137.508) % 360),
        version=VERSION,
    )
    return replace_surrogates(html).replace("\0", "\ufffd")


def curves(history: Sequence[Row], metric: str | None, metrics: Mapping[str, Metric]) -> list[str]:
    """Return the plots of a training by epoch: losses, the metric, learning rate, gradient norms by stage."""
    rows = [row for row in history if "diverged" not in row]
    chosen = next((row["epoch"] for row in reversed(rows) if row["best"]), None)

    def series(part: str, name: str, unit: float = 1.0) -> dict[int, float]:
        values = {row["epoch"]: row.get(part, {}).get(name) for row in history}
        return {epoch: unit * value for epoch, value in values.items() if value}

    drawn = []
    if rows:
        loss = {row["epoch"]: row["loss"] for row in rows}
        drawn.append(plots.lines("Loss", {"train": loss, "dev": series("dev", "loss")}, chosen))
        drawn.append(plots.lines("Learning rate", {"rate": {row["epoch"]: row["lr"] for row in rows}}, chosen))
    if (
        metric
        and metric != "loss"
        and (dev := series("dev", metric, unit := 100.0 ** metric_of(metric, metrics).percent))
    ):
        title = metric.replace("_", " ") + " in %" * (unit == 100)
        drawn.insert(1, plots.lines(title, {"train (sample)": series("train", metric, unit), "dev": dev}, chosen))
    stages = dict.fromkeys(stage for row in history for stage in row.get("gradients", ()))
    if norms := {stage: values for stage in stages if (values := series("gradients", stage))}:
        drawn.append(plots.lines("Gradient norms", norms, chosen, log=True))
    return drawn


def failures(judged: Sequence[Row]) -> Row:
    """Return the analysis of one head's answers to a set, rows of `judge`, for the template."""
    pairs, wrong, counts = scored(judged), errors(judged), confusion(judged)
    kinds, measured, drawn = Counter[Any](), calibration(pairs), list[str]()
    for row in counts:
        kinds[row.get("kind")] += row["count"]
    if pairs:
        drawn.append(plots.reliability(measured["bins"]))
        by_score = histogram(pairs, [i / BINS for i in range(BINS + 1)])
        drawn.append(plots.stacked("Probability of right and wrong answers", by_score, "probability of the answer"))
    if most := max(row["tokens"] for row in judged):
        width = -(-most // BINS)
        edges = [0.5 + i * width for i in range(-(-most // width) + 1)]
        by_length = histogram([(row["tokens"], row["right"]) for row in judged], edges)
        drawn.append(plots.stacked("Length of right and wrong records", by_length, "tokens"))
    if numbers := [(row["gold"], row["predicted"]) for row in judged if isinstance(row["predicted"], float)]:
        drawn.append(plots.scatter(numbers))
    fields = dict.fromkeys(row.get("field") for row in counts)
    return {
        "head": judged[0]["head"],
        "kinds": {kind: kinds[kind] for kind in SPAN_KINDS} if kinds.keys() & {*SPAN_KINDS} else {},
        "confusions": [_matrix([row for row in counts if row.get("field") == field], field) for field in fields],
        "plots": drawn,
        "calibration": measured,
        "sure": [right for score, right in pairs if score > 0.9],
        "errors": [_error(row) for row in wrong[:WORST]],
        "wrong": len(wrong),
        "count": len(judged),
    }


def _matrix(rows: Sequence[Row], field: str | None) -> Row:
    """Return a confusion matrix, or the most frequent confusions if there are too many labels."""
    counts, gold, got = Counter[Any](), Counter[Any](), Counter[Any]()
    for row in rows:
        counts[row["gold"], row["predicted"]] += row["count"]
        gold[row["gold"]] += row["count"]
        got[row["predicted"]] += row["count"]
    labels = [label for label, _ in (gold + got).most_common() if label is not None]
    if len(labels) > MOST_LABELS:
        confused = [(*pair, count) for pair, count in counts.most_common() if pair[0] != pair[1]]
        return {"field": field, "columns": [], "rows": [("reference", "answer", "count"), *confused[:WORST]]}
    columns, lines = ([*labels, *[None] * (None in part)] for part in (got, gold))
    cells = {
        line: [(counts[line, label], (counts[line, label] / gold[line]) ** 0.5, line == label) for label in columns]
        for line in lines
        if gold[line]
    }
    return {"field": field, "columns": columns, "rows": [*cells.items()]}


def _error(row: Row) -> Row:
    """Return a wrong answer: its place and score, and segments of text by title, each with a mark or None."""
    spans = [item for item in row["items"] if "gold_span" in item]
    lines, text = {}, row["text"]
    if spans:
        start = max(0, min((item["gold_span"] or item["predicted_span"])[1] for item in spans) - BEFORE)
        for name, key in (("reference", "gold_span"), ("answer", "predicted_span")):
            lines[name] = _marked(text, [item[key] for item in spans if item[key]], start)
    else:
        gold, got = (_plain(row[key]) for key in ("gold", "predicted"))
        lines = {"input": [(text[:LONGEST] + "…" * (len(text) > LONGEST), None)], **_compared(gold, got)}
    score = max((item["score"] for item in row["items"] if item["score"] is not None), default=row["score"])
    return {"where": str(row["record"].get("where", "")).rpartition("/")[2], "score": score, "lines": lines}


def _marked(text: str, spans: Sequence[Span], start: int) -> list[tuple[str, str | None]]:
    parts: list[tuple[str, str | None]] = [("…" if start else "", None)]
    at, end = start, min(len(text), start + LONGEST)
    for label, first, last in sorted(spans, key=lambda span: span[1:]):
        if at <= first < end:
            parts += [(text[at:first], None), (text[first:last], label)]
            at = last
    return [*parts, (text[at:end] + "…" * (end < len(text)), None)]


def _plain(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return " | ".join(value)
    return value if isinstance(value, str) else "(none)" if value is None else json_bytes(value, default=str).decode()


def _compared(gold: str, got: str) -> dict[str, list[tuple[str, str | None]]]:
    """Return reference and answer, the words that differ marked."""
    left, right = (re.findall(r"\s+|\w+|\W", text[:LONGEST]) for text in (gold, got))
    lines: dict[str, list[tuple[str, str | None]]] = {"reference": [], "answer": []}
    for kind, a, b, c, d in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        lines["reference"].append(("".join(left[a:b]), None if kind == "equal" else "del"))
        lines["answer"].append(("".join(right[c:d]), None if kind == "equal" else "ins"))
    return lines


def data_tables(sets: Mapping[str, Row], warnings: Sequence[str]) -> Row:
    """Return the facts about each set, and the counts of labels, as rows of tables."""
    rows: list[Any] = [("", "records", "mean length", "longest", "unknown tokens", "in train too", "almost")]
    for name, known in sets.items():
        lengths, unknown = known.get("lengths", {}), known.get("unknown")
        spread = [f"{lengths[key]:.4g}" if key in lengths else None for key in ("mean", "most")]
        repeated = known.get("in_train"), known.get("like_train")
        shown = None if unknown is None else f"{100 * unknown:.2f} %"
        rows.append((name, f"{known['records']:,}", *spread, shown, *repeated))
    tables = {}
    for head in dict.fromkeys(head for known in sets.values() for head in known.get("labels", ())):
        by_set = {name: known["labels"][head] for name, known in sets.items() if head in known.get("labels", ())}
        labels = dict.fromkeys(label for counts in by_set.values() for label in counts)
        cells = [(label, *(counts.get(label, 0) for counts in by_set.values())) for label in [*labels][:200]]
        tables[f"{len(labels):,} labels{f' of {head}' * bool(head)}"] = [("", *by_set), *cells]
    return {"rows": rows, "labels": tables, "warnings": warnings}
