"""x in, one label a text out: the likeliest by a softmax over the pooled text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.errors import UsageError, nearest

Weights = dict[str, Annotated[float, Field(gt=0)]]


class Label(nn.Module):
    """A softmax over the labels of a text (multinomial logistic regression) whose tokens are pooled into one vector.

    Over the maximum in time see Collobert et al. (2011), over the mean Iyyer et al. (2015).

    Args:
        pool: What is made of the tokens' vectors: their mean, the greatest number of each place, the first or the last.
        dropout: Probability that a number of the pooled vector is silenced in training.
        label_smoothing: The share of the target that is spread over all labels in training (Szegedy et al. 2016).
        class_weights: What a text of a label counts in the loss, such as {rare: 5.0}; a label not named here counts 1.
    """

    answer = "label"
    weights: Tensor

    def __init__(
        self,
        dim: int,
        labels: Sequence[str],
        *,
        pool: Literal["mean", "max", "first", "last"] = "max",
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        class_weights: Weights | None = None,
    ):
        super().__init__()
        given = class_weights or {}
        for label in given:
            if label not in labels:
                cure = f"name labels of the training data{nearest(label, labels)}"
                raise UsageError(f"label.class_weights: no text that was read has the label {label!r}; {cure}")
        self.pool, self.label_smoothing = pool, label_smoothing
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(dim, len(labels))
        weights = torch.tensor([given.get(label, 1.0) for label in labels])  # (L,)
        self.register_buffer("weights", weights, persistent=False)

    def loss(self, x: Tensor, mask: Tensor, label: Tensor) -> Tensor:  # (B, T, D), (B, T), (B,) -> ()
        """Mean cross-entropy of a text times the weight of its label: one of weight 2 counts as two texts of 1."""
        logits = self.output(self.dropout(self._pooled(x, mask)))
        error = F.cross_entropy(logits, label, reduction="none", label_smoothing=self.label_smoothing)  # (B,)
        return (self.weights[label] * error).mean()

    def decide(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """The likeliest label (B,) and the probability of every label (B, L)."""
        scores = self.output(self._pooled(x, mask)).softmax(1)
        return {"label": scores.argmax(1), "scores": scores}

    def score(self, x: Tensor, mask: Tensor, label: Tensor) -> Tensor:  # (B, T, D), (B, T), (B,) -> (B,)
        """Log-probability of the label."""
        return self.output(self._pooled(x, mask)).log_softmax(1).gather(1, label[:, None])[:, 0]

    def _pooled(self, x: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, D)
        if self.pool == "first":
            return x[:, 0]
        if self.pool == "last":
            last = mask.sum(1)[:, None, None] - 1  # (B, 1, 1)
            return x.gather(1, last.expand(-1, -1, x.shape[2]))[:, 0]
        if self.pool == "max":
            return torch.where(mask[..., None], x, -1e4).amax(1)
        return torch.where(mask[..., None], x, 0.0).sum(1) / mask.sum(1, keepdim=True)
