"""Examples of each answer kind for the conformance kit, and checks of the decisions about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from seqpipe.answers.candidates import Candidate
from seqpipe.answers.classification import Label
from seqpipe.answers.extractive_span import ExtractiveSpan
from seqpipe.answers.fill_mask import FillMask
from seqpipe.answers.pointers import Pointers
from seqpipe.answers.structured import LABEL, NUMBER, PAIR, POSITION, SPAN, TEXT, WORD, Structured, fields_from
from seqpipe.answers.tagging import WordLabels
from seqpipe.answers.task import HeadTask
from seqpipe.answers.text import Text
from seqpipe.answers.types import LOG_ZERO, Array
from seqpipe.features.document import Arrays, Record

P_TOLERANCE = 1e-3  # tolerance of probabilities


class KindChecks:
    """Examples and checks of an answer kind, for the task of a head; a subclass overrides what differs in one kind."""

    def __init__(self, task: HeadTask):
        self.task = task

    @classmethod
    def example_fields(cls, settings: Mapping[str, Any], record: Record, number: int) -> Record:
        """Fields that a toy record needs for a head with these settings."""
        return {}

    @classmethod
    def example_words(cls, settings: Mapping[str, Any], words: Sequence[str], number: int) -> Sequence[str]:
        """The words of a toy text to answer."""
        return words

    def counts(self, mask: np.ndarray) -> dict[str, int]:
        """Return the number of ids of each sort in an `Array`, for texts with this mask (B, T)."""
        return {"label": len(self.task.kind.labels), "flag": 2}

    def decision_fault(self, decision: Arrays, features: Arrays, settings: Mapping[str, Any]) -> str:
        """Return the fault of a decision; "" if it has none."""
        decided, mask = self.task.kind.decided, features["mask"]
        sizes = {"B": len(mask), "T": mask.shape[1], "L": len(self.task.kind.labels)}
        fault = array_fault(decided, decision, sizes) or value_fault(decided, decision, mask, self.counts(mask))
        return fault or self.kind_fault(decision, features, settings)

    def kind_fault(self, decision: Arrays, features: Arrays, settings: Mapping[str, Any]) -> str:
        """Return the fault of a decision whose arrays are as declared; "" if it has none."""
        return ""

    def other_target(self, name: str, targets: Arrays, mask: np.ndarray) -> np.ndarray:
        """Other valid values of a target, which must change the loss."""
        return changed_values(self.task.targets[name], targets[name], mask, self.counts(mask))

    def other_decision(self, decision: Arrays, mask: np.ndarray) -> Arrays:
        """Another decision, which must change `score`."""
        decided = self.task.kind.decided
        changed = {
            name: changed_values(decided[name], decision[name], mask, self.counts(mask))
            for choice in self.task.choices[:1]
            for name in choice.outputs
        }
        return {**decision, **changed}

    def rated_decisions(self, decision: Arrays, mask: np.ndarray) -> list[tuple[Arrays, np.ndarray]]:
        """Decisions with the log-probabilities (B,) that the decision itself gives; empty if it gives none."""
        if self.task.kind.decided.get("scores", Array("", "")).values == "log-probability":
            return [(decision, decision["scores"][:, 0])]
        return []


class LabelChecks(KindChecks):
    """Probabilities of all labels, each of which is a possible decision."""

    def kind_fault(self, decision: Arrays, features: Arrays, settings: Mapping[str, Any]) -> str:
        sums = decision["scores"].sum(1)
        return "" if np.allclose(sums, 1, atol=P_TOLERANCE) else f"the scores of all labels sum to {sums[0]:.4g}, not 1"

    def rated_decisions(self, decision: Arrays, mask: np.ndarray) -> list[tuple[Arrays, np.ndarray]]:
        scores = decision["scores"]
        with np.errstate(divide="ignore"):
            log_p = np.log(scores)
        labels = range(scores.shape[1])
        return [({**decision, "label": np.full(len(scores), label)}, log_p[:, label]) for label in labels]


class WordChecks(KindChecks):
    """Tags, whose joint log-probability is that from the first word to the last."""

    def rated_decisions(self, decision: Arrays, mask: np.ndarray) -> list[tuple[Arrays, np.ndarray]]:
        last = mask.sum(1, keepdims=True) - 1
        closes = np.take_along_axis(decision["closes"], last, 1)[:, 0]
        return [(decision, decision["opens"][:, 0] + closes)]


class CandidateChecks(KindChecks):
    """Numbers of candidates; `score` gives the cosine of the first."""

    def counts(self, mask: np.ndarray) -> dict[str, int]:
        return {"label": len(self.task.kind.labels), "candidate": len(self.task.kind.candidates.texts)}

    def rated_decisions(self, decision: Arrays, mask: np.ndarray) -> list[tuple[Arrays, np.ndarray]]:
        return [(decision, decision["scores"][:, 0])]


class PassageChecks(KindChecks):
    """Spans of the second text."""

    @classmethod
    def example_fields(cls, settings: Mapping[str, Any], record: Record, number: int) -> Record:
        if not settings["no_answer"] or number % 3 != 1:
            return {}
        return {"answers": {"text": [], "answer_start": []}}

    def kind_fault(self, decision: Arrays, features: Arrays, settings: Mapping[str, Any]) -> str:
        segments = features["segments"]
        starts, ends, exists = decision["starts"], decision["ends"], decision["scores"] > LOG_ZERO
        if not exists[:, 0].all():
            return f"the first answer has a score of {LOG_ZERO:g} or less: every text has one, if only 'no answer'"
        none = (starts == -1) & (ends == -1)
        in_passage = [
            (np.take_along_axis(segments, at.clip(0, segments.shape[1] - 1), 1) == 2) & (at >= 0)
            for at in (starts, ends)
        ]
        if not (none | ~exists | (in_passage[0] & in_passage[1] & (starts <= ends))).all():
            return "an answer must start in the second text and end there, not before its start"
        if not settings["no_answer"] and (exists & none).any(0)[1:].any():
            return "no answer is among the alternatives, and there is no option no_answer: true"
        return ""

    def other_target(self, name: str, targets: Arrays, mask: np.ndarray) -> np.ndarray:
        return targets["end" if name == "start" else "start"]  # shorter answers in place of longer ones

    def other_decision(self, decision: Arrays, mask: np.ndarray) -> Arrays:
        """Change each answer to the last token, and an answer that is already the last token to no answer."""
        last = mask.sum(1, keepdims=True) - 1
        at = np.where(decision["starts"] == last, -1, last)
        return {**decision, "starts": at, "ends": at}


class PointerChecks(KindChecks):
    """Sequences of positions, ended by -1."""

    @classmethod
    def example_fields(cls, settings: Mapping[str, Any], record: Record, number: int) -> Record:
        pointers = record["pointers"]
        return {"pointers": [*pointers, pointers[0]]} if settings["closed"] else {}

    def kind_fault(self, decision: Arrays, features: Arrays, settings: Mapping[str, Any]) -> str:
        pointers = decision["pointers"]
        if ((pointers[..., 1:] >= 0) & (pointers[..., :-1] < 0)).any():
            return "a position follows a -1"
        if not (decision["scores"][:, 0] > LOG_ZERO).all():
            return f"the first sequence has a score of {LOG_ZERO:g} or less: every text has a sequence"
        return ""


class TextChecks(KindChecks):
    """Generated texts, with ids beyond the vocabulary for copied words."""

    def counts(self, mask: np.ndarray) -> dict[str, int]:
        kind = self.task.kind
        return {"token": kind.tokenizer.get_vocab_size() + (mask.shape[1] if kind.copies else 0)}

    def other_decision(self, decision: Arrays, mask: np.ndarray) -> Arrays:
        return {**decision, "tokens": (decision["tokens"] + 1) % self.task.kind.tokenizer.get_vocab_size()}

    def other_target(self, name: str, targets: Arrays, mask: np.ndarray) -> np.ndarray:
        counts = {"token": self.task.kind.tokenizer.get_vocab_size()}
        return changed_values(self.task.targets[name], targets[name], mask, counts)


class FillMaskChecks(KindChecks):
    """Texts with gaps."""

    @classmethod
    def example_words(cls, settings: Mapping[str, Any], words: Sequence[str], number: int) -> Sequence[str]:
        return [settings["token"] if (number + i) % 3 == 0 else word for i, word in enumerate(words)]

    def counts(self, mask: np.ndarray) -> dict[str, int]:
        return {"token": self.task.kind.tokenizer.get_vocab_size()}


class StructuredChecks(KindChecks):
    """Fields that the head describes."""

    @classmethod
    def example_fields(cls, settings: Mapping[str, Any], record: Record, number: int) -> Record:
        words = len(record["words"])
        values: Mapping[str, Callable[[int], Any]] = {
            LABEL: lambda i: f"label {(number + i) % 3}",
            POSITION: lambda i: None if i == number % words else (i + 1) % words,
            NUMBER: lambda i: 0.5 * i - number,
            SPAN: lambda i: None if i % 2 else {"start": 0, "end": len(record["words"][0])},
        }
        fields: dict[str, Any] = {}
        for field in fields_from(settings["fields"]):
            value = values[field.type]
            if field.per == TEXT:
                fields[field.target] = value(number)
            elif field.per == WORD:
                fields[field.target] = [value(i) for i in range(words)]
            else:
                key = LABEL if field.type == LABEL else "value"
                pairs = [(i, (i + number) % words) for i in range(0, words, 2)]
                fields[field.target] = [{"from": i, "to": j, key: value(i)} for i, j in pairs]
        return fields

    def other_target(self, name: str, targets: Arrays, mask: np.ndarray) -> np.ndarray:
        field = next(field for field in self.task.kind.fields if field.name == name)
        counts = {LABEL: len(field.labels)}
        changed = changed_values(replace(field.array, values=field.type), targets[name], mask, counts)
        return mirrored(targets[name], mask)[..., ::-1] if field.type == SPAN else changed

    def other_decision(self, decision: Arrays, mask: np.ndarray) -> Arrays:
        return {**decision, **{name: self.other_target(name, decision, mask) for name in self.task.choices[0].outputs}}

    def kind_fault(self, decision: Arrays, features: Arrays, settings: Mapping[str, Any]) -> str:
        mask = features["mask"]
        for field in self.task.kind.fields:
            values = decision[field.name]
            real = mask if field.per != PAIR else mask[:, :, None] & mask[:, None]
            if field.type == LABEL:
                inside = (values >= 0) & (values < len(field.labels))
            elif field.type == NUMBER:
                inside = np.isfinite(values)
            else:
                lengths = mask.sum(1).reshape(-1, *[1] * (values.ndim - 1))
                inside = (values >= -1) & (values < lengths)
                inside = inside.all(-1) if field.type == SPAN else inside
            if not (inside if field.per == TEXT else inside | ~real).all():
                return f"{field.name} holds a value that is not {field.type}"
        return ""


# The checks of a kind are those of its first class in this list.
CHECKS: Mapping[type, type[KindChecks]] = {
    Label: LabelChecks,
    WordLabels: WordChecks,
    Candidate: CandidateChecks,
    ExtractiveSpan: PassageChecks,
    Pointers: PointerChecks,
    Text: TextChecks,
    FillMask: FillMaskChecks,
    Structured: StructuredChecks,
    object: KindChecks,
}


def checks_of(task: type[HeadTask]) -> type[KindChecks]:
    """Return the examples and checks of the answer kind of a task."""
    return next(CHECKS[cls] for cls in task.kind_type.__mro__ if cls in CHECKS)


# Checks of arrays against their declarations in an answer kind.


def array_fault(stated: Mapping[str, Array], arrays: Arrays, sizes: Mapping[str, int]) -> str:
    """Return the fault of a decision's shapes or dtypes; "" if it has none.

    A letter of a declared shape stands for one size wherever it occurs; `sizes` are those that are known.
    """
    bound = dict(sizes)
    for name, array in stated.items():
        value = arrays.get(name)
        if value is None:
            if array.required:
                return f"decide returns no {name!r}"
            continue
        if len(array.axes) == value.ndim:
            for axis, size in zip(array.axes, value.shape, strict=True):
                if len(axis) == 1 and axis.isupper():
                    bound.setdefault(axis, size)
        expected = tuple(int(bound.get(axis, axis)) if axis in bound or axis.isdigit() else -1 for axis in array.axes)
        if value.shape != expected or str(value.dtype) != array.dtype:
            return f"{name} is {value.shape} {value.dtype}, not {expected} {array.dtype}"
    return ""


def value_fault(stated: Mapping[str, Array], arrays: Arrays, mask: np.ndarray, counts: Mapping[str, int]) -> str:
    """Return the fault of a decision's values for texts with this mask (B, T); "" if it has none."""
    lengths = mask.sum(1)
    for name, array in stated.items():
        if name not in arrays:
            continue
        values, most = arrays[name], counts.get(array.values)
        if array.values == "position":
            if not ((values >= -1) & (values < lengths.reshape(-1, *[1] * (values.ndim - 1)))).all():
                return f"{name} has a value that is neither -1 nor the position of a real token"
        elif array.values == "probability":
            real = values[mask] if values.shape == mask.shape and array.shape == "(B, T)" else values
            if not ((real >= -P_TOLERANCE) & (real <= 1 + P_TOLERANCE)).all():
                return f"{name} has values from {real.min():.3g} to {real.max():.3g}; it must hold probabilities"
        elif array.values == "log-probability":
            if not (values <= P_TOLERANCE).all():
                return f"{name} has values from {values.min():.3g} to {values.max():.3g}, not log-probabilities"
            if not (np.diff(values, axis=1) <= P_TOLERANCE).all():
                return "alternatives are not sorted best first"
        elif most is not None and not ((values >= 0) & (values < most)).all():
            return f"{name} holds ids outside 0 to {most - 1}"
    return ""


def mirrored(positions: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Positions (B, …) counted from the last token of a mask (B, T); -1 and values in the padding are unchanged."""
    lengths = mask.sum(1).reshape(-1, *[1] * (positions.ndim - 1))
    changed = lengths - 1 - positions
    return np.where((positions >= 0) & (changed >= 0), changed, positions)


def changed_values(array: Array, values: np.ndarray, mask: np.ndarray, counts: Mapping[str, int]) -> np.ndarray:
    """Other valid values of an array: other ids, mirrored positions, and 1 minus a number."""
    if array.values == "position":
        return mirrored(values, mask)
    if values.dtype.kind == "f":
        return 1 - values
    if array.values == "token":  # ids 0 to 3 are special
        return np.where(values > 3, 4 + (values - 3) % max(1, counts["token"] - 4), 3)
    return (values + 1) % counts.get(array.values, 2)
