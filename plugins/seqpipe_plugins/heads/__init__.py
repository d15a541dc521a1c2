"""Heads: x to a loss and a decision, one file per component; here the shared code of heads over a pooled text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from seqpipe.plugin import MASKED_LOGIT, AttentionPool, AttentionScore, UsageError

Pooling = Literal["mean", "max", "first", "last", "attention", "state"]


class Pool(nn.Module):
    """Pooling of a text's vectors into one vector.

    - `mean`: their mean (Iyyer et al. 2015).
    - `max`: the greatest number of each place (Collobert et al. 2011).
    - `first`, `last`: that vector alone; the last of a forward recurrent encoder has seen the whole text.
    - `attention`: their mean by weights that a learned query gives (Yang et al. 2016).
    - `state`: what the encoder gives for the whole text: a recurrent one its last state (Cho et al. 2014), a
      pretrained one the vector of its first special token (Devlin et al. 2019).

    Args:
        dim: Width of a vector.
        how: The pooling, one of these.
        score: The score function of the learned query and a vector, as in `seqpipe.plugin.Attention`.
    """

    def __init__(self, dim: int, how: Pooling, score: AttentionScore):
        super().__init__()
        self.how = how
        self.attention = AttentionPool(dim, score=score) if how == "attention" else None

    def forward(self, x: Tensor, mask: Tensor, state: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """(B, T, D), (B, T), (B, D) -> the vector (B, D), and weights (B, T) as `attention` if there are any."""
        if self.how == "state":
            if state is None or state.shape[1] != x.shape[2]:
                problem = "no encoder returns a state" if state is None else "the state has another width than x"
                raise UsageError(f"pool: {problem}; choose mean, max, first, last or attention")
            return state, {}
        if self.attention is not None:
            pooled, weights = self.attention(x, mask)
            return pooled, {"attention": weights}
        if self.how == "first":
            return x[:, 0], {}
        if self.how == "last":
            last = mask.sum(1)[:, None, None] - 1  # (B, 1, 1)
            return x.gather(1, last.expand(-1, -1, x.shape[2]))[:, 0], {}
        if self.how == "max":
            return torch.where(mask[..., None], x, MASKED_LOGIT).amax(1), {}
        return torch.where(mask[..., None], x, 0.0).sum(1) / mask.sum(1, keepdim=True), {}

    def pool_chunk(self, x: Tensor, mask: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vector of each text so far (B, D) from more tokens (B, T, D), maybe none, and the previous state.

        The state (B, 1, D + 1) is the vector so far, and how many tokens it is of.
        """
        before, read, n = state[:, 0, :-1], state[:, 0, -1:], mask.sum(1, keepdim=True)  # (B, D), (B, 1) twice
        first = torch.arange(mask.shape[1], device=x.device) == 0
        now, _ = self(x, mask | ((n == 0) & first))  # for a row without tokens the unused vector of padding
        # A mean or a maximum over a text follows from those of its parts, so a stream needs only the vector so far and
        # a count, for texts of any length.
        joined = {
            "mean": (before * read + now * n) / (read + n).clamp(min=1),
            "max": before.maximum(now),
            "first": before,
            "last": now,
        }[self.how]
        pooled = torch.where(n == 0, before, torch.where(read == 0, now, joined))
        return pooled, torch.cat([pooled, read + n], 1)[:, None]


class PooledHead(nn.Module):
    """A head over the pooled text: a linear layer, after a layer with ReLU if it has hidden units.

    Args:
        dim: Width of a token's vector.
        outputs: Width of the output; None: the output is the pooled vector.
        pool: See `Pool`.
        score: See `Pool`.
        hidden: Units of the layer between the pooled vector and the output; None: no such layer.
        dropout: Dropout probability of the pooled vector and of the hidden layer.
    """

    def __init__(
        self, dim: int, outputs: int | None, *, pool: Pooling, score: AttentionScore, hidden: int | None, dropout: float
    ):
        super().__init__()
        self.state_shape = 1, dim + 1
        self.pool, self.dropout = Pool(dim, pool, score), nn.Dropout(dropout)
        self.hidden = nn.Linear(dim, hidden) if hidden else None
        self.output = nn.Linear(hidden or dim, outputs) if outputs else nn.Identity()

    @staticmethod
    def explains(options: Mapping[str, Any]) -> dict[str, str]:
        return {"attention": "words"} if options.get("pool") == "attention" else {}

    @staticmethod
    def streaming_problem(options: Mapping[str, Any]) -> str:
        pool = options["pool"]
        if pool == "state":
            return "a state is of the whole text; set pool: last, which is the same of an encoder that reads forward"
        return "it weighs all tokens of a text at once; set pool: last, mean or max" if pool == "attention" else ""

    @abstractmethod
    def decide(self, x: Tensor, mask: Tensor, state: Tensor | None = None) -> dict[str, Tensor]:
        """Return the decision about each text from x (B, T, D), mask (B, T) and the encoder's state (B, D)."""

    def decide_chunk(self, x: Tensor, mask: Tensor, state: Tensor) -> dict[str, Tensor]:
        """Return the decision about each text so far from more tokens and the previous state: see `Pool.pool_chunk`."""
        pooled, after = self.pool.pool_chunk(x, mask, state)
        alone = self.decide(pooled[:, None], torch.ones_like(mask[:, :1]))  # every pooling of one vector is that vector
        return {**alone, "state": after}

    def read(
        self, x: Tensor, mask: Tensor, state: Tensor | None, learning: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(B, T, D), (B, T), (B, D) -> the output (B, outputs), and attention weights, if any."""
        pooled, attention = self.pool(x, mask, state)
        if self.hidden is not None:
            pooled = self.hidden(self.dropout(pooled) if learning else pooled).relu()
        return self.output(self.dropout(pooled) if learning else pooled), attention
