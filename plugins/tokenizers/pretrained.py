"""The tokenizer of a checkpoint of `transformers`."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer

from seqpipe import Checkpoint, pretrained_tokenizer


class Pretrained:
    """The tokenizer of a pretrained checkpoint, unchanged.

    Args:
        checkpoint: A folder written by `save_pretrained`, or a name on the hub.
    """

    def __init__(self, *, checkpoint: Checkpoint):
        self.checkpoint = checkpoint

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        """The checkpoint's tokenizer, whatever the texts are."""
        return pretrained_tokenizer(self.checkpoint).tokenizer
