"""The tokenizer of a checkpoint of `transformers`."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer

from seqpipe import Checkpoint, pretrained_tokenizer


class Pretrained:
    """The tokenizer that a pretrained encoder was trained with; nothing is learned.

    Args:
        checkpoint: A folder that `save_pretrained` wrote, or a name on the hub.
    """

    def __init__(self, *, checkpoint: Checkpoint):
        self.checkpoint = checkpoint

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        """The checkpoint's tokenizer, whatever the texts are."""
        return pretrained_tokenizer(self.checkpoint).tokenizer
