"""The special tokens and their fixed ids, vocabularies, and word-level tokenizers trained on texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import Decoder
from tokenizers.models import WordLevel
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from seqpipe.errors import DataError
from seqpipe.features.encoding import Alignment, group_shared, guard

PAD, UNK, BOS, EOS = "[PAD]", "[UNK]", "[BOS]", "[EOS]"
SPECIALS = (PAD, UNK, BOS, EOS)  # ids 0 to 3 of every vocabulary
MASK = "[MASK]"  # the mask token, in vocabularies of heads that ask for it
SPAN_MARKS = tuple(f"<extra_id_{i}>" for i in range(100))  # likewise: each replaces a span
_AS_WRITTEN = frozenset((MASK, *SPAN_MARKS))
_SURROGATE = re.compile("[\ud800-\udfff]")


class Vocabulary(tuple[str, ...]):
    """Tokens in the order of their ids; `counts` holds their frequencies in training."""

    counts: Sequence[int] | None

    def __new__(cls, tokens: Iterable[str], counts: Sequence[int] | None = None) -> Vocabulary:
        vocabulary = super().__new__(cls, tokens)
        vocabulary.counts = counts
        return vocabulary


class FeatureSize(int):
    """Number of values of a feature; `counts` holds the number of training texts, then of those with each value.

    For a feature that distinguishes labels, `counts` repeats both for each label. `words` is the length of the longest
    n-gram of words.
    """

    counts: Sequence[int] | None
    words: int

    def __new__(cls, size: int, counts: Sequence[int] | None = None, words: int = 0) -> FeatureSize:
        number = super().__new__(cls, size)
        number.counts, number.words = counts, words
        return number


def token_counts(values: Sequence[str] | int) -> Sequence[int] | None:
    """Return the training counts of each token, label or value of a feature; None if unknown."""
    return values.counts if isinstance(values, Vocabulary | FeatureSize) else None


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which no tokenizer accepts, by U+FFFD; offsets stay."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def clean_texts(texts: Sequence[str]) -> list[str]:
    """Return texts without lone surrogates."""
    return [*map(replace_surrogates, texts)]


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a special token; DataError if the tokenizer has none."""
    token_id = tokenizer.token_to_id(token)
    if token_id is None:
        raise DataError(f"the tokenizer has no token {token}; it needs {', '.join(SPECIALS)} as ids 0 to 3")
    return token_id


def normal(tokenizer: Tokenizer, word: str) -> str:
    """Normalise a word like the tokenizer."""
    normalizer = tokenizer.normalizer
    return guard(lambda: str(normalizer.normalize_str(word)), word) if normalizer else word


def token_id(tokenizer: Tokenizer, word: str) -> int | None:
    """Return the id of a pre-tokenized, normalised word; None if it is unknown, or looks like a special token."""
    token = word if word in _AS_WRITTEN else normal(tokenizer, word)
    return None if token in SPECIALS else tokenizer.token_to_id(token)


def vocabulary_of(tokenizer: Tokenizer, counts: Sequence[int] | None = None) -> Vocabulary:
    """Return the tokenizer's tokens in the order of their ids."""
    ids = tokenizer.get_vocab(with_added_tokens=True)
    return Vocabulary(sorted(ids, key=ids.__getitem__), counts)


def word_level(
    texts: Iterable[str | list[str]],
    *,
    normalizer: Normalizer,
    splitter: PreTokenizer,
    decoder: Decoder | None = None,
    min_count: int = 1,
    max_size: int | None = None,
) -> Tokenizer:
    """Train a word-level tokenizer: ids by descending frequency, then by code points.

    Args:
        texts: Texts to split, or words already split.
        normalizer: From `tokenizers.normalizers`; normalises tokens before they are looked up.
        splitter: From `tokenizers.pre_tokenizers`; splits a text into tokens.
        decoder: From `tokenizers.decoders`; converts tokens to text. None: they are joined by spaces.
        min_count: Tokens seen less often are left out.
        max_size: Maximum number of tokens, without special ones.
    """
    tokenizer = Tokenizer(WordLevel({token: i for i, token in enumerate(SPECIALS)}, unk_token=UNK))
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, splitter, decoder
    counts: Counter[str] = Counter()
    words: Counter[str] = Counter()  # of split texts, as written
    alignment = Alignment(tokenizer)
    for text in texts:
        if isinstance(text, str):
            counts.update(_tokens(tokenizer, alignment, replace_surrogates(text)))
        else:
            words.update(text)
    for word, count in words.items():
        counts[normalizer.normalize_str(replace_surrogates(word))] += count
    kept = (token for token, count in counts.items() if count >= min_count and token not in SPECIALS)
    frequent = sorted(kept, key=lambda token: (-counts[token], token))
    if not counts:
        raise DataError(
            "the training texts have no tokens: all are blank, or the tokenizer's pattern matches nothing; correct the "
            "data, or name the field of the text in the reader's options"
        )
    if not frequent:
        raise DataError(f"no token occurs {min_count} times in the training texts; lower the tokenizer's min_count")
    tokenizer.model = WordLevel({t: i for i, t in enumerate((*SPECIALS, *frequent[:max_size]))}, unk_token=UNK)
    return tokenizer


def _tokens(tokenizer: Tokenizer, alignment: Alignment, text: str) -> Iterable[str]:
    """Return the normalised tokens of a text; tokens that share a code point are merged, as by TextSource."""
    tokens = [token for token, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))]
    if not alignment.forms:
        return tokens
    offsets = alignment.places(tokenizer.encode(text, add_special_tokens=False).offsets, text)
    return [
        tokens[first] if last - first == 1 else normal(tokenizer, text[offsets[first][0] : offsets[last - 1][1]])
        for first, last in group_shared(offsets)
    ]
