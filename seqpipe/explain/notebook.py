"""Show answers, tables and curves in a notebook."""

from __future__ import annotations

import io
import re
from typing import Any

from seqpipe.explain.html import STYLE, card, draw_answer, weight_cards
from seqpipe.files import Rows
from seqpipe.runtime.model import Model

MOST_LABELS = 5  # labels with their probabilities, if the caller does not choose


class Drawing:
    """Answers drawn on their texts: a picture in a notebook, lines of text elsewhere."""

    def __init__(self, html: str, text: str):
        self._html, self._text = html, text

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html


def show(model: Model, text: Any, **options: Any) -> Drawing:
    """Answer a text, record, or list of them, and draw the answer: spans in the text, labels as bars, attention.

    `options` are decode options of the bundle, such as `n_best=3`. Without them up to five labels are shown.
    """
    kind, html, lines = model.predictor.kind, "", list[str]()
    for head, part in kind.parts.items():
        name = f"{head}.n_best".removeprefix(".")
        if part.drawing["as"] == "label" and name in kind.answer_options:
            options.setdefault(name, min(MOST_LABELS, len(part.labels)))
    for item in text if isinstance(text, list) else [text]:
        record = model.record(item)
        explanation = model.explain(record, **options) if model.explains else None
        answer = explanation.answer if explanation else model(record, **options)
        doc = model.predictor.docs([record])[0]
        html += card("Answer", draw_answer(kind, answer, doc)) + (weight_cards(explanation) if explanation else "")
        lines += [doc.text, *(f"  {line}" for line in kind.lines(answer))]
    return Drawing(style_html(html), "\n".join(lines))


def style_html(content: str) -> str:
    """Return HTML with the stylesheet of the server's page for it alone, light or dark as the notebook."""
    css = (STYLE / "page.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    css = css.replace(":root {", "& {").replace("body {", "& {")
    # Jupyter, Colab and VS Code name their theme, which may differ from that of the system.
    css += f'[data-jp-theme-light="true"] &, [theme="light"] &, .vscode-light & {{{light}color-scheme: light }}\n'
    css += f'[data-jp-theme-light="false"] &, [theme="dark"] &, .vscode-dark & {{{dark}color-scheme: dark }}\n'
    return f'<style>.seqpipe {{\n{css}}}</style>\n<div class="seqpipe"><div class="bundle">{content}</div></div>'


def draw_curves(epochs: Rows) -> str:
    """Draw the losses and the scores of epochs as curves, with a line at the best; without matplotlib as a table."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        return epochs._repr_html_() + '<p class="help">For curves: pip install "seqpipe-nlp[report]"</p>'
    names = [name for name in epochs[0] if name not in ("epoch", "best")]
    losses = [name for name in names if name.endswith("loss")]
    panels, svg = [losses, *[[name] for name in names if name not in losses]], io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
        figure = Figure((4.5 * len(panels), 2.8), layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            for name in panel:
                axes.plot([row["epoch"] for row in epochs], [row[name] for row in epochs], marker=".", label=name)
            for best in [row["epoch"] for row in epochs if row["best"]][-1:]:
                axes.axvline(best, color="gray", linestyle=":")
            axes.set_xlabel("epoch; dotted: the best")
            axes.legend(frameon=False)
        figure.savefig(svg, format="svg", transparent=True)
    curves = svg.getvalue().partition("<svg")[2].replace("#000000", "currentColor")
    label = f'role="img" aria-label="Curves of {len(epochs)} epochs" style="fill: currentColor"'
    return f'<div class="scrolls" {label}><svg style="max-width: 100%; height: auto"{curves}</div>'
