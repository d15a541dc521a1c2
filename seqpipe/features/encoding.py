"""Encode texts; whatever the `tokenizers` library raises or panics with becomes a DataError with the place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tokenizers import Encoding, Tokenizer

from seqpipe.errors import DataError, SeqpipeError

SHOWN = 40  # characters of a text that stand in a message
CURE = "shorten or correct the text, or write the tokenizer's pattern without a repeat inside a repeat and train again"
Result = TypeVar("Result")


def encode(tokenizer: Tokenizer, text: str | Sequence[str], at: str = "") -> Encoding:
    """The tokens of a text, or of words; DataError, prefixed with `at`, if it cannot be split."""
    words = not isinstance(text, str)
    return guard(lambda: tokenizer.encode(text, is_pretokenized=words, add_special_tokens=False), text, at)


def encode_batch(tokenizer: Tokenizer, texts: Sequence[str], at: Callable[[int], str]) -> list[Encoding]:
    """The tokens of each text; DataError for the first that cannot be split, prefixed with `at` of its position."""
    try:
        return list(tokenizer.encode_batch(texts, add_special_tokens=False))
    except BaseException as error:
        if not is_library_error(error):
            raise
        return [encode(tokenizer, text, at(position)) for position, text in enumerate(texts)]


def guard(split: Callable[[], Result], text: str | Sequence[str], at: str = "") -> Result:
    """What `split` returns; DataError that shows the text, prefixed with `at`, if the library raises or panics."""
    try:
        return split()
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise cannot_split(text, error, at) from error


def cannot_split(text: str | Sequence[str], error: BaseException, at: str = "") -> DataError:
    """The error about a text, or words, that the library refuses."""
    whole = text if isinstance(text, str) else " ".join(text)
    return DataError(f"{at}the tokenizer cannot split {shown(whole)}: {error}; {CURE}")


def is_library_error(error: BaseException) -> bool:
    """Whether a library raised this: not seqpipe itself, for lack of memory, or to end the process."""
    return is_panic(error) or (isinstance(error, Exception) and not isinstance(error, SeqpipeError | MemoryError))


def is_panic(error: BaseException) -> bool:
    """Whether the Rust code of `tokenizers` panicked: PyO3 raises a direct subclass of BaseException for that."""
    return type(error).__name__ == "PanicException"


def shown(text: str) -> str:
    """A text as a message shows it: its beginning, and how long it is."""
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r}… ({len(text):,} characters)"


def regular_expressions(content: Any) -> list[str]:
    """Every regular expression in the JSON of a tokenizer, once each."""
    if isinstance(content, list):
        patterns = [pattern for value in content for pattern in regular_expressions(value)]
    elif isinstance(content, dict):
        here = [content["Regex"]] if isinstance(content.get("Regex"), str) else []
        parts = [value for key, value in content.items() if key not in ("vocab", "merges")]
        patterns = here + regular_expressions(parts)
    else:
        patterns = []
    return list(dict.fromkeys(patterns))
