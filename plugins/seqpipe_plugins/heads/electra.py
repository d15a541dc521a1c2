"""Replaced token detection (ELECTRA): detection of the tokens that a small generator replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.corruption import BatchRandom, choose_tokens, guessable_tokens
from seqpipe.nn.layers import ACTIVATIONS, logit_mask
from seqpipe.plugin import MASK, SPECIALS, Metric, UsageError
from seqpipe_plugins.encoders.transformer import Transformer


class Electra(nn.Module):
    """Replaced token detection (Clark et al. 2020): classifies each token as original or replaced.

    Some tokens are masked, and a generator samples replacements for them. The encoder reads the result, and every
    token, masked or not, is classified as original or replaced: p(replaced) = σ(w · g(W x + b) + c). The generator is a
    small masked language model, a Transformer, and is trained too; the loss is its cross-entropy +
    `weight_of_detection` times that of the detection. No labels are needed, and only the encoder is used afterwards.

    The answer for a text is the mean probability that a token is original.

    Args:
        share: Probability that a token is masked; at least one token of each text is.
        generator: Width of the generator; best is a quarter to a half of the encoder's width.
        layers: Number of layers of the generator.
        heads: Number of attention heads of each layer of the generator.
        weight_of_detection: Weight of the detection loss relative to the loss of the generator.
    """

    answer = "score"
    self_supervised: ClassVar = True
    batch_dependent: ClassVar = True  # the loss is the sum of two means, over different tokens
    score_types: ClassVar = {
        "detection_perplexity": Metric(percent=False, more_is_better=False),
        "detection_accuracy": Metric(),
        "detection_recall": Metric(),
        "generator_perplexity": Metric(percent=False, more_is_better=False),
    }
    special_tokens: ClassVar = (MASK,)
    corrupted_inputs: ClassVar = ("ids", "replaced", "guessed", "guess_log_p")
    rows: ClassVar[Mapping[str, tuple[str, ...]]] = {"table.weight": ("vocabulary",), "bias": ("vocabulary",)}
    logit_mask: Tensor

    def __init__(
        self,
        dim: int,
        vocabulary: Sequence[str],
        *,
        share: Annotated[float, Field(gt=0, lt=1)] = 0.15,
        generator: PositiveInt = 64,
        layers: PositiveInt = 1,
        heads: PositiveInt = 4,
        weight_of_detection: PositiveFloat = 50.0,
    ):
        super().__init__()
        if MASK not in vocabulary:
            raise UsageError(f"electra: the vocabulary has no {MASK}; use the tokenizer of another run, or train one")
        self.share, self.weight_of_detection = share, weight_of_detection
        self.gap, size = list(vocabulary).index(MASK), len(vocabulary)
        self.table = nn.Embedding(size, generator)
        nn.init.normal_(self.table.weight, std=generator**-0.5)
        self.generator = Transformer(generator, layers=layers, heads=heads, activation="gelu", dropout=0.0)
        self.guess = nn.Sequential(nn.Linear(generator, generator), ACTIVATIONS["gelu"](), nn.LayerNorm(generator))
        self.bias = nn.Parameter(torch.zeros(size))
        self.detect = nn.Sequential(nn.Linear(dim, dim), ACTIVATIONS["gelu"](), nn.Linear(dim, 1))
        special = [*range(len(SPECIALS)), self.gap]
        self.register_buffer("logit_mask", logit_mask(size, special), persistent=False)  # (V,)

    def corrupt_batch(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return the text with sampled tokens in some places, the mask of replaced tokens, and the guesses.

        `guess_log_p` (B, T) is the generator's log-probability of what stood in the places that are `guessed`, else 0.
        """
        drawn = BatchRandom(self.training, ids.device)
        guessed = choose_tokens(guessable_tokens(ids, mask, self.gap), mask, mask, self.share, drawn)
        hidden = torch.where(guessed, self.gap, torch.where(mask, ids, 0))
        z = self.guess(self.generator(self.table(hidden), mask)["x"][guessed])  # (M, G)
        log_p = F.linear(z, self.table.weight, self.bias + self.logit_mask).log_softmax(1)  # (M, V)
        # Sampling by the inverse of the distribution function, with numbers that are the same in every epoch in
        # evaluation; `multinomial` accepts no such numbers. By rounding the last sum may differ from 1: the factor
        # keeps u below it.
        u = drawn.uniform(*ids.shape)[guessed][:, None]
        new = (log_p.detach().exp().cumsum(1) <= u * (1 - 1e-6)).sum(1)
        seen = ids.masked_scatter(guessed, new)
        rated = torch.zeros_like(ids, dtype=log_p.dtype)
        rated = rated.masked_scatter(guessed, log_p.gather(1, ids[guessed][:, None])[:, 0])
        return {"ids": seen, "replaced": (seen != ids) & mask, "guessed": guessed, "guess_log_p": rated}

    def loss(self, x: Tensor, mask: Tensor, replaced: Tensor, guessed: Tensor, guess_log_p: Tensor) -> Tensor:
        """Return the generator's mean cross-entropy of a masked token, plus the weighted one of detection per token."""
        missed = -torch.where(guessed, guess_log_p, 0.0).sum() / guessed.sum().clamp(min=1)
        error = F.binary_cross_entropy_with_logits(self._logits(x)[mask], replaced[mask].to(x.dtype))
        return missed + self.weight_of_detection * error

    def measures(
        self, x: Tensor, mask: Tensor, replaced: Tensor, guessed: Tensor, guess_log_p: Tensor
    ) -> dict[str, Tensor]:
        """Return, for dev, perplexity, accuracy and recall of the detection, and the generator's perplexity."""
        logits, replaced_tokens = self._logits(x), replaced[mask]
        right = ((logits > 0) == replaced)[mask]
        error = F.binary_cross_entropy_with_logits(logits[mask], replaced_tokens.to(x.dtype), reduction="sum")
        return {
            "detection_perplexity": torch.stack([error, mask.sum()]),
            "detection_accuracy": torch.stack([right.sum(), mask.sum()]).float(),
            "detection_recall": torch.stack([right[replaced_tokens].sum(), replaced_tokens.sum()]).float(),
            "generator_perplexity": torch.stack([-guess_log_p[guessed].sum(), guessed.sum()]),
        }

    def decide(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return the mean probability that a token of each text is original, (B,)."""
        original = torch.where(mask, (-self._logits(x)).sigmoid(), 0.0)
        return {"score": original.sum(1) / mask.sum(1)}

    def _logits(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, T)
        return self.detect(x)[..., 0]
