"""The held-out records of a run: scores on its test sets, and the records that parity is shown on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seqpipe.answers.metrics.numbers import table
from seqpipe.answers.task import Census
from seqpipe.commands.raw_text import score_raw_text
from seqpipe.commands.runs.run_folder import Run
from seqpipe.console import Console
from seqpipe.features.document import Record
from seqpipe.runtime.evaluate import evaluate
from seqpipe.runtime.predictor import Predictor
from seqpipe.training.data_forms import data_form


def score_test_sets(run: Run, predictor: Predictor, console: Console) -> dict[str, Any]:
    """Return and print the scores on every test set, on dev if there is none, with warnings about the data.

    Where raw text is split into other words than the data has, the scores on raw text stand beside.
    """
    data, form = run.config.data, data_form(run.config)
    test_sets = data.tests or ({"dev": data.dev} if data.dev else {})
    scores: dict[str, Any] = {}
    for name, path in test_sets.items():
        records = form.read(path)
        census = Census(predictor.task)
        scores[name] = evaluate(predictor, census.watch(records))[""]
        console.say(f"\n{name}: {len(records):,} records\n{table(scores[name], predictor.metric_types)}")
        for warning in census.warnings(name):
            console.say(f"  warning: {warning}")
        scores |= score_raw_text(predictor, name, records, scores[name], console)
    return scores


def held_out_records(run: Run) -> Sequence[Record]:
    """Return the records that parity is shown on: the first test set, else dev, else the first of train."""
    return data_form(run.config).compared_records(run.folder)
