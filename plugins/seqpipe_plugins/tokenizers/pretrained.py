"""The tokenizer of a checkpoint of `transformers`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from tokenizers import Tokenizer, normalizers

from seqpipe.plugin import Checkpoint, pretrained_tokenizer

from . import Form, unicode_form


class PretrainedTokenizer:
    """The tokenizer of a pretrained checkpoint, unchanged except for `normalize`.

    Args:
        checkpoint: A folder written by `save_pretrained`, or a name on the hub.
        normalize: Unicode normalization form that texts are brought to before the checkpoint's own normalization: the
            one that it was trained on.
        side: Side of the texts, if a checkpoint has a tokenizer for each side (Marian).
    """

    def __init__(
        self, *, checkpoint: Checkpoint, normalize: Form | None = None, side: Literal["source", "target"] = "source"
    ):
        self.checkpoint, self.normalize, self.side = checkpoint, normalize, side

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        """Return the checkpoint's tokenizer, independent of the texts."""
        tokenizer = pretrained_tokenizer(self.checkpoint, self.side).tokenizer
        if self.normalize:
            steps = [unicode_form(self.normalize), *([tokenizer.normalizer] if tokenizer.normalizer else [])]
            tokenizer.normalizer = normalizers.Sequence(steps)
        return tokenizer
