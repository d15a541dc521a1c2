"""What texts have as wholes: a label, a number or a text to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seqpipe.answers.classification import label_of
from seqpipe.answers.regression import number_of
from seqpipe.commands.init.sniff import are_measured
from seqpipe.commands.init.summary import DataSummary, records
from seqpipe.errors import DataError


def count_whole(summary: DataSummary, data: Path) -> None:
    """Count what the texts of a JSONL file have as wholes: a label, a number or a text to write."""
    values: dict[str, list[Any]] = {"label": [], "target": [], "score": []}
    for record in records(summary, data):
        for name in values.keys() & record.keys():
            values[name].append(record[name])
    field = next((name for name in values if values[name]), "label")
    if all(type(value) in (int, float) for value in values[field]) and are_measured(values[field]):
        count_numbers(summary, data, field)
    elif field == "target":
        count_targets(summary, data, field)
    else:
        count_labels(summary, data)


def count_numbers(summary: DataSummary, data: Path, field: str) -> None:
    """Look at the numbers to predict; DataError if a record has none."""
    numbers = [number_of(record, field) for record in records(summary, data)]
    summary.target, summary.label_kind = field, "Numbers"
    summary.notes.append(f"texts with a number each: {field!r}, {min(numbers):g} to {max(numbers):g}")


def count_targets(summary: DataSummary, data: Path, field: str) -> None:
    """Look at the texts to write; DataError if a record has none."""
    spaced = 0
    for record in records(summary, data):
        if not isinstance(record.get(field), str):
            raise DataError(f"{record['where']}: {field!r} is no text; write one in every record, or none at all")
        spaced += " " in record[field].strip()
    summary.unspaced = summary.unspaced or spaced < summary.records / 2  # such as dates
    summary.target, summary.label_kind = field, "Texts"
    summary.notes.append(f"texts with a text to write each: {field!r} is learned from 'text'")


def count_labels(summary: DataSummary, data: Path) -> None:
    """Count the labels of texts; DataError if there are none, or not one for every text."""
    if not any("label" in record for record in records(summary, data)):
        cure = "a line needs text and spans, or words and tags, or text and label, target, or score (many numbers)"
        raise DataError(f"{data}: no spans and no tags in it, and no labels; {cure}")
    summary.labels.update(label_of(record, "label") for record in records(summary, data))
    summary.label_kind = "Labels"
    summary.notes.append("texts with one label each")
