"""Sequence labelling by an independent softmax for each token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from seqpipe.nn import calibration
from seqpipe.nn.layers import RealRows
from seqpipe_plugins.heads import TaggingHead


class TagsHead(TaggingHead):
    """A softmax over the tags, for each token independently.

    If a text is read in windows, a span may cross the boundary of two windows only if both windows predict it;
    otherwise the tokens at the boundary get the most probable tags that begin or end a span.

    After each epoch, dev data determines the temperature T in softmax(z / T) with the maximum likelihood of the tags
    (Guo et al. 2017); the answer stays the same.
    """

    def loss(self, x: Tensor, mask: Tensor, tags: Tensor) -> Tensor:  # (B, T, D), (B, T), (B, T) -> ()
        """Return the mean cross-entropy of a token, weighted by its tag: weight 2 counts as two tokens."""
        rows, emissions = RealRows(mask), self.emissions(self.dropout(x))
        return F.cross_entropy(rows.of(emissions), rows.ids(tags), self.weights, reduction="sum") / mask.sum()

    def distribution(self, x: Tensor, mask: Tensor, *, temperature: float) -> Tensor:  # -> (N, L)
        """Return the log-probability of each tag of a token."""
        return (self.emissions(self.dropout(x))[mask] / temperature).log_softmax(1)

    def evidence(self, x: Tensor, mask: Tensor, tags: Tensor) -> dict[str, Tensor]:
        logits = self.emissions(x)
        log_p = [(logits / T).log_softmax(2).gather(2, tags[..., None])[..., 0] for T in calibration.GRID]  # (B, T)
        return {"losses": -torch.where(mask[:, None], torch.stack(log_p, 1), 0.0).sum(2)}

    def decide(
        self,
        x: Tensor,
        mask: Tensor,
        other_x: Tensor | None = None,
        window: Tensor | None = None,
        other_window: Tensor | None = None,
        gazetteer: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the likeliest tag of each token, its probability, and `opens` and `closes`.

        exp(opens[i] + closes[j]) is the probability that tokens i to j have the chosen tags and j + 1 does not continue
        with the span: a product of tokens, since each is chosen by itself. With a gazetteer of spans, tokens are chosen
        together, as the likeliest of the permitted sequences.
        """
        logits = self.logits(x, mask, other_x, window, other_window, gazetteer)
        if self.gazetteer is not None and gazetteer is not None:
            return self.gazetteer.decode(logits, gazetteer, mask, None, 1).outputs(mask)
        log_p = logits.log_softmax(2)  # (B, T, L)
        chosen, tags = log_p.max(2)  # (B, T)
        chosen = torch.where(mask, chosen, 0.0)
        so_far = chosen.cumsum(1)
        stops = (self.stops[tags[:, :-1]] * log_p[:, 1:].exp()).sum(2)  # (B, T - 1)
        stops = F.pad(torch.where(mask[:, 1:], stops, 1.0), (0, 1), value=1.0)  # (B, T) nothing continues after the end
        return {
            "tags": torch.where(mask, tags, 0),
            "scores": torch.where(mask, chosen.exp(), 0.0),
            "opens": torch.where(mask, chosen - so_far, 0.0),
            "closes": torch.where(mask, so_far + stops.clamp(min=1e-37).log(), 0.0),
        }

    @staticmethod
    def streaming_problem(options: Mapping[str, Any]) -> str:
        return "a listed name may be cut by a chunk; delete gazetteer" if options.get("gazetteer") else ""

    @property
    def state_shape(self) -> tuple[int, int]:
        """Shape of the state: for each tag, whether it does not continue the span of the last tag."""
        return 1, len(self.stops)

    def decide_chunk(self, x: Tensor, mask: Tensor, state: Tensor) -> dict[str, Tensor]:
        """Return the same for the next tokens of each text, with `opens` and `closes` from the first of them.

        `stops` (B,) is the log-probability that the first of them does not continue the span of the token before: what
        `closes` of that token lacks, since nothing continued it yet. It is 0 without such a token.
        """
        decision = self.decide(x, mask)
        p = self.logits(x[:, :1], mask[:, :1])[:, 0].softmax(1)  # (B, L)
        follows = mask[:, 0] & (state.sum((1, 2)) > 0)  # some tag ends each span, so only an empty state is 0
        stops = torch.where(follows, (state[:, 0] * p).sum(1).clamp(min=1e-37).log(), 0.0)
        last = decision["tags"].gather(1, (mask.sum(1, keepdim=True) - 1).clamp(min=0))[:, 0]
        after = torch.where(mask[:, :1], F.embedding(last, self.stops), state[:, 0])
        return {**decision, "stops": stops, "state": after[:, None]}

    def score(
        self,
        x: Tensor,
        mask: Tensor,
        tags: Tensor,
        other_x: Tensor | None = None,
        window: Tensor | None = None,
        other_window: Tensor | None = None,
    ) -> Tensor:  # (B,)
        """Return the log-probability of the tags (B, T) without a gazetteer, which changes no difference of two."""
        log_p = self.logits(x, mask, other_x, window, other_window).log_softmax(2)  # (B, T, L)
        return torch.where(mask, log_p.gather(2, tags[..., None])[..., 0], 0.0).sum(1)

    def best_tags(self, logits: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, logits.argmax(2), logits.shape[2])
