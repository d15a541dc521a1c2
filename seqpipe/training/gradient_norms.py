"""Gradient norms by time step of recurrent cells on a task of long memory (Hochreiter 1991; Bengio et al. 1994)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.recurrent import CELLS, Recurrent

CLASSES, SYMBOLS, BATCH, DIM = 2, 8, 64, 16
GATE_BIAS = 1.0  # of the forget gate (Jozefowicz et al. 2015), and of the update gate, which keeps the state
LEARNING_RATE = 0.003


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
        self.encoder = Recurrent(CELLS[cell], DIM, hidden, 1, "forward", "concat", True, 0.0)
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
