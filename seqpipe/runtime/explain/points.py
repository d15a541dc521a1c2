"""A Figure in, an SVG element of a page out."""

from __future__ import annotations

from html import escape

from seqpipe.runtime.explain.figures import Figure

SIDE, EDGE, DOT = 480, 40, 5  # pixels


def svg(figure: Figure) -> str:
    """The points with their positions, and the way that was chosen through them."""
    size = SIDE + 2 * EDGE
    way = " ".join(f"{x + EDGE:.1f},{y + EDGE:.1f}" for x, y in figure.lines(SIDE))
    filled = " polygon" if figure.is_filled else ""
    parts = [f'<polyline class="way{filled}" points="{way}"/>'] if len(figure.way) > 1 else []
    for mark in figure.marks(SIDE):
        x, y = mark.x + EDGE, mark.y + EDGE
        kind = "first" if mark.is_first else "chosen" if mark.is_chosen else "point"
        parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{DOT + 2 * mark.is_first}"/>')
        parts.append(f'<text x="{x + 8:.1f}" y="{y - 8:.1f}">{escape(mark.label)}</text>')
    label = f'role="img" aria-label="{escape(figure.title)}"'
    return f'<svg viewBox="0 0 {size} {size}" width="{size}" {label}>{"".join(parts)}</svg>'
