"""Compare raw text with the words of the data: differences of a tokenizer, and texts that it cannot split."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, combinations
from statistics import median

from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import Split

from seqpipe.errors import DataError
from seqpipe.features.document import Doc, Record
from seqpipe.features.encoding import encode, regular_expressions, text_excerpt
from seqpipe.features.sources import InputSource, TextSource, sources_of
from seqpipe.features.vocabulary import replace_surrogates

# A tokenizer's words of raw text, compared with the words of the data: a deployment has the text only.

MAX_DIFFERENT_SHARE = 0.01  # share of words split differently above which there is a warning
_RECORDS_PER_CHUNK = 256  # records split at a time
_SHOWN_PARTS = 5  # parts of the example
_TRIED = 1_000  # texts on which other patterns are tried
# letters of Chinese, Japanese, Thai, Lao, Burmese and Khmer, which are written without spaces between words
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3001-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff0f\uff1a-\uff20"
_NEEDLESS = re.compile(f"(?<=[{_UNSPACED}]) | (?=[{_UNSPACED}])")
_BLANKS = r"\S+"
_TREEBANK = (  # of English: do n't, it 's, U.S., 12:30, ...
    r"\w+?(?=n['’]t\b)|n['’]t\b|['’](?:s|m|d|ll|re|ve)\b|(?:\p{L}\.){2,}|\d+(?:[.,:]\d+)+|\w+|([^\w\s])\1*"
)
_PATTERNS = (_BLANKS, r"\w+|[^\w\s]", r"\w+(?:[-'’.]\w+)*|[^\w\s]", _TREEBANK)
_PATTERN_FIXES = {"chars, keep_spaces: false": r"\S"} | {
    f"words, pattern: {json.dumps(pattern, ensure_ascii=False)}": pattern for pattern in _PATTERNS
}


def with_raw_text(record: Record) -> Record:
    """Return a record of words with its text in deployment.

    That is its `text`; if the text is only the words joined by spaces, spaces that the script does not use are removed.
    A record whose spans count characters of the text is unchanged.
    """
    words = record.get("words")
    if words is None or record.get("spans") is not None:
        return record
    joined = " ".join(words)
    if record.get("text") not in (None, joined):
        return record
    return {**record, "text": _NEEDLESS.sub("", joined)}


@dataclass
class RawText:
    """Counts of words that a tokenizer splits differently from the data.

    Attributes:
        words: The words of the data.
        otherwise: The words that the tokenizer does not find with the same start and end in the raw text.
        same: Whether all texts have exactly the words of the data.
        joined: Whether each text is only the words joined by spaces: the data has no raw text.
        example: A word split differently, and the tokenizer's words in its place.
    """

    words: int = 0
    otherwise: int = 0
    same: bool = True
    joined: bool = True
    example: tuple[str, list[str]] | None = None
    _gold: list[Doc] = field(default_factory=list)

    @property
    def share(self) -> float:
        """The share of words split differently."""
        return self.otherwise / max(1, self.words)

    @property
    def is_large(self) -> bool:
        """Return whether the share justifies a warning."""
        return self.share > MAX_DIFFERENT_SHARE

    def add(self, gold: Doc, raw: Doc) -> None:
        """Count one text, with the words of the data and split by the tokenizer."""
        places = {*raw.word_offsets}
        others = [place for place in gold.word_offsets if place not in places]
        self.words += len(gold.word_offsets)
        self.otherwise += len(others)
        self.same = self.same and gold.word_offsets == raw.word_offsets
        self.joined = self.joined and gold.text == " ".join(gold.text[a:b] for a, b in gold.word_offsets)
        if others and self.example is None:
            start, end = others[0]
            touching = [raw.text[a:b] for a, b in raw.word_offsets if a < end and b > start]
            self.example = gold.text[start:end], touching
        if len(self._gold) < _TRIED:
            self._gold.append(gold)

    def summary(self) -> str:
        """Describe the share in words."""
        text = "the words joined by spaces" if self.joined else "raw text"
        return f"{100 * self.share:.1f} % of {self.words:,} words are split differently by the tokenizer in {text}"

    def suggestion(self) -> str:
        """Return an example, and a suggestion of a tokenizer that is closer to the data."""
        word, parts = self.example or ("", [])
        more = "…" if len(parts) > _SHOWN_PARTS else ""
        seen = f"for example {word!r}" + (f" as {parts[:_SHOWN_PARTS]}{more}" if parts else ", which is left out")
        tried = {fix: pattern for fix, pattern in _PATTERN_FIXES.items() if pattern != _BLANKS or not self.joined}
        # The share of words that a tokenizer with each pattern would split differently, in the first texts.
        shares: dict[str, float] = {}
        for fix, pattern in tried.items():
            splitter = Split(Regex(pattern), "removed", invert=True)
            words = otherwise = 0
            for doc in self._gold:
                places = {place for _, place in splitter.pre_tokenize_str(replace_surrogates(doc.text))}
                words += len(doc.word_offsets)
                otherwise += sum(place not in places for place in doc.word_offsets)
            shares[fix] = otherwise / max(1, words)
        best = min(shares, key=shares.__getitem__)
        if shares[best] < self.share / 2:
            return f"{seen}; with `tokenizer: {{use: {best}}}` it is {100 * shares[best]:.1f} %"
        return f"{seen}; split texts with the segmenter of the data, and give the bundle their words"


def compare_raw_text(source: InputSource, records: Iterable[Record]) -> RawText:
    """Compare a tokenizer's words of raw text with the words of the records; records without words do not count."""
    result = RawText()
    for part in sources_of(source).values():
        if not isinstance(part, TextSource) or part.lossless:
            continue
        split = [with_raw_text(record) for record in records if part.is_presplit(record)]
        for begin in range(0, len(split), _RECORDS_PER_CHUNK):
            chunk = split[begin : begin + _RECORDS_PER_CHUNK]
            unsplit = [{key: value for key, value in record.items() if key != "words"} for record in chunk]
            for gold, raw in zip(part.docs(chunk), part.docs(unsplit), strict=True):
                result.add(gold, raw)
    return result


