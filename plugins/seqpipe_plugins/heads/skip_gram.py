"""Skip-gram with negative sampling (word2vec); the answer is the mean of a text's vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.corruption import BatchRandom
from seqpipe.plugin import SPECIALS, Metric, token_counts


class SkipGram(nn.Module):
    """Skip-gram with negative sampling (Mikolov et al. 2013), over the table of an embedding such as `lookup`.

    The vector v of a word is trained to distinguish the words o around it from random words n, which have separate
    vectors u: the loss is -log σ(u_o · v) - Σ log σ(-u_n · v), the mean over all pairs. The window has up to b words on
    each side, with b uniformly sampled from 1 to `window`. Random words are sampled in proportion to their count to the
    power `power`. Occurrences of a word with relative frequency f are dropped with probability 1 - √(subsample / f),
    and unknown words always. Labels and an encoder are not needed. `seqpipe vectors RUN` writes the vectors to a file.
    The answer for a text is the mean of its word vectors.

    Args:
        window: Maximum number of words on each side.
        negatives: Number of negative samples for each pair.
        subsample: Words with a greater relative frequency are randomly dropped; 0: none.
        power: Exponent of the counts for negative samples; 1: proportional to the counts, 0: uniform.
    """

    answer = "vector"
    self_supervised: ClassVar = True
    batch_dependent: ClassVar = True  # the loss is the mean over pairs, which are sampled
    score_types: ClassVar = {"pair_loss": Metric(percent=False, more_is_better=False)}
    corrupted_inputs: ClassVar = ("ids", "mask")
    rows: ClassVar[Mapping[str, tuple[str, ...]]] = {"contexts": ("vocabulary",)}
    kept: Tensor
    noise: Tensor

    def __init__(
        self,
        dim: int,
        vocabulary: Sequence[str],
        *,
        window: PositiveInt = 5,
        negatives: PositiveInt = 5,
        subsample: NonNegativeFloat = 0.001,
        power: NonNegativeFloat = 0.75,
    ):
        super().__init__()
        self.window, self.negatives = window, negatives
        self.contexts = nn.Parameter(torch.zeros(len(vocabulary), dim))
        counts = token_counts(vocabulary)
        seen = torch.ones(len(vocabulary)) if counts is None else torch.tensor(counts, dtype=torch.float32)
        words = torch.arange(len(vocabulary)) >= len(SPECIALS)
        seen = torch.where(words, seen, 0.0)
        share = seen / seen.sum().clamp(min=1)
        kept = (subsample / share.clamp(min=1e-12)).sqrt() if subsample else torch.ones_like(share)
        self.register_buffer("kept", torch.where(words, kept.clamp(max=1), 0.0), persistent=False)  # (V,)
        noise = torch.where(seen > 0, seen**power, 0.0).double().cumsum(0)
        self.register_buffer("noise", (noise / noise[-1]).float(), persistent=False)  # (V,)

    def corrupt_batch(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return the words that are kept, without gaps (B, T'); a text keeps at least one token."""
        number = BatchRandom(self.training, ids.device).uniform(*ids.shape)
        # A text that would lose all tokens keeps the likeliest one: a row without tokens has no mean.
        odds = torch.where(mask, self.kept[torch.where(mask, ids, 0)] - number, -2.0)
        stays = (odds > 0) | ((odds == odds.amax(1, keepdim=True)) & mask)
        order = (~stays).to(torch.int8).argsort(dim=1, stable=True)[:, : int(stays.sum(1).max())]
        real = stays.gather(1, order)
        return {"ids": torch.where(real, ids.gather(1, order), 0), "mask": real}

    def loss(self, ids: Tensor, mask: Tensor, table: Tensor) -> Tensor:
        """Return the mean () over the pairs of a batch (B, T), 0 without pairs."""
        lost, pairs = self._lost(ids, mask, table)
        return lost / max(1, pairs)

    def measures(self, ids: Tensor, mask: Tensor, table: Tensor) -> dict[str, Tensor]:
        """Return, for dev, the mean over all pairs."""
        lost, pairs = self._lost(ids, mask, table)
        return {"pair_loss": torch.stack([lost, torch.full_like(lost, pairs)])}

    def decide(self, ids: Tensor, mask: Tensor, table: Tensor) -> dict[str, Tensor]:
        """Return the mean of the vectors of a text's tokens, (B, D)."""
        x = torch.where(mask[..., None], F.embedding(torch.where(mask, ids, 0), table), 0.0)
        return {"vector": x.sum(1) / mask.sum(1, keepdim=True)}

    def _lost(self, ids: Tensor, mask: Tensor, table: Tensor) -> tuple[Tensor, int]:
        """Return the sum over pairs, and their number."""
        drawn = BatchRandom(self.training, ids.device)
        rows, at, context = self.pairs(mask & (ids >= len(SPECIALS)), drawn)
        v, right = F.embedding(ids[rows, at], table), ids[rows, context]  # (P, D), (P,)
        wrong = self.sample_words(drawn.uniform(len(right), self.negatives))  # (P, n)
        near = (v * self.contexts[right]).sum(1)
        far = (self.contexts[wrong] @ v[..., None])[..., 0]
        chance = torch.where(wrong == right[:, None], 0.0, F.softplus(far))  # a right word is not a negative sample
        return F.softplus(-near).sum() + chance.sum(), len(right)

    def pairs(self, words: Tensor, drawn: BatchRandom) -> tuple[Tensor, ...]:
        """Return row, place of the word and place of the context word of every pair of these words (B, T)."""
        B, T = words.shape
        reach = 1 + (drawn.uniform(B, T) * self.window).long()
        apart = torch.arange(-self.window, self.window + 1, device=words.device)
        context = torch.arange(T, device=words.device)[:, None] + apart  # (T, 2 W + 1)
        inside = (context >= 0) & (context < T) & (apart != 0)
        near = inside & (apart.abs() <= reach[..., None]) & words[..., None] & words[:, context.clamp(0, T - 1)]
        rows, at, which = near.nonzero(as_tuple=True)
        return rows, at, at + apart[which]

    def sample_words(self, numbers: Tensor) -> Tensor:
        """Sample words by numbers from 0 to 1, each with its share of the noise distribution."""
        # The inverse of the distribution function is exact, unlike word2vec's table of 100 million cells.
        return torch.searchsorted(self.noise, numbers.contiguous(), right=True).clamp(max=len(self.noise) - 1)
