"""A tokenizer of single code points, which decodes without loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers

from seqpipe import word_level

from . import folding


class Chars:
    """Splits text into its code points: for Chinese and Japanese, and for heads that write letter by letter.

    Args:
        keep_spaces: Make white space a token too; without it, it is dropped.
        lowercase: Look characters up in lower case.
        fold_digits: Look characters up with every digit as 0.
        min_count: Leave out characters seen less often in training.
        max_size: Keep at most so many characters, the most frequent.
    """

    def __init__(
        self,
        *,
        keep_spaces: bool = True,
        lowercase: bool = False,
        fold_digits: bool = False,
        min_count: Annotated[int, Field(ge=1)] = 1,
        max_size: Annotated[int, Field(ge=1)] | None = None,
    ):
        self.pattern, self.min_count, self.max_size = r"[\s\S]" if keep_spaces else r"\S", min_count, max_size
        self.normalizer = folding(lowercase, fold_digits)

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        """Learns the characters from texts; of words already split, each is taken as it stands."""
        return word_level(
            texts,
            normalizer=self.normalizer,
            splitter=pre_tokenizers.Split(Regex(self.pattern), "removed", invert=True),
            decoder=decoders.Fuse(),
            min_count=self.min_count,
            max_size=self.max_size,
        )
