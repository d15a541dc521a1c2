"""What a target tokenizer makes of texts: those that change when they are encoded and decoded, and the cure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from seqpipe.features.encoding import shown

_FOLDS: dict[str, Callable[[str], str]] = {
    "lowercase": str.casefold,
    "fold_digits": lambda text: re.sub(r"\d", "0", text),
}  # options of tokenizers, and what they do to a text


def changed_message(changed: Sequence[tuple[str, str]], count: int, copies: bool) -> str:
    """The message about texts that change, each with its copy, of `count` texts."""
    text, copy = min(changed, key=lambda pair: len(pair[0]))
    message = f"{len(changed):,} of {count:,} texts change when encoded and decoded: {shown(text)} as {shown(copy)}"
    return f"{message}; {_cure(changed, copies)}"


def _cure(changed: Sequence[tuple[str, str]], copies: bool) -> str:
    for option, fold in _FOLDS.items():
        if all(fold(text) == fold(copy) for text, copy in changed):
            return f"leave {option} out of the target tokenizer, or write the data so"
    if copies:
        return "words: give it detokenize: true and a pattern that keeps together what has no blank within"
    return "the target tokenizer {use: bpe, byte_level: true} loses nothing"
