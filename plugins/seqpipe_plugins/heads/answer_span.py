"""Extractive question answering: the span of the passage that answers the question, or no answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.layers import LOG_ZERO
from seqpipe.nn.search import top_n
from seqpipe.plugin import Probability, Size, UsageError

# The log-probabilities of all tokens as starts, or as ends; for a passage in windows also those of the neighbouring
# window, and the numbers of the two windows.
Side = tuple[Tensor, ...]


class AnswerSpan(nn.Module):
    """Extractive question answering: a softmax over the passage for the answer's start and one for its end.

    p(span) = p(start) p(end) (Devlin et al. 2019), and the answer is the most probable span of at most `longest` tokens
    that does not end before it starts. The loss is -log p(span). With `no_answer` one more position stands for "no
    answer". Its two scores are computed from `state` (of a checkpoint the vector of [CLS]; without a `state` as wide as
    x, the mean of x), p(none) is the product of its two probabilities, and there is no answer if no span is more
    probable. A passage without tokens never has an answer.

    If a passage is read in windows, a span within one window is scored by that window. A span across the boundary of
    two windows is chosen only if both contain its start and its end, and its score is the lower of the two.

    Args:
        no_answer: Whether a question may have no answer.
        dropout: Dropout probability of x and of state.
    """

    answer = "span"

    def __init__(self, dim: int, *, no_answer: bool = False, dropout: Probability = 0.0):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.tokens = nn.Linear(dim, 2)
        self.nothing = nn.Linear(dim, 2) if no_answer else None

    @staticmethod
    def answer_settings(options: Mapping[str, Any]) -> dict[str, Any]:
        return {"no_answer": options["no_answer"]}

    def loss(
        self, x: Tensor, mask: Tensor, segments: Tensor, start: Tensor, end: Tensor, state: Tensor | None = None
    ) -> Tensor:
        """Mean over questions of -log p(start) - log p(end), (B, T, D), (B, T), (B, T), (B,), (B,), (B, D) -> ()."""
        none, *sides = self._sides(x, mask, segments, state)
        log_p = [torch.cat([none[..., i], side[0]], 1) for i, side in enumerate(sides)]  # (B, 1 + T): no answer first
        return F.nll_loss(log_p[0], start + 1) + F.nll_loss(log_p[1], end + 1)

    def decide(
        self,
        x: Tensor,
        mask: Tensor,
        segments: Tensor,
        state: Tensor | None = None,
        other_x: Tensor | None = None,
        window: Tensor | None = None,
        other_window: Tensor | None = None,
        *,
        n_best: Size = 1,
        longest: Size = 30,
    ) -> dict[str, Tensor]:
        """Return first and last tokens of the n best answers, -1 for none, and their log-probabilities, (B, K) each.

        Args:
            n_best: Number of answers, the most probable first.
            longest: Maximum number of tokens of an answer.
        """
        none, starts, ends = self._sides(x, mask, segments, state, other_x, window, other_window)
        # Of all T * T spans only those of at most `longest` tokens are built: for each start, the log-probabilities of
        # the L ends from it on. After the text come LOG_ZERO, and after all spans as many fillers as requested answers,
        # so that a short text has enough candidates. Place 0 of the choice is "no answer".
        B, T = mask.shape
        L = torch.sym_min(longest, T)
        t = torch.arange(T, device=x.device)[:, None]
        to = t + torch.arange(L, device=x.device)  # (T, L) ends of each start
        reach = tuple(F.pad(row, (0, L - 1), value=LOG_ZERO if row.is_floating_point() else -1)[:, to] for row in ends)
        spans_log_p = _together(tuple(row[..., None] for row in starts), reach)  # (B, T, L)
        fillers = torch.full((B, n_best), 2 * LOG_ZERO, device=x.device)
        log_p, place = top_n(torch.cat([none.sum(2), spans_log_p.flatten(1), fillers], 1), n_best)  # (B, K)
        exists = log_p > LOG_ZERO / 2
        chosen = exists & (place > 0)
        spans = torch.stack([t.expand_as(to), to], 2).flatten(0, 1)  # (T * L, 2)
        first, last = spans[torch.where(chosen, place - 1, 0)].unbind(2)  # (B, K)
        return {
            "starts": torch.where(chosen, first, -1),
            "ends": torch.where(chosen, last, -1),
            "scores": torch.where(exists, log_p.clamp(max=0.0), LOG_ZERO),
        }

    def score(
        self,
        x: Tensor,
        mask: Tensor,
        segments: Tensor,
        starts: Tensor,
        ends: Tensor,
        state: Tensor | None = None,
        other_x: Tensor | None = None,
        window: Tensor | None = None,
        other_window: Tensor | None = None,
    ) -> Tensor:  # (B,)
        """Return the log-probability of the first of these answers."""
        none, *sides = self._sides(x, mask, segments, state, other_x, window, other_window)
        at_start, at_end = (
            tuple(row.gather(1, at[:, :1].clamp(min=0)) for row in side)
            for side, at in zip(sides, (starts, ends), strict=True)
        )
        span = torch.where(ends[:, :1] < starts[:, :1], LOG_ZERO, _together(at_start, at_end))  # (B, 1)
        return torch.where(starts[:, :1] < 0, none.sum(2), span)[:, 0]

    def _sides(
        self,
        x: Tensor,
        mask: Tensor,
        segments: Tensor,
        state: Tensor | None,
        other_x: Tensor | None = None,
        window: Tensor | None = None,
        other_window: Tensor | None = None,
    ) -> tuple[Tensor, Side, Side]:
        """Return the log-probabilities of no answer (B, 1, 2), and those of the tokens as starts and as ends."""
        if not torch.compiler.is_exporting() and x.shape[1] != segments.shape[1]:
            problem = f"x has {x.shape[1]} rows but the two texts have {segments.shape[1]} tokens"
            fix = "delete the encoder that replaces the rows of tokens, such as `words`"
            raise UsageError(f"answer-span: {problem}; {fix}")
        passage = (mask & (segments == 2))[..., None]  # (B, T, 1)
        x = torch.where(mask[..., None], x, 0.0)
        tokens = torch.where(passage, self.tokens(self.dropout(x)), LOG_ZERO)
        if self.nothing is None:
            none = torch.where(passage.any(1, keepdim=True), LOG_ZERO, torch.zeros_like(tokens[:, :1]))
        else:
            mean = x.sum(1) / mask.sum(1, keepdim=True)
            whole = mean if state is None or state.shape[-1] != x.shape[-1] else state
            none = self.nothing(self.dropout(whole))[:, None]  # (B, 1, 2)
        total = torch.cat([none, tokens], 1).logsumexp(1, keepdim=True)
        none, tokens = none - total, tokens - total
        if other_x is None or window is None or other_window is None:
            return none, (tokens[..., 0],), (tokens[..., 1],)
        neighbour = torch.where(passage, self.tokens(other_x), LOG_ZERO) - total
        start, end = ((tokens[..., i], neighbour[..., i], window, other_window) for i in range(2))
        return none, start, end


def _together(start: Side, end: Side) -> Tensor:
    """Return the log-probabilities of spans; the two sides are broadcast."""
    if len(start) == 1:
        return start[0] + end[0]
    own_start, other_start, window, other_window = start
    own_end, other_end, end_window, other_end_window = end
    # Start and end are comparable only within one window. A span across two windows counts if both contain it, with the
    # lower of their two probabilities, so that no window makes an answer likely that its neighbour rejects.
    both = (other_end_window == window) & (other_window == end_window)
    agreed = torch.minimum(own_start + other_end, other_start + own_end)  # by the window of each
    return torch.where(window == end_window, own_start + own_end, torch.where(both, agreed, LOG_ZERO))
