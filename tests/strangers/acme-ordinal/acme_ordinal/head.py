"""x in, one label of an order out: the median of a proportional-odds model."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.plugin import UsageError


class Ordinal(nn.Module):
    """Proportional odds (McCullagh 1980): P(rank <= k) = sigmoid(threshold_k - s), s linear in the mean of x.

    Args:
        order: All labels, from the lowest to the highest.
        dropout: Dropout probability of x.
    """

    answer = "label"
    positions: Tensor
    ranks: Tensor

    def __init__(
        self,
        dim: int,
        labels: Sequence[str],
        *,
        order: Annotated[list[str], Field(min_length=2, examples=[["a", "b", "c"]])],
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    ):
        super().__init__()
        if sorted(order) != sorted(labels):
            raise UsageError(f"order: {order} should name each label of the training data once: {list(labels)}")
        self.dropout = nn.Dropout(dropout)
        self.slope = nn.Linear(dim, 1, bias=False)
        cuts = torch.logit(torch.arange(1, len(order)) / len(order))  # where all ranks are equally probable
        self.lowest = nn.Parameter(cuts[:1])
        self.gaps = nn.Parameter(cuts.diff().expm1().log())  # thresholds lie softplus(gap) > 0 apart
        at = {label: position for position, label in enumerate(labels)}
        positions = torch.tensor([at[label] for label in order])
        self.register_buffer("positions", positions, persistent=False)  # rank -> position in labels
        self.register_buffer("ranks", positions.argsort(), persistent=False)  # position in labels -> rank

    def loss(self, x: Tensor, mask: Tensor, label: Tensor) -> Tensor:  # label: (B,)
        return -self.score(x, mask, label).mean()

    def decide(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        above = self._score_of_text(x, mask) > self._thresholds()  # (B, L - 1): the median lies above this threshold
        scores = self._log_p(x, mask).exp()
        return {"label": self.positions[above.sum(1)], "scores": scores}  # (B,), (B, L)

    def score(self, x: Tensor, mask: Tensor, label: Tensor) -> Tensor:  # -> (B,)
        return self._log_p(x, mask).gather(1, label[:, None])[:, 0]

    def margin(self, x: Tensor, mask: Tensor) -> Tensor:  # -> (B,): the median changes where s meets a threshold
        return (self._score_of_text(x, mask) - self._thresholds()).abs().amin(1)

    @staticmethod
    def metrics(options: Mapping[str, Any], gold: Sequence[str], predicted: Sequence[str | None]) -> dict[str, float]:
        """Mean distance of answers in ranks; the greatest one for no answer, or a label without a rank."""
        rank = {label: rank for rank, label in enumerate(options["order"])}
        errors = [
            abs(rank[right] - rank[given]) if right in rank and given in rank else len(rank) - 1
            for right, given in zip(gold, predicted, strict=True)
        ]
        return {"mean_absolute_error": sum(errors) / len(errors)}

    def _thresholds(self) -> Tensor:  # (L - 1,), rising
        return torch.cat([self.lowest, self.lowest + F.softplus(self.gaps).cumsum(0)])

    def _score_of_text(self, x: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, 1)
        total = torch.where(mask[..., None], x, 0.0).sum(1)
        return self.slope(self.dropout(total / mask.sum(1, keepdim=True)))

    def _log_p(self, x: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, L), by position in labels
        margins = self._thresholds() - self._score_of_text(x, mask)  # (B, L - 1)
        # sigmoid(b) - sigmoid(a) = sigmoid(b) * sigmoid(-a) * (1 - exp(a - b)); of a gap, the last is sigmoid(gap)
        below = F.pad(_log_sigmoid(margins), (0, 1))  # log P(rank <= k), 0 for the highest
        above = F.pad(_log_sigmoid(-margins), (1, 0))  # log P(rank >= k), 0 for the lowest
        by_rank = below + above + F.pad(_log_sigmoid(self.gaps), (1, 1))
        return by_rank.index_select(1, self.ranks)


def _log_sigmoid(x: Tensor) -> Tensor:
    return -F.softplus(-x)  # in a graph, F.logsigmoid is -inf from about -17
