"""Which of the overlapping spans of a record remain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

from seqpipe.errors import DataError
from seqpipe.features.document import Record

Overlaps = Literal["error", "longest", "first"]
CURE = "correct or remove one of the spans, or set data.overlaps to longest or first"
DROPPED = "dropped_spans"  # field of a record: how many of its spans are left out


def resolve_overlaps(records: Iterable[Record], rule: Overlaps) -> Iterator[Record]:
    """Yield the records without overlaps in `spans`; where spans are dropped, `dropped_spans` says how many.

    Raises:
        DataError: if two spans of a record overlap and the rule is `error`.
    """
    for record in records:
        spans: Any = record.get("spans")
        if not _are_places(spans):
            yield record
            continue
        kept = kept_spans([(span["start"], span["end"]) for span in spans], rule)
        if len(kept) == len(spans):
            yield record
        elif rule == "error":
            a, b = _first_overlap(spans)
            pair = " and ".join(f"{s['start']}-{s['end']} {s['label']}" for s in (a, b))
            raise DataError.at(record, f"the spans {pair} overlap; {CURE}")
        else:
            yield {**record, "spans": [spans[i] for i in kept], DROPPED: len(spans) - len(kept)}


def kept_spans(places: Sequence[tuple[int, int]], rule: Overlaps) -> list[int]:
    """The numbers of the spans that remain, in the order of the text: the longest first, or the first by start."""

    def rank(i: int) -> tuple[int, int, int]:
        start, end = places[i]
        return (start - end if rule == "longest" else 0, start, i)

    kept: list[int] = []
    for i in sorted(range(len(places)), key=rank):
        if all(places[i][1] <= places[j][0] or places[j][1] <= places[i][0] for j in kept):
            kept.append(i)
    return sorted(kept, key=lambda i: places[i])


def dropped_message(records: Sequence[Record], rule: Overlaps) -> Iterator[str]:
    """A line about the spans that were dropped from these records, if there are any."""
    fewer = [record for record in records if DROPPED in record]
    if fewer:
        dropped = sum(record[DROPPED] for record in fewer)
        count = dropped + sum(len(record.get("spans") or ()) for record in records)
        first = fewer[0].get("where", "without a place")
        message = f"{dropped:,} of {count:,} spans overlap others, and are dropped (data.overlaps: {rule})"
        yield f"{message}; the first: {first}"


def _are_places(spans: Any) -> bool:
    """Whether a field holds spans; a third party's may hold something else."""
    return isinstance(spans, list) and all(
        isinstance(span, dict) and {"start", "end", "label"} <= span.keys() for span in spans
    )


def _first_overlap(spans: Sequence[Record]) -> tuple[Record, Record]:
    ordered = sorted(spans, key=lambda span: (span["start"], span["end"]))
    return next((a, b) for a, b in pairwise(ordered) if b["start"] < a["end"])
