"""Limits of a bundle on the length of texts, and the warning for inputs longer than any in training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from seqpipe.errors import DataError
from seqpipe.features.document import Doc, Record

TRAINED = "trained"  # the limit that is none: how many tokens the longest input in training has


def refuse_long(
    docs: Iterable[Doc],
    records: Iterable[Record],
    limits: Mapping[str, int],
    before: int = 0,
    divided: bool = False,
) -> None:
    """DataError for the first record that is over a limit, by its place, or its number from `before` + 1 on.

    Args:
        docs: The records, split.
        records: They themselves.
        limits: As a bundle states them.
        before: How many records came before.
        divided: Whether a text may be answered sentence by sentence, which is then the cure.
    """
    for i, (doc, record) in enumerate(zip(docs, records, strict=True), before + 1):
        if message := _too_long(doc, limits, divided):
            raise DataError(f"{record.get('where', f'record {i}')}: {message}")


def _too_long(doc: Doc, limits: Mapping[str, int], divided: bool) -> str:
    """Which limit a text is over, and what to do; nothing if none."""
    if len(doc) > limits["tokens"]:
        cure = ", or ask for documents (predict --documents), which splits it into sentences" if divided else ""
        return f"{len(doc):,} tokens are over the limit of {limits['tokens']:,}; split the text{cure}"
    first = (doc.second or 1) - 1
    if first > limits.get("first_tokens", first):
        message = (
            f"the first text has {first:,} tokens, and at most {limits['first_tokens']:,} leave room for the second"
        )
        return f"{message}; shorten it, or make it the second of the two, which may have any length"
    return ""


def length_warning(tokens: int, limits: Mapping[str, int]) -> str:
    """What an answer to an input of so many tokens says if it is longer than any in training; else nothing."""
    longest = limits.get(TRAINED, tokens)
    if tokens <= longest:
        return ""
    return f"longer than any input in training ({tokens:,} tokens; at most {longest:,} in training)"
