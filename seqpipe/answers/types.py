"""Values that describe an answer kind: arrays, metrics, choices, span rules and candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, cast

import numpy as np

from seqpipe.answers.answer_types import NearText
from seqpipe.errors import DataError
from seqpipe.features.document import Doc, Overlaps, Record, select_spans
from seqpipe.features.kinds.base import PLACE_AXIS, SENTENCE_AXIS, TOKEN_AXIS, WORD_AXIS

Scores = dict[str, Any]
# Sums over single records (R, K), and the function from sums over many samples (N, K) to their scores, each (N,).
Statistics = tuple[np.ndarray, Callable[[np.ndarray], Scores]]
Pair = tuple[Any, Any]  # the reference of a record, and a prediction
Target = list[Any] | int | float | tuple[float, ...]  # for each token (or each pair of them); for the record; a row
Targets = dict[str, Target]  # by name
# Returns the targets of each record of a chunk, None for one to skip, or the error about it.
MakeTargets = Callable[[Sequence[Record], Sequence[Doc]], Sequence[Targets | DataError | None]]

WHOLE_TEXT, EACH_WORD, PASSAGE = "text", "words", "passage"  # subjects of a decision
LOG_ZERO = -1e8  # this log-probability or less marks a missing alternative


Part = tuple[int, int]  # of a text: start and end
Masking = Literal["token", "word"]


class ScoringRow(NamedTuple):
    """One row of a batch that gives log-probabilities of tokens of a text."""

    ids: list[int]  # the tokens that the graph reads
    tokens: list[int]  # the positions in the text of the tokens whose log-probabilities are summed
    filling: list[int] = []  # for a masked language model, the tokens of the gaps, in order


@dataclass(frozen=True)
class Array:
    """A tensor that `decide` returns or that `loss` takes: its shape, its dtype, and the meaning of its numbers."""

    shape: str  # such as "(B, T)": B texts, T tokens, L labels, V tokens of the vocabulary, K alternatives, N steps
    dtype: str  # `int64`, `float32` or `bool`
    values: str = ""  # `label`, `token`, `flag`, `position`, `probability`, `log-probability`, or ""
    required: bool = True  # whether every `decide` returns it
    mask: str = "mask"  # the target that masks its padding
    sums: str = ""  # what its score adds up, so that its error grows: `T` tokens of the text, `N` steps of the answer

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes of the shape."""
        return tuple(axis for axis in self.shape.strip("()").replace(" ", "").split(",") if axis)


@dataclass(frozen=True)
class Metric:
    """Meaning of a score: whether it is a fraction shown in per cent, and its better direction."""

    percent: bool = True
    more_is_better: bool = True


@dataclass(frozen=True)
class Choice:
    """Outputs that are decided together, to distinguish a tie from an error (`seqpipe.training.network`)."""

    outputs: tuple[str, ...]  # their names
    ranked: bool = False  # whether axis 1 is the alternatives, best first
    scored_as: str = ""  # the input of the head's `score` for an alternative; "": the output's own name


class Counts(Protocol):
    """Counts scores record by record."""

    def add(self, gold: Any, predicted: Any, /) -> None: ...

    def result(self) -> Scores: ...

    def statistics(self, sides: Sequence[Sequence[Pair]], at: Sequence[int], /) -> Iterator[Statistics]:
        """Yield statistics of the records at these places of each side, from which the scores of samples follow.

        `sides` are the references of all records with the predictions of a model, for several models. The rows are
        those of the first side, then of the next. A score that is no function of sums has none.
        """
        ...


class UnseenLabelError(DataError):
    """A record has a label that no training record has."""


# Treatment of character spans that cut a word or a token, and their counts.

ALIGN_FIX = "set data.misaligned to widen or skip, or use another tokenizer"
UNCOVERED = "covers no word or token; correct or remove the span, or set data.misaligned: skip"


