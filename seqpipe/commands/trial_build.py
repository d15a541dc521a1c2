"""Build a pipeline for `check` from all training records, with a first batch of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from seqpipe.config.loader import Config
from seqpipe.errors import DataError
from seqpipe.features.document import Record
from seqpipe.runtime.predictor import refuse_long
from seqpipe.training.data_forms import DataForm, TrainingData, data_form
from seqpipe.training.datasets import Batch
from seqpipe.training.evaluation import unwritable_notes
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.pipeline import Pipeline
from seqpipe.training.warm_start import warm_start

RECORDS = 200  # of a token corpus, which may be larger than memory


@dataclass(frozen=True)
class Trial:
    """A pipeline with random weights, and what its data are like.

    Attributes:
        pipeline: The pipeline.
        records: The records that it was built from.
        data: What it is trained on.
        batch: A batch of that.
        size: How many records it was built from, in words.
        messages: What a person should know about the vocabulary of all records.
        init_report: What it starts with, a line each, of the runs that `init` names.
    """

    pipeline: Pipeline
    records: Sequence[Record]
    data: TrainingData
    batch: Batch
    size: str
    messages: Sequence[str]
    init_report: Sequence[str]


def build_trial(config: Config) -> Trial:
    """Build a pipeline from all records of the training file; of a token corpus from the first, if those suffice.

    Raises DataError, PluginError or ConfigError, whichever the real run would meet.
    """
    form = data_form(config)
    records = form.read(config.data.train)
    if form.corpus is None:
        return _build(form, records, f"{len(records):,} records")
    first = list(itertools.islice(records, RECORDS + 1))
    if len(first) <= RECORDS:
        return _build(form, first, f"{len(first):,} records")
    try:
        return _build(form, first[:RECORDS], f"the first {RECORDS} records", is_partial=True)
    except DataError:  # of the first records; only all of them show whether the run would meet it
        return _build(form, records, "all records")


def _build(form: DataForm, records: Sequence[Record], size: str, is_partial: bool = False) -> Trial:
    config = form.config
    artifacts = fit_artifacts(config, records)
    torch.manual_seed(config.train.seed)
    pipeline = Pipeline(config, artifacts)
    init_report = warm_start(pipeline, config)
    if is_partial:
        init_report = [f"{line} (by {size})" for line in init_report]
    if artifacts.longest > pipeline.limits.tokens and form.corpus is None:
        refuse_long(artifacts.featurizer.docs(records), records, pipeline.limits)
    data = form.trial(artifacts, records)
    messages = [] if is_partial else [*pipeline.messages(), *unwritable_notes(config, artifacts, data.targets)]
    return Trial(pipeline, records, data, data.batches(data.batches.order(0)[0]), size, messages, init_report)
