"""Byte pair encoding, over letters or over bytes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated

from pydantic import Field
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from seqpipe.plugin import SPECIALS, UNK, UsageError

from . import WORD_PATTERN, SubwordOptions, folding, train_subwords

END = "</w>"
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


class BPE:
    """Byte pair encoding: repeatedly merges the most frequent pair of subwords (Sennrich et al. 2016).

    Words are sequences of letters and digits, and single punctuation marks; the last subword of each ends with `</w>`.
    Decoded text has a space between all words. With `byte_level` (Radford et al. 2019) subwords are sequences of bytes
    and include the space before a word: there are no unknown characters, and decoding is lossless without
    normalization. The first word of a text has no space before it, and so other subwords.

    Args:
        byte_level: Whether subwords are sequences of bytes, as in GPT-2, rather than of characters.
        max_size: Maximum size of the vocabulary, including all characters (or bytes) and the four special tokens.
        min_count: Minimum number of occurrences of a pair to merge it.
    """

    def __init__(
        self, *, options: SubwordOptions, byte_level: bool = False, min_count: Annotated[int, Field(ge=1)] = 2
    ):
        least = len(BYTES) + len(SPECIALS)
        if byte_level and options.max_size < least:
            raise UsageError(
                f"bpe.max_size: {options.max_size} is less than all bytes and special tokens; set at least {least}"
            )
        self.byte_level = byte_level
        self.normalizer = folding(options.lowercase, strip_accents=options.strip_accents, normalize=options.normalize)
        self.trainer = partial(trainers.BpeTrainer, vocab_size=options.max_size, min_frequency=min_count)

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        """Learns the merges from texts, or from words already split."""
        tokenizer = Tokenizer(models.BPE() if self.byte_level else models.BPE(unk_token=UNK, end_of_word_suffix=END))
        tokenizer.normalizer = self.normalizer
        if self.byte_level:
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
            return train_subwords(tokenizer, texts, partial(self.trainer, initial_alphabet=BYTES))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD_PATTERN), "removed", invert=True)
        tokenizer.decoder = decoders.BPEDecoder(END)
        trainer = partial(self.trainer, end_of_word_suffix=END)
        return train_subwords(tokenizer, texts, trainer, lambda word: (word[-1:] + END,))
