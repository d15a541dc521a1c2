"""Sequence labelling by a conditional random field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.plugin import LOG_ZERO, MASKED_LOGIT, Probability, Size, TokenWindows, crf, tagging_schemes


class CRF(nn.Module):
    """A linear-chain conditional random field over linear emissions (Lafferty et al. 2001; Lample et al. 2016).

    Parameters and their initialisation are those of pytorch-crf. Transitions that the scheme forbids, such as I-X after
    O, have probability 0 in training and decoding.

    If a text is read in windows, a span may cross the boundary of two windows only if both windows predict it; the
    answer is the best sequence of tags under this constraint, and probabilities are conditioned on it.

    Args:
        scheme: Tagging scheme of the spans; BMES where each token is in a span (word segmentation); none for plain
            tags, such as parts of speech.
        dropout: Dropout probability of x.
        constraints: Whether transitions that the scheme forbids are impossible; otherwise they are only improbable.
    """

    forbidden: Tensor
    span_continues: Tensor
    rows: ClassVar = {
        "emissions.weight": ("labels",),
        "emissions.bias": ("labels",),
        "start_transitions": ("labels",),
        "end_transitions": ("labels",),
        "transitions": ("labels", "labels"),
    }

    def __init__(
        self,
        dim: int,
        labels: Sequence[str],
        *,
        scheme: Literal["BIOES", "IOB2", "BMES", "none"] = "BIOES",
        dropout: Probability = 0.0,
        constraints: bool = True,
    ):
        super().__init__()
        L, spans = len(labels), scheme != "none"
        self.dropout = nn.Dropout(dropout)
        self.emissions = nn.Linear(dim, L)
        self.start_transitions = nn.Parameter(torch.empty(L).uniform_(-0.1, 0.1))
        self.end_transitions = nn.Parameter(torch.empty(L).uniform_(-0.1, 0.1))
        self.transitions = nn.Parameter(torch.empty(L, L).uniform_(-0.1, 0.1))  # from row to column
        # Forbidden transitions keep their parameter, so that weights match those of pytorch-crf, plus MASKED_LOGIT: no
        # path with one wins, and its share of the partition function is exactly 0 in float32.
        legal = [torch.from_numpy(rule) | (not (constraints and spans)) for rule in tagging_schemes.allowed(labels)]
        forbidden = crf.chain(*(torch.where(rule, 0.0, MASKED_LOGIT) for rule in legal))
        self.register_buffer("forbidden", forbidden, persistent=False)  # (P, P)
        self.spans = spans
        span_continues = F.pad(torch.from_numpy(tagging_schemes.continues(labels)) & spans, (0, 1, 0, 1))
        self.register_buffer("span_continues", span_continues, persistent=False)  # (P, P)

    @staticmethod
    def answer(options: Mapping[str, Any]) -> str:
        return "tags" if options.get("scheme") == "none" else "spans"

    @staticmethod
    def answer_settings(options: Mapping[str, Any]) -> dict[str, Any]:
        return {"scheme": options["scheme"]}

    @staticmethod
    def streaming_problem(options: Mapping[str, Any]) -> str:
        return "Viterbi decides on the whole text, so that a later word may change an earlier tag; use the head tags"

    def loss(self, x: Tensor, mask: Tensor, tags: Tensor) -> Tensor:  # (B, T, D), (B, T), (B, T) -> ()
        """Return the negative log-likelihood per token (sentences count by length), comparable with `tags`."""
        return -self.score(self.dropout(x), mask, tags).sum() / mask.sum()

    def decide(
        self,
        x: Tensor,
        mask: Tensor,
        other_x: Tensor | None = None,
        window: Tensor | None = None,
        other_window: Tensor | None = None,
        *,
        n_best: Size = 1,
    ) -> dict[str, Tensor]:
        """Return the best sequence of tags (Viterbi), their probabilities, and the n best sequences.

        Args:
            n_best: Number of alternative answers, the most probable first.
        """
        emissions = self._emissions(x, mask, other_x, window, other_window)
        decision = crf.decode(emissions, self._chain(), self.span_continues, n_best)
        real = mask.transpose(0, 1)  # (T, B)
        return {
            "tags": torch.where(real, decision.path, 0).transpose(0, 1),
            "scores": torch.where(real, decision.tag_p, 0.0).transpose(0, 1),
            "opens": torch.where(real, decision.opens, 0.0).transpose(0, 1),
            "closes": torch.where(real, decision.closes, 0.0).transpose(0, 1),
            "paths": torch.where(real[..., None] & (decision.log_p > LOG_ZERO), decision.paths, 0).permute(1, 2, 0),
            "path_scores": decision.log_p,
        }

    def score(
        self,
        x: Tensor,
        mask: Tensor,
        tags: Tensor,
        other_x: Tensor | None = None,
        window: Tensor | None = None,
        other_window: Tensor | None = None,
    ) -> Tensor:  # (B,)
        """Return the log-probability of the tags (B, T)."""
        # The tag after the labels is the boundary: padding is a path along it without cost, so that texts of different
        # lengths share one recursion.
        boundary = len(self.start_transitions)
        path = torch.where(mask, tags, boundary).transpose(0, 1)  # (T, B)
        emissions = self._emissions(x, mask, other_x, window, other_window)
        log_p: Tensor = crf.PathLogProbability.apply(emissions, self._chain(), path)
        return log_p

    def _emissions(
        self, x: Tensor, mask: Tensor, other_x: Tensor | None, window: Tensor | None, other_window: Tensor | None
    ) -> Tensor:  # -> (T, P, B)
        emissions = self.emissions(x)
        if self.spans and other_x is not None and window is not None and other_window is not None:
            windows, others = TokenWindows(window, other_window), self.emissions(other_x)

            def best(rows: Tensor) -> Tensor:  # (3 B, T, L) -> (3 B, T)
                return crf.best_path(crf.bounded(rows, torch.cat([mask, mask, mask])), self._chain()).transpose(0, 1)

            emissions = windows.limited(emissions, others, self.span_continues, best)
        return crf.bounded(emissions, mask)

    def _chain(self) -> Tensor:  # (P, P)
        return crf.chain(self.start_transitions, self.end_transitions, self.transitions) + self.forbidden
