"""What the overlapping windows of a long text say of its tags in, which tags may stand at their seams out.

Each token is decided by one window, and near a seam, where the deciding window changes, a neighbour holds it too. A
span stands across a seam only if the tags are the same in three readings of the text: by each token's own window, and
with what is near a seam read by the window on its left, and by the one on its right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

Readings = tuple[Tensor, Tensor, Tensor]
FORBIDDEN = -1e4  # what is added to the score of a tag that may not stand


class Windows(NamedTuple):
    """By which window each token is decided, and which neighbour holds it too (or the same one), (B, T) int64 each."""

    own: Tensor
    other: Tensor

    def readings(self, own: Tensor, other: Tensor) -> Readings:
        """Rows (B, T, D) as each token's own window has them, and as those left and right of each seam have them."""
        left, right = ((side < 0)[..., None] for side in (self.other - self.own, self.own - self.other))
        return own, torch.where(left, other, own), torch.where(right, other, own)

    def limited(self, own: Tensor, other: Tensor, span_continues: Tensor, path: Callable[[Tensor], Tensor]) -> Tensor:
        """Scores of tags (B, T, L) by each token's own window, lowered where a tag may not stand.

        Args:
            own: The scores by each token's own window, (B, T, L).
            other: Those by the neighbour that holds it too, (B, T, L).
            span_continues: As `permitted` has it; of more than L tags those behind are for the padding.
            path: The tags (3 B, T) of the rows (3 B, T, L) of all three readings, one below the other.
        """
        first, left, right = path(torch.cat(self.readings(own, other))).unflatten(0, (3, -1)).unbind()
        may = self.permitted((first, left, right), span_continues)[..., : own.shape[2]]
        return torch.where(may, own, own + FORBIDDEN)

    def permitted(self, tags: Readings, span_continues: Tensor) -> Tensor:
        """Which tags may stand where, (B, T, L) bool: none that takes a span across a seam without agreement.

        Args:
            tags: The tags of each reading, (B, T) int64, those of the padding included: they continue no span.
            span_continues: Whether the column's tag continues the span in which the row's tag stands, (L, L) bool.
        """
        own, left, right = tags
        inside, *others = (
            _behind(span_continues.flatten()[path[:, :-1] * span_continues.shape[0] + path[:, 1:]]) for path in tags
        )
        cut = (inside != others[0]) | (inside != others[1])  # where only some of the readings continue
        doubtful = (own != left) | (own != right) | cut | F.pad(cut[:, 1:], (0, 1))
        lower = torch.minimum(self.own, self.other)
        doubtful |= (self.own == self.other) | (inside & _behind(lower[:, 1:] != lower[:, :-1]))  # not in both windows
        span = (~inside).long().cumsum(1)  # (B, T) counts spans, and tokens that stand in none
        doubts = torch.zeros_like(F.pad(span, (1, 0))).scatter_add(1, span, doubtful.long())  # (B, 1 + T)
        agreed = inside & (doubts.gather(1, span) == 0)
        seam = _behind(self.own[:, 1:] != self.own[:, :-1])
        is_own = own[..., None] == torch.arange(span_continues.shape[0], device=own.device)
        return ~seam[..., None] | ~span_continues.any(0) | (agreed[..., None] & is_own)


def _behind(pairs: Tensor) -> Tensor:
    """Of each two neighbours (B, T - 1), told at the second (B, T); the first token has none before it."""
    return F.pad(pairs, (1, 0))