# Texts on which `check` tries a pattern: the tokenizer may fail on them, or take too long.

RUN = 4096  # characters of the longest texts
SHORT = 64  # repeats at which a pattern with exponential backtracking fails
SLOW_SECONDS = 0.02  # seconds for RUN characters, ten times what a linear pattern takes
BUDGET = 5.0  # seconds for all texts of one tokenizer
UNITS = "a1 .-你"  # a letter, a digit, a space, characters that join words, and a letter of a script without spaces
SYNTAX = "()[]{}?*+|^$\\:"  # tried after the other characters of a pattern
MOST_TRIED, PAIRED = 40, 14  # characters that are tried alone, and in pairs
TAILS = ("", "!", " ")  # endings that prevent a match of the whole run
PATTERN_FIX = (
    "write the pattern so that each character matches in one way only: no nested repeats ([a-z]+(?:-[a-z]+)* for "
    "(?:[a-z]+-?)+), possessive repeats (++ for +), or bounded repeats ({1,64} for +)"
)


@dataclass(frozen=True)
class SplitFault:
    """A text that a tokenizer cannot split, or splits slowly, and the error or time."""

    text: str
    message: str
    fails: bool


def find_fault(tokenizer: Tokenizer) -> SplitFault | None:
    """Return a tokenizer's fault on the first hostile text; failure takes precedence over slowness."""
    end = time.thread_time() + BUDGET
    slow = None
    # Runs of one character and of two alternating ones, from the patterns and some others; short runs first.
    patterns = "".join(regular_expressions(json.loads(tokenizer.to_str())))
    units = list(dict.fromkeys([*UNITS, *sorted(patterns, key=SYNTAX.__contains__)]))[:MOST_TRIED]
    pairs = ["".join(pair) for pair in combinations(units[:PAIRED], 2)]
    short = (unit * SHORT + tail for unit in [*units, *pairs] for tail in TAILS)
    runs = (unit * RUN + tail for unit in units for tail in TAILS)
    for text in chain(short, runs, (pair * (RUN // 2) for pair in pairs)):
        try:
            seconds = _seconds(tokenizer, text)
        except DataError as error:
            return SplitFault(text, str(error.__cause__ or error), True)
        if slow is None and seconds > SLOW_SECONDS and _grows(tokenizer, text):
            message = f"{seconds:.2g} s for {text_excerpt(text)}, and four times that for a text twice as long"
            slow = SplitFault(text, message, False)
        if time.thread_time() > end:
            break
    return slow


def _seconds(tokenizer: Tokenizer, text: str) -> float:
    start = time.thread_time()
    encode(tokenizer, text)
    return time.thread_time() - start


def _grows(tokenizer: Tokenizer, text: str) -> bool:
    """Return whether time grows superlinearly: half the text takes less than a third of it, by the median of 3 pairs.

    Both of a pair are measured one after the other, since a busy machine is slow for some time.
    """
    pairs = [(_seconds(tokenizer, text), _seconds(tokenizer, text[: len(text) // 2])) for _ in range(3)]
    return min(whole for whole, _ in pairs) > SLOW_SECONDS and median(whole - 3 * half for whole, half in pairs) > 0
