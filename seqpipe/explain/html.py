"""Render an Explanation as one self-contained HTML page, without scripts, images or external resources."""

from __future__ import annotations

from html import escape
from pathlib import Path

from seqpipe.answers.pointers import POLYGON
from seqpipe.errors import UsageError
from seqpipe.explain.views import Row, views
from seqpipe.features.vocabulary import replace_surrogates
from seqpipe.files import json_bytes, write
from seqpipe.runtime.explanation import Attention, Explanation, Figure

MOST_CELLS = 40_000  # of all the matrices of one attention; browsers crawl beyond
SIDE, EDGE, DOT = 480, 40, 5  # pixels of the square of points, its margin, and a point
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


def check_ending(path: Path) -> None:
    """Raise UsageError if a file of this name is neither HTML nor JSON."""
    suffix = path.suffix.lower()
    if suffix not in (".html", ".json"):
        fix = f"write {path.stem}.html, which a browser shows and prints, or {path.stem}.json"
        raise UsageError(f"-o {path}: a heat map is a page (.html) or data (.json); {fix}")


def draw(explanation: Explanation, path: Path) -> None:
    """Write the file atomically; UsageError if its ending is neither .html nor .json."""
    check_ending(path)
    if path.suffix.lower() == ".html":
        write(path, page(explanation).encode())
    else:
        write(path, json_bytes(explanation.data(), indent=1) + b"\n")


def page(explanation: Explanation) -> str:
    """Return the page; all strings of the text and the answer are escaped."""
    answer = "<br>".join(map(_safe, explanation.answer_lines))
    parts = [] if explanation.figure is None else [_figure(explanation.figure)]
    for view in views(explanation):
        # The legend says what the darkest shade stands for, as far as that is one number.
        is_one_number = view.words is not None and view.sentences is None
        greatest = f"{view.words.weights.max(initial=0.0):.6f}" if view.words and is_one_number else "the most"
        legend = f'<p class="legend">0 <span class="ramp"></span> {greatest} · {view.legend}</p>'
        rows = "".join(_row(row) for row in view.rows(explanation.text))
        shape = "rows" if view.sentences else ""
        parts.append(
            f'<section>\n<h2>{_safe(view.title)}</h2>\n{legend}\n<div class="{shape}">{rows}</div>\n</section>\n'
        )
    parts += [_pairs(explanation.text, a) for a in explanation.attentions if a.is_matrix]
    for name, origins in explanation.copied.items():
        # Each word that was written, shaded by the probability that it was copied, and where it stands in the text.
        lines = "".join(
            f'<tr><th><mark style="--a:{1 - origin.generating:.3f}">{_safe(row[0])}</mark></th>'
            f'<td class="told">{row[1]}</td><td class="told">{_safe(row[2])}</td></tr>'
            for origin, row in zip(origins, explanation.origin_rows(origins), strict=True)
        )
        head = "<tr><th></th><th>generated</th><th>stands in the text as</th></tr>"
        legend = '<p class="legend">shade: the probability that the word was copied, not generated</p>'
        parts.append(f"<section>\n<h2>{_safe(name)}</h2>\n{legend}\n<table>{head}{lines}</table>\n</section>\n")
    return (
        '<!doctype html>\n<html>\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{_safe(explanation.answer_lines[0])}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{answer}</h1>\n{''.join(parts)}</body>\n</html>\n"
    )


def _figure(figure: Figure) -> str:
    """Draw the points and the path through them in a square, with equal units on both axes."""
    plane = [(row[0], row[1] if len(row) > 1 else 0.0) for row in figure.points]
    lows, highs = ([pick(axis) for axis in zip(*plane, strict=True)] for pick in (min, max))
    unit = max(highs[0] - lows[0], highs[1] - lows[1]) or 1.0
    left, lower = ((low + high) / 2 - unit / 2 for low, high in zip(lows, highs, strict=True))
    # In SVG the second axis points downward.
    places = [(EDGE + SIDE * (x - left) / unit, EDGE + SIDE * (1 - (y - lower) / unit)) for x, y in plane]
    is_filled = figure.style == POLYGON
    parts = []
    if len(figure.way) > 1:
        way = " ".join(f"{places[i][0]:.1f},{places[i][1]:.1f}" for i in figure.way)
        parts.append(f'<polyline class="way{" polygon" if is_filled else ""}" points="{way}"/>')
    for i, (x, y) in enumerate(places):
        is_first = i in figure.way[:1]
        style = "first" if is_first else "chosen" if i in figure.way else "point"
        parts.append(f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{DOT + 2 * is_first}"/>')
        parts.append(f'<text x="{x + 8:.1f}" y="{y - 8:.1f}">{i}</text>')
    way = "polygon" if is_filled else "way"
    title = f"{len(figure.points)} points and the {way} through {len({*figure.way})} of them"
    size = SIDE + 2 * EDGE
    label = f'role="img" aria-label="{title}"'
    svg = f'<svg viewBox="0 0 {size} {size}" width="{size}" {label}>{"".join(parts)}</svg>'
    return f"<section>\n<h2>{title}</h2>\n<figure>{svg}</figure>\n</section>\n"


def _row(row: Row) -> str:
    bar = ""
    if row.weight is not None:
        width = f"{5 * row.share:.2f}rem"
        bar = f'<div class="bar" title="{row.weight:.6f}"><i style="width:{width}"></i>{row.weight:.4f}</div>'
    markup = ""
    for piece in row.pieces:
        if piece.weight is None:
            markup += _safe(piece.text)
        else:
            markup += f'<mark title="{piece.weight:.6f}" style="--a:{piece.shade:.3f}">{_safe(piece.text)}</mark>'
    return f'{bar}<p class="text" dir="auto">{markup}</p>'


def _pairs(text: str, attention: Attention) -> str:
    """Render the mean of the heads and each head as a matrix, in which a row attends to its columns."""
    heads, *sides = attention.weights.shape
    fit = min(max(sides), int((MOST_CELLS / (heads + 1)) ** 0.5))
    words = [_safe(text[a:b]) for a, b in attention.places[:fit]]
    rows = words if attention.written is None else [_safe(token) for token in attention.written[:fit]]
    cut = f"; the first {fit:,} of {max(sides):,} are shown" if fit < max(sides) else ""
    matrices = attention.weights if heads == 1 else [attention.mean, *attention.weights]
    figures = ""
    for number, weights in enumerate(matrices):
        name = "one head" if heads == 1 else f"head {number}" if number else "mean of the heads"
        most = float(weights.max(initial=0.0))
        caption = f'{name}: 0 <span class="ramp"></span> {most:.6f}'
        head = "".join(f"<th>{word}</th>" for word in words)
        lines = ""
        for row, row_weights in zip(rows, weights[: len(rows), : len(words)].tolist(), strict=True):
            cells = "".join(
                f'<td title="{row} → {column}: {weight:.6f}" style="--a:{weight / most if most else 0:.3f}"></td>'
                for column, weight in zip(words, row_weights, strict=True)
            )
            lines += f"<tr><th>{row}</th>{cells}</tr>"
        table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{lines}</tbody></table>"
        figures += f"<figure><figcaption>{caption}</figcaption>{table}</figure>\n"
    return f"<section>\n<h2>{_safe(attention.title)}{cut})</h2>\n{figures}</section>\n"


def _safe(text: str) -> str:
    return escape(replace_surrogates(text).replace("\0", "\ufffd"))  # which no HTML file can hold
