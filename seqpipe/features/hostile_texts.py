"""Texts that a tokenizer cannot split, or takes too long for: what `check` tries a pattern with."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from tokenizers import Tokenizer

from seqpipe.errors import DataError
from seqpipe.features.encoding import encode, regular_expressions, shown

RUN = 4096  # characters of the longest texts
SHORT = 64  # repeats at which a pattern that tries every way to part a run has failed
SLOW = 0.02  # seconds for RUN characters, a tenth of which a pattern takes that reads each character a few times
BUDGET = 5.0  # seconds for all texts of one tokenizer
UNITS = "a1 .-你"  # a letter, a digit, a blank, what joins words, and a letter without any blanks around it
SYNTAX = "()[]{}?*+|^$\\:"  # tried after what else a pattern names
MOST, PAIRED = 40, 14  # characters that are tried, and those of them that are tried in pairs
TAILS = ("", "!", " ")  # what keeps a run from being matched as a whole
CURE = (
    "let each character be matched in one way only: no repeat inside a repeat ([a-z]+(?:-[a-z]+)* for (?:[a-z]+-?)+), "
    "possessive repeats (++ for +), or repeats with an end ({1,64} for +)"
)


@dataclass(frozen=True)
class Fault:
    """A text that a tokenizer cannot split, or splits slowly, and what happened."""

    text: str
    message: str
    fails: bool


def fault_of(tokenizer: Tokenizer) -> Fault | None:
    """What the first hostile text does to a tokenizer: one that it fails at goes before one that it is slow at."""
    end = time.thread_time() + BUDGET
    slow = None
    for text in hostile_texts(tokenizer):
        try:
            seconds = _seconds(tokenizer, text)
        except DataError as error:
            return Fault(text, str(error.__cause__ or error), True)
        if slow is None and seconds > SLOW and _grows(tokenizer, text):
            message = f"{seconds:.2g} s for {shown(text)}, and four times as long for a text twice as long"
            slow = Fault(text, message, False)
        if time.thread_time() > end:
            break
    return slow


def hostile_texts(tokenizer: Tokenizer) -> Iterator[str]:
    """Runs of one character, and of two in turn, of those that patterns name and some others; short ones first."""
    patterns = "".join(regular_expressions(json.loads(tokenizer.to_str())))
    units = list(dict.fromkeys([*UNITS, *sorted(patterns, key=SYNTAX.__contains__)]))[:MOST]
    pairs = ["".join(pair) for pair in combinations(units[:PAIRED], 2)]
    yield from (unit * SHORT + tail for unit in [*units, *pairs] for tail in TAILS)
    yield from (unit * RUN + tail for unit in units for tail in TAILS)
    yield from (pair * (RUN // 2) for pair in pairs)


def _seconds(tokenizer: Tokenizer, text: str, tries: int = 1) -> float:
    least = float("inf")
    for _ in range(tries):
        start = time.thread_time()
        encode(tokenizer, text)
        least = min(least, time.thread_time() - start)
    return least


def _grows(tokenizer: Tokenizer, text: str) -> bool:
    """Whether half the text takes less than a third of the time, each the best of three."""
    return _seconds(tokenizer, text, 3) > max(SLOW, 3 * _seconds(tokenizer, text[: len(text) // 2], 3))
