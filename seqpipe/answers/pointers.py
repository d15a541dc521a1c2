"""Answer kind pointers: positions of the input, which is a text or rows of numbers such as points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from seqpipe.answers.answer_types import PointersAnswer, PointersAnswers, WordPointersAnswer
from seqpipe.answers.base import LOG_SCORE, HeadAnswer, best_of, with_score
from seqpipe.answers.metrics.numbers import PlaceCounter
from seqpipe.answers.task import HeadInfo, HeadTask
from seqpipe.answers.types import Array, Choice, Counts, MakeTargets, Metric, SpanRules, Targets
from seqpipe.errors import DataError, attempts
from seqpipe.features.document import Arrays, Doc, Record, word_offsets_of
from seqpipe.features.kinds.base import TOKEN_AXIS, WORD_AXIS

LINE, POLYGON = "line", "polygon"  # drawings of positions among points


class PointerGold(NamedTuple):
    """The positions of a reference, and the rows of numbers if they are the input."""

    pointers: tuple[int, ...]
    points: tuple[tuple[float, ...], ...] | None = None


class PointerCounter(PlaceCounter):
    """The share of answers equal to the reference, and the share of its positions that the answer has in place."""

    def terms(self, gold: PointerGold, predicted: Sequence[int]) -> dict[str, float]:
        return super().terms(gold.pointers, predicted)


class Pointers(HeadAnswer[PointersAnswers]):
    """Positions of the input, from 0: `{"pointers": [0, 3, …], "score"}`; for a text also `"words"`.

    With `n_best` over 1 a list of them, best first. The score is the probability of the sequence.

    Args:
        target: The record field of the reference.
        points: The record field of the rows of numbers, if the input is not a text.
        axis: The axis of an input that the positions count: tokens, or words made of them.
        cyclic: Whether closed sequences are equal from any start and in either direction.
        figure_style: Drawing of positions among points: `line` or `polygon`.
    """

    kind, keeps_places = "pointers", True
    decided = {
        "pointers": Array("(B, K, N)", "int64", "position", sums="N"),
        "scores": Array("(B, K)", "float32", "log-probability", sums="N"),
    }
    figure_key = "pointers"
    warns_of_length = log_score = True

    def __init__(
        self,
        target: str | None = None,
        points: str | None = None,
        axis: str = TOKEN_AXIS,
        cyclic: bool = False,
        figure_style: str = LINE,
    ):
        self.target, self.points, self.axis, self.cyclic = target, points, axis, cyclic
        self.figure_style = None if points is None else figure_style
        self.drawing = {"as": "pointers", "points": points, "style": self.figure_style}
        self.answer_type = WordPointersAnswer if points is None else PointersAnswer
        self.nothing = {"pointers": [], "words": [], "score": 1.0} if points is None else {"pointers": [], "score": 1.0}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> Pointers:
        style = manifest.get("figure_style", LINE)
        if style not in (LINE, POLYGON):
            raise ValueError(f"figure_style: {style!r} is neither {LINE} nor {POLYGON}")
        points, axis = manifest.get("points"), manifest.get("axis", TOKEN_AXIS)
        return cls(manifest["target"], points, axis, manifest.get("cyclic") is True, style)

    def manifest(self) -> dict[str, Any]:
        stated = {"kind": self.kind, "target": self.target, "cyclic": self.cyclic}
        stated |= {LOG_SCORE: True} if self.log_score else {}
        if self.points is None:
            return {**stated, "axis": self.axis}
        return {**stated, "points": self.points, "figure_style": self.figure_style}

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[PointersAnswers]:
        return self.ranked(docs, decision, ("pointers",), self._answer)

    def _answer(self, doc: Doc, row: Sequence[int], score: float) -> PointersAnswer:
        pointers = [at for at in row if at >= 0]
        if self.points is not None:
            return {"pointers": pointers, "score": score}
        words = [self.word(doc, at) for at in pointers]
        return WordPointersAnswer({"pointers": pointers, "words": words, "score": score})

    def step_names(self, decision: Arrays, doc: Doc) -> list[str]:
        """Return the words, or the positions of rows of numbers."""
        pointers = [at for at in decision["pointers"][0, 0].tolist() if at >= 0]
        return [self.word(doc, at) if self.points is None else str(at) for at in pointers]

    def word(self, doc: Doc, position: int) -> str:
        start, end = self.places(doc)[position]
        return doc.text[start:end]

    def places(self, doc: Doc) -> Sequence[tuple[int, int]]:
        """Return start and end in the text of every possible position."""
        return doc.offsets if self.axis == TOKEN_AXIS else doc.word_offsets

    def part_lines(self, part: Any) -> list[str]:
        return [with_score(" ".join(map(str, part.get("words", part["pointers"]))), part)]


class PointersTask(HeadTask[PointersAnswers, Pointers]):
    """The positions of a record, in order."""

    kind_type = Pointers
    target_field = "pointers"
    counts_words = True
    settings = {
        "distinct": False,  # whether no position occurs twice
        "complete": False,  # whether every position occurs
        "closed": False,  # whether a sequence ends with its first position
        "fewest": 0,  # minimum number of positions, without the closing one
        "cyclic": False,
        "needs_points": False,  # whether the input must be rows of numbers
        "figure_style": LINE,
    }
    targets = {
        "pointers": Array("(B, N)", "int64", "position", mask="pointers_mask"),
        "pointers_mask": Array("(B, N)", "bool", mask="pointers_mask"),
    }
    metrics = {"exact_match": Metric(), "position_accuracy": Metric()}
    choices = (Choice(("pointers",), ranked=True),)
    is_stepwise = True

    @classmethod
    def refuse_input(cls, head: HeadInfo) -> str:
        if head.rows not in (TOKEN_AXIS, WORD_AXIS):
            fix = "delete the encoder that replaces them with other rows"
            return f"it points at tokens, words or rows of numbers; {fix}"
        if head.settings["needs_points"] and head.numbers is None:
            fix = "give points, inputs: {points: {field: points, embedding: {use: linear}}}, or task: sequence"
            return f"its task needs points, but this input is a text; {fix}"
        return ""

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        def targets(record: Record, places: Sequence[tuple[int, int]]) -> Targets:
            pointers = training_pointers(record, self.kind.target or self.target_field, len(places), settings)
            return {"pointers": pointers, "pointers_mask": [1] * len(pointers)}

        def of_chunk(records: Sequence[Record], docs: Sequence[Doc]) -> list[Targets | DataError]:
            by_token = self.kind.axis == TOKEN_AXIS
            return attempts(targets, records, [doc.offsets for doc in docs] if by_token else word_offsets_of(docs))

        return of_chunk

    def gold(self, record: Record) -> PointerGold:
        pointers = tuple(pointers_of(record, self.kind.target or self.target_field))
        if self.kind.points is None:
            return PointerGold(pointers)
        points = tuple(tuple(float(number) for number in row) for row in record[self.kind.points])
        refuse_outside(pointers, len(points), record)
        return PointerGold(pointers, points)

    def is_right(self, gold: PointerGold, predicted: Sequence[int]) -> bool:
        """Return whether an answer equals the reference; if cyclic, from any start and in either direction."""
        if self.kind.cyclic:
            return same_cycle(gold.pointers, predicted)
        return [*gold.pointers] == [*predicted]

    def mistakes(self, gold: PointerGold, predicted: Sequence[int]) -> dict[str, Any]:
        return {"expected": gold.pointers, "got": predicted}

    def predicted(self, answer: PointersAnswers) -> list[int]:
        return list(best_of(answer)["pointers"])

    def counter(self) -> Counts:
        return PointerCounter([*self.metrics])


def same_cycle(first: Sequence[int], second: Sequence[int]) -> bool:
    """Return whether two closed sequences are equal, from any start and in either direction."""
    a, b = ([*cycle[:-1]] if len(cycle) > 1 and cycle[0] == cycle[-1] else [*cycle] for cycle in (first, second))
    if len(a) != len(b):
        return False
    turns = [b[i:] + b[:i] for i in range(max(1, len(b)))]
    return any(a in (turn, turn[::-1]) for turn in turns)


def pointers_of(record: Record, field: str) -> list[int]:
    """Return the positions of a record; DataError if the field is missing or not a list of whole numbers from 0."""
    pointers = record.get(field)
    if pointers is None:
        raise DataError.at(record, f"no field {field!r} with positions; the record has: {', '.join(record)}")
    if not isinstance(pointers, list | tuple) or not all(type(at) is int and at >= 0 for at in pointers):
        message = f"field {field!r} is {str(pointers)[:60]}; it must be a list of positions"
        raise DataError.at(record, f"{message}, whole numbers from 0, such as [0, 2, 1]")
    return [*pointers]


def refuse_outside(pointers: Sequence[int], available: int, record: Record) -> None:
    """Raise DataError for a position that the input does not have."""
    if over := [at for at in pointers if at >= available]:
        message = f"position {over[0]} is outside the input, which has {available} (they count from 0)"
        raise DataError.at(record, f"{message}; correct the record")


def training_pointers(record: Record, field: str, available: int, settings: Mapping[str, Any]) -> list[int]:
    """Return the positions of a training record; DataError if a head with these settings can never answer them.

    The input has `available` positions; the settings are those of `PointersTask`.
    """
    pointers = pointers_of(record, field)
    refuse_outside(pointers, available, record)
    inner, fault = pointers, ""
    if settings["closed"]:
        inner = pointers[:-1]
        if not inner or pointers[0] != pointers[-1]:
            fault = "does not end with its first position, which the head's option close requires; repeat it at the end"
    if not fault and (settings["complete"] or settings["distinct"]) and len({*inner}) < len(inner):
        twice = next(at for i, at in enumerate(inner) if at in inner[:i])
        fault = f"names position {twice} twice; correct it, or set the head's option once: false"
    if not fault and settings["complete"] and len(inner) < available:
        lacks = min({*range(available)} - {*inner})
        fault = f"lacks position {lacks}; the head's option every requires all {available} positions"
    if not fault and len(inner) < min(settings["fewest"], available):
        fault = f"has {len(inner)} positions, but needs {settings['fewest']}: remove it"
    if fault:
        raise DataError.at(record, f"{str(pointers)[:60]} {fault}")
    return pointers
