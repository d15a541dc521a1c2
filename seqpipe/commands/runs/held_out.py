"""The held-out records of a run: scores on its test sets, and the records that parity is shown on."""

from __future__ import annotations

from typing import Any

from seqpipe.answers.data_warnings import Census
from seqpipe.answers.generation import prompt_records
from seqpipe.answers.metrics.table import table
from seqpipe.commands.runs.run_folder import Run
from seqpipe.config.contract import is_language_model_head
from seqpipe.console import Console
from seqpipe.features.document import Record
from seqpipe.runtime.evaluate import evaluate
from seqpipe.runtime.predictor import Predictor
from seqpipe.training.datasets import read
from seqpipe.training.fit import Learned
from seqpipe.training.prepare import packed
from seqpipe.training.token_corpus import Records


def score_test_sets(run: Run, predictor: Predictor, console: Console) -> dict[str, Any]:
    """Return and print the scores on every test set, on dev if there is none, with warnings about the data."""
    data = run.config.data
    test_sets = data.tests or ({"dev": data.dev} if data.dev else {})
    scores = {}
    for name, path in test_sets.items():
        records = Records(data.reader, path) if packed(run.config) else read(data.reader, path)
        census = Census(predictor.kind)
        scores[name] = evaluate(predictor, census.watch(records))[""]
        console.say(f"\n{name}: {len(records):,} records\n{table(scores[name], predictor.metric_types)}")
        for warning in census.warnings(name):
            console.say(f"  warning: {warning}")
    return scores


def held_out_records(run: Run) -> list[Record]:
    """Return the records that parity is shown on: the first test set, else dev, else the first of train."""
    data = run.config.data
    path = next(iter(data.tests.values()), None) or data.dev
    head = run.config.head[0]
    if is_language_model_head(head):
        source = Learned.load(run.folder).featurizer
        records = Records(data.reader, path or data.train)
        return prompt_records(records, source.docs, source.fields[-1], head.options["context"])
    return read(data.reader, path) if path else read(data.reader, data.train, 200)
