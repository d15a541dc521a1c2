"""Intra-attention: a decoder attends to its own earlier states."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqpipe.nn.attention import Attention, Projected
from seqpipe.nn.loops import State


class Written(nn.Module):
    """Intra-decoder attention (Paulus et al. 2018).

    The state h(t) attends to h(1), …, h(t - 1): a softmax over them of h(t) · W h(s), and their mean by these weights,
    which is 0 at the first token. Step by step the states so far are kept in a tensor as long as the longest text, so
    that search can repeat and reorder its rows.

    Args:
        dim: H, the width of a state.
    """

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim
        self.query = nn.Linear(dim, dim, bias=False)
        self.attention = Attention(dim, dim, score="dot")

    def start(self, like: Tensor, max_length: int) -> State:
        """Nothing written: states (B, N, H) and their number (B,), with the rows and the device of `like` (B, …)."""
        rows = like.shape[0]
        return (
            torch.zeros(rows, max_length, self.dim, device=like.device),
            torch.zeros(rows, dtype=torch.int64, device=like.device),
        )

    def step(self, h: Tensor, kept: State) -> tuple[Tensor, State]:
        """The context (R, H) of a state h (R, H) among the cached ones, and the cache with it."""
        states, t = kept
        times = torch.arange(states.shape[1], device=h.device)
        context = self._attended(h[:, None], states, times < t[:, None])[:, 0]
        return context, (torch.where((times == t[:, None])[..., None], h[:, None], states), t + 1)

    def forward(self, h: Tensor) -> Tensor:  # (B, N, H) -> (B, N, H)
        """The contexts of all states of a text at once."""
        times = torch.arange(h.shape[1], device=h.device)
        return self._attended(h, h, (times < times[:, None])[None])

    def _attended(
        self, h: Tensor, states: Tensor, before: Tensor
    ) -> Tensor:  # (R, M, H), (R, N, H), (R, N) or (R, M, N)
        values = states[:, None]  # of one head
        context, _ = self.attention.attend(self.query(h), Projected(values.transpose(2, 3), values), before)
        return context
