"""Plots as inline SVG by matplotlib, in the colours of the page, each with a description in words.

Colours are Okabe and Ito's (2008), which colour-blind people can tell apart. The SVG names variables of the stylesheet
in place of the colours that matplotlib draws with, so that a plot follows the light and the dark theme.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

import numpy as np
from cycler import cycler
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

SERIES = BLUE, VERMILION, GREEN, PINK, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
INK, QUIET = "#010203", "#010204"
VARIABLES = {INK: "--text", QUIET: "--quiet", "#010205": "--edge", **{c: f"--plot-{i}" for i, c in enumerate(SERIES)}}
WIDTH, HEIGHT = 320, 200  # of the SVG, in points
STYLE = Path(__file__).with_name("plots.mplstyle")


@style.context(STYLE)
def trends(title: str, series: Mapping[str, Mapping[int, float]], chosen: int | None = None, log: bool = False) -> str:
    """Plot values by epoch; the chosen epoch is a vertical line."""
    shown = {name: points for name, points in series.items() if points}
    ends = [f"{name} from {next(iter(ys.values())):.3g} to {[*ys.values()][-1]:.3g}" for name, ys in shown.items()]
    axes, at = _new_axes(), "epoch" if chosen is None else f"epoch (chosen: {chosen})"
    if chosen is not None:
        axes.axvline(chosen, color=QUIET, linewidth=1, linestyle=":")
    axes.set_prop_cycle(cycler(linestyle=["-", "--", ":"]) * cycler(color=SERIES))
    for name, points in shown.items():
        axes.plot([*points], [*points.values()], label=name, marker="o" if len(points) < 20 else None, markersize=3)
    axes.set(xlabel=at, yscale="log" if log else "linear")
    if log:
        axes.yaxis.set(major_formatter=LogFormatter(), minor_formatter=LogFormatter(minor_thresholds=(1, 0.4)))
    axes.locator_params("x", integer=True)
    if len(shown) > 1:
        axes.legend(ncols=1 + (len(shown) > 4))
    return _html(axes, title, f"{at}: {'; '.join(ends)}")


@style.context(STYLE)
def histogram(title: str, values: Sequence[tuple[float, bool]], edges: Sequence[float], xlabel: str) -> str:
    """Plot how many of the values, (value, is right), are between each two edges."""
    right, wrong = (np.histogram([x for x, is_right in values if is_right == part], edges)[0] for part in (True, False))
    axes = _new_axes()
    axes.stairs(right, edges, fill=True, color=BLUE, label="right")
    axes.stairs(right + wrong, edges, baseline=right, fill=True, fc=VERMILION, ec=INK, lw=0, hatch="///", label="wrong")
    axes.set_xlabel(xlabel)
    axes.legend()
    rows = zip(pairwise(edges), right, wrong, strict=True)
    return _html(axes, title, "; ".join(f"{a:.3g} to {b:.3g}: {yes} right, {no} wrong" for (a, b), yes, no in rows))


@style.context(STYLE)
def diagonal(
    title: str,
    points: Sequence[tuple[float, float]],
    xlabel: str,
    ylabel: str,
    style: str = "o",
    ends: tuple[float, float] | None = None,
) -> str:
    """Plot points beside the diagonal, on which both values are equal; `ends` are those of both axes."""
    axes, (low, high) = _new_axes(), ends or (min(map(min, points)), max(map(max, points)))
    if ends:
        axes.set(xlim=ends, ylim=ends)
    axes.plot((low, high), (low, high), "--", color=QUIET, linewidth=1)
    axes.plot(*zip(*points, strict=True), style, color=BLUE, markersize=4)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    few = "; ".join(f"{x:.2f}: {y:.2f}" for x, y in points[:10])
    return _html(axes, title, f"{ylabel} by {xlabel}, {len(points)} points: {few}")


def _new_axes() -> Axes:
    return Figure(figsize=(WIDTH / 72, HEIGHT / 72)).add_subplot()


def _html(axes: Axes, title: str, description: str) -> str:
    """Return a figure of HTML; the description replaces it for those who cannot see it."""
    file = io.StringIO()
    FigureCanvasSVG(axes.get_figure(root=True)).print_svg(
        file, metadata={"Date": None, "Creator": None}
    )  # `savefig` draws twice
    source = file.getvalue()
    body = source[source.index(">", source.index("<svg")) + 1 : source.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r' id="[a-z0-9]+_\d+(_\d+)*"', "", body)  # each plot has the same, to which nothing refers
    body = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", body)
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, f"var({variable})")
    title, description = escape(title), escape(description)
    return (
        f'<figure><figcaption>{title}</figcaption><svg class="plot" role="img" aria-label="{title}: {description}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}"><title>{title}</title><desc>{description}</desc>{body}</svg></figure>'
    )
