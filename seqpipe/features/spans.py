"""Spans as files state them: under which keys, and in which unit their offsets count."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Offsets = Literal["characters", "utf-16", "bytes", "inclusive", "one-based", "lf"]
CODECS = {"utf-16": ("utf-16-le", 2), "bytes": ("utf-8", 1)}  # and bytes of a unit
MEANINGS = {
    "characters": "they count code points and their ends are exclusive",
    "utf-16": "they count UTF-16 units (an emoji is two)",
    "bytes": "they count UTF-8 bytes",
    "inclusive": "their ends are inclusive",
    "one-based": "they count from 1",
    "lf": "a line break \\r\\n counts as one",
}
MAX_EXAMINED_SPANS = 2_000  # spans of records that are examined
MIN_EVIDENCE_SPANS = 3  # distinct spans that are evidence of a convention
_START = re.compile(r"(start|begin)(offset|pos|position|char|charindex|index|idx)?|charstart|from|offset")
_END = re.compile(r"end(offset|pos|position|char|charindex|index|idx)?|charend|stop|to|finish")
_LABELS = ("label", "entitygroup", "entity", "type", "entitytype", "labels", "tag", "class", "category", "slot", "name")
_TEXT_KEYS = ("text", "word", "surface", "mention")
_WORD = re.compile(r"[^\W_\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\U0010ffff]")  # of scripts with spaces


@dataclass(frozen=True)
class StatedSpan:
    """A span as a file states it: offsets, labels, and the text that it covers, if that is stated.

    An end of None is that of the stated text.
    """

    start: Any
    end: Any
    labels: tuple[Any, ...] = ()
    text: str | None = None

    def place(self, text: str, offsets: Offsets) -> tuple[int, int]:
        """Return start and exclusive end in code points; -1 for one that is within a character or after the text."""
        if self.end is None:
            start, _ = StatedSpan(self.start, self.start).place(text, offsets)
            return start, start + len(self.text or "")
        if offsets == "inclusive":
            return self.start, self.end + 1
        if offsets == "one-based":
            return self.start - 1, self.end - 1
        if offsets == "lf":
            # Positions of the characters that count, and of the end.
            counting = [i for i in range(len(text)) if text[i] != "\n" or text[i - 1 : i] != "\r"] + [len(text)]
            start, end = (counting[at] if 0 <= at < len(counting) else -1 for at in (self.start, self.end))
            return start, end
        if offsets not in CODECS or (text.isascii() and self.start >= 0):
            return self.start, self.end
        codec, size = CODECS[offsets]
        data = text.encode(codec, "surrogatepass")
        places = []
        for offset in (self.start, self.end):
            is_within = 0 <= offset * size <= len(data)
            try:
                places.append(len(data[: offset * size].decode(codec, "surrogatepass")) if is_within else -1)
            except UnicodeDecodeError:
                places.append(-1)
        return places[0], places[1]

    def covers(self, text: str, start: int, end: int) -> bool:
        """Return whether the stated text is at a place, or else whole words without blanks around them."""
        if not 0 <= start < end <= len(text):
            return False
        there = text[start:end]
        if self.text is not None:
            is_alike = there[:1].isspace() == self.text[:1].isspace()
            return is_alike and "".join(self.text.split()).casefold() == "".join(there.split()).casefold()
        inner = [text[i - 1 : i + 1] for i in (start, end) if 0 < i < len(text)]
        cuts = any(_WORD.match(pair[0]) and _WORD.match(pair[1]) for pair in inner)
        return there == there.strip() and not cuts


def stated_span(item: Any) -> StatedSpan | None:
    """Read a span under the keys that annotation tools use, or in a list of offsets and label; None if it is none."""
    if isinstance(item, list) and len(item) in (2, 3):
        numbers = [part for part in item if _is_whole(part)]
        others = [part for part in item if not _is_whole(part)]
        start, end, *labels = [*numbers, *others] if len(numbers) == 2 else item
        return StatedSpan(start, end, tuple(labels) or (None,))
    if not isinstance(item, Mapping):
        return None
    values = {re.sub(r"[_\W]", "", str(key)).lower(): value for key, value in reversed([*item.items()])}
    start = next((value for key, value in values.items() if _START.fullmatch(key)), None)
    end = next((value for key, value in values.items() if _END.fullmatch(key)), None)
    if end is None and _is_whole(start) and _is_whole(values.get("length")):
        end = start + values["length"]
    for value in values.values():  # such as {"offsets": [[0, 5]]}
        part = value[0] if isinstance(value, list) and len(value) == 1 else value
        is_pair = isinstance(part, list) and len(part) == 2 and all(map(_is_whole, part))
        inner = stated_span(part) if start is None and (is_pair or isinstance(value, Mapping)) else None
        if inner is not None:
            start, end = inner.start, inner.end
    if start is None and end is None:
        return None
    label = next((values[key] for key in _LABELS if key in values), None)
    text = next((values[key] for key in _TEXT_KEYS if isinstance(values.get(key), str)), None)
    return StatedSpan(start, end, tuple(label) if isinstance(label, list) else (label,), text)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def fitting_offsets(spans: Collection[tuple[str, StatedSpan]], expected: Offsets = "characters") -> tuple[Offsets, str]:
    """Return what the offsets of distinct spans in their texts count, and a message with the number of spans that fit.

    Another convention than the expected one is returned if it fits nearly all of the spans that it moves, FEW at least,
    and the expected one fits half of them at most.
    """
    wrong, moved = 0, {offsets: Counter[str]() for offsets in get_args(Offsets)}
    for text, span in spans:
        place = span.place(text, expected)
        is_right = span.covers(text, *place)
        wrong += not is_right
        for offsets, counts in moved.items():
            alternative = span.place(text, offsets)
            if alternative != place:
                counts.update(spans=1, fit=span.covers(text, *alternative), expected=is_right)
    message = f"{wrong:,} of {len(spans):,} spans do not fit their texts as they stand"
    for offsets, counts in moved.items():
        number, fit = counts["spans"], counts["fit"]
        if number >= MIN_EVIDENCE_SPANS and fit >= 0.95 * number and counts["expected"] <= number / 2:
            return offsets, f"{message}; {fit:,} of {number:,} do if {MEANINGS[offsets]}"
    return expected, message


def offsets_of(records: Iterable[Mapping[str, Any]]) -> tuple[Offsets, str]:
    """Return what the offsets of the spans of records count, and a message, by MOST spans at most."""
    examined = set[tuple[str, StatedSpan]]()
    for record in records:
        text, spans = record.get("text"), record.get("spans")
        for span in spans if isinstance(spans, list) else ():
            # A field of this name in the data of a third party may hold something else than spans.
            if isinstance(text, str) and isinstance(span, dict) and {"start", "end", "label"} <= span.keys():
                examined.add((text, StatedSpan(span["start"], span["end"])))
        if len(examined) >= MAX_EXAMINED_SPANS:
            break
    return fitting_offsets(examined)
