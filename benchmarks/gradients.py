"""Vanishing gradients: the gradient norm by time step of rnn, lstm and gru on a task of long memory, as table and SVG.

    python benchmarks/gradients.py                                        the table
    python benchmarks/gradients.py --output docs/tasks/gradients.svg      the chart of the page on encoders
    python benchmarks/gradients.py --steps 300                            after 300 training steps

Hochreiter (1991); Bengio, Simard and Frasconi (1994).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import common
import torch
from common import ROOT
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(ROOT))

from seqpipe.nn.recurrent import TORCH_CELLS, Recurrent, RecurrentOptions

CLASSES, SYMBOLS, BATCH, DIM = 2, 8, 64, 16
GATE_BIAS = 1.0  # of the forget gate (Jozefowicz et al. 2015), and of the update gate, which keeps the state
LEARNING_RATE = 0.003
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 80, 90, 40, 60  # pixels
COLOURS = ("#0072b2", "#d55e00", "#009e73")  # distinguishable with any colour vision (Okabe and Ito 2008)
DASHES = ("", "8 4", "2 3")
SMALLEST = 1e-16  # smaller values are drawn at the lower edge


@dataclass(frozen=True)
class GradientProfile:
    """How much of the gradient of the loss reaches each time step.

    Args:
        cell: `rnn`, `lstm` or `gru`.
        norms: The mean norm of the gradient of the loss with respect to x(t), for each of T steps.
        accuracy: The share of new sequences that the model answers rightly.
    """

    cell: str
    norms: list[float]
    accuracy: float

    @property
    def shares(self) -> list[float]:
        """Each norm divided by the sum of all: independent of the size of the loss."""
        total = sum(self.norms)
        return [norm / total for norm in self.norms]


class _LastState(nn.Module):
    """Predict the label from the last state of one recurrent layer."""

    def __init__(self, cell: str, hidden: int):
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, DIM)
        options = RecurrentOptions(hidden=hidden, direction="forward")
        self.encoder = Recurrent(TORCH_CELLS[cell], DIM, {}, options)
        self.output = nn.Linear(hidden, CLASSES)
        bias = dict(self.encoder.named_parameters()).get("layers.0.bias_hh_l0")
        if cell != "rnn" and bias is not None:
            nn.init.constant_(bias[hidden : 2 * hidden].detach(), GATE_BIAS)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, classes)
        mask = torch.ones(x.shape[:2], dtype=torch.bool)
        logits: Tensor = self.output(self.encoder(x, mask)["state"])
        return logits


def gradient_profile(cell: str, *, length: int, hidden: int, steps: int, seed: int) -> GradientProfile:
    """Train a layer of `hidden` units for some steps on sequences of `length` symbols whose first one is the label.

    All other symbols are random and say nothing about it, so the gradient has to reach the first step.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _LastState(cell, hidden).double()
        optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
        for _ in range(steps):
            ids = _sequences(length)
            optimizer.zero_grad()
            F.cross_entropy(model(model.embedding(ids)), ids[:, 0]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        ids = _sequences(length)
        x = model.embedding(ids).detach().requires_grad_()
        logits = model(x)
        (gradient,) = torch.autograd.grad(F.cross_entropy(logits, ids[:, 0]), x)
    right = (logits.argmax(1) == ids[:, 0]).double().mean()
    return GradientProfile(cell, gradient.norm(dim=2).mean(0).tolist(), float(right))


def _sequences(length: int) -> Tensor:  # (B, T)
    label = torch.randint(CLASSES, (BATCH, 1))
    return torch.cat([label, torch.randint(CLASSES, SYMBOLS, (BATCH, length - 1))], 1)


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


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--output", type=Path, help="the chart, an SVG")
    parser.add_argument("--length", type=int, default=40, help="time steps of a sequence")
    parser.add_argument("--hidden", type=int, default=32, help="units of the layer")
    parser.add_argument("--steps", type=int, default=0, help="training steps before the gradients are measured")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    length, steps = arguments.length, arguments.steps
    options = {"length": length, "hidden": arguments.hidden, "steps": steps, "seed": arguments.seed}
    profiles = [gradient_profile(cell, **options) for cell in ("rnn", "lstm", "gru")]
    question = f"after_{steps}_steps" if steps else "gradients"
    table = common.Table("gradients", question, "cell", "accuracy", "first step", "middle step", "last step")
    for profile in profiles:
        shares = [f"{profile.shares[t]:.1e}" for t in (0, length // 2, -1)]
        table.row(f"`{profile.cell}`", f"{profile.accuracy:.2f}", *shares)
    if arguments.output:
        title = f"Share of the gradient norm by time step, after {steps} training steps"
        arguments.output.write_text(chart(title, {profile.cell: profile.shares for profile in profiles}), "utf-8")


if __name__ == "__main__":
    main()
