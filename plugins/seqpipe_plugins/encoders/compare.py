"""Comparison of the two texts of a pair, by aligning their tokens."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.attention import AttentionPool
from seqpipe.nn.layers import MASKED_LOGIT
from seqpipe.plugin import Probability

SHARPNESS = 10.0  # of the softmax over cosines, which are at most 1, before training


class Compare(nn.Module):
    """Aligns each token of one text of a pair with the other text, and compares the two.

    A decomposable attention network (Parikh et al. 2016) over cosines. With the cosine s(i, j) of token i of one text
    and token j of the other, a(i, j) = softmax(k s(i, j)) over j is the alignment, with a trained k, and m(i) the
    greatest s(i, j), at least 0. With p = tanh(W x + b), where x is scaled to length √D, and q(i) = Σ a(i, j) p(j), the
    comparison of token i is relu(U [p; q; |p - q|; p ⊙ q; m] + c) (Conneau et al. 2017). `state` (B, 2 H + 6) has, for
    the first text and then for the second, its comparisons pooled by attention (H), the mean of m weighted by the
    lengths of the vectors x, and the plain mean of m; then the cosine of the two sums of x, and the difference of the
    numbers of tokens divided by their sum. x (B, T, 2 H + 6) is the same vector at every token, so that any pooling can
    follow; `attention` (B, 1, T, T) has the alignment.

    Under the embedding `ngrams` with `initial: normal`, x begins as a random projection of the TF-IDF weights of a
    word's n-grams (Johnson and Lindenstrauss 1984), and a cosine measures the n-grams that two words share, even of
    words that were not in the training data.

    Args:
        hidden: H, the width of p and of a comparison.
        dropout: Dropout probability of [p; q; |p - q|; p ⊙ q; m].
    """

    length_cost: ClassVar = "quadratic"
    returns: ClassVar = {"x": "", "state": "", "attention": "(B, 1, T, T) float32"}
    explains: ClassVar = {"attention": "pairs"}

    def __init__(self, dim: int, *, hidden: PositiveInt = 64, dropout: Probability = 0.0):
        super().__init__()
        self.dim = 2 * hidden + 6
        self.project, self.compare = nn.Linear(dim, hidden), nn.Linear(4 * hidden + 1, hidden)
        self.sharpness = nn.Parameter(torch.tensor(SHARPNESS))
        self.pool, self.dropout = AttentionPool(hidden, score="additive", units=hidden), nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor, segments: Tensor) -> dict[str, Tensor]:  # (B, T, D), (B, T), (B, T)
        # The separator, the last token that counts to the first text, belongs to neither.
        place = torch.arange(x.shape[1], device=x.device)
        first, second = mask & (segments == 1), mask & (segments == 2)  # (B, T)
        first = first & (place < first.sum(1, keepdim=True) - 1)
        lengths = torch.where(mask, x.norm(dim=2), 0.0)  # (B, T)
        unit = torch.where(mask[..., None], F.normalize(x, dim=2, eps=1e-6), 0.0)
        across = (first[:, :, None] & second[:, None]) | (second[:, :, None] & first[:, None])  # (B, T, T)
        cosines = unit @ unit.transpose(1, 2)
        matched = torch.where(across, cosines, 0.0).amax(2)  # (B, T)
        alignment = torch.where(across, self.sharpness * cosines, MASKED_LOGIT).softmax(2)
        alignment = torch.where(across, alignment, 0.0)  # of a text beside an empty one there is none
        p = self.project(unit * x.shape[2] ** 0.5).tanh()
        q = alignment @ p
        parts = torch.cat([p, q, (p - q).abs(), p * q, matched[..., None]], 2)
        z = self.compare(self.dropout(parts)).relu()  # (B, T, H)
        features, sums, counts = [], [], []
        for side in (first, second):
            count = side.sum(1, keepdim=True)  # (B, 1)
            weights = torch.where(side, lengths, 0.0)
            weighted = (weights * matched).sum(1, keepdim=True) / weights.sum(1, keepdim=True).clamp(min=1e-6)
            mean = torch.where(side, matched, 0.0).sum(1, keepdim=True) / count.clamp(min=1)
            features += [self.pool(z, side)[0], weighted, mean]
            sums.append(torch.where(side[..., None], x, 0.0).sum(1))
            counts.append(count)
        cosine = F.cosine_similarity(sums[0], sums[1], dim=1, eps=1e-6)[:, None]
        longer = (counts[0] - counts[1]) / (counts[0] + counts[1]).clamp(min=1)
        state = torch.cat([*features, cosine, longer], 1)
        return {"x": torch.where(mask[..., None], state[:, None], 0.0), "state": state, "attention": alignment[:, None]}
