"""Show answers, tables and curves in a notebook."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from seqpipe.api.model import Model
from seqpipe.explain.html import STYLE, card, draw_answer, weight_cards

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


def style_html(content: str, *styles: Path) -> str:
    """Return HTML with stylesheets for it alone, by default the server's, light or dark as the notebook."""
    css = "".join(file.read_text(encoding="utf-8") for file in styles or [STYLE / "page.css"])
    variables = re.findall(r":root \{(.*?)\}", css, re.DOTALL)  # of each stylesheet the light ones, then the dark
    light, dark = ("".join(variables[start::2]) for start in (0, 1))
    css = css.replace(":root {", "& {").replace("body {", "& {")
    # Jupyter, Colab and VS Code name their theme, which may differ from that of the system.
    css += f'[data-jp-theme-light="true"] &, [theme="light"] &, .vscode-light & {{{light}color-scheme: light }}\n'
    css += f'[data-jp-theme-light="false"] &, [theme="dark"] &, .vscode-dark & {{{dark}color-scheme: dark }}\n'
    return f'<style>.seqpipe {{\n{css}}}</style>\n<div class="seqpipe"><div class="bundle">{content}</div></div>'
