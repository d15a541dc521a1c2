"""Values that describe an answer kind: arrays, metrics, choices, and what is known of a head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, cast

from seqpipe.answers.answer_types import NearText
from seqpipe.errors import DataError
from seqpipe.features.document import Doc, Overlaps, Record, select_spans

Scores = dict[str, Any]
Target = list[Any] | int | float | tuple[float, ...]  # for each token (or each pair of them); for the record; a row
Targets = dict[str, Target]  # by name
MakeTargets = Callable[[Record, Doc], Targets | None]  # None of a record that is to be skipped

WHOLE_TEXT, EACH_WORD, PASSAGE = "text", "words", "passage"  # what a decision is about
LOG_ZERO = -1e8  # a log-probability of this or less stands for what does not exist


Part = tuple[int, int]  # of a text: start and end
Masking = Literal["token", "word"]


class ScoringRow(NamedTuple):
    """One row of a batch that gives log-probabilities of tokens of a text.

    Args:
        ids: The tokens that the graph reads.
        tokens: The positions in the text of those whose log-probabilities add up.
        filling: Of a masked language model, the tokens of the gaps, in order.
    """

    ids: list[int]
    tokens: list[int]
    filling: list[int] = []


@dataclass(frozen=True)
class Array:
    """A tensor that `decide` returns or that `loss` takes: its shape in letters, its dtype, and what its numbers are.

    Args:
        shape: Such as "(B, T)": B texts, T tokens, L labels, V tokens of the vocabulary, K alternatives, N steps.
        dtype: `int64`, `float32` or `bool`.
        values: What its numbers are: `label`, `token`, `flag`, `position`, `probability`, `log-probability`, or "".
        required: Whether every `decide` returns it.
        mask: The target that says which numbers are real.
    """

    shape: str
    dtype: str
    values: str = ""
    required: bool = True
    mask: str = "mask"


@dataclass(frozen=True)
class Metric:
    """Reading of a score: as a fraction shown in per cent or not, and its better direction."""

    percent: bool = True
    more_is_better: bool = True


@dataclass(frozen=True)
class Choice:
    """Outputs that are decided together, for telling a tie from an error (`seqpipe.training.pipeline`).

    Args:
        outputs: Their names.
        ranked: Whether axis 1 holds alternatives, the best first.
        scored_as: The output under whose name the head's `score` takes an alternative; "": its own.
    """

    outputs: tuple[str, ...]
    ranked: bool = False
    scored_as: str = ""


class Counts(Protocol):
    """Counts scores record by record."""

    def add(self, gold: Any, predicted: Any, /) -> None: ...

    def result(self) -> Scores: ...


class UnseenLabelError(DataError):
    """A record has a label that no training record has."""


# What becomes of spans of characters that cut a word or a token, and how many of them there were.

FIX = "set data.misaligned to widen or skip, or use another tokenizer"
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
            raise DataError.at(record, f"{problem} of {[doc.text[slice(*offsets[i])] for i in inside]}; {FIX}")
        if inside and self.misaligned == "widen":
            self.widened.append(record)
            return inside[0], inside[-1]
        self.skipped.append(record)
        return None

    def without_overlaps(self, spans: list[tuple[str, int, int]], record: Record) -> list[tuple[str, int, int]]:
        """The spans of words (label, first, end) that remain; all of them if overlaps are an error."""
        if self.overlaps == "error":
            return spans
        kept = select_spans([(start, end) for _, start, end in spans], self.overlaps)
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


# A set of texts that an answer is chosen from.

ANSWER = "answer"  # the field of what is to be answered where a candidate is the nearest


@dataclass(frozen=True)
class Candidates:
    """A set of texts to choose from, in the order of their file.

    Attributes:
        texts: The texts.
        labels: The label of each; None where the texts have no label: then each is its own.
        answers: What each says in its field `answer`; None where none has that field.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...] | None = None
    answers: tuple[str | None, ...] | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The values that a reference is compared with: the label of each, or its text."""
        return self.texts if self.labels is None else self.labels

    def entry(self, number: int, score: float) -> NearText:
        """A candidate as an answer states it."""
        entry: dict[str, str | float | None] = {"text": self.texts[number]}
        if self.labels is not None:
            entry["label"] = self.labels[number]
        if self.answers is not None:
            entry[ANSWER] = self.answers[number]
        return cast(NearText, {**entry, "score": score})

    def manifest(self) -> dict[str, Any]:
        columns = {"texts": self.texts, "labels": self.labels, "answers": self.answers}
        return {name: list(values) for name, values in columns.items() if values is not None}

    @staticmethod
    def from_manifest(manifest: Mapping[str, Any]) -> Candidates:
        """ValueError for columns that are not equally long lists of texts."""
        columns = {"texts": None, **manifest}
        for name, column in columns.items():
            allowed = (str, type(None)) if name == "answers" else str
            if not isinstance(column, list) or not all(isinstance(value, allowed) for value in column):
                raise ValueError(f"candidates: {name} is no list of texts")
            if not column or len(column) != len(manifest["texts"]):
                raise ValueError(f"candidates: there are {len(column)} {name}")
        return Candidates(**{name: tuple(column) for name, column in manifest.items()})
