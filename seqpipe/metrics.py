"""Gold and predicted answers in, scores out: spans, tags, labels, texts, counted record by record in constant memory.

Scores are fractions (0 to 1) and a division by zero gives 0; only `table` speaks of per cent.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from seqpipe.errors import UsageError, nearest
from seqpipe.schemes import Span

Scores = dict[str, Any]


class Counts(Protocol):
    """What every counter here does: take record after record, and say the scores at any time."""

    def add(self, gold: Any, predicted: Any, /) -> None: ...

    def result(self) -> Scores: ...


class SpanCounter:
    """Precision, recall and F1 of spans whose label and both ends are right (micro average, as conlleval has it)."""

    def __init__(self) -> None:
        self.gold: Counter[str] = Counter()
        self.predicted: Counter[str] = Counter()
        self.correct: Counter[str] = Counter()

    def add(self, gold: Iterable[Span], predicted: Iterable[Span]) -> None:
        """One record's spans; a span given twice counts once."""
        right, given = set(gold), set(predicted)
        self.gold.update(label for label, _, _ in right)
        self.predicted.update(label for label, _, _ in given)
        self.correct.update(label for label, _, _ in right & given)

    def result(self) -> Scores:
        totals = self.gold.total(), self.predicted.total(), self.correct.total()
        return {**_f1(*totals), "labels": _each(self.gold, self.predicted, self.correct)}


class TagCounter:
    """Accuracy over all tags, and precision, recall and F1 of each."""

    def __init__(self) -> None:
        self.gold: Counter[str] = Counter()
        self.predicted: Counter[str] = Counter()
        self.correct: Counter[str] = Counter()

    def add(self, gold: Sequence[str], predicted: Sequence[str]) -> None:
        """One record's tags; ValueError unless there are as many on both sides."""
        if len(gold) != len(predicted):
            raise ValueError(
                f"{len(gold)} gold tags but {len(predicted)} predicted: one a word is needed on both sides"
            )
        self.gold.update(gold)
        self.predicted.update(predicted)
        self.correct.update(right for right, given in zip(gold, predicted, strict=True) if right == given)

    def result(self) -> Scores:
        accuracy = _ratio(self.correct.total(), self.gold.total())
        return {"accuracy": accuracy, "labels": _each(self.gold, self.predicted, self.correct)}


class LabelCounter:
    """Accuracy, the mean of the labels' F1, and precision, recall and F1 of each label."""

    def __init__(self) -> None:
        self.gold: Counter[str] = Counter()
        self.predicted: Counter[str] = Counter()
        self.correct: Counter[str] = Counter()

    def add(self, gold: str, predicted: str | None) -> None:
        """One record's label; None for a text that has none, since it has no token."""
        self.gold[gold] += 1
        self.predicted.update([] if predicted is None else [predicted])
        self.correct[gold] += gold == predicted

    def result(self) -> Scores:
        each = _each(self.gold, self.predicted, self.correct)
        return {
            "accuracy": _ratio(self.correct.total(), self.gold.total()),
            "macro_f1": sum(scores["f1"] for scores in each.values()) / max(1, len(each)),
            "labels": each,
        }


class TextCounter:
    """The share of texts that are equal, and edits over characters of gold, both over all records."""

    def __init__(self) -> None:
        self.texts = self.equal = self.characters = self.edits = 0

    def add(self, gold: str, predicted: str) -> None:
        """One record's text."""
        self.texts += 1
        self.equal += gold == predicted
        self.characters += len(gold)
        self.edits += edit_distance(gold, predicted)

    def result(self) -> Scores:
        return {
            "exact_match": _ratio(self.equal, self.texts),
            "character_error_rate": _ratio(self.edits, self.characters),
        }


FRACTIONS = ("f1", "precision", "recall", "accuracy", "macro_f1", "exact_match", "character_error_rate")
COUNTERS: dict[str, type[Counts]] = {
    "spans": SpanCounter,
    "tags": TagCounter,
    "label": LabelCounter,
    "text": TextCounter,
}


