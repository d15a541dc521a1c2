"""A bidirectional language model: its loss, and the probability of a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.layers import BOS_ID, PAD_ID, RealRows, logit_mask
from seqpipe.plugin import Metric, Probability


class BiLMHead(nn.Module):
    """A bidirectional language model over the encoder `bilm` (Peters et al. 2018).

    Each token is predicted from the tokens before it and, independently, from those after it, with a shared softmax:
    p(t) = softmax(W h + b), where h is the state of the forward stack at t - 1, or of the backward stack at t + 1, and
    a learned vector at the ends of the text. No labels are needed. The answer for a text is the mean log-probability of
    a token over both directions: exp(-score) is the perplexity of the text.

    Args:
        dropout: Dropout probability of h.
    """

    answer = "score"
    self_supervised: ClassVar = True
    score_types: ClassVar = dict.fromkeys(
        ("forward_perplexity", "backward_perplexity"), Metric(percent=False, more_is_better=False)
    )
    rows: ClassVar[Mapping[str, tuple[str, ...]]] = {"output.weight": ("vocabulary",), "output.bias": ("vocabulary",)}
    logit_mask: Tensor

    def __init__(self, dim: int, vocabulary: Sequence[str], *, dropout: Probability = 0.0):
        super().__init__()
        self.edges = nn.Parameter(torch.zeros(2, dim // 2))
        self.output = nn.Linear(dim // 2, len(vocabulary))
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("logit_mask", logit_mask(len(vocabulary), [PAD_ID, BOS_ID]), persistent=False)  # (V,)

    def loss(self, forwards: Tensor, backwards: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
        """Return the mean cross-entropy () of a token of (B, T), the mean of both directions."""
        contexts = self._contexts(forwards, backwards, mask)
        rows = RealRows(mask)
        losses = [F.cross_entropy(self._logits(self.dropout(rows.of(h))), rows.ids(ids)) for h in contexts]
        return torch.stack(losses).mean()

    def loss_count(self, mask: Tensor) -> Tensor:
        return mask.sum()

    def measures(self, forwards: Tensor, backwards: Tensor, mask: Tensor, ids: Tensor) -> dict[str, Tensor]:
        """Return, for dev, the sum of the negative log-probabilities and the number of tokens of each direction."""
        contexts = zip(("forward", "backward"), self._contexts(forwards, backwards, mask), strict=True)
        lost = {name: F.cross_entropy(self._logits(h[mask]), ids[mask], reduction="sum") for name, h in contexts}
        return {f"{name}_perplexity": torch.stack([total, mask.sum()]) for name, total in lost.items()}

    def decide(self, forwards: Tensor, backwards: Tensor, mask: Tensor, ids: Tensor) -> dict[str, Tensor]:
        """Return the mean log-probability of a token of each text, (B,)."""
        rated = [
            self._logits(h).log_softmax(2).gather(2, ids[..., None])[..., 0]
            for h in self._contexts(forwards, backwards, mask)
        ]
        mean = torch.where(mask, torch.stack(rated).mean(0), 0.0).sum(1) / mask.sum(1)
        return {"score": mean}

    def _contexts(self, forwards: Tensor, backwards: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the contexts of each token: the state before it and the state after it, (B, T, H) each."""
        begin, end = (edge.expand(mask.shape[0], 1, -1) for edge in self.edges)
        before = torch.cat([begin, forwards[:, :-1]], 1)
        behind = torch.cat([backwards[:, 1:], end], 1)
        # The last token of a short row is followed by padding, whose backward state is replaced by the learned vector
        # of the end.
        last = F.pad(mask[:, 1:], (0, 1)) < mask  # (B, T)
        behind = torch.where(last[..., None], end, behind)
        return before, behind

    def _logits(self, h: Tensor) -> Tensor:  # (…, H) -> (…, V)
        return F.linear(h, self.output.weight, self.output.bias + self.logit_mask)
