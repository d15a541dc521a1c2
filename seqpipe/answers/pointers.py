"""Positions that a head points at in, what they mean out: the kind `pointers`, of a text, of points, or of any rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from seqpipe.answers.geometry import opened, same_polygon
from seqpipe.config.attention_maps import TOKENS
from seqpipe.errors import DataError
from seqpipe.features.document import Arrays, Doc, Record

SEQUENCE, HULL, TOUR = TASKS = ("sequence", "hull", "tour")
FEWEST = {SEQUENCE: 0, HULL: 3, TOUR: 1}  # positions that an answer has, its closing one not counted
NOTHING = -1e8  # a log-probability of this or less stands for what does not exist


class Pointed(NamedTuple):
    """The positions of a reference, and of a task in the plane the points they are positions of."""

    pointers: tuple[int, ...]
    points: tuple[tuple[float, ...], ...] | None = None


class Pointers:
    """Positions of the input, from 0: `{"pointers": [0, 3, …], "score"}`; of a text also `"words"`.

    With `n_best` over 1 a list of them, best first. The score is the probability of just this sequence.

    Args:
        target: The record field of the reference.
        task: What the positions are: any sequence, the corners of a convex hull, or a round trip.
        points: The record field of the points, where the source is rows of numbers.
        axis: What the positions count, as the axes of inputs are named: tokens, or words made of them.
    """

    kind = "pointers"
    outputs: tuple[str, ...] = ("pointers", "scores")

    def __init__(self, target: str | None = None, task: str = SEQUENCE, points: str | None = None, axis: str = TOKENS):
        self.target, self.task, self.points, self.axis = target, task, points, axis

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Any]:
        made = []
        for doc, rows, log_p in zip(docs, decision["pointers"].tolist(), decision["scores"].tolist(), strict=True):
            found = [self._answer(doc, row, p) for row, p in zip(rows, log_p, strict=True) if p > NOTHING]
            made.append(found if len(rows) > 1 else found[0])
        return made

    def _answer(self, doc: Doc, row: Sequence[int], log_p: float) -> dict[str, Any]:
        pointers = [at for at in row if at >= 0]
        words = {} if self.points is not None else {"words": [self.word(doc, at) for at in pointers]}
        return {"pointers": pointers, **words, "score": round(min(1.0, float(np.exp(np.float32(log_p)))), 6)}

    def shown(self, doc: Doc, row: Sequence[int]) -> list[str]:
        """What a sequence points at as a person reads it: words, of rows of numbers their positions."""
        return [self.word(doc, at) if self.points is None else str(at) for at in row if at >= 0]

    def word(self, doc: Doc, position: int) -> str:
        start, end = self.places(doc)[position]
        return doc.text[start:end]

    def places(self, doc: Doc) -> Sequence[tuple[int, int]]:
        """Where what can be pointed at stands in the text."""
        return doc.offsets if self.axis == TOKENS else doc.word_offsets

    def empty(self, several: bool) -> Any:
        """The answer where there is nothing to point at."""
        nothing: dict[str, Any] = {"pointers": [], **({} if self.points is not None else {"words": []}), "score": 1.0}
        return [nothing] if several else nothing

    def gold(self, record: Record) -> Pointed:
        pointers = tuple(pointers_of(record, self.target))
        if self.task == SEQUENCE or self.points is None:
            return Pointed(pointers)
        points = tuple(tuple(float(number) for number in row) for row in record[self.points])
        refuse_outside(pointers, len(points), record)
        return Pointed(pointers, points)

    def right(self, gold: Pointed, predicted: Sequence[int]) -> bool:
        """Whether an answer is the reference; of a hull, whether it is the same polygon."""
        if self.task == HULL and gold.points is not None:
            points = np.array(gold.points, float)
            return same_polygon(points[opened(gold.pointers)], points[opened(predicted)])
        return [*gold.pointers] == [*predicted]

    def predicted(self, answer: Any) -> list[int]:
        best = answer[0] if isinstance(answer, list) else answer
        return list(best["pointers"])

    def manifest(self) -> dict[str, Any]:
        where = {"axis": self.axis} if self.points is None else {"points": self.points}
        return {"kind": self.kind, "target": self.target, "task": self.task, **where}


def pointers_from(manifest: Mapping[str, Any]) -> Pointers:
    """The kind that a bundle or a run describes."""
    return Pointers(manifest["target"], manifest["task"], manifest.get("points"), manifest.get("axis", TOKENS))


def pointers_of(record: Record, field: str | None) -> list[int]:
    """The positions of a record; DataError if the field is missing or no list of whole numbers from 0 on."""
    field, where = field or "pointers", record.get("where", "record")
    given = record.get(field)
    if given is None:
        raise DataError(f"{where}: no field {field!r} with positions; the record has: {', '.join(record)}")
    if not isinstance(given, list | tuple) or not all(type(at) is int and at >= 0 for at in given):
        told = f"field {field!r} is {str(given)[:60]}; it must be a list of positions"
        raise DataError(f"{where}: {told}, whole numbers from 0 on, such as [0, 2, 1]")
    return [*given]


def refuse_outside(pointers: Sequence[int], there: int, record: Record) -> None:
    """DataError for a position that the input does not have."""
    if over := [at for at in pointers if at >= there]:
        told = f"position {over[0]} is outside the input, which has {there} (they count from 0)"
        raise DataError(f"{record.get('where', 'record')}: {told}; correct the record")


def learnable(record: Record, field: str | None, there: int, options: Mapping[str, Any]) -> list[int]:
    """The positions of a training record; DataError for what a head with these options can never answer.

    Args:
        record: With its reference.
        field: Where that stands; None: in `pointers`.
        there: How many positions the input has.
        options: The head's: `once`, `every`, `close` and `task`.
    """
    pointers, where = pointers_of(record, field), record.get("where", "record")
    refuse_outside(pointers, there, record)
    close, every = bool(options.get("close")), bool(options.get("every"))
    inner, task = pointers, options.get("task", SEQUENCE)
    fault = ""
    if close:
        inner = pointers[:-1]
        if not inner or pointers[0] != pointers[-1]:
            fault = "does not end where it begins, as the head's option close wants; repeat its first position"
    if not fault and (every or options.get("once")) and len({*inner}) < len(inner):
        twice = next(at for i, at in enumerate(inner) if at in inner[:i])
        fault = f"names position {twice} twice; correct it, or set the head's option once: false"
    if not fault and every and len(inner) < there:
        lacks = min({*range(there)} - {*inner})
        fault = f"lacks position {lacks}; with the head's option every it holds each of the {there}"
    if not fault and len(inner) < min(FEWEST[task], there):
        fault = f"has {len(inner)} corners; the hull of points that are not on one line has three: leave it out"
    if fault:
        raise DataError(f"{where}: {str(pointers)[:60]} {fault}")
    return pointers
