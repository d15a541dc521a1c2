"""A tokenizer of single code points, which decodes without loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers

from seqpipe.plugin import word_level

from . import folding


class CharsTokenizer:
    """Splits text into code points: for Chinese and Japanese, and for heads that generate single characters.

    Args:
        keep_spaces: Whether white space is a token; otherwise it is dropped.
        normalize: Unicode normalization form that texts are brought to before they are split: NFC for letters that are
            decomposed, such as Hangul; NFKC for full-width forms and ligatures too.
        lowercase: Normalize characters to lower case before the look-up.
        fold_digits: Replace every digit by 0 before the look-up.
        min_count: Minimum number of occurrences of a character in training.
        max_size: Maximum size of the vocabulary; the most frequent characters are kept.
    """

    def __init__(
        self,
        *,
        keep_spaces: bool = True,
        normalize: Literal["NFC", "NFKC"] | None = None,
        lowercase: bool = False,
        fold_digits: bool = False,
        min_count: Annotated[int, Field(ge=1)] = 1,
        max_size: Annotated[int, Field(ge=1)] | None = None,
    ):
        self.pattern, self.min_count, self.max_size = r"[\s\S]" if keep_spaces else r"\S", min_count, max_size
        self.normalizer = folding(lowercase, fold_digits, normalize=normalize)

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        """Learns the characters from texts; words already split are single tokens."""
        return word_level(
            texts,
            normalizer=self.normalizer,
            splitter=pre_tokenizers.Split(Regex(self.pattern), "removed", invert=True),
            decoder=decoders.Fuse(),
            min_count=self.min_count,
            max_size=self.max_size,
        )
