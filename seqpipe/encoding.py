"""Texts in, tokens out; whatever the `tokenizers` library raises or panics with becomes a DataError with the place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tokenizers import Encoding, Tokenizer

from seqpipe.errors import DataError, SeqpipeError

SHOWN = 40  # characters of a text that stand in a message
CURE = "shorten or correct the text, or write the tokenizer's pattern without a repeat inside a repeat and train again"
_PASSED_ON = (SeqpipeError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)
Result = TypeVar("Result")


def encode(tokenizer: Tokenizer, text: str | Sequence[str], at: str = "") -> Encoding:
    """The tokens of a text, or of words that are split already; DataError, begun with `at`, if it cannot be split."""
    words = not isinstance(text, str)
    return guard(
        lambda: tokenizer.encode(text, is_pretokenized=words, add_special_tokens=False),
        text if isinstance(text, str) else " ".join(text),
        at,
    )


def encode_batch(tokenizer: Tokenizer, texts: Sequence[str], at: Callable[[int], str]) -> list[Encoding]:
    """The tokens of each text; DataError for the first that cannot be split, begun with `at` of its position."""
    try:
        return list(tokenizer.encode_batch(texts, add_special_tokens=False))
    except _PASSED_ON:
        raise
    except BaseException:  # a panic is no Exception; which text it was shows one by one
        return [encode(tokenizer, text, at(position)) for position, text in enumerate(texts)]


def guard(split: Callable[[], Result], text: str, at: str = "") -> Result:
    """What `split` returns; DataError that shows the text, begun with `at`, if the library raises or panics."""
    try:
        return split()
    except _PASSED_ON:
        raise
    except BaseException as error:  # tokenizers panics with a BaseException of its own
        raise DataError(f"{at}the tokenizer cannot split {shown(text)}: {error}; {CURE}") from error


def shown(text: str) -> str:
    """A text as a message shows it: its beginning, and how long it is."""
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r}… ({len(text):,} characters)"


def regular_expressions(content: Any) -> list[str]:
    """Every regular expression in the JSON of a tokenizer, once each."""
    if isinstance(content, list):
        found = [pattern for value in content for pattern in regular_expressions(value)]
    elif isinstance(content, dict):
        own = [content["Regex"]] if isinstance(content.get("Regex"), str) else []
        parts = [value for key, value in content.items() if key not in ("vocab", "merges")]
        found = own + regular_expressions(parts)
    else:
        found = []
    return list(dict.fromkeys(found))
