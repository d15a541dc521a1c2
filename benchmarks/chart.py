"""Draw the measured comparisons with other tools as bars of ratios, from the JSON files in benchmarks/results.

    python benchmarks/chart.py           # writes docs/pictures/speed.svg
    python benchmarks/chart.py --check   # fails if the picture is not what the JSON says

A bar begins at the line of 1, where both are as fast, and goes to the right where seqpipe is faster, to the left where
the other tool is; the axis is logarithmic. Of a range, the bar ends at the figure that is worse for seqpipe and a thin
line goes on to the better one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import common
import report
from common import ROOT

PICTURE = ROOT / "docs" / "pictures" / "speed.svg"
# File, question, row, and the words beside the bar, by group. Where seqpipe is slower stands here too: a comparison is
# left out only where it repeats another one at other sizes, and of other servers the bundle that is worst for seqpipe
# stands for the three.
BARS: Mapping[str, Sequence[tuple[str, str, str, str]]] = {
    "Named entities, BiLSTM-CRF": (
        ("ner", "ratios", "tagging in batches", "Flair, in batches"),
        ("ner", "ratios", "one sentence at a time", "Flair, one by one"),
        ("ner", "ratios", "training, an epoch", "Flair, training"),
        ("ner", "ratios", "tagging in batches, at a higher F1", "spaCy CNN, in batches"),
        ("ner", "ratios", "one sentence at a time, at a higher F1", "spaCy CNN, one by one"),
    ),
    "Text classification": (
        ("bert", "ratios", "a list of texts", "Optimum, MiniLM"),
        ("bert", "ratios", "a list of texts, sorted by length, in 32s", "Optimum, sorted by hand"),
        ("bert", "ratios", "one text at a time", "Optimum, one by one"),
        ("defaults", "speed_ratios", "answering, texts/s", "fastText, answering"),
        ("defaults", "speed_ratios", "training, time of as many epochs", "fastText, training"),
    ),
    "Text generation": (
        ("language_models", "writing", "GPT, batch 1, beside transformers", "transformers, GPT, one by one"),
        ("language_models", "writing", "GPT, batch 8, beside transformers", "transformers, GPT, 8 at once"),
        ("language_models", "writing", "T5, 4 beams", "transformers, T5, 4 beams"),
        ("language_models", "writing", "GPT, batch 1, beside CTranslate2, float32", "CTranslate2, GPT, one by one"),
        ("language_models", "writing", "GPT, batch 8, beside CTranslate2, int8", "CTranslate2, GPT in int8, 8 at once"),
        ("seq2seq", "ctranslate2", "batch 1", "CTranslate2, translation, one by one"),
        ("seq2seq", "ctranslate2", "batch 32", "CTranslate2, translation, 32 at once"),
        ("seq2seq", "speed", "small_parallel_enja, batch 1", "eager PyTorch, search, one by one"),
        ("seq2seq", "speed", "small_parallel_enja, batch 32", "eager PyTorch, search, 32 at once"),
        ("language_models", "quality", "training that GPT", "PyTorch loop, training"),
    ),
    "Serving, 64 clients": (
        ("serve", "peers", "intent-bert, beside FastAPI", "FastAPI, intents"),
        ("serve", "peers", "dates, beside LitServe", "LitServe, dates"),
        ("serve", "peers", "dates, beside BentoML", "BentoML, dates"),
    ),
}  # fmt: skip
WIDTH, LEFT, RIGHT, TOP = 760, 290, 90, 74  # pixels
ROW, GROUP, BAR = 20, 30, 12
LEAST, MOST = 0.125, 16.0  # the ends of the axis
TICKS = (0.125, 0.25, 0.5, 1, 2, 4, 8, 16)
TITLE = "Speed of seqpipe beside other tools on a CPU"
# The picture has its own background, so its text can be read on any page; a reader who prefers dark gets dark.
STYLE = """
text { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; font-size: 13px; fill: #1f2328 }
.background { fill: #ffffff } .title { font-size: 15px; font-weight: 600 } .group { font-weight: 600 }
.small { font-size: 12px; fill: #59636e } .grid { stroke: #d1d9e0 } .one { stroke: #1f2328; stroke-width: 2 }
.faster { fill: #0969da; stroke: #0969da } .slower { fill: #bc4c00; stroke: #bc4c00 } .range { stroke-width: 2 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .background { fill: #0d1117 } .small { fill: #9198a1 } .grid { stroke: #3d444d }
.one { stroke: #f0f6fc } .faster { fill: #4493f8; stroke: #4493f8 } .slower { fill: #f0883e; stroke: #f0883e }
}
"""


@dataclass(frozen=True)
class Bar:
    """One comparison: the words beside it, and the least and the greatest measured ratio."""

    label: str
    low: float
    high: float

    @property
    def shown(self) -> str:
        text = f"{self.low:g} to {self.high:g}×" if self.high > self.low else f"{self.low:g}×"
        return text.replace(" to ", "–")


def bars(contents: Mapping[str, Any]) -> dict[str, list[Bar]]:
    """The bars of each group; a row that is missing or has no ratio as a number is an error."""
    groups: dict[str, list[Bar]] = {}
    for group, rows in BARS.items():
        for name, question, row, label in rows:
            matches = [each for each in contents[name]["questions"][question]["rows"] if each["row"] == row]
            ratio = matches[0].get("ratio") if matches else None
            if not isinstance(ratio, (int, float, list)):
                raise SystemExit(f"results/{name}.json: question {question} has no ratio in the row {row!r}")
            low, high = ratio if isinstance(ratio, list) else (ratio, ratio)
            groups.setdefault(group, []).append(Bar(label, low, high))
    return groups


def x_of(ratio: float) -> float:
    """The place of a ratio on the axis."""
    share = math.log(min(max(ratio, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def chart(groups: Mapping[str, Sequence[Bar]]) -> str:
    """Return the SVG."""
    height = TOP + sum(GROUP + ROW * len(each) for each in groups.values()) + 44
    description = "; ".join(f"{bar.label} {bar.shown}" for each in groups.values() for bar in each)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-labelledby="title description">',
        f'<title id="title">{TITLE}</title>',
        f'<desc id="description">{escape(description)}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="background" width="{WIDTH}" height="{height}" rx="6"/>',
        f'<text class="title" x="20" y="28">{TITLE}</text>',
        f'<text class="small" x="{x_of(1) - 10:.1f}" y="52" text-anchor="end">← the other tool is faster</text>',
        f'<text class="small" x="{x_of(1) + 10:.1f}" y="52">seqpipe is faster →</text>',
    ]
    bottom = height - 40
    for tick in TICKS:
        x = x_of(tick)
        shown = f"{tick:g}×" if tick >= 1 else f"1/{1 / tick:g}×"
        style = "one" if tick == 1 else "grid"
        lines.append(f'<line class="{style}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 14}" y2="{bottom}"/>')
        lines.append(f'<text class="small" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{shown}</text>')
    lines += drawn(groups)
    source = "Ratios of benchmarks/RESULTS.md, which has machines, commands and reasons. Logarithmic axis."
    return "\n".join([*lines, f'<text class="small" x="20" y="{height - 8}">{source}</text>', "</svg>", ""])


def drawn(groups: Mapping[str, Sequence[Bar]]) -> Iterator[str]:
    """The names of the groups, and the label, bar and figure of each row."""
    y, parity = TOP, x_of(1)
    for group, each in groups.items():
        yield f'<text class="group" x="20" y="{y + 14}">{escape(group)}</text>'
        y += GROUP - 8
        for bar in each:
            middle = y + ROW / 2
            style = "slower" if bar.low < 1 else "faster"
            x = x_of(bar.low)
            left, width = min(x, parity), max(abs(x - parity), 1)
            yield f'<text x="32" y="{middle + 4:.1f}">{escape(bar.label)}</text>'
            yield (
                f'<rect class="{style}" x="{left:.1f}" y="{middle - BAR / 2:.1f}" width="{width:.1f}" height="{BAR}" '
                'stroke="none"/>'
            )
            if bar.high > bar.low:
                end = x_of(bar.high)
                yield f'<line class="{style} range" x1="{x:.1f}" x2="{end:.1f}" y1="{middle:.1f}" y2="{middle:.1f}"/>'
            place = max(x_of(bar.high), parity) + 8
            yield f'<text class="small" x="{place:.1f}" y="{middle + 4:.1f}">{bar.shown}</text>'
            y += ROW
        y += 8


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--output", type=Path, default=PICTURE)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the picture differs")
    arguments = parser.parse_args()
    picture = chart(bars(report.load()))
    if arguments.check:
        if not arguments.output.exists() or arguments.output.read_text(encoding="utf-8") != picture:
            raise SystemExit("run `python benchmarks/chart.py`: its picture is not what benchmarks/results says")
        return
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
