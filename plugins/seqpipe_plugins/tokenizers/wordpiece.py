"""WordPiece: words as BERT splits them, each in the longest known pieces."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated

from pydantic import Field
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from seqpipe.plugin import UNK

from . import Form, learned_subwords, unicode_form

MARK = "##"


class WordPiece:
    """Splits words into the longest known subwords, from left to right (Schuster and Nakajima 2012).

    As in BERT (Devlin et al. 2019), words end at white space, each punctuation mark and each Chinese character is a
    word, and control characters are dropped; subwords are merged by frequency. A word with an unknown character is one
    unknown token. Decoded text has a space between all words.

    Args:
        max_size: Maximum size of the vocabulary, including all characters and the four special tokens.
        min_count: Minimum number of occurrences of a pair to merge it.
        normalize: Unicode normalization form that texts are brought to before they are split, so that composed and
            decomposed letters (NFC, NFD), and with NFKC and NFKD full-width forms and ligatures too, are the same.
        lowercase: Normalize words to lower case before the look-up.
        strip_accents: Remove accents before the look-up: é becomes e.
    """

    def __init__(
        self,
        *,
        max_size: Annotated[int, Field(ge=5)] = 8000,
        min_count: Annotated[int, Field(ge=1)] = 2,
        normalize: Form | None = None,
        lowercase: bool = False,
        strip_accents: bool = False,
    ):
        self.trainer = partial(trainers.WordPieceTrainer, vocab_size=max_size, min_frequency=min_count)
        bert = normalizers.BertNormalizer(strip_accents=strip_accents, lowercase=lowercase)
        self.normalizer = normalizers.Sequence([unicode_form(normalize), bert]) if normalize else bert

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        """Learns the pieces from texts, or from words already split."""
        tokenizer = Tokenizer(models.WordPiece(unk_token=UNK, continuing_subword_prefix=MARK))
        tokenizer.normalizer, tokenizer.pre_tokenizer = self.normalizer, pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(MARK, cleanup=True)
        return learned_subwords(tokenizer, texts, self.trainer, lambda word: (MARK + letter for letter in word[1:]))
