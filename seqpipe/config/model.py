"""A checked pipeline as a value, and as the plain data of its resolved file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from seqpipe.config import checks
from seqpipe.config.contract import Component, Input, describe, misspelt_members
from seqpipe.config.schema import Card, Export, PluginKeys, Train
from seqpipe.config.yaml import Plain, plain
from seqpipe.errors import Problem
from seqpipe.features.document import Overlaps
from seqpipe.features.parts import DataPart, DataPath, Files


@dataclass(frozen=True)
class Need:
    """A folder that a pipeline depends on: the run of another YAML, or a generated small model; absolute paths."""

    path: Path
    run: Path | None
    make: str | None
    pieces: int
    problem: Problem  # the entry's place, with an empty message


@dataclass(frozen=True)
class Data:
    """Source of the records; the paths are absolute."""

    reader: Component
    train: DataPath
    dev: DataPath | None
    tests: Mapping[str, DataPath]
    misaligned: Literal["error", "widen", "skip"]
    unseen_labels: Literal["error", "miss"] = "error"
    overlaps: Overlaps = "error"
    candidates: DataPath | None = None
    unlabelled: DataPath | None = None
    bad_rows: Literal["error", "skip"] = "error"
    split_seed: int = 1
    group: str | None = None

    @property
    def compared(self) -> str:
        """The set on which a bundle is compared with PyTorch: the first test set, else dev, else training."""
        return next(iter(self.tests), "dev" if self.dev else "training")


MOST_TIMES = 1000  # the default; a greater learning rate is probably a mistake


@dataclass(frozen=True)
class Config:
    """A checked pipeline: its components with all their options, and every setting."""

    file: Path = field(compare=False)
    root: Path = field(compare=False)
    name: str
    data: Data
    inputs: tuple[Input, ...]
    head: tuple[Component, ...]
    train: Train
    export: Export
    plugins: PluginKeys = field(default=PluginKeys(), compare=False)  # not part of the pipeline
    needs: tuple[Need, ...] = field(default=(), compare=False)
    plugin_files: tuple[Path, ...] = field(default=(), compare=False)  # as the command or Python call gives them
    card: Card = field(default=Card())

    @property
    def components(self) -> tuple[Component, ...]:
        """All components of the pipeline, in the order of the data flow."""
        targets = [head.common_keys.get("target_tokenizer") for head in self.head]
        others = [tokenizer for tokenizer in targets if isinstance(tokenizer, Component)]
        return (self.data.reader, *self.tokenizers, *self.stages, *self.head, *others)

    @property
    def tokenizers(self) -> tuple[Component, ...]:
        """Tokenizers of all text inputs."""
        return tuple(source.tokenizer for source in self.inputs if source.tokenizer)

    @property
    def stages(self) -> tuple[Component, ...]:
        """The embeddings and encoders of every source."""
        return tuple(stage for source in self.inputs for stage in source.stages)

    @property
    def versions(self) -> dict[str, str]:
        """Distribution and version of every component, by its key in the resolved file."""
        places = [self.head, *(stages for source in self.inputs for stages in (source.embedding, source.encoder))]
        # A list of one is written without a number.
        alone = {stages[0].key: stages[0].key.removesuffix(".0") for stages in places if len(stages) == 1}
        versions = {}
        for component in self.components:
            stage = component.key.removesuffix(".target_tokenizer")
            key = component.key.replace(stage, alone.get(stage, stage), 1)
            versions[key] = f"{component.offer.distribution} {component.offer.version}"
        return versions

    @property
    def learning_rates(self) -> dict[str, float]:
        """Learning rates by key, the highest first; a stage without one has that of the optimizer."""
        rates = {f"{s.key}.lr": s.common_keys["lr"] for s in (*self.stages, *self.head) if s.common_keys.get("lr")}
        rates["train.optimizer.lr"] = self.train.optimizer.lr
        return dict(sorted(rates.items(), key=lambda item: -item[1]))

    @property
    def notes(self) -> list[str]:
        """Warnings to print.

        They are about components of another distribution or version than in `plugins.versions`, probably misspelt
        optional members of stages, stages that learn little, and learning rates far above the default.
        """
        stated = self.plugins.versions
        notes = [
            f"note: {self.file}: {key} was made with {stated[key]}; here it is {version}"
            for key, version in self.versions.items()
            if stated.get(key, version) != version
        ]
        for stage in (*self.stages, *self.head):
            for name, right in misspelt_members(stage.cls, stage.kind):
                problem = stage.problem(f"{describe(stage)}: its member {name!r} is not read; is it {right!r}?")
                notes.append(f"note: {problem}")
        for stage, message in checks.notes(self.inputs, self.head):
            notes.append(f"note: {stage.problem(f'{describe(stage)}: {message}')}")
        usual = type(self.train.optimizer).model_fields["lr"].default
        for key, rate in self.learning_rates.items():
            if rate > MOST_TIMES * usual:
                message = f"is over {MOST_TIMES} times the default of {self.train.optimizer.use}, {usual:g}; lower it"
                notes.append(f"warning: {self.file}: {key}: {rate:g} {message}")
        return notes


def resolved(config: Config, folder: Path | None = None, only_names: bool = False) -> dict[str, Plain]:
    """Return every setting with its default as plain data that `load` reads as the same Config.

    Paths are absolute, relative to the folder of the new file, or, for a person, only names of files.
    """

    def path_text(path: Path) -> str:
        if only_names:
            return path.name
        return path.as_posix() if folder is None else Path(os.path.relpath(path, folder.absolute())).as_posix()

    def paths_text(source: Path | Files) -> Plain:
        return path_text(source) if isinstance(source, Path) else [path_text(path) for path in source.paths]

    def share_or_paths(source: DataPath | None) -> Plain:
        if isinstance(source, DataPart):
            return getattr(source, source.role) or None
        return source and paths_text(source)

    def component_keys(component: Component) -> dict[str, Plain]:
        common_keys = {
            key: component_keys(value) if isinstance(value, Component) else plain(value, path_text)
            for key, value in component.common_keys.items()
        }
        options = {key: plain(value, path_text) for key, value in component.options.items()}
        return {"use": component.use, **common_keys, **options}

    def several(components: Sequence[Component]) -> Plain:
        stages = [component_keys(component) for component in components]
        return stages[0] if len(stages) == 1 else stages or None

    named: dict[str, dict[str, Plain]] = {}
    for source in config.inputs:
        tokenizer = source.tokenizer
        named[source.name] = {"tokenizer": component_keys(tokenizer)} if tokenizer else {"field": source.field}
        named[source.name] |= {"embedding": several(source.embedding), "encoder": several(source.encoder)}
    sources: dict[str, Plain] = named.get("", {"inputs": named})
    data, train_files = config.data, config.data.train
    part = train_files if isinstance(train_files, DataPart) else DataPart(train_files, "train")
    tests = {name: share_or_paths(path) for name, path in config.data.tests.items()}
    train = config.train.model_dump(mode="json")
    if config.train.teacher:
        train["teacher"]["path"] = path_text(Path(config.train.teacher.path))
    return {
        "name": config.name,
        "data": {
            "reader": component_keys(data.reader),
            "train": paths_text(part.file),
            "dev": share_or_paths(data.dev),
            "test": tests["test"] if list(tests) == ["test"] else tests or None,
            "add": [path_text(path) for path in part.added] or None,
            "group": data.group,
            "split_seed": data.split_seed,
            "fold": list(part.fold) if part.fold else None,
            "split": dict(zip(("field", "dev", "test"), part.split, strict=True)) if part.split else None,
            "bad_rows": data.bad_rows,
            "unlabelled": share_or_paths(data.unlabelled),
            "candidates": share_or_paths(data.candidates),
            "misaligned": data.misaligned,
            "overlaps": data.overlaps,
            "unseen_labels": data.unseen_labels,
        },
        **sources,
        "head": several(config.head),
        "train": train,
        "export": config.export.model_dump(mode="json"),
        **({"card": config.card.model_dump(mode="json")} if config.card != Card() else {}),
        "plugins": {"allow": plain(config.plugins.allow), "versions": config.versions},
    }
