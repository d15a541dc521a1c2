"""A trained pipeline of the gallery, to be compared with its bundle and exported again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from gallery import gallery
from tiny_pipelines import QUIET

from seqpipe import Model, load
from seqpipe.config.loader import Config
from seqpipe.export.exporter import export
from seqpipe.export.parity.answers import Comparison
from seqpipe.features.document import Record
from seqpipe.runs.run_folder import load_trained, open_run
from seqpipe.training.datasets import read
from seqpipe.training.network import Network


class Trained:
    """A pipeline, its config and test records, its bundle, and a folder for further bundles."""

    def __init__(self, config: Config, network: Network, folder: Path, bundle: Path):
        self.config, self.network, self.folder, self.bundle = config, network, folder, bundle
        self.records: list[Record] = read(config.data.reader, config.data.tests["test"])

    def export(self, name: str, records: list[Record] | None = None, **options: Any) -> Model:
        """Export the pipeline to a new bundle."""
        records = records or self.records
        return export(self.network, self.config, records, self.folder / name, QUIET, **options)

    def comparison(self, model: Model | None = None) -> Comparison:
        """The comparison of the pipeline with its bundle, or with another model."""
        return Comparison(self.network, self.config, model or load(self.bundle, "cpu"))

    def config_with(self, **export: Any) -> Config:
        """The config with these changes of its key `export`."""
        return replace(self.config, export=self.config.export.model_copy(update=export))


def trained_example(name: str, folder: Path) -> Trained:
    """A model of the gallery; further bundles of it go to the folder."""
    example = gallery(name)
    run = open_run(example.run, QUIET)
    return Trained(run.config, load_trained(run), folder, example.bundle)
