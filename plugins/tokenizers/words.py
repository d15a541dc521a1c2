"""Texts in, a word-level `tokenizers.Tokenizer` out: words and punctuation by one regular expression."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from seqpipe import word_level


class Words:
    """Splits text into words and punctuation marks, and keeps the frequent ones.

    Args:
        pattern: Regular expression (Oniguruma) of one token; what lies between matches is dropped.
        lowercase: Look words up in lower case.
        fold_digits: Look words up with every digit as 0.
        min_count: Leave out words seen less often in training.
        max_size: Keep at most so many words, the most frequent.
    """

    def __init__(
        self,
        *,
        pattern: str = r"\w+|[^\w\s]",
        lowercase: bool = False,
        fold_digits: bool = False,
        min_count: Annotated[int, Field(ge=1)] = 1,
        max_size: Annotated[int, Field(ge=1)] | None = None,
    ):
        self.pattern, self.min_count, self.max_size = pattern, min_count, max_size
        steps = [normalizers.Lowercase()] if lowercase else []
        steps += [normalizers.Replace(Regex(r"\d"), "0")] if fold_digits else []
        self.normalizer = normalizers.Sequence(steps)

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        """Learns the vocabulary from texts, or from words already split."""
        splitter = pre_tokenizers.Split(Regex(self.pattern), "removed", invert=True)
        return word_level(
            texts, normalizer=self.normalizer, splitter=splitter, min_count=self.min_count, max_size=self.max_size
        )
