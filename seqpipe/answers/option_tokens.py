"""The tokens that a decode option names: as a text, a list of tokens or a list of their ids."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

from seqpipe.errors import UsageError
from seqpipe.features.encoding import encode
from seqpipe.features.vocabulary import EOS, UNK, clean, special_id


def option_tokens(tokenizer: Tokenizer, option: str, value: str | list[Any]) -> list[int]:
    """Return the ids of these tokens of the target vocabulary.

    A list may name the unknown token; a text that holds what is unknown is refused.

    Raises:
        UsageError: if a token is not in the vocabulary, or is one that no text holds.
    """
    unknown, end, size = special_id(tokenizer, UNK), special_id(tokenizer, EOS), tokenizer.get_vocab_size()
    pairs = _pieces(tokenizer, value) if isinstance(value, str) else [(token, _id(tokenizer, token)) for token in value]
    for token, number in pairs:
        if number is None or not 0 <= number < size or (number == unknown and isinstance(value, str)):
            vocabulary = f"the target vocabulary, which has {size:,}; choose others ({value!r})"
            raise UsageError(f"{option}: {token!r} is no token of {vocabulary}")
        if number <= end and number != unknown:
            raise UsageError(f"{option}: {token!r} stands in no text; leave it out ({value!r})")
    return [number for _, number in pairs if number is not None]


def _pieces(tokenizer: Tokenizer, text: str) -> list[tuple[str | int, int | None]]:
    encoding = encode(tokenizer, clean(text))
    return [(text[a:b], number) for (a, b), number in zip(encoding.offsets, encoding.ids, strict=True)]


def _id(tokenizer: Tokenizer, token: Any) -> int | None:
    if isinstance(token, str):
        return tokenizer.token_to_id(clean(token))
    return token if type(token) is int else None
