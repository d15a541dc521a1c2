"""Spans as files state them: under which keys, and in which unit their offsets count."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Offsets = Literal["characters", "utf-16", "bytes", "inclusive", "one-based"]
CODECS = {"utf-16": ("utf-16-le", 2), "bytes": ("utf-8", 1)}
MEANINGS = {
    "utf-16": "they count UTF-16 units (an emoji is two)",
    "bytes": "they count UTF-8 bytes",
    "inclusive": "their ends are inclusive",
    "one-based": "they count from 1",
}
MOST = 2_000  # spans of records that are looked at
FEW = 2  # spans are no evidence of a convention if there are fewer
_STARTS = {"start", "startoffset", "startpos", "startchar", "startindex", "startcharindex", "begin", "beginoffset"}
_STARTS |= {"charstart", "from", "offset", "startposition", "startidx", "beginindex"}
_ENDS = {"end", "endoffset", "endpos", "endchar", "endindex", "endcharindex", "stop", "charend", "to", "endposition"}
_ENDS |= {"endidx", "finish"}
_KINDS = ("label", "entitygroup", "entity", "type", "entitytype", "labels", "tag", "class", "category", "slot", "name")
_STATED = ("text", "word", "surface", "mention")
_WORD = re.compile(r"[^\W_\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\U0010ffff]")  # of scripts with spaces


@dataclass(frozen=True)
class StatedSpan:
    """A span as a file states it: offsets, labels, and the text that it says to cover, if it says so."""

    start: Any
    end: Any
    labels: tuple[Any, ...]
    text: str | None = None


def stated_span(item: Any) -> StatedSpan | None:
    """Read a span under the keys that annotation tools use, or in a list of offsets and label; None if it is none."""
    if isinstance(item, list) and len(item) == 3:
        numbers = [part for part in item if _is_whole(part)]
        names = [part for part in item if isinstance(part, str)]
        is_span = len(numbers) == 2 and len(names) == 1
        return StatedSpan(numbers[0], numbers[1], (names[0],)) if is_span else StatedSpan(item[0], item[1], (item[2],))
    if not isinstance(item, Mapping):
        return None
    values = {re.sub(r"[_\W]", "", str(key)).lower(): value for key, value in reversed([*item.items()])}
    start = next((values[key] for key in values if key in _STARTS), None)
    end = next((values[key] for key in values if key in _ENDS), None)
    if end is None and _is_whole(start) and _is_whole(values.get("length")):
        end = start + values["length"]
    for value in values.values():  # such as {"offsets": [[0, 5]]}
        pair = value[0] if isinstance(value, list) and len(value) == 1 else value
        inner = stated_span(value) if start is None and isinstance(value, Mapping) else None
        if inner is not None:
            start, end = inner.start, inner.end
        if start is None and isinstance(pair, list) and len(pair) == 2 and all(map(_is_whole, pair)):
            start, end = pair
    if start is None and end is None:
        return None
    kind = next((values[key] for key in _KINDS if key in values), None)
    text = next((values[key] for key in _STATED if isinstance(values.get(key), str)), None)
    return StatedSpan(start, end, tuple(kind) if isinstance(kind, list) else (kind,), text)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def to_characters(text: str, start: int, end: int, offsets: Offsets) -> tuple[int, int]:
    """Convert offsets to code points with an exclusive end; -1 for one that is within a character or behind the text.

    Args:
        text: The text of the span.
        start: Where it starts.
        end: Where it ends.
        offsets: What they count.
    """
    if offsets == "inclusive":
        return start, end + 1
    if offsets == "one-based":
        return start - 1, end - 1
    if offsets not in CODECS or (text.isascii() and start >= 0):
        return start, end
    codec, size = CODECS[offsets]
    data = text.encode(codec, "surrogatepass")

    def place(offset: int) -> int:
        if not 0 <= offset * size <= len(data):
            return -1
        try:
            return len(data[: offset * size].decode(codec, "surrogatepass"))
        except UnicodeDecodeError:
            return -1

    return place(start), place(end)


def covers(text: str, start: int, end: int, stated: str | None) -> bool:
    """Return whether a span covers the stated text, or else whole words without blanks around them."""
    if not 0 <= start < end <= len(text):
        return False
    there = text[start:end]
    if stated is not None:
        return "".join(stated.split()).casefold() == "".join(there.split()).casefold()
    inner = [text[i - 1 : i + 1] for i in (start, end) if 0 < i < len(text)]
    cuts = any(_WORD.match(pair[0]) and _WORD.match(pair[1]) for pair in inner)
    return there == there.strip() and not cuts


@dataclass
class OffsetEvidence:
    """Spans counted by the conventions that fit them.

    Attributes:
        spans: Number of spans.
        wrong: How many do not fit as they stand.
        differ: How many each convention moves.
        fit: How many of these fit by it, and how many fit as they stand.
    """

    spans: int = 0
    wrong: int = 0
    differ: Counter[str] = field(default_factory=Counter)
    fit: dict[str, Counter[bool]] = field(default_factory=dict)

    def add(self, text: str, start: int, end: int, stated: str | None = None) -> None:
        """Take account of a span."""
        as_stated = covers(text, start, end, stated)
        self.spans += 1
        self.wrong += not as_stated
        for offsets in get_args(Offsets)[1:]:
            place = to_characters(text, start, end, offsets)
            if place != (start, end):
                counts = self.fit.setdefault(offsets, Counter())
                self.differ[offsets] += 1
                counts[True] += covers(text, *place, stated)
                counts[False] += as_stated

    @property
    def convention(self) -> Offsets:
        """The convention that fits nearly all spans that it moves, and most of which do not fit as they stand."""
        for offsets in get_args(Offsets)[1:]:
            moved = self.differ[offsets]
            counts = self.fit.get(offsets, Counter())
            if moved >= FEW and counts[True] >= 0.95 * moved and counts[False] <= moved / 2 and self.wrong >= FEW:
                return offsets
        return "characters"

    @property
    def message(self) -> str:
        """The convention that fits and what it moves, for people; "" if it is the usual one."""
        name, number = self.convention, self.differ[self.convention]
        if name == "characters":
            return ""
        fitting = f"{self.wrong:,} of {self.spans:,} spans do not fit their texts as they stand"
        return f"{fitting}; {self.fit[name][True]:,} of {number:,} do if {MEANINGS[name]}"


def evidence_of(records: Iterable[Mapping[str, Any]]) -> OffsetEvidence:
    """Return the evidence of the spans of records, of MOST at most."""
    evidence = OffsetEvidence()
    for record in records:
        text, spans = record.get("text"), record.get("spans")
        for span in spans if isinstance(spans, list) else ():
            # A field of this name in the data of a third party may hold something else than spans.
            if isinstance(text, str) and isinstance(span, dict) and {"start", "end", "label"} <= span.keys():
                evidence.add(text, span["start"], span["end"])
        if evidence.spans >= MOST:
            break
    return evidence
