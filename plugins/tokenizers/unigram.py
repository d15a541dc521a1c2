"""A unigram language model: words in their likeliest pieces."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any

from pydantic import Field
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from seqpipe import SPECIALS, UNK

from . import changed, folding, learned_subwords, ranked


class Unigram:
    """Splits words into the pieces whose probabilities have the greatest product (Kudo 2018).

    The pieces are what expectation maximisation leaves of all frequent substrings. Words end at blanks and at
    punctuation marks, each of which is a word; a blank is the sign ▁ at the beginning of the piece after it. The first
    word of a text has no blank before it, and so other pieces. Text of known letters is written again as it was, but
    for white space, which becomes single blanks.

    Args:
        max_size: Size of the vocabulary with all letters and the four special tokens, which are always kept.
        longest: The most letters of a piece.
        lowercase: Look words up in lower case.
        strip_accents: Look words up without accents: é as e.
    """

    def __init__(
        self,
        *,
        max_size: Annotated[int, Field(ge=5)] = 8000,
        longest: Annotated[int, Field(ge=1)] = 16,
        lowercase: bool = False,
        strip_accents: bool = False,
    ):
        self.trainer = partial(trainers.UnigramTrainer, vocab_size=max_size, max_piece_length=longest, unk_token=UNK)
        blanks = normalizers.Replace(Regex(r"\s+"), " ")
        self.normalizer = normalizers.Sequence([folding(lowercase, strip_accents=strip_accents), blanks])

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        """Learns the pieces from texts, or from words already split."""
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = self.normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(prepend_scheme="never"), pre_tokenizers.Punctuation()]
        )
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
        return changed(learned_subwords(tokenizer, texts, self.trainer), _settle)


def _settle(model: dict[str, Any]) -> None:
    first, rest = model["vocab"][: len(SPECIALS)], model["vocab"][len(SPECIALS) :]
    lowest = min(score for _, score in rest)
    model["vocab"] = [*([token, lowest - 100] for token, _ in first), *ranked(rest)]
