"""A predictor and records in, the task's scores out: one code for PyTorch and bundles, so both print one number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import tee
from pathlib import Path
from typing import Any

from seqpipe import metrics
from seqpipe.errors import DataError
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
    counters = {"": metrics.counter(kind.kind)}
    wrong = []
    answers = predictor.stream(map(_unsplit, for_model) if raw else for_model)
    for record, answer in zip(for_gold, answers, strict=True):
        gold, predicted = kind.gold(record), kind.predicted(answer)
        groups = ["", _group(record, by)] if by else [""]
        counted = _word_by_word(gold, predicted) if kind.kind == "tags" else (gold, predicted)
        for group in groups:
            counters.setdefault(group, metrics.counter(kind.kind)).add(*counted)
        if errors and gold != predicted:
            wrong.append(_error(record, gold, predicted))
    if errors:
        write(errors, b"".join(json_bytes(line) + b"\n" for line in wrong))
    return {group: counter.result() for group, counter in counters.items()}


def headline(scores: Mapping[str, Any]) -> tuple[str, float]:
    """The name and value of the metric that decides which weights are best."""
    return next((name, float(value)) for name, value in scores.items())


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
