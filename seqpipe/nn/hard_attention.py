"""Hard attention: each query attends to one position, and how that is trained."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from seqpipe.errors import UsageError
from seqpipe.nn.attention import Attention, Projected, Score

Estimator = Literal["straight-through", "reinforce"]
TIED = 1e-4  # two weights as near as that, as shares of the greater one, may stand either way round in another runtime
DECAY, ENTROPY, EXPECTED = 0.9, 0.01, 0.5


class HardAttention(Attention):
    """Attention to one position at a time (Xu et al. 2015): the context is the value at the position of most weight.

    Of several positions of most weight it is the first, here and in onnxruntime; the weights that come back are 1 there
    and 0 elsewhere. A text without any real position has the context 0. What position is best has no gradient; in
    training the weights learn by one of two estimates of it:

    - `straight-through` (Bengio et al. 2013): the position is that of most weight, and the gradient what it would be
      if the context were the mean by the weights.
    - `reinforce` (Williams 1992; Xu et al. 2015): the position is drawn from the weights, or, for half of the queries,
      the context is their mean. `auxiliary_loss` makes the weights learn from how likely the true token was.

    Args:
        query_dim: Dq, the width of a query.
        key_dim: Dk, the width of the keys.
        trained: How the weights learn.
        score: What says how well a query and a key match, as in `Attention`; `multi-head` with one head.
        units: Width of W q and U k in `additive` and `concat-tanh`.
        heads: Heads of `multi-head`: 1.

    Raises:
        UsageError: if there are several heads, or the widths do not fit the score.
    """

    average: Tensor

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        *,
        trained: Estimator,
        score: Score = "additive",
        units: int = 128,
        heads: int = 1,
    ):
        if heads > 1:
            cure = "set heads: 1, or hard_attention: none"
            raise UsageError(f"hard_attention: it attends to one position and has one head, not {heads}; {cure}")
        super().__init__(query_dim, key_dim, score=score, units=units, heads=heads)
        self.draws = trained == "reinforce"
        if self.draws:
            self.register_buffer("average", torch.zeros(2))  # of the rewards so far, decaying: their sum, their weight

    def attend(self, query: Tensor | None, projected: Projected, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The context (B, N, D) and the weights (B, 1, N, T), as `Attention` has them, 1 at one position.

        In training by `reinforce` the weights are those that were drawn from, with a minus at what was drawn, and
        without any where the context is their mean.
        """
        p = self._weights(query, projected, mask)
        if not self.training:
            chosen = first(p)
            return self._context(query, projected, chosen), chosen
        if not self.draws:
            chosen = first(p) + (p - p.detach())
            return self._context(query, projected, chosen), chosen
        expected = torch.rand(p.shape[:3], device=p.device)[..., None] < EXPECTED  # (B, 1, N, 1)
        drawn = _drawn(p) & ~expected
        return self._context(query, projected, torch.where(expected, p, drawn.to(p))), torch.where(drawn, -p, p)

    def auxiliary_loss(self, weights: Tensor, log_p: Tensor, mask: Tensor) -> Tensor:
        """The auxiliary loss of `reinforce`: 0, with the gradient of -(log p - b) log a - λ H.

        log p is that of the true token, b its average over the steps so far, by 0.1 of each new one; a is the weight
        of the position that was drawn for it, H the entropy of the weights, λ 0.01. Of what follows on a token nothing
        is credited to its position: the gradient is exact where a context is read by one token alone, and of much less
        variance anyhow.

        Args:
            weights: As `attend` gave them, (B, N, T).
            log_p: Log-probabilities of the true tokens, (B, N).
            mask: Which of them there are, (B, N).
        """
        log_p, p = log_p.detach(), weights.abs()
        self.average.mul_(DECAY).add_((1 - DECAY) * torch.stack([log_p[mask].mean(), torch.ones_like(log_p[0, 0])]))
        reward = log_p - self.average[0] / self.average[1]
        log_a = torch.where(weights < 0, p, 1.0).log().sum(2)  # (B, N)
        entropy = -(p * p.clamp_min(torch.finfo(p.dtype).tiny).log()).sum(2)
        each = torch.where((weights < 0).any(2) & mask, reward * log_a + ENTROPY * entropy, 0.0)
        aim = each.sum() / mask.sum()
        return aim.detach() - aim


def first(weights: Tensor) -> Tensor:  # (…, T) -> (…, T)
    """1 at the greatest of each row, at the first of those that are as great, and 0 elsewhere; of a row of 0 all 0."""
    near = (weights >= (1 - TIED) * weights.amax(-1, keepdim=True)) & (weights > 0)
    return (near & (near.long().cumsum(-1) == 1)).to(weights.dtype)


def _drawn(weights: Tensor) -> Tensor:  # (…, T) -> (…, T)
    """True at one position of each row, drawn by its weight; nowhere in a row of 0."""
    noise = torch.empty_like(weights).exponential_()
    places = torch.where(weights > 0, weights / noise, -1.0).argmax(-1, keepdim=True)
    return (torch.arange(weights.shape[-1], device=weights.device) == places) & (weights > 0)