def counter(answer_kind: str) -> Counts:
    """A fresh counter for answers of this kind."""
    if answer_kind not in COUNTERS:
        known = ", ".join(COUNTERS)
        raise UsageError(
            f"no metric for answers of kind {answer_kind!r}{nearest(answer_kind, COUNTERS)} (there is: {known})"
        )
    return COUNTERS[answer_kind]()


def span_scores(gold: Sequence[Iterable[Span]], predicted: Sequence[Iterable[Span]]) -> Scores:
    """f1, precision, recall, gold, predicted and correct over all records' spans, and the same under `labels`."""
    return _count(SpanCounter(), gold, predicted)


def tag_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Scores:
    """accuracy over all records' tags, and each tag's f1, precision, recall and counts under `labels`."""
    return _count(TagCounter(), gold, predicted)


def text_scores(gold: Sequence[str], predicted: Sequence[str]) -> Scores:
    """exact_match and character_error_rate over all records' texts."""
    return _count(TextCounter(), gold, predicted)


def edit_distance(a: str, b: str) -> int:
    """Levenshtein's distance over code points, each column of its table as the bits of one integer (Hyyrö, 2003)."""
    if not a or not b:
        return len(a) + len(b)
    where: dict[str, int] = {}  # each character's positions in a, as bits
    for i, character in enumerate(a):
        where[character] = where.get(character, 0) | 1 << i
    every, top = (1 << len(a)) - 1, len(a) - 1
    up, down, distance = every, 0, len(a)  # vertical differences of +1 and -1
    for character in b:
        equal = where.get(character, 0)
        still = (((equal & up) + up) ^ up) | equal | down
        rises, falls = down | every & ~(still | up), up & still  # horizontal differences
        distance += (rises >> top & 1) - (falls >> top & 1)
        rises, falls = rises << 1 | 1, falls << 1
        equal |= down
        up, down = (falls | ~(equal | rises)) & every, rises & equal & every
    return distance


def table(scores: Mapping[str, Any]) -> str:
    """The scores as aligned plain text: a row a label, then one over all; our own fractions in per cent."""
    rows = [*scores.get("labels", {}).items(), ("overall", {k: v for k, v in scores.items() if k != "labels"})]
    columns = list(dict.fromkeys(column for _, row in reversed(rows) for column in row))
    lines = [["", *(column.replace("_", " ") for column in columns)]]
    lines += [[label, *(_cell(column, row.get(column)) for column in columns)] for label, row in rows]
    widths = [max(map(_width, cells)) for cells in zip(*lines, strict=True)]
    padded = ([" " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join(
        "  ".join([line[0] + gaps[0], *(gap + cell for gap, cell in zip(gaps[1:], line[1:], strict=True))]).rstrip()
        for line, gaps in zip(lines, padded, strict=True)
    )


def _count(counts: Counts, gold: Sequence[Any], predicted: Sequence[Any]) -> Scores:
    if len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} gold records but {len(predicted)} predicted ones")
    for right, given in zip(gold, predicted, strict=True):
        counts.add(right, given)
    return counts.result()


def _each(gold: Counter[str], predicted: Counter[str], correct: Counter[str]) -> dict[str, Scores]:
    return {label: _f1(gold[label], predicted[label], correct[label]) for label in sorted(gold | predicted)}


def _f1(gold: int, predicted: int, correct: int) -> Scores:
    precision, recall = _ratio(correct, predicted), _ratio(correct, gold)
    return {
        "f1": _ratio(2 * correct, gold + predicted),
        "precision": precision,
        "recall": recall,
        "gold": gold,
        "predicted": predicted,
        "correct": correct,
    }


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _cell(column: str, value: float | None) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{100 * value:.2f}" if column in FRACTIONS else f"{value:.4g}"


def _width(text: str) -> int:
    """Columns on a terminal: Chinese and Japanese characters take two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
