"""Comparison of an answer with its reference, item by item: labels, tags, spans with their kind of error, fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from seqpipe.answers.metrics.f1 import SPLIT_TAG
from seqpipe.answers.tagging_schemes import Span
from seqpipe.answers.task import Task
from seqpipe.features.document import Record

RIGHT, MISSED, SPURIOUS = "right", "missed", "spurious"
SPAN_KINDS = (RIGHT, "wrong type", "wrong boundary", "wrong type and boundary", MISSED, SPURIOUS)
Row = dict[str, Any]


def pair_spans(gold: Sequence[Span], predicted: Sequence[Span]) -> list[tuple[str, Span | None, Span | None]]:
    """Pair each span of a reference with at most one of an answer; return (kind of SPAN_KINDS, reference, answer).

    Equal spans are paired first, then those with the same boundaries, then overlapping ones of the same label, then
    other overlapping ones, each with the largest overlap first. Repeated spans count once, as in the scores.
    """
    lone_gold, lone_predicted = list(dict.fromkeys(gold)), list(dict.fromkeys(predicted))
    candidates = []
    for expected, got in product(lone_gold, lone_predicted):
        overlap = min(expected[2], got[2]) - max(expected[1], got[1])
        if overlap > 0 or expected[1:] == got[1:]:
            kind = 2 * (expected[1:] != got[1:]) + (expected[0] != got[0])
            candidates.append((kind, -overlap, expected, got))
    pairs: list[tuple[str, Span | None, Span | None]] = []
    for kind, _, expected, got in sorted(candidates, key=lambda candidate: candidate[:2]):
        if expected in lone_gold and got in lone_predicted:
            lone_gold.remove(expected)
            lone_predicted.remove(got)
            pairs.append((SPAN_KINDS[kind], expected, got))
    return [*pairs, *((MISSED, span, None) for span in lone_gold), *((SPURIOUS, None, span) for span in lone_predicted)]


# The items of an answer beside those of the reference: {"gold", "predicted", "score"}, with a label or None.


def _label_set_items(gold: Sequence[str], predicted: Sequence[str], answer: Any) -> Iterator[Row]:
    scores = {part["label"]: part["score"] for part in answer}
    for label in dict.fromkeys([*gold, *predicted]):
        got = label if label in predicted else None
        yield {"gold": label if label in gold else None, "predicted": got, "score": scores.get(label)}


def _tag_items(gold: Sequence[Span], predicted: Sequence[Span], answer: Any) -> Iterator[Row]:
    tags = {(start, end): (tag, part["score"]) for (tag, start, end), part in zip(predicted, answer, strict=True)}
    for tag, start, end in gold:
        got, score = tags.get((start, end), (SPLIT_TAG, None))
        spans = {"gold_span": (tag, start, end), "predicted_span": (got, start, end)}
        yield {"gold": tag, "predicted": got, "score": score, **spans}


def _span_items(gold: Sequence[Span], predicted: Sequence[Span], answer: Any) -> Iterator[Row]:
    scores = {span: part["score"] for span, part in zip(predicted, answer, strict=True)}
    for kind, expected, got in pair_spans(gold, predicted):
        labels = {"gold": expected and expected[0], "predicted": got and got[0]}
        yield {**labels, "score": got and scores[got], "kind": kind, "gold_span": expected, "predicted_span": got}


def _structured_items(gold: Mapping[str, Any], predicted: Mapping[str, Any], answer: Any) -> Iterator[Row]:
    for field, expected in gold.items():
        got, score = predicted[field], answer.get(f"{field}_score")
        if not isinstance(expected, Mapping):
            expected, got = {(): expected}, {(): got}
        for place in dict.fromkeys([*expected, *got]):
            labels = expected.get(place), got.get(place)
            if all(isinstance(label, str | None) for label in labels):
                yield {"field": field, "gold": labels[0], "predicted": labels[1], "score": score}


_ITEMS: Mapping[str, Callable[[Any, Any, Any], Iterable[Row]]] = {
    "label": lambda gold, got, answer: [{"gold": gold, "predicted": got, "score": answer["score"]}],
    "candidate": lambda gold, got, answer: [{"gold": gold, "predicted": got[0] if got else None, "score": None}],
    "labels": _label_set_items,
    "tags": _tag_items,
    "spans": _span_items,
    "structured": _structured_items,
}
_NOT_PROBABLE = ("score", "candidate", "structured")  # kinds whose `score` is no probability, or a field


def is_wrong(item: Row) -> bool:
    """Return whether an item of an answer differs from that of the reference."""
    return bool(item["gold"] != item["predicted"] or item.get("kind", RIGHT) != RIGHT)


def right_items(rows: Iterable[Row]) -> list[list[bool]]:
    """Return whether each item of each row is right."""
    return [[not is_wrong(item) for item in row["items"]] for row in rows]


def compare_answers(task: Task, records: Sequence[Record], answers: Sequence[Any]) -> list[list[Row]]:
    """Return the rows of `compare_heads` for each record of a chunk."""
    rows = zip(task.golds(records), answers, strict=True)
    return [[*compare_heads(task, *row)] for row in rows]


def compare_heads(task: Task, gold: Any, answer: Any) -> Iterator[Row]:
    """Yield a row for each head whose answers can be right; keys, from `head` on, are those of `Run.errors`."""
    for head, part in task.parts.items():
        if not part.is_comparable:
            continue
        expected, head_answer = (gold[head], answer[head]) if head else (gold, answer)
        predicted, kind = part.predicted(head_answer), part.kind.kind
        items = [*_ITEMS[kind](expected, predicted, head_answer)] if kind in _ITEMS else []
        score = head_answer.get("score") if isinstance(head_answer, Mapping) else None
        wrongness = score or 0.0
        if kind == "score":
            wrongness = math.inf if predicted is None else abs(expected - predicted)
        elif items and kind != "candidate":
            wrongness = max((item["score"] or 0.0 for item in items if is_wrong(item)), default=0.0)
        row = {"head": head, "answer": head_answer, "gold": expected, "predicted": predicted}
        row |= {"right": part.is_right(expected, predicted), "items": items}
        yield {**row, "score": None if kind in _NOT_PROBABLE else score, "wrongness": wrongness}
