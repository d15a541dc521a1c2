"""Render answers and explanations as HTML in the style of the server's page, without scripts."""

from __future__ import annotations

import base64
import datetime
import itertools
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from seqpipe.answers.base import AnswerKind
from seqpipe.answers.extractive_span import second_text
from seqpipe.answers.pointers import POLYGON
from seqpipe.errors import UsageError
from seqpipe.explain.views import TextRow, views
from seqpipe.features.document import Doc
from seqpipe.features.vocabulary import replace_surrogates
from seqpipe.files import json_bytes, write
from seqpipe.runtime.explanation import Explanation, Figure, WordWeights, visible_blanks

MOST_CELLS = 40_000  # of all the matrices of one attention; browsers are slow with more
SIDE, BORDER, DOT = 480, 40, 5  # pixels of the square of points, its margin, and a point
MAX_LARGE_LETTERS = 80  # maximum number of letters of an answer in large type
FAINT = 0.05  # share of the greatest weight up to which a negative one has no mark of its own
UPRIGHT = 2  # letters of a column's name that fit above a cell without rotation
STRIPE_STEP = 5  # pixels from one stripe of overlapping spans to the next
STYLE = Path(__file__).parents[1] / "serve" / "page"  # the stylesheet and the icon of both pages
NOTE = "Weights show how much each part of the input contributes inside the model, not the reasons for the answer."


def check_ending(path: Path) -> None:
    """Raise UsageError if a file of this name is neither HTML nor JSON."""
    suffix = path.suffix.lower()
    if suffix not in (".html", ".json"):
        fix = f"write {path.stem}.html, which a browser shows and prints, or {path.stem}.json"
        raise UsageError(f"-o {path}: a heat map is a page (.html) or data (.json); {fix}")


def draw(explanation: Explanation, path: Path, facts: Mapping[str, str] | None = None) -> None:
    """Write the file atomically; UsageError if its ending is neither .html nor .json."""
    check_ending(path)
    is_page = path.suffix.lower() == ".html"
    write(path, page(explanation, facts).encode() if is_page else json_bytes(explanation.data(), indent=1) + b"\n")


def page(explanation: Explanation, facts: Mapping[str, str] | None = None) -> str:
    """Return the page, with facts such as the model beside the date; all strings of text and answer are escaped."""
    cards = [card("Answer", _answer(explanation.answer_lines))]
    text, figure, picture = explanation.text, explanation.figure, explanation.picture
    if picture is not None:
        text, (height, width) = "", picture.shape[:2]
        cards.append(card("Input", _map(height, width, "input", _image(picture, height, width))))
    if figure is not None:
        text = "\n".join(" ".join(f"{number:g}" for number in row) for row in figure.points)
    if text.strip() and not views(explanation):  # otherwise the shaded text is shown
        cards.append(card("Input", f'<p class="text" dir="auto">{_safe(text)}</p>'))
    cards = [f'<div class="columns">{"".join(cards)}</div>' if len(cards) > 1 else cards[0]]
    cards.append(weight_cards(explanation))
    if not explanation.attentions and figure is None:
        cards.append('<p class="nothing">This text has no tokens, so there are no weights to show.</p>')
    note = NOTE if explanation.attentions else ""
    if curve := explanation.faithfulness:
        note = f"Area under the deletion curve: {curve['area']:.3f}; in random order: {curve['random']:.3f}"
    dated = {**(facts or {}), "Date": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")}
    return Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8")).substitute(
        title=_safe(explanation.answer_lines[0]),
        style=(STYLE / "page.css").read_text(encoding="utf-8"),
        icon=icon(),
        facts="".join(f"<div><dt>{_safe(name)}</dt><dd>{_safe(value)}</dd></div>" for name, value in dated.items()),
        cards="".join(cards),
        note=note,
    )


def icon() -> str:
    """Return the icon as inline SVG."""
    svg = (STYLE / "icon.svg").read_text(encoding="utf-8")
    return re.sub(r' xmlns="[^"]*"', ' width="28" height="28" aria-hidden="true"', svg).strip()


