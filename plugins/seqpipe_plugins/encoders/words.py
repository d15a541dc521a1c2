"""Word vectors of subword vectors, for heads that tag words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.layers import MASKED_LOGIT
from seqpipe.plugin import Pieces


class WordsEncoder(nn.Module):
    """Pools the subword vectors of each word into one vector.

    The vector of a word with the subwords i to j is x(i) (`first`, as in Devlin et al. 2019), or the mean or the
    maximum of x(i) to x(j). x (B, T, D) becomes (B, N, D) and the mask (B, N), where N is the number of words. If the
    tokens are words, both are unchanged. For a text in windows, a word belongs to the windows of its first subword, and
    its `other_x` is pooled like x.

    Args:
        pool: Pooling of the subwords of a word: the first, the mean, or the maximum.
        joined: Of a converted checkpoint: words are tokens joined as by the aggregation strategies of `transformers`.
    """

    tokenwise: ClassVar = True
    returns: ClassVar = {
        "x": "",
        "mask": "",
        "other_x": "(B, N, D) float32",
        "window": "(B, N) int64",
        "other_window": "(B, N) int64",
    }

    def __init__(self, dim: int, *, pool: Literal["first", "mean", "max"] = "first", joined: bool = False):
        super().__init__()
        self.dim, self.pool = dim, pool

    @staticmethod
    def features(options: Mapping[str, Any]) -> dict[str, Pieces]:
        return {"pieces": Pieces(joins_words=bool(options.get("joined")))}

    def forward(
        self,
        x: Tensor,  # (B, T, D)
        mask: Tensor,  # (B, T)
        pieces: Tensor,  # (B, N)
        other_x: Tensor | None = None,  # (B, T, D)
        window: Tensor | None = None,  # (B, T)
        other_window: Tensor | None = None,  # (B, T)
    ) -> dict[str, Tensor]:
        real = pieces > 0  # (B, N)
        begin = (pieces - 1).clamp(min=0)
        outputs = {"x": self._pool(x, mask, begin, real), "mask": real}
        if other_x is not None:
            outputs["other_x"] = self._pool(other_x, mask, begin, real)
        numbers = {"window": window, "other_window": other_window}
        return outputs | {name: number.gather(1, begin) for name, number in numbers.items() if number is not None}

    def _pool(self, x: Tensor, mask: Tensor, begin: Tensor, real: Tensor) -> Tensor:  # -> (B, N, D)
        x = torch.where(mask[..., None], x, 0.0)
        if self.pool == "first":
            return torch.where(real[..., None], x.gather(1, begin[..., None].expand(-1, -1, x.shape[2])), 0.0)
        # A word's pieces end where those of the next real word begin, those of the last word at the end of the text:
        # there is no padding between two tokens of a text, so the two bounds determine the pieces of a word.
        following = F.pad(begin[:, 1:], (0, 1)), F.pad(real[:, 1:], (0, 1))
        end = torch.where(following[1], following[0], mask.sum(1, keepdim=True))  # (B, N) one past the last piece
        t = torch.arange(x.shape[1], device=x.device)
        within = (begin[..., None] <= t) & (t < end[..., None])  # (B, N, T)
        if self.pool == "mean":
            share = within.to(x.dtype)
            pooled = (share @ x) / share.sum(2, keepdim=True).clamp(min=1)
        else:
            pooled = torch.where(within[..., None], x[:, None], MASKED_LOGIT).amax(2)
        return torch.where(real[..., None], pooled, 0.0)
