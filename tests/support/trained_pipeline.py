"""A trained pipeline of the gallery, to be compared with its bundle and exported again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from gallery import gallery
from tiny_pipelines import QUIET

from seqpipe import Model, load
from seqpipe.export.exporter import export_bundle
from seqpipe.export.parity.answers import DualPredictor
from seqpipe.features.document import Record
from seqpipe.runs.run_folder import load_trained, open_run
from seqpipe.training.datasets import load_records
from seqpipe.training.evaluation import TrainedPipeline


class Trained:
    """A pipeline, its config and test records, its bundle, and a folder for further bundles."""

    def __init__(self, pipeline: TrainedPipeline, folder: Path, bundle: Path):
        self.pipeline, self.folder, self.bundle = pipeline, folder, bundle
        self.config, self.network = pipeline.config, pipeline.network
        self.records: list[Record] = load_records(self.config.data.reader, self.config.data.tests["test"])

    def export(self, name: str | Path, records: list[Record] | None = None, **options: Any) -> Model:
        """Export the pipeline to a new bundle."""
        return export_bundle(self.pipeline, records or self.records, self.folder / name, QUIET, **options)

    def comparison(self, model: Model | None = None) -> DualPredictor:
        """The comparison of the pipeline with its bundle, or with another model."""
        return DualPredictor(self.pipeline, model or load(self.bundle, "cpu"))

    def changed(self, **export: Any) -> TrainedPipeline:
        """The pipeline with these changes of its key `export`."""
        return replace(self.pipeline, config=replace(self.config, export=self.config.export.model_copy(update=export)))


def trained_example(name: str, folder: Path) -> Trained:
    """A model of the gallery; further bundles of it go to the folder."""
    example = gallery(name)
    return Trained(load_trained(open_run(example.run, QUIET)), folder, example.bundle)
