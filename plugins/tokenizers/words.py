"""A word-level tokenizer: words and punctuation by one regular expression."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.decoders import Decoder

from seqpipe import word_level
from seqpipe.errors import UsageError

from . import folding


class Words:
    """Splits text into words and punctuation marks, and keeps the frequent ones.

    Args:
        pattern: Regular expression (Oniguruma) of one token; what lies between matches is dropped.
        lowercase: Look words up in lower case.
        fold_digits: Look words up with every digit as 0.
        min_count: Leave out words seen less often in training.
        max_size: Keep at most so many words, the most frequent.
        detokenize: Join what is written as English is, no blank before . , ; : ! ? % and closing brackets and quotes,
            none behind opening ones; else by blanks.
    """

    def __init__(
        self,
        *,
        pattern: str = r"\w+|[^\w\s]",
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
        self.normalizer = folding(lowercase, fold_digits)
        self.decoder = _english() if detokenize else None

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


def _english() -> Decoder:
    """A blank before each token but closing marks, none behind opening ones, none at the start."""
    return decoders.Sequence(
        [
            decoders.Replace(Regex(r"^(?![.,;:!?%)\]}\u201d\u2019])"), " "),
            decoders.Fuse(),
            decoders.Replace(Regex(r"(?<=[(\[{\u201c\u2018]) "), ""),
            decoders.Strip(" ", 1, 0),
        ]
    )
