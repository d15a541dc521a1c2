"""WordPiece: words as BERT splits them, each in the longest known pieces."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated

from pydantic import Field
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from seqpipe import UNK

from . import learned_subwords

MARK = "##"


class WordPiece:
    """Splits words into the longest known pieces, from left to right (Schuster and Nakajima 2012).

    As in BERT (Devlin et al. 2019) a word ends at white space, each punctuation mark and each Chinese character is a
    word, and control characters are dropped; pieces are merged by count. A word with an unknown letter is unknown as a
    whole. Text is written again with its words apart.

    Args:
        max_size: Size of the vocabulary with all letters and the four special tokens, which are always kept.
        min_count: Merge two pieces if they stand side by side in training so often.
        lowercase: Look words up in lower case.
        strip_accents: Look words up without accents: é as e.
    """

    def __init__(
        self,
        *,
        max_size: Annotated[int, Field(ge=5)] = 8000,
        min_count: Annotated[int, Field(ge=1)] = 2,
        lowercase: bool = False,
        strip_accents: bool = False,
    ):
        self.trainer = partial(trainers.WordPieceTrainer, vocab_size=max_size, min_frequency=min_count)
        self.normalizer = normalizers.BertNormalizer(strip_accents=strip_accents, lowercase=lowercase)

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        """Learns the pieces from texts, or from words already split."""
        tokenizer = Tokenizer(models.WordPiece(unk_token=UNK, continuing_subword_prefix=MARK))
        tokenizer.normalizer, tokenizer.pre_tokenizer = self.normalizer, pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(MARK, cleanup=True)
        return learned_subwords(tokenizer, texts, self.trainer, lambda word: (MARK + letter for letter in word[1:]))
