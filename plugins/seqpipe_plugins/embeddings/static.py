"""Vectors distilled from a sentence encoder, fine-tuned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import PositiveFloat

from .lookup import NO_DROPOUT, WordDropout
from .vectors import Vectors


class Static(Vectors):
    """Vectors distilled from a sentence encoder by `seqpipe distill-vectors`, fine-tuned (Model2Vec: Tulkens and van
    Dongen 2024).

    With the tokenizer `pretrained` of the same checkpoint every subword has a vector, so no word is unknown. Tokens
    without a vector, such as [UNK], start at zero, so that they add nothing to a mean. The vectors are part of the
    weights of checkpoints and bundles: a bundle needs neither the file nor the checkpoint.

    Args:
        path: The file written by `seqpipe distill-vectors`.
        train: Whether the vectors are fine-tuned; otherwise they are frozen.
        scale: Factor of all vectors.
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        path: Path,
        train: bool = True,
        scale: PositiveFloat = 1.0,
        options: WordDropout = NO_DROPOUT,
    ):
        super().__init__(vocabulary, path=path, train=train, missing="zero", scale=scale, options=options)