def weight_cards(explanation: Explanation) -> str:
    """Return the cards of the points, of each attention, and of the origins of copied tokens."""
    cards = [] if explanation.figure is None else [_figure(explanation.figure)]
    for view in views(explanation):
        ends = ("low", "high")
        if view.words and not view.sentences:  # the strongest shade is one number
            ends = "0", f"{abs(view.words.weights).max(initial=0.0):.3f}"
        rows = "".join(_row(row) for row in view.rows(explanation.text))
        shape = "sentences" if view.sentences else ""
        cards.append(card(view.title, f'<div class="{shape}">{rows}</div>{_legend(*ends, view.legend)}', view.stages))
    for attention in explanation.attentions:
        if attention.grid and attention.over != "pairs":
            cards.append(_maps(explanation.picture, attention))
        elif attention.is_matrix:
            cards.append(_pairs(explanation.text, attention))
    for name, origins in explanation.copied.items():
        # Each generated word, shaded by the probability that it was copied, and its position in the text.
        lines = "".join(
            f'<tr><td class="heat" style="--weight:{1 - origin.generating:.3f}"><bdi>{_safe(row[0])}</bdi></td>'
            f'<td class="number">{1 - origin.generating:.3f}</td><td dir="auto">{_safe(row[2])}</td></tr>'
            for origin, row in zip(origins, explanation.origin_rows(origins), strict=True)
        )
        names = "".join(f'<th scope="col">{head}</th>' for head in ("Token", "Copied", "Same token in the input"))
        table = f"<table><thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table>"
        legend = _legend("0", "1", "probability that the token was copied from the input, not generated")
        cards.append(card("Tokens copied from the input", f"{_scroll_box(table)}{legend}", name))
    return "".join(cards)


def card(title: str, content: str, stage: str = "") -> str:
    """Return content under a title, and the name of a stage if there is one; title and content are HTML."""
    about = f'<p class="help">{_safe(stage)}</p>' if stage else ""
    return f'<section class="card explained">\n<h2>{title}</h2>\n{about}{content}\n</section>\n'


def _legend(low: str, high: str, meaning: str) -> str:
    return f'<p class="help ramp">{low} <span class="scale" aria-hidden="true"></span> {high} · {meaning}</p>'


def _scroll_box(table: str) -> str:
    """Return a table that scrolls inside its card, by keyboards too."""
    return f'<div class="scrolls" tabindex="0" role="group" aria-label="Table">{table}</div>'


def _answer(lines: Sequence[str]) -> str:
    """Render one line in large letters, several as a list; each with a bar of the score that it ends with, if any."""
    parts = []
    for line in lines:
        ending = re.search(r" \((\d\.\d+)\)$", line)
        score = float(ending[1]) if ending else 0.0
        parts.append((_safe(line[: ending.start()]), _bar(score, score)) if ending else (_safe(line), ""))
    if len(parts) > 1:
        items = "".join(f'<li><bdi class="name">{text}</bdi>{bar}</li>' for text, bar in parts)
        return f'<ol class="bars">{items}</ol>'
    ((text, bar),) = parts
    size = "big" if len(text) <= MAX_LARGE_LETTERS else "text"
    return f'<p class="{size}" dir="auto">{text}</p>' + (f'<p class="score"><span>score</span>{bar}</p>' if bar else "")


def draw_answer(kind: AnswerKind, answer: Any, doc: Doc) -> str:
    """Draw an answer: spans and tags in the text, a continuation after it, the rest as lines with bars of scores."""
    if "" not in kind.parts:
        heads = kind.parts.items()
        return "".join(f"<h3>{_safe(name)}</h3>{draw_answer(part, answer[name], doc)}" for name, part in heads)
    style, label = kind.drawing["as"], kind.drawing.get("label", "")
    text = second_text(doc)[1] if doc.second and style in ("passage", "continuation") else doc.first.text
    if style in ("spans", "tags") and all(label in part for part in answer):  # else several alternatives
        return draw_spans(text, [{**part, "label": part[label]} for part in answer], kind.drawing["labels"])
    if style == "passage" and isinstance(answer, Mapping) and answer["answer"]:
        return draw_spans(text, [{**answer, "label": "answer"}])
    if style == "continuation" and isinstance(answer, Mapping) and answer["generated_text"].startswith(text):
        new = answer["generated_text"][len(text) :]
        return f'<p class="text" dir="auto">{_safe(text)}<mark class="new">{_safe(new)}</mark></p>'
    return f'<p class="text" dir="auto">{_safe(text)}</p>{_answer(kind.lines(answer))}'


