"""The inputs of a measurement: the first records of a file, or the golden examples of the bundle."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Record
from seqpipe.features.sources import all_texts
from seqpipe.runtime.file_io import input_format, open_source, parse_lines, read_lines, read_records
from seqpipe.runtime.model import Model

MOST = 1000  # inputs that are kept, and repeated as often as there is time


def bundle_inputs(model: Model, source: Path | None, form: str) -> list[Record]:
    """The inputs for a bundle; DataError for the first that cannot be read."""
    if source is None:
        return _examples([example.record for example in model.manifest.golden], "the bundle")
    form = input_format(form, source, "text" if all_texts(model.predictor.featurizer) else "jsonl")
    name = str(source)
    with ExitStack() as stack:
        lines = read_lines(open_source(source, stack), name, lambda: None)
        located = list(_first(read_records(model, lines, form, name), name))
    return [{**record, "where": where} for record, where in located]


def served_inputs(description: Mapping[str, Any], source: Path | None, form: str) -> list[Any]:
    """The inputs for a served bundle, of which only its description is at hand."""
    if source is None:
        return _examples(description["examples"], "the server")
    form = input_format(form, source, "text")
    if form == "conll":
        raise UsageError("--format conll: only for a bundle in a folder; give a server lines of text or JSON")
    name = str(source)
    with ExitStack() as stack:
        lines = read_lines(open_source(source, stack), name, lambda: None)
        return [record for record, _ in _first(parse_lines(lines, form, description["fields"], True), name)]


def _examples(examples: list[Any], owner: str) -> list[Any]:
    if not examples:
        raise UsageError(f"{owner} has no golden examples; give a file of inputs: --input FILE")
    return examples


def _first(records: Iterator[tuple[Record | DataError, str]], name: str) -> Iterator[tuple[Record, str]]:
    """The first records of a file with their places."""
    count = 0
    for record, where in itertools.islice(records, MOST):
        if isinstance(record, DataError):
            raise record
        count += 1
        yield record, where
    if not count:
        raise DataError(f"{name}: holds no input")
