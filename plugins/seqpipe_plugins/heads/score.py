"""Regression: one number per text."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from seqpipe.nn.attention import AttentionScore
from seqpipe.nn.layers import whole_batch
from seqpipe.plugin import Probability, UsageError
from seqpipe_plugins.heads import PooledHead, Pooling

Bounds = Annotated[list[float], Field(min_length=2, max_length=2)]
EQUAL = 1e-7  # targets with a smaller deviation relative to their mean are equal in float32


class ScoreHead(PooledHead):
    """Regression: the tokens are pooled into one vector h, and y = m + s (w · h + b).

    m and s are the mean and the standard deviation of the training targets, so that large numbers are learned as fast
    as small ones (van Hasselt et al. 2016, "Pop-Art"); they are exact after the first epoch. The loss is that of (y -
    target) / s. With `bounds`, y = low + (high - low) sigmoid(w · h + b), and s = high - low. With `hidden`, h is
    replaced by relu(V h + c).

    Args:
        pool: Pooling of the token vectors: their mean or maximum, the first or the last, their mean weighted by
            attention; or `state`, the vector that the encoder returns for the whole text.
        score: Attention score of a token (see `seqpipe.nn.attention.Attention`).
        hidden: Number of units of a hidden layer between the pooled vector and the output; null: no hidden layer.
        dropout: Dropout probability of the pooled vector and of the hidden layer.
        loss: Squared error, absolute error, or (Huber 1964) squared up to one standard deviation and absolute beyond.
        bounds: Minimum and maximum of an answer, such as [0, 100]; null: no bounds.
    """

    answer = "score"
    line: Tensor
    moments: Tensor

    def __init__(
        self,
        dim: int,
        *,
        pool: Pooling = "max",
        score: AttentionScore = "additive",
        hidden: PositiveInt | None = None,
        dropout: Probability = 0.0,
        loss: Literal["mse", "mae", "huber"] = "mse",
        bounds: Bounds | None = None,
    ):
        super().__init__(dim, 1, pool=pool, score=score, hidden=hidden, dropout=dropout)
        if bounds is not None and not bounds[0] < bounds[1]:
            raise UsageError(f"score.bounds: {bounds[0]:g} is not below {bounds[1]:g}; write the lower one first")
        self.error = {"mse": F.mse_loss, "mae": F.l1_loss, "huber": F.smooth_l1_loss}[loss]
        self.bounded = bounds is not None
        low, width = (0.0, 1.0) if bounds is None else (bounds[0], bounds[1] - bounds[0])
        self.rows = {"line": None, "moments": None} if self.bounded else {}
        self.register_buffer("line", torch.tensor([low, width]))  # m and s
        self.register_buffer("moments", torch.zeros(3, dtype=torch.float64))  # targets seen, mean, squares about it

    def loss(self, x: Tensor, mask: Tensor, score: Tensor, state: Tensor | None = None) -> Tensor:  # -> ()
        """Return the mean error in standard deviations: x (B, T, D), mask (B, T), score (B,), state (B, D)."""
        if self.training and not self.bounded:
            self._see(whole_batch(score).double())
        output, _ = self._output(x, mask, state, learning=True)
        return self.error(output, (score - self.line[0]) / self.line[1])

    def decide(self, x: Tensor, mask: Tensor, state: Tensor | None = None) -> dict[str, Tensor]:
        """Return the number of each text (B,)."""
        output, attention = self._output(x, mask, state)
        return {"score": self.line[0] + self.line[1] * output, **attention}

    def _output(
        self, x: Tensor, mask: Tensor, state: Tensor | None, learning: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:  # (B,)
        output, attention = self.read(x, mask, state, learning)
        return (output.sigmoid() if self.bounded else output)[:, 0], attention

    @torch.no_grad()
    def _see(self, score: Tensor) -> None:  # (B,)
        """Merge the moments of these targets with those of all earlier ones (Chan et al. 1979)."""
        before, mean, squares = self.moments
        seen, shift = before + len(score), score.mean() - mean
        squares = squares + (score - score.mean()).square().sum() + shift.square() * before * len(score) / seen
        mean = mean + shift * len(score) / seen
        deviation = (squares / seen).sqrt()
        deviation = torch.where(deviation > EQUAL * mean.abs(), deviation, 1.0)
        self.moments.copy_(torch.stack([seen, mean, squares]))
        self.line.copy_(torch.stack([mean, deviation]))
