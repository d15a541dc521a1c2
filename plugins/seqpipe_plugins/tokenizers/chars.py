"""A tokenizer of single code points, which decodes without loss."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers

from . import WordOptions


@dataclass(frozen=True, kw_only=True)
class CharOptions(WordOptions):
    """The options of a tokenizer of characters: no form that decomposes them."""

    normalize: Literal["NFC", "NFKC"] | None = None


DEFAULT_CHARS = CharOptions()


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

    def __init__(self, *, keep_spaces: bool = True, options: CharOptions = DEFAULT_CHARS):
        pattern = r"[\s\S]" if keep_spaces else r"\S"
        self.splitter, self.options = pre_tokenizers.Split(Regex(pattern), "removed", invert=True), options

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        """Learns the characters from texts; words already split are single tokens."""
        return self.options.train(texts, self.splitter, decoders.Fuse())
