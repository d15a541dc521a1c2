"""What becomes of spans of characters that cut a word or a token, and how many of them there were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from seqpipe.errors import DataError
from seqpipe.features.document import Doc, Overlaps, Record, kept_spans

CURE = "set data.misaligned to widen or skip, or use another tokenizer"
UNCOVERED = "covers no word or token; correct or remove the span, or set data.misaligned: skip"


@dataclass
class SpanRules:
    """`data.misaligned` and `data.overlaps`, and a record of each span to which it was applied.

    Args:
        misaligned: What to do with a span that begins or ends within a word or a token: `error`, `widen` or `skip`.
        overlaps: What to do with spans that overlap once they are widened: `error`, `longest` or `first`.
    """

    misaligned: str = "error"
    overlaps: Overlaps = "error"
    count: int = field(default=0, init=False)  # spans so far, misaligned or not
    widened: list[Record] = field(default_factory=list, init=False)  # the record of each
    skipped: list[Record] = field(default_factory=list, init=False)
    dropped: list[Record] = field(default_factory=list, init=False)

    def align(
        self, offsets: Sequence[tuple[int, int]], span: tuple[int, int], doc: Doc, record: Record, problem: str
    ) -> tuple[int, int] | None:
        """First and last piece of text that a span covers; None if it is skipped.

        Args:
            offsets: Start and end of each piece, a word or a token.
            span: Start and end in the text, exclusive.
            doc: The text.
            record: That of the span.
            problem: What the error says before the pieces: "span 'Ada' cuts a word".
        """
        self.count += 1
        inside = [i for i, (start, end) in enumerate(offsets) if start < span[1] and end > span[0]]
        if inside and (offsets[inside[0]][0], offsets[inside[-1]][1]) == span:
            return inside[0], inside[-1]
        if self.misaligned == "error" and not inside:
            raise DataError.at(record, f"the span {span[0]}-{span[1]}, {doc.text[slice(*span)]!r}, {UNCOVERED}")
        if self.misaligned == "error":
            raise DataError.at(record, f"{problem} of {[doc.text[slice(*offsets[i])] for i in inside]}; {CURE}")
        if inside and self.misaligned == "widen":
            self.widened.append(record)
            return inside[0], inside[-1]
        self.skipped.append(record)
        return None

    def without_overlaps(self, spans: list[tuple[str, int, int]], record: Record) -> list[tuple[str, int, int]]:
        """The spans of words (label, first, end) that remain; all of them if overlaps are an error."""
        if self.overlaps == "error":
            return spans
        kept = kept_spans([(start, end) for _, start, end in spans], self.overlaps)
        self.dropped += [record] * (len(spans) - len(kept))
        return [spans[i] for i in kept]

    def messages(self) -> Iterator[str]:
        """A line each about the spans that were widened, skipped, or dropped for an overlap of widened spans."""
        cut = "begin or end within a word or token"
        if self.widened:
            yield self._message(self.widened, f"{cut}, and are widened", f"misaligned: {self.misaligned}")
        if self.skipped:
            reason = cut if self.misaligned == "skip" else "cover no word or token"
            yield self._message(self.skipped, f"{reason}, and are skipped", f"misaligned: {self.misaligned}")
        if self.dropped:
            yield self._message(
                self.dropped, "overlap others once widened, and are dropped", f"overlaps: {self.overlaps}"
            )

    def _message(self, records: Sequence[Record], outcome: str, setting: str) -> str:
        first = records[0].get("where", "without a place")
        message = f"{len(records):,} of {self.count:,} spans {outcome} (data.{setting})"
        return f"{message}; the first: {first}"
