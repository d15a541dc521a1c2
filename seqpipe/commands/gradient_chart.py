"""Draw curves over time steps on a logarithmic scale, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 80, 90, 40, 60  # pixels
COLOURS = ("#0072b2", "#d55e00", "#009e73")  # distinguishable with any colour vision (Okabe and Ito 2008)
DASHES = ("", "8 4", "2 3")
SMALLEST = 1e-16  # smaller values are drawn at the lower edge


def chart(title: str, curves: Mapping[str, Sequence[float]]) -> str:
    """Return the SVG of at most three curves of positive numbers, each one value a time step."""
    longest = max(len(values) for values in curves.values())
    lowest = min(math.floor(_log(min(values))) for values in curves.values())
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        'font-family="sans-serif" font-size="13">',
        f'<title>{escape(title)}</title><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="15">{escape(title)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 16}" text-anchor="middle">time step</text>',
    ]
    for exponent in range(lowest, 1, max(1, -lowest // 8)):
        y = _y(exponent, lowest)
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">1e{exponent}</text>')
    for step in sorted({1, *range(10, longest + 1, 10), longest}):
        x = _x(step - 1, longest)
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{step}</text>')
    for values, colour, dash in zip(curves.values(), COLOURS, DASHES, strict=False):
        points = [(_x(step, longest), _y(_log(value), lowest)) for step, value in enumerate(values)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        lines.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
    labels = sorted((_y(_log(values[-1]), lowest), name) for name, values in curves.items())
    previous = 0.0
    for y, name in labels:
        previous = max(y, previous + 16)
        colour = COLOURS[list(curves).index(name)]
        lines.append(f'<text x="{WIDTH - RIGHT + 8}" y="{previous + 4:.1f}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _log(value: float) -> float:
    return math.log10(max(value, SMALLEST))


def _x(step: int, longest: int) -> float:
    return LEFT + step / max(longest - 1, 1) * (WIDTH - LEFT - RIGHT)


def _y(exponent: float, lowest: int) -> float:
    return TOP + exponent / min(lowest, -1) * (HEIGHT - TOP - BOTTOM)