def draw_spans(text: str, spans: Iterable[Mapping[str, Any]], labels: Sequence[str] = ()) -> str:
    """Draw spans (`start`, `end`, `label`, perhaps `score`) in a text in the colours of the server's page."""
    placed: list[tuple[int, int, Mapping[str, Any]]] = []  # level, which overlapping spans do not share; hue; span
    for span in sorted(spans, key=lambda span: (span["start"], -span["end"])):
        taken = {level for level, _, earlier in placed if earlier["end"] > span["start"]}
        place = labels.index(span["label"]) if span["label"] in labels else len(labels)
        hue = round((255 + place * 137.508) % 360)
        placed.append((next(level for level in itertools.count() if level not in taken), hue, span))
    height = STRIPE_STEP * (1 + max((level for level, _, _ in placed), default=0))
    cuts = sorted({0, len(text), *(span[side] for _, _, span in placed for side in ("start", "end"))})
    markup = ""
    for start, end in itertools.pairwise(cuts):
        fragment = _safe(text[start:end])
        if covering := [item for item in placed if item[2]["start"] <= start and end <= item[2]["end"]]:
            stripes = ",".join(f"linear-gradient(oklch(var(--stripe) {hue}) 0 0)" for _, hue, _ in covering)
            places = ",".join(f"0 calc(100% - {STRIPE_STEP * level}px)" for level, _, _ in covering)
            style = f"--hue:{covering[-1][1]};padding-bottom:{height}px;background-image:{stripes};"
            style += f"background-position:{places};background-size:100% 3px"
            fragment = f'<mark class="opens closes" style="{style}">{fragment}</mark>'
        markup += fragment
        for _, hue, span in reversed(covering):
            if span["end"] == end:
                score = f'<span class="number">{span["score"]:.2f}</span>' if "score" in span else ""
                markup += f'<bdi class="chip" style="--hue:{hue}">{_safe(span["label"])}{score}</bdi>'
    return f'<p class="text" dir="auto" style="line-height:calc(1.9em + {2 * height}px)">{markup}</p>'


def _bar(share: float, number: float) -> str:
    fill = f'<span class="fill" style="width:{100 * share:.1f}%"></span>'
    return f'<span class="track" aria-hidden="true">{fill}</span><span class="number">{number:.3f}</span>'


def _figure(figure: Figure) -> str:
    """Draw the points and the path through them in a square, with equal units on both axes."""
    plane = [(row[0], row[1] if len(row) > 1 else 0.0) for row in figure.points]
    lows, highs = ([pick(axis) for axis in zip(*plane, strict=True)] for pick in (min, max))
    unit = max(highs[0] - lows[0], highs[1] - lows[1]) or 1.0
    left, lower = ((low + high) / 2 - unit / 2 for low, high in zip(lows, highs, strict=True))
    # In SVG the second axis points downward.
    places = [(BORDER + SIDE * (x - left) / unit, BORDER + SIDE * (1 - (y - lower) / unit)) for x, y in plane]
    is_filled = figure.style == POLYGON
    parts = []
    if len(figure.way) > 1:
        shape = " ".join(f"{places[i][0]:.1f},{places[i][1]:.1f}" for i in figure.way)
        parts.append(f'<polyline class="way{" polygon" if is_filled else ""}" points="{shape}"/>')
    for i, (x, y) in enumerate(places):
        is_first = i in figure.way[:1]
        style = "first" if is_first else "chosen" if i in figure.way else "point"
        circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{DOT + 2 * is_first}"/>'
        parts.append(f'<g class="{style}">{circle}<text x="{x + 8:.1f}" y="{y - 8:.1f}">{i}</text></g>')
    shape = "polygon" if is_filled else "path"
    title = f"{len(figure.points)} points and the {shape} through {len({*figure.way})} of them"
    size = SIDE + 2 * BORDER
    label = f'role="img" aria-label="{title}"'
    return card(title, f'<svg class="points" viewBox="0 0 {size} {size}" {label}>{"".join(parts)}</svg>')


def _row(row: TextRow) -> str:
    bar = ""
    if row.weight is not None:
        bar = f'<div class="share">{_bar(row.share, row.weight)}</div>'
    markup = ""
    for fragment in row.fragments:
        if fragment.weight is None:
            markup += _safe(fragment.text)
        else:
            shade = f'title="{fragment.weight:.3f}" style="--weight:{abs(fragment.shade):.3f}"'
            style = "heat against" if fragment.shade < -FAINT else "heat"
            markup += f'<mark class="{style}" {shade}>{_safe(fragment.text)}</mark>'
    return f'{bar}<p class="text" dir="auto">{markup}</p>'


