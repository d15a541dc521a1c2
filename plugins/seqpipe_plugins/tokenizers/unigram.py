"""A unigram language model: words in their likeliest pieces."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any

from pydantic import Field
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from seqpipe.plugin import SPECIALS, UNK

from . import SubwordOptions, change_model, folding, rank_pieces, train_subwords


class Unigram:
    """Splits words into the most probable subwords under a unigram language model (Kudo 2018).

    Expectation maximisation selects the subwords from all frequent substrings. Words end at white space, and each
    punctuation mark is a word; a space becomes ▁ at the beginning of the next subword. The first word of a text has no
    space before it, and so other subwords. Decoding is lossless for known characters, except that white space becomes
    single spaces.

    Args:
        longest: Maximum number of characters of a subword.
    """

    def __init__(self, *, options: SubwordOptions, longest: Annotated[int, Field(ge=1)] = 16):
        trainer, size = trainers.UnigramTrainer, options.max_size
        self.trainer = partial(trainer, vocab_size=size, max_piece_length=longest, unk_token=UNK)
        blanks = normalizers.Replace(Regex(r"\s+"), " ")
        self.normalizer = normalizers.Sequence(
            [folding(options.lowercase, strip_accents=options.strip_accents, normalize=options.normalize), blanks]
        )

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        """Learns the pieces from texts, or from words already split."""
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = self.normalizer
        marks = pre_tokenizers.Metaspace(prepend_scheme="never")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([marks, pre_tokenizers.Punctuation()])
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")

        def rank(model: dict[str, Any]) -> None:
            pieces = rank_pieces(model["vocab"][len(SPECIALS) :])
            # Special tokens do not occur in a text: their scores are far below all others.
            specials = [[token, pieces[-1][1] - 100] for token, _ in model["vocab"][: len(SPECIALS)]]
            model["vocab"] = [*specials, *pieces]

        return change_model(train_subwords(tokenizer, texts, self.trainer), rank)
