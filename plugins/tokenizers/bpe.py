"""Byte pair encoding, over letters or over bytes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated

from pydantic import Field
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from seqpipe import SPECIALS, UNK
from seqpipe.errors import UsageError

from . import folding, learned_subwords

END = "</w>"
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


class BPE:
    """Merges the most frequent pair of pieces, again and again (Sennrich et al. 2016).

    Words are runs of letters and digits, and single punctuation marks; the last piece of each ends with `</w>`. Text is
    written again with its words apart. With `byte_level` (Radford et al. 2019) pieces are of bytes, and a piece holds
    the blank before its word: there is no unknown letter, and text is written again without loss, if nothing is folded.
    The first word of a text has no blank before it, and so other pieces.

    Args:
        byte_level: Whether pieces are made of bytes, as in GPT-2, rather than of letters.
        max_size: Size of the vocabulary with all letters (or bytes) and the four special tokens, which are always kept.
        min_count: Merge two pieces if they stand side by side in training so often.
        lowercase: Look words up in lower case.
        strip_accents: Look words up without accents: é as e.
    """

    def __init__(
        self,
        *,
        byte_level: bool = False,
        max_size: Annotated[int, Field(ge=5)] = 8000,
        min_count: Annotated[int, Field(ge=1)] = 2,
        lowercase: bool = False,
        strip_accents: bool = False,
    ):
        least = len(BYTES) + len(SPECIALS)
        if byte_level and max_size < least:
            raise UsageError(f"bpe.max_size: {max_size} is less than all bytes and special tokens; at least {least}")
        self.byte_level, self.normalizer = byte_level, folding(lowercase, strip_accents=strip_accents)
        self.trainer = partial(trainers.BpeTrainer, vocab_size=max_size, min_frequency=min_count)

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        """Learns the merges from texts, or from words already split."""
        tokenizer = Tokenizer(models.BPE() if self.byte_level else models.BPE(unk_token=UNK, end_of_word_suffix=END))
        tokenizer.normalizer = self.normalizer
        if self.byte_level:
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
            return learned_subwords(tokenizer, texts, partial(self.trainer, initial_alphabet=BYTES))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "removed", invert=True)
        tokenizer.decoder = decoders.BPEDecoder(END)
        trainer = partial(self.trainer, end_of_word_suffix=END)
        return learned_subwords(tokenizer, texts, trainer, lambda word: (word[-1:] + END,))
