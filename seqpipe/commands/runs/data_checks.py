"""Checks of a run's data before training: labels that training never saw, texts that are too long."""

from __future__ import annotations

from seqpipe.config.contract import build_component
from seqpipe.config.loader import Config
from seqpipe.console import Console
from seqpipe.errors import DataError
from seqpipe.features.document import resolve_overlaps
from seqpipe.runtime.predictor import refuse_long
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.datasets import unseen_labels
from seqpipe.training.pipeline import Pipeline


def report_unseen_labels(config: Config, artifacts: Artifacts, console: Console) -> None:
    """Raise DataError for labels of dev or test that training never saw; with `unseen_labels: miss`, print them."""
    if not any(task.labels for task in artifacts.tasks):
        return
    reader, problems = build_component(config.data.reader), []
    for name, path in {"dev": config.data.dev, **config.data.tests}.items():
        if path is None:
            continue
        for label, record in unseen_labels(artifacts, resolve_overlaps(reader.read(path), config.data.overlaps)):
            place = record.get("where", path)
            message = f"{place}: the {name} set holds the label {label!r}, which training never saw"
            problems.append(message)
            if config.data.unseen_labels == "miss":
                console.say(f"  note: {message}; it counts as missed")
    if problems and config.data.unseen_labels == "error":
        cure = "correct the data, add training records with it, or set data.unseen_labels: miss to count it as missed"
        raise DataError("\n".join([*problems, cure]))


def refuse_long_texts(config: Config, pipeline: Pipeline) -> None:
    """Raise DataError, before training, for a text, or the first of a pair, that a stage cannot read as a whole."""
    if not pipeline.refuses_long_texts:
        return
    reader, featurizer = build_component(config.data.reader), pipeline.artifacts.featurizer
    for path in (config.data.train, config.data.dev, *config.data.tests.values()):
        if path is None:
            continue
        for record in reader.read(path):
            refuse_long(featurizer.docs([record]), [record], pipeline.limits)
