"""A predictor and records in, the task's scores out: one code for PyTorch and bundles, so both print one number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import tee
from pathlib import Path
from typing import Any

from seqpipe import metrics
from seqpipe.errors import DataError, PluginError
from seqpipe.features import Record
from seqpipe.files import json_bytes, write
from seqpipe.predictor import Predictor

Scores = dict[str, Any]
Tag = tuple[str, int, int]  # tag, start and end of its word
SPLIT = "(split otherwise)"


def evaluate(
    predictor: Predictor,
    records: Iterable[Record],
    *,
    raw: bool = False,
    by: str | None = None,
    errors: Path | None = None,
) -> dict[str, Scores]:
    """Scores of all records under `""`, and for each value of the field `by` under that value.

    Args:
        predictor: Answers with PyTorch or onnxruntime.
        records: With their references.
        raw: Give the model the text alone, not the words of the data: what deployment sees.
        by: A field of the records to split the scores by.
        errors: A file to list every record in that was answered wrongly, as JSONL.
    """
    kind = predictor.kind
    for_model, for_gold = tee(records)
    counters = {"": _Counts(predictor)}
    wrong = []
    answers = predictor.stream(map(_unsplit, for_model) if raw else for_model)
    for record, answer in zip(for_gold, answers, strict=True):
        gold, predicted = kind.gold(record), kind.predicted(answer)
        for group in ["", _group(record, by)] if by else [""]:
            counters.setdefault(group, _Counts(predictor)).add(gold, predicted)
        if errors and gold != predicted:
            wrong.append(_error(record, gold, predicted))
    if errors:
        write(errors, b"".join(json_bytes(line) + b"\n" for line in wrong))
    return {group: counter.result() for group, counter in counters.items()}


def headline(scores: Mapping[str, Any]) -> tuple[str, float]:
    """The name and value of the metric that decides which weights are best."""
    return next((name, float(value)) for name, value in scores.items())


class _Counts:
    """The answer kind's scores, then the head's own where it has any: for those the answers are kept to the end."""

    def __init__(self, predictor: Predictor):
        self.kind, self.own = predictor.kind.kind, predictor.metrics
        self.counter = metrics.counter(self.kind)
        self.answers: list[tuple[Any, Any]] = []

    def add(self, gold: Any, predicted: Any) -> None:
        if self.own:
            self.answers.append((gold, predicted))
        self.counter.add(*(_word_by_word(gold, predicted) if self.kind == "tags" else (gold, predicted)))

    def result(self) -> Scores:
        scores = self.counter.result()
        if not (self.own and self.answers):
            return scores
        own = self.own(*zip(*self.answers, strict=True))
        if taken := sorted(scores.keys() & own.keys()):
            raise PluginError(
                f"the head's `metrics` gives {taken[0]!r}, which its answer kind gives; name it otherwise"
            )
        labels = {"labels": scores.pop("labels")} if "labels" in scores else {}
        return scores | dict(own) | labels


def _word_by_word(gold: Sequence[Tag], predicted: Sequence[Tag]) -> tuple[list[str], list[str]]:
    """The tags of the reference's words, and those predicted for the same words where the model split alike."""
    found = {(start, end): tag for tag, start, end in predicted}
    return [tag for tag, _, _ in gold], [found.get((start, end), SPLIT) for _, start, end in gold]


def _unsplit(record: Record) -> Record:
    return {key: value for key, value in record.items() if key != "words"}


def _group(record: Record, by: str) -> str:
    if by not in record:
        has = ", ".join(record)
        raise DataError(f"{record.get('where', 'record')}: no field {by!r} to split by; the record has: {has}")
    return f"{by}={record[by]}"


def _error(record: Record, gold: Any, predicted: Any) -> dict[str, Any]:
    line: dict[str, Any] = {"where": record.get("where"), "text": record.get("text")}
    if isinstance(gold, list):
        missed = [part for part in gold if part not in predicted]
        return line | {"missed": missed, "wrong": [part for part in predicted if part not in gold]}
    return line | {"expected": gold, "got": predicted}
