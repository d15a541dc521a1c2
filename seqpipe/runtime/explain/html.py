"""An Explanation in, one HTML page out that needs nothing else: no scripts, no pictures, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

import numpy as np

from seqpipe.features.vocabulary import replace_surrogates
from seqpipe.runtime.explain.figures import Figure
from seqpipe.runtime.explain.maps import Attention, Explanation
from seqpipe.runtime.explain.points import svg
from seqpipe.runtime.explain.views import Piece, Row, View, views

MOST_CELLS = 40_000  # of all the matrices of one attention; browsers crawl beyond
_STYLE = """
:root { color-scheme: light dark; --heat: 255 145 0; }
@media (prefers-color-scheme: dark) { :root { --heat: 190 90 0; } }
body { font: 16px/1.7 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  background: Canvas; color: CanvasText; }
h1 { font-size: 1.2rem; } h2 { font-size: 1rem; margin-top: 2rem; }
.legend, figcaption { color: color-mix(in srgb, CanvasText 70%, Canvas); font-size: .85rem; }
.ramp { display: inline-block; width: 6rem; height: .8em; vertical-align: baseline;
  background: linear-gradient(to right, transparent, rgb(var(--heat))); border: 1px solid GrayText; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
.rows { display: grid; grid-template-columns: 9rem 1fr; column-gap: 1rem; }
.bar { font-size: .8rem; } .bar i { display: inline-block; height: .8em; margin-right: .4em;
  background: rgb(var(--heat)); }
mark { background: rgb(var(--heat) / var(--a)); color: inherit; border-radius: 3px; }
figure { margin: 1rem 0; overflow-x: auto; }
table { border-collapse: collapse; font-size: .8rem; }
td { width: 1.1rem; min-width: 1.1rem; height: 1.1rem; padding: 0; background: rgb(var(--heat) / var(--a)); }
td.told { background: none; padding: 0 .6em; font-variant-numeric: tabular-nums; }
th { font-weight: normal; text-align: right; padding: 0 .4em; white-space: nowrap; }
svg { max-width: 100%; height: auto; font-size: 14px; fill: CanvasText; }
.way { fill: none; stroke: rgb(var(--heat)); stroke-width: 2; } .polygon { fill: rgb(var(--heat) / .15); }
.point { fill: GrayText; } .chosen, .first { fill: rgb(var(--heat)); } .first { stroke: CanvasText; stroke-width: 2; }
thead th { writing-mode: vertical-rl; transform: rotate(180deg); text-align: left; padding: .4em 0; }
"""


def page(explanation: Explanation) -> str:
    """The page; every string of the text and the answer is escaped."""
    answer = "<br>".join(map(_safe, explanation.answer_lines))
    parts = [] if explanation.figure is None else [_figure(explanation.figure)]
    parts += [_view(explanation.text, view) for view in views(explanation)]
    parts += [_pairs(explanation.text, a) for a in explanation.attentions if a.is_matrix]
    parts += [_copied(explanation, name) for name in explanation.copied]
    return (
        '<!doctype html>\n<html>\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{_safe(explanation.answer_lines[0])}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{answer}</h1>\n{''.join(parts)}</body>\n</html>\n"
    )


def _copied(explanation: Explanation, name: str) -> str:
    """Each word that was written, shaded by the probability that it was copied, and where it stands in the text."""
    origins = explanation.copied[name]
    lines = "".join(
        f'<tr><th><mark style="--a:{1 - origin.generating:.3f}">{_safe(row[0])}</mark></th>'
        f'<td class="told">{row[1]}</td><td class="told">{_safe(row[2])}</td></tr>'
        for origin, row in zip(origins, explanation.origin_rows(origins), strict=True)
    )
    head = "<tr><th></th><th>generated</th><th>stands in the text as</th></tr>"
    legend = '<p class="legend">shade: the probability that the word was copied, not generated</p>'
    return f"<section>\n<h2>{_safe(name)}</h2>\n{legend}\n<table>{head}{lines}</table>\n</section>\n"


def _figure(figure: Figure) -> str:
    return f"<section>\n<h2>{_safe(figure.title)}</h2>\n<figure>{svg(figure)}</figure>\n</section>\n"


def _view(text: str, view: View) -> str:
    legend = f'<p class="legend">0 <span class="ramp"></span> {_greatest(view)} · {view.legend}</p>'
    rows = "".join(_row(row) for row in view.rows(text))
    shape = "rows" if view.sentences else ""
    return f'<section>\n<h2>{_safe(view.title)}</h2>\n{legend}\n<div class="{shape}">{rows}</div>\n</section>\n'


def _greatest(view: View) -> str:
    """What the darkest shade stands for, as far as that is one number."""
    if view.words is None or view.sentences is not None:
        return "the most"
    return f"{view.words.weights.max(initial=0.0):.6f}"


def _row(row: Row) -> str:
    bar = ""
    if row.weight is not None:
        width = f"{5 * row.share:.2f}rem"
        bar = f'<div class="bar" title="{row.weight:.6f}"><i style="width:{width}"></i>{row.weight:.4f}</div>'
    return f'{bar}<p class="text" dir="auto">{"".join(map(_piece, row.pieces))}</p>'


def _piece(piece: Piece) -> str:
    if piece.weight is None:
        return _safe(piece.text)
    return f'<mark title="{piece.weight:.6f}" style="--a:{piece.shade:.3f}">{_safe(piece.text)}</mark>'


def _pairs(text: str, attention: Attention) -> str:
    """The mean of the heads and each head as a matrix, a row looking at its columns."""
    heads, *sides = attention.weights.shape
    fit = min(max(sides), int((MOST_CELLS / (heads + 1)) ** 0.5))
    words = [_safe(text[a:b]) for a, b in attention.places[:fit]]
    rows = words if attention.written is None else [_safe(token) for token in attention.written[:fit]]
    cut = f"; the first {fit:,} of {max(sides):,} are shown" if fit < max(sides) else ""
    figures = "".join(_figures(attention, rows, words))
    return f"<section>\n<h2>{_safe(attention.title)}{cut})</h2>\n{figures}</section>\n"


def _figures(attention: Attention, rows: list[str], words: list[str]) -> Iterator[str]:
    shown = attention.weights if len(attention.weights) == 1 else [attention.mean, *attention.weights]
    for number, weights in enumerate(shown):
        name = "one head" if len(shown) == 1 else f"head {number}" if number else "mean of the heads"
        most = float(weights.max(initial=0.0))
        caption = f'{name}: 0 <span class="ramp"></span> {most:.6f}'
        yield f"<figure><figcaption>{caption}</figcaption>{_matrix(weights, rows, words, most)}</figure>\n"


def _matrix(weights: np.ndarray, rows: list[str], columns: list[str], most: float) -> str:
    head = "".join(f"<th>{word}</th>" for word in columns)
    lines = []
    for word, row in zip(rows, weights[: len(rows), : len(columns)].tolist(), strict=True):
        cells = "".join(
            f'<td title="{word} → {column}: {w:.6f}" style="--a:{w / most if most else 0:.3f}"></td>'
            for column, w in zip(columns, row, strict=True)
        )
        lines.append(f"<tr><th>{word}</th>{cells}</tr>")
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _safe(text: str) -> str:
    return escape(replace_surrogates(text).replace("\0", "\ufffd"))  # which no HTML file can hold
