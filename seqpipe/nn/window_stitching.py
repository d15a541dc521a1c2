"""Stitching the tags of overlapping windows of a long text: which tags are permitted at the seams.

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

from seqpipe.nn.constants import MASKED_LOGIT

Readings = tuple[Tensor, Tensor, Tensor]


class Windows(NamedTuple):
    """The window that decides each token, and the neighbour that has it too (or the same one), (B, T) int64 each."""

    window: Tensor
    neighbour: Tensor

    def readings(self, rows: Tensor, neighbour_rows: Tensor) -> Readings:
        """Rows (B, T, D) as each token's own window has them, and as those left and right of each seam have them."""
        left, right = ((gap[..., None] < 0) for gap in (self.neighbour - self.window, self.window - self.neighbour))
        return rows, torch.where(left, neighbour_rows, rows), torch.where(right, neighbour_rows, rows)

    def limited(
        self, scores: Tensor, neighbour_scores: Tensor, span_continues: Tensor, path: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Scores of tags (B, T, L) by each token's own window, lowered where a tag may not stand.

        Args:
            scores: The scores by each token's own window, (B, T, L).
            neighbour_scores: Those by the neighbour that holds it too, (B, T, L).
            span_continues: As `permitted` has it; of more than L tags those behind are for the padding.
            path: The tags (3 B, T) of the rows (3 B, T, L) of all three readings, one below the other.
        """
        first, left, right = path(torch.cat(self.readings(scores, neighbour_scores))).unflatten(0, (3, -1)).unbind()
        may = self.permitted((first, left, right), span_continues)[..., : scores.shape[2]]
        return torch.where(may, scores, scores + MASKED_LOGIT)

    def permitted(self, tags: Readings, span_continues: Tensor) -> Tensor:
        """Which tags may stand where, (B, T, L) bool: none that takes a span across a seam without agreement.

        Args:
            tags: The tags of each reading, (B, T) int64, those of the padding included: they continue no span.
            span_continues: Whether the column's tag continues the span in which the row's tag stands, (L, L) bool.
        """
        path, left, right = tags
        inside, *others = (
            _behind(span_continues.flatten()[reading[:, :-1] * span_continues.shape[0] + reading[:, 1:]])
            for reading in tags
        )
        cut = (inside != others[0]) | (inside != others[1])  # where only some of the readings continue
        doubtful = (path != left) | (path != right) | cut | F.pad(cut[:, 1:], (0, 1))
        lower = torch.minimum(self.window, self.neighbour)
        doubtful |= (self.window == self.neighbour) | (
            inside & _behind(lower[:, 1:] != lower[:, :-1])
        )  # not in both windows
        span = (~inside).long().cumsum(1)  # (B, T) counts spans, and tokens that stand in none
        doubts = torch.zeros_like(F.pad(span, (1, 0))).scatter_add(1, span, doubtful.long())  # (B, 1 + T)
        agreed = inside & (doubts.gather(1, span) == 0)
        seam = _behind(self.window[:, 1:] != self.window[:, :-1])
        stays = path[..., None] == torch.arange(span_continues.shape[0], device=path.device)
        return ~seam[..., None] | ~span_continues.any(0) | (agreed[..., None] & stays)


def _behind(pairs: Tensor) -> Tensor:
    """A value of each two neighbours (B, T - 1), placed at the second of them (B, T); False at the first token."""
    return F.pad(pairs, (1, 0))