@dataclass
class SpanRules:
    """`data.misaligned` and `data.overlaps`, with the record of each span that they apply to."""

    misaligned: str = "error"  # of a span that begins or ends within a word or a token: `error`, `widen` or `skip`
    overlaps: Overlaps = "error"  # of spans that overlap after widening: `error`, `longest` or `first`
    count: int = field(default=0, init=False)  # spans so far, misaligned or not
    widened: list[Record] = field(default_factory=list, init=False)  # the record of each
    skipped: list[Record] = field(default_factory=list, init=False)
    dropped: list[Record] = field(default_factory=list, init=False)

    def align(
        self, offsets: Sequence[tuple[int, int]], span: tuple[int, int], doc: Doc, record: Record, problem: str
    ) -> tuple[int, int] | None:
        """Return the first and last unit (word or token) that a span covers; None if it is skipped.

        Args:
            offsets: Start and end of each unit.
            span: Start and end (exclusive) in the text.
            doc: The text.
            record: The record of the span.
            problem: Beginning of the error message: "span 'Ada' cuts a word".
        """
        self.count += 1
        inside = [i for i, (start, end) in enumerate(offsets) if start < span[1] and end > span[0]]
        if inside and (offsets[inside[0]][0], offsets[inside[-1]][1]) == span:
            return inside[0], inside[-1]
        if self.misaligned == "error" and not inside:
            raise DataError.at(record, f"the span {span[0]}-{span[1]}, {doc.text[slice(*span)]!r}, {UNCOVERED}")
        if self.misaligned == "error":
            raise DataError.at(record, f"{problem} of {[doc.text[slice(*offsets[i])] for i in inside]}; {ALIGN_FIX}")
        if inside and self.misaligned == "widen":
            self.widened.append(record)
            return inside[0], inside[-1]
        self.skipped.append(record)
        return None

    def without_overlaps(self, spans: list[tuple[str, int, int]], record: Record) -> list[tuple[str, int, int]]:
        """Return the remaining spans of words (label, first, end); all of them if overlaps are an error."""
        if self.overlaps == "error":
            return spans
        kept = select_spans([(start, end) for _, start, end in spans], self.overlaps)
        self.dropped += [record] * (len(spans) - len(kept))
        return [spans[i] for i in kept]

    def messages(self) -> Iterator[str]:
        """Yield a line about each group of spans that were widened, skipped, or dropped for overlaps."""
        cut = "begin or end within a word or token"
        if self.widened:
            yield self._message(self.widened, f"{cut}, and are widened", f"misaligned: {self.misaligned}")
        if self.skipped:
            reason = cut if self.misaligned == "skip" else "cover no word or token"
            yield self._message(self.skipped, f"{reason}, and are skipped", f"misaligned: {self.misaligned}")
        if self.dropped:
            yield self._message(
                self.dropped, "overlap others after widening, and are dropped", f"overlaps: {self.overlaps}"
            )

    def _message(self, records: Sequence[Record], outcome: str, setting: str) -> str:
        first = records[0].get("where", "no file and line known")
        message = f"{len(records):,} of {self.count:,} spans {outcome} (data.{setting})"
        return f"{message}; the first: {first}"


# A set of texts that an answer is chosen from.

ANSWER_FIELD = "answer"  # the field with the answer if a candidate is the nearest


@dataclass(frozen=True)
class CandidateTexts:
    """A set of texts to choose from, in the order of their file."""

    texts: tuple[str, ...]
    labels: tuple[str, ...] | None = None  # of each text; None without labels: then each text is its own label
    answers: tuple[str | None, ...] | None = None  # values of the field `answer`; None if no candidate has it

    @property
    def keys(self) -> tuple[str, ...]:
        """Values that a reference is compared with: the label of each, or its text."""
        return self.texts if self.labels is None else self.labels

    def entry(self, number: int, score: float) -> NearText:
        """Return a candidate in the format of an answer."""
        entry: dict[str, str | float | None] = {"text": self.texts[number]}
        if self.labels is not None:
            entry["label"] = self.labels[number]
        if self.answers is not None:
            entry[ANSWER_FIELD] = self.answers[number]
        return cast(NearText, {**entry, "score": score})

    def manifest(self) -> dict[str, Any]:
        columns = {"texts": self.texts, "labels": self.labels, "answers": self.answers}
        return {name: list(values) for name, values in columns.items() if values is not None}

    @staticmethod
    def from_manifest(manifest: Mapping[str, Any]) -> CandidateTexts:
        """Return the candidates; ValueError for columns that are not equally long lists of texts."""
        columns = {"texts": None, **manifest}
        for name, column in columns.items():
            allowed = (str, type(None)) if name == "answers" else str
            if not isinstance(column, list) or not all(isinstance(value, allowed) for value in column):
                raise ValueError(f"candidates: {name} is not a list of texts")
            if not column or len(column) != len(manifest["texts"]):
                raise ValueError(f"candidates: there are {len(column)} {name}")
        return CandidateTexts(**{name: tuple(column) for name, column in manifest.items()})


# Attention weights as in a bundle: the name of the graph's output, the units they are over, and the axis.

OVER = ("words", "sentences", "pairs", "written", "steps")
AXES = (TOKEN_AXIS, WORD_AXIS, SENTENCE_AXIS, PLACE_AXIS)
EXPLAIN_PREFIX = "explain."  # of the names of the graph's outputs


@dataclass(frozen=True)
class Attended:
    """Attention weights that a stage returns.

    They are over `words` (B, N), `sentences` (B, N), `pairs` (B, heads, N, N) or `written` (B, M, N), for the M tokens
    of the first text of an answer; or `steps` (B, M), the probability that each of these was generated.
    """

    key: str  # the stage's key in the YAML, then the stage's name for the weights, such as `head.attention`
    over: str
    axis: str  # the name of axis N, as for inputs: `sequence_length`, `word_count`, `sentence_count` or `place_count`
    grid: tuple[int, int] | None = None  # rows and columns of the places of a picture

    @property
    def output(self) -> str:
        return EXPLAIN_PREFIX + self.key
