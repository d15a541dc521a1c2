"""A word-level tokenizer: words and punctuation by one regular expression."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers

from seqpipe.plugin import UsageError, word_level

from . import WORD_PATTERN, Form, folding


class WordsTokenizer:
    """Splits text into words and punctuation marks; rare words may be left out of the vocabulary.

    Args:
        pattern: Regular expression (Oniguruma) of a token; text between matches is dropped. By default a token is a
            word or a sign, and characters that are not seen, such as joiners, are a part of one or dropped.
        normalize: Unicode normalization form that texts are brought to before they are split, so that composed and
            decomposed letters (NFC, NFD), and with NFKC and NFKD full-width forms and ligatures too, are the same.
        lowercase: Normalize words to lower case before the look-up.
        fold_digits: Replace every digit by 0 before the look-up.
        min_count: Minimum number of occurrences of a word in training.
        max_size: Maximum size of the vocabulary; the most frequent words are kept.
        detokenize: Whether generated words are joined by the rules of English punctuation: no space before . , ; : ! ?
            % and closing brackets and quotes, and none after opening ones; otherwise by spaces.
    """

    def __init__(
        self,
        *,
        pattern: str = WORD_PATTERN,
        normalize: Form | None = None,
        lowercase: bool = False,
        fold_digits: bool = False,
        min_count: Annotated[int, Field(ge=1)] = 1,
        max_size: Annotated[int, Field(ge=1)] | None = None,
        detokenize: bool = False,
    ):
        try:
            self.splitter = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
        except Exception as error:  # tokenizers raises a bare one
            raise UsageError(f"words.pattern: {pattern!r} is no regular expression: {error}") from error
        self.min_count, self.max_size = min_count, max_size
        self.normalizer = folding(lowercase, fold_digits, normalize=normalize)
        self.decoder = None
        if detokenize:
            # A blank before each token but closing marks, none behind opening ones, none at the start.
            blanks = decoders.Replace(Regex(r"^(?![.,;:!?%)\]}\u201d\u2019])"), " ")
            opening = decoders.Replace(Regex(r"(?<=[(\[{\u201c\u2018]) "), "")
            self.decoder = decoders.Sequence([blanks, decoders.Fuse(), opening, decoders.Strip(" ", 1, 0)])

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        """Learns the vocabulary from texts, or from words already split."""
        return word_level(
            texts,
            normalizer=self.normalizer,
            splitter=self.splitter,
            decoder=self.decoder,
            min_count=self.min_count,
            max_size=self.max_size,
        )