def _maps(picture: np.ndarray | None, attention: WordWeights) -> str:
    """Draw the weights of the places of a picture or sound on it, once for each generated token if these attend."""
    (rows, columns), tokens = attention.grid or (1, 1), attention.written
    height, width = (rows, columns) if picture is None else picture.shape[:2]
    under = "" if picture is None else _image(picture, height, width)
    maps = attention.weights[None] if tokens is None else attention.weights[0]
    names, most = attention.place_names(""), max(float(maps.max(initial=0.0)), 1e-12)
    size = f'width="{width / columns:.6g}" height="{height / rows:.6g}"'
    figures = ""
    for token, weights in zip(tokens or [""], maps.tolist(), strict=True):
        label = _safe(visible_blanks(token))
        cells = "".join(
            f'<rect x="{i % columns * width / columns:.6g}" y="{i // columns * height / rows:.6g}" {size}'
            f' style="--weight:{weight / most:.3f}"><title>{names[i]}: {weight:.3f}</title></rect>'
            for i, weight in enumerate(weights)
        )
        drawn = _map(height, width, f"weights of places {label}", under + cells)
        figures += f"<figure>{drawn}<figcaption><bdi>{label}</bdi></figcaption></figure>"
    legend = _legend("0", f"{most:.3f}", "the stronger the colour, the greater the weight")
    title = "Weight of each place of the input" if tokens is None else "Places that each answer token attends to"
    return card(title, f'<div class="maps">{figures}</div>{legend}', attention.name)


def _map(height: int, width: int, label: str, content: str) -> str:
    shape = "map wide" if width > 2 * height else "map"
    return f'<svg class="{shape}" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{content}</svg>'


def _image(picture: np.ndarray, height: float, width: float) -> str:
    """Return pixels (H, W, 1 or 3) as an image of this size in an SVG, a PNG."""
    rows, columns, channels = picture.shape
    # Each line begins with its filter: none.
    lines = np.insert(np.ascontiguousarray(picture).reshape(rows, -1), 0, 0, axis=1)
    header = struct.pack(">2I5B", columns, rows, 8, 2 if channels == 3 else 0, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n"
    for name, data in ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b"")):
        png += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    address = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return f'<image href="{address}" width="{width}" height="{height}" preserveAspectRatio="none"/>'


def _pairs(text: str, attention: WordWeights) -> str:
    """Render the mean of the heads and each head as a matrix, in which a row attends to its columns."""
    heads, *sides = attention.weights.shape
    fit = min(max(sides), int((MOST_CELLS / (heads + 1)) ** 0.5))
    words = [_safe(visible_blanks(text[a:b])) for a, b in attention.places[:fit]]
    written = attention.written
    rows = words if written is None else [_safe(visible_blanks(token)) for token in written[:fit]]
    cut = f"; the first {fit:,} of {max(sides):,} are shown" if fit < max(sides) else ""
    matrices = attention.weights if heads == 1 else [attention.mean, *attention.weights]
    turned = ' class="turned"'
    head = "".join(
        f'<th scope="col"{turned if b - a > UPRIGHT else ""}><bdi>{word}</bdi></th>'
        for word, (a, b) in zip(words, attention.places, strict=False)
    )
    tables = []
    for weights in matrices:
        most = float(weights.max(initial=0.0))
        lines = ""
        for row, row_weights in zip(rows, weights[: len(rows), : len(words)].tolist(), strict=True):
            cells = "".join(
                f'<td class="heat" title="{row} → {column}: {weight:.3f}"'
                f' style="--weight:{weight / most if most else 0:.3f}"></td>'
                for column, weight in zip(words, row_weights, strict=True)
            )
            lines += f'<tr><th scope="row"><bdi>{row}</bdi></th>{cells}</tr>'
        table = f'<table class="matrix"><thead><tr><td></td>{head}</tr></thead><tbody>{lines}</tbody></table>'
        legend = _legend("0", f"{most:.3f}", "the stronger the colour, the greater the weight")
        tables.append(f"{_scroll_box(table)}{legend}")
    content = "".join(
        f"<details class='table'><summary>Head {number}</summary>{table}</details>\n" if number else table
        for number, table in enumerate(tables)
    )
    title, row = "Input tokens that each answer token attends to", "answer"
    if written is None:
        title, row = "Tokens that each input token attends to", "input"
    mean = "" if heads == 1 else f"; mean of {heads} heads, each of which is below"
    return card(title, content, f"Rows: tokens of the {row}; columns: tokens of the input{mean}{cut}. {attention.name}")


def _safe(text: str) -> str:
    return escape(replace_surrogates(text).replace("\0", "\ufffd"))  # not allowed in HTML
