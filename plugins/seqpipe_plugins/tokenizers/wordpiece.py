"""WordPiece: words as BERT splits them, each in the longest known pieces."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated

from pydantic import Field
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from seqpipe.plugin import UNK

from . import SubwordOptions, train_subwords, unicode_form

MARK = "##"


class WordPiece:
    """Splits words into the longest known subwords, from left to right (Schuster and Nakajima 2012).

    As in BERT (Devlin et al. 2019), words end at white space, each punctuation mark and each Chinese character is a
    word, and control characters are dropped; subwords are merged by frequency. A word with an unknown character is one
    unknown token. Decoded text has a space between all words.

    Args:
        min_count: Minimum number of occurrences of a pair to merge it.
    """

    def __init__(self, *, options: SubwordOptions, min_count: Annotated[int, Field(ge=1)] = 2):
        self.trainer = partial(trainers.WordPieceTrainer, vocab_size=options.max_size, min_frequency=min_count)
        bert = normalizers.BertNormalizer(strip_accents=options.strip_accents, lowercase=options.lowercase)
        form = options.normalize
        self.normalizer = normalizers.Sequence([unicode_form(form), bert]) if form else bert

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        """Learns the pieces from texts, or from words already split."""
        tokenizer = Tokenizer(models.WordPiece(unk_token=UNK, continuing_subword_prefix=MARK))
        tokenizer.normalizer, tokenizer.pre_tokenizer = self.normalizer, pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(MARK, cleanup=True)
        return train_subwords(tokenizer, texts, self.trainer, lambda word: (MARK + letter for letter in word[1:]))
