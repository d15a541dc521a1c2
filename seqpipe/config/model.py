"""One checked pipeline as a value, and as the plain data of its resolved file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from seqpipe.config.component import Component, Input
from seqpipe.config.schema import Export, PluginKeys, Train
from seqpipe.config.yaml_text import Plain, plain


@dataclass(frozen=True)
class Data:
    """Where the records come from; the paths are absolute."""

    reader: Component
    train: Path
    dev: Path | None
    tests: Mapping[str, Path]
    misaligned: Literal["error", "widen", "skip"]
    unseen_labels: Literal["error", "miss"] = "error"


@dataclass(frozen=True)
class Config:
    """One pipeline, checked: its components with all their options, and every setting."""

    file: Path = field(compare=False)
    root: Path = field(compare=False)
    name: str
    data: Data
    inputs: tuple[Input, ...]
    head: tuple[Component, ...]
    train: Train
    export: Export
    plugins: PluginKeys = field(default=PluginKeys(), compare=False)  # what it may be made of is not what it is

    @property
    def components(self) -> tuple[Component, ...]:
        """Every component of the pipeline, in the order in which data meets them."""
        targets = [head.frame.get("target_tokenizer") for head in self.head]
        others = [one for one in targets if isinstance(one, Component)]
        return (self.data.reader, *self.tokenizers, *self.stages, *self.head, *others)

    @property
    def tokenizers(self) -> tuple[Component, ...]:
        """Of every source that is a text."""
        return tuple(one.tokenizer for one in self.inputs if one.tokenizer)

    @property
    def stages(self) -> tuple[Component, ...]:
        """The embeddings and encoders of every source."""
        return tuple(stage for one in self.inputs for stage in one.stages)

    @property
    def versions(self) -> dict[str, str]:
        """Distribution and version of every component, by its key in the resolved file."""
        places = [self.head, *(stages for one in self.inputs for stages in (one.embedding, one.encoder))]
        # A list of one is written without a number.
        alone = {stages[0].key: stages[0].key.removesuffix(".0") for stages in places if len(stages) == 1}
        found = {}
        for one in self.components:
            stage = one.key.removesuffix(".target_tokenizer")
            key = one.key.replace(stage, alone.get(stage, stage), 1)
            found[key] = f"{one.offer.distribution} {one.offer.version}"
        return found

    @property
    def drift(self) -> list[str]:
        """A note for each component that comes from another distribution or version than `plugins.versions` says."""
        stated = self.plugins.versions
        return [
            f"note: {self.file}: {key} was made with {stated[key]}; here it is {version}"
            for key, version in self.versions.items()
            if stated.get(key, version) != version
        ]


def resolved(config: Config, folder: Path | None = None) -> dict[str, Plain]:
    """Every setting with its default written out, as plain data that `load` reads as the same Config.

    Paths are absolute, or relative to the folder in which the file is to stand.
    """

    def told(path: Path) -> str:
        return path.as_posix() if folder is None else Path(os.path.relpath(path, folder.absolute())).as_posix()

    def one(component: Component) -> dict[str, Plain]:
        frame = {
            key: one(value) if isinstance(value, Component) else plain(value, told)
            for key, value in component.frame.items()
        }
        return {"use": component.use} | frame | {key: plain(value, told) for key, value in component.options.items()}

    def several(components: Sequence[Component]) -> Plain:
        made = [one(component) for component in components]
        return made[0] if len(made) == 1 else made or None

    data, tests = config.data, {name: told(path) for name, path in config.data.tests.items()}
    return {
        "name": config.name,
        "data": {
            "reader": one(data.reader),
            "train": told(data.train),
            "dev": told(data.dev) if data.dev else None,
            "test": tests["test"] if list(tests) == ["test"] else tests or None,
            "misaligned": data.misaligned,
            "unseen_labels": data.unseen_labels,
        },
        **_sources(config.inputs, one, several),
        "head": several(config.head),
        "train": config.train.model_dump(mode="json"),
        "export": config.export.model_dump(mode="json"),
        "plugins": {"allow": plain(config.plugins.allow), "versions": config.versions},
    }


def _sources(
    inputs: Sequence[Input], one: Callable[[Component], Plain], several: Callable[[Sequence[Component]], Plain]
) -> dict[str, Plain]:
    """The keys of the sources as a resolved file has them."""

    def stages(source: Input) -> dict[str, Plain]:
        read: dict[str, Plain] = {"tokenizer": one(source.tokenizer)} if source.tokenizer else {"field": source.field}
        return read | {"embedding": several(source.embedding), "encoder": several(source.encoder)}

    named = {source.name: stages(source) for source in inputs}
    return named[""] if "" in named else {"inputs": dict(named)}
