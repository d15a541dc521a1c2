"""A word-level tokenizer: words and punctuation by one regular expression."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers

from seqpipe.plugin import UsageError

from . import DEFAULT_WORDS, WORD_PATTERN, WordOptions


class WordsTokenizer:
    """Splits text into words and punctuation marks; rare words may be left out of the vocabulary.

    Args:
        pattern: Regular expression (Oniguruma) of a token; text between matches is dropped. By default a token is a
            word or a sign, and characters that are not seen, such as joiners, are a part of one or dropped.
        detokenize: Whether generated words are joined by the rules of English punctuation: no space before . , ; : ! ?
            % and closing brackets and quotes, and none after opening ones; otherwise by spaces.
    """

    def __init__(self, *, pattern: str = WORD_PATTERN, options: WordOptions = DEFAULT_WORDS, detokenize: bool = False):
        try:
            self.splitter = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
        except Exception as error:  # tokenizers raises a bare one
            raise UsageError(f"words.pattern: {pattern!r} is no regular expression: {error}") from error
        self.options, self.decoder = options, None
        if detokenize:
            # A blank before each token but closing marks, none behind opening ones, none at the start.
            blanks = decoders.Replace(Regex(r"^(?![.,;:!?%)\]}\u201d\u2019])"), " ")
            opening = decoders.Replace(Regex(r"(?<=[(\[{\u201c\u2018]) "), "")
            self.decoder = decoders.Sequence([blanks, decoders.Fuse(), opening, decoders.Strip(" ", 1, 0)])

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        """Learns the vocabulary from texts, or from words already split."""
        return self.options.train(texts, self.splitter, self.decoder)
