"""A predictor and records in, the task's scores out: the same code for PyTorch and for a bundle, so both print one number."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import tee
from pathlib import Path
from typing import Any

from seqpipe import metrics
from seqpipe.errors import DataError
from seqpipe.features import Record
from seqpipe.files import writing
from seqpipe.predictor import Predictor

Scores = dict[str, Any]


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
        for group in groups:
            counters.setdefault(group, metrics.counter(kind.kind)).add(gold, predicted)
        if errors and gold != predicted:
            wrong.append(_error(record, gold, predicted))
    if errors:
        with writing(errors) as temporary:
            temporary.write_text(
                "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in wrong), encoding="utf-8"
            )
    return {group: counter.result() for group, counter in counters.items()}


def headline(scores: Mapping[str, Any]) -> tuple[str, float]:
    """The name and value of the metric that decides which weights are best."""
    return next((name, float(value)) for name, value in scores.items())


def _unsplit(record: Record) -> Record:
    return {key: value for key, value in record.items() if key != "words"}


def _group(record: Record, by: str) -> str:
    if by not in record:
        raise DataError(
            f"{record.get('where', 'record')}: no field {by!r} to split by; the record has: {', '.join(record)}"
        )
    return f"{by}={record[by]}"


def _error(record: Record, gold: Any, predicted: Any) -> dict[str, Any]:
    line: dict[str, Any] = {"where": record.get("where"), "text": record.get("text")}
    if isinstance(gold, list):
        missed = [part for part in gold if part not in predicted]
        return line | {"missed": missed, "wrong": [part for part in predicted if part not in gold]}
    return line | {"expected": gold, "got": predicted}
