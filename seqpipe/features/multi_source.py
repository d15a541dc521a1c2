"""Several sources, each with a name, as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seqpipe.features.document import Arrays, Doc, Record, join_sources
from seqpipe.features.kinds.base import BATCH, FeatureKind
from seqpipe.features.numeric_source import NumericSource
from seqpipe.features.text_source import TextSource


class MultiSource:
    """Sources by name: an array or an axis of one is called `<source>.<name>`, but for the batch's own axis."""

    pairs = False

    def __init__(self, sources: Mapping[str, TextSource | NumericSource]):
        self.sources = dict(sources)

    @property
    def features(self) -> dict[str, FeatureKind]:
        return {
            f"{prefix}.{name}": feature
            for prefix, source in self.sources.items()
            for name, feature in source.features.items()
        }

    @property
    def field(self) -> dict[str, Any]:
        """By source the field that is its input, or the two of a pair, as a bundle says it."""
        return {name: source.field for name, source in self.sources.items()}

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(field for source in self.sources.values() for field in source.fields))

    def docs(self, records: Sequence[Record]) -> list[Doc]:
        """Of each record the Docs of all sources as one; it is empty where one of them is."""
        columns = [source.docs(records) for source in self.sources.values()]
        return [join_sources(parts) for parts in zip(*columns, strict=True)]

    def collate(self, docs: Sequence[Doc]) -> Arrays:
        arrays: Arrays = {}
        for number, (prefix, source) in enumerate(self.sources.items()):
            parts = source.collate([doc.parts[number] for doc in docs])
            arrays |= {f"{prefix}.{name}": array for name, array in parts.items()}
        return arrays

    def axes(self, name: str) -> tuple[str | int, ...]:
        source, _, name_there = name.partition(".")
        return tuple(_axis_of(source, axis) for axis in self.sources[source].axes(name_there))

    def manifest(self) -> dict[str, dict[str, Any]]:
        inputs = {}
        for prefix, source in self.sources.items():
            for name, entry in source.manifest().items():
                inputs[f"{prefix}.{name}"] = {**entry, "axes": [_axis_of(prefix, axis) for axis in entry["axes"]]}
        return inputs


def _axis_of(source: str, axis: str | int) -> str | int:
    return axis if isinstance(axis, int) or axis == BATCH else f"{source}_{axis}"
