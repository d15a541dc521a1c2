"""Checks of the keys of one YAML: every mistake becomes a Problem with its place, its key and what to do about it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from seqpipe.config import yaml
from seqpipe.config.contract import Component, Input
from seqpipe.config.schema import Export, NeedKeys, PluginKeys, Train
from seqpipe.config.signature import Mistake, Model, unlike, validate
from seqpipe.config.yaml import Path as Where
from seqpipe.config.yaml import Tree
from seqpipe.config.yaml_text import Plain, plain
from seqpipe.errors import Problem, did_you_mean
from seqpipe.features.document import Overlaps

RENAMED = {"carry": "stateful"}  # old names of options


class KeyChecks:
    """The problems found so far in one tree, and the checks that every mapping of keys goes through."""

    def __init__(self, tree: Tree):
        self.tree = tree
        self.problems: list[Problem] = []

    def complain(self, path: Where, message: str, *, key: bool = False) -> None:
        self.problems.append(self.tree.problem(path, message, key=key))

    def missing(self, path: Where, what: str) -> None:
        """A required key that is not there is reported where its parent begins."""
        spot = self.tree.spot(path[:-1], key=True)
        self.problems.append(Problem(spot.file, spot.line, spot.column, yaml.key_text(path), f"missing; {what}"))

    def mapping(self, value: Plain, path: Where) -> dict[str, Plain]:
        if value is None or isinstance(value, dict):
            return value or {}
        self.complain(path, unlike("a mapping of keys", value))
        return {}

    def known_keys(self, mapping: Mapping[str, Plain], known: Iterable[str], path: Where, owner: str = "") -> None:
        """Complain of each key that is none of the known ones."""
        known = list(known)
        for key in [key for key in mapping if key not in known]:
            hint = did_you_mean(key, known) or there_is(known)
            self.complain((*path, key), f"{owner}no such key{hint}", key=True)

    def keys(self, model: type[Model], mapping: Mapping[str, Plain], path: Where, owner: str) -> Model | None:
        """The keys of a mapping as a model; what is wrong with them as problems."""
        instance, mistakes = validate(model, mapping)
        self.report(mistakes, path, list(model.model_fields), owner, "key")
        return instance

    def report(self, mistakes: Sequence[Mistake], path: Where, known: Sequence[str], owner: str, noun: str) -> None:
        """Mistakes in the keys below `path`, as problems; `known` are the keys that there could be."""
        for mistake in mistakes:
            where = (*path, *mistake.where)
            if mistake.kind == "missing":
                self.missing(where, f"{owner} needs {mistake.message}")
            elif mistake.kind == "unknown":
                key = str(mistake.where[0])
                hint = _renamed(key, known) or did_you_mean(key, known) or there_is(known)
                self.complain(where, f"{owner} has no such {noun}{hint}", key=True)
            else:
                self.complain(where, mistake.message)

    def with_use(self, value: Plain, path: Where) -> Plain:
        """A bare name as the mapping that it is short for."""
        if not isinstance(value, str):
            return value
        self.tree.values[(*path, "use")] = self.tree.spot(path)
        return {"use": value}


def _renamed(key: str, known: Sequence[str]) -> str:
    """The hint for an option that had another name in an earlier version."""
    name = RENAMED.get(key)
    return f"; it is called {name!r} now" if name in known else ""


def there_is(names: Iterable[str], what: str = "there is") -> str:
    return f" ({what}: {', '.join(names) or 'none'})"


# The key `needs` of one YAML: folders that the pipeline starts from, and where each comes from if it is not there.


@dataclass(frozen=True)
class Need:
    """A folder that a pipeline starts from: the run of another YAML, or a small model that is made; absolute paths."""

    path: Path
    run: Path | None
    make: str | None
    pieces: int
    problem: Problem  # the entry's place, with an empty message


def needs(checks: KeyChecks, root: Path) -> tuple[Need, ...]:
    """The entries of `needs` whose folder another key of the tree names; what is wrong with any, as problems.

    An override may name another folder: what no key names is not needed.
    """
    top = checks.tree.data
    value = top.get("needs") if isinstance(top, dict) else None
    if not isinstance(top, dict) or value is None:
        return ()
    if not isinstance(value, list):
        checks.complain(("needs",), unlike("a list of mappings such as {path: FOLDER, run: FILE.yaml}", value))
        return ()
    used = {_absolute(root, text) for key, entry in top.items() if key != "needs" for text in _texts(entry)}
    entries = []
    for number, item in enumerate(value):
        where = ("needs", number)
        keys = checks.keys(NeedKeys, checks.mapping(item, where), where, "an entry of 'needs'")
        if keys is None:
            continue
        path, run = _absolute(root, keys.path), _absolute(root, keys.run) if keys.run else None
        if run and not run.is_file():
            checks.complain((*where, "run"), f"no such file {keys.run!r} (looked for {run})")
        elif path in used:
            entries.append(Need(path, run, keys.make, keys.pieces, checks.tree.problem(where, "")))
    return tuple(entries)


def _absolute(root: Path, text: str) -> Path:
    return Path(os.path.abspath(root / text))


def _texts(value: Plain) -> Iterator[str]:
    """Every text in plain data that may be a path."""
    if isinstance(value, str) and "\0" not in value:
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


# One checked pipeline as a value, and as the plain data of its resolved file.


@dataclass(frozen=True)
class Data:
    """Where the records come from; the paths are absolute."""

    reader: Component
    train: Path
    dev: Path | None
    tests: Mapping[str, Path]
    misaligned: Literal["error", "widen", "skip"]
    unseen_labels: Literal["error", "miss"] = "error"
    overlaps: Overlaps = "error"
    candidates: Path | None = None


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
    needs: tuple[Need, ...] = field(default=(), compare=False)

    @property
    def components(self) -> tuple[Component, ...]:
        """Every component of the pipeline, in the order in which data meets them."""
        targets = [head.common_keys.get("target_tokenizer") for head in self.head]
        others = [tokenizer for tokenizer in targets if isinstance(tokenizer, Component)]
        return (self.data.reader, *self.tokenizers, *self.stages, *self.head, *others)

    @property
    def tokenizers(self) -> tuple[Component, ...]:
        """Of every source that is a text."""
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

    def path_text(path: Path) -> str:
        return path.as_posix() if folder is None else Path(os.path.relpath(path, folder.absolute())).as_posix()

    def component_keys(component: Component) -> dict[str, Plain]:
        common_keys = {
            key: component_keys(value) if isinstance(value, Component) else plain(value, path_text)
            for key, value in component.common_keys.items()
        }
        return (
            {"use": component.use}
            | common_keys
            | {key: plain(value, path_text) for key, value in component.options.items()}
        )

    def several(components: Sequence[Component]) -> Plain:
        stages = [component_keys(component) for component in components]
        return stages[0] if len(stages) == 1 else stages or None

    data, tests = config.data, {name: path_text(path) for name, path in config.data.tests.items()}
    return {
        "name": config.name,
        "data": {
            "reader": component_keys(data.reader),
            "train": path_text(data.train),
            "dev": path_text(data.dev) if data.dev else None,
            "test": tests["test"] if list(tests) == ["test"] else tests or None,
            "candidates": path_text(data.candidates) if data.candidates else None,
            "misaligned": data.misaligned,
            "overlaps": data.overlaps,
            "unseen_labels": data.unseen_labels,
        },
        **_sources(config.inputs, component_keys, several),
        "head": several(config.head),
        "train": config.train.model_dump(mode="json"),
        "export": config.export.model_dump(mode="json"),
        "plugins": {"allow": plain(config.plugins.allow), "versions": config.versions},
    }


def _sources(
    inputs: Sequence[Input],
    component_keys: Callable[[Component], Plain],
    several: Callable[[Sequence[Component]], Plain],
) -> dict[str, Plain]:
    """The keys of the sources as a resolved file has them."""

    def stages(source: Input) -> dict[str, Plain]:
        read: dict[str, Plain] = (
            {"tokenizer": component_keys(source.tokenizer)} if source.tokenizer else {"field": source.field}
        )
        return read | {"embedding": several(source.embedding), "encoder": several(source.encoder)}

    named = {source.name: stages(source) for source in inputs}
    return named[""] if "" in named else {"inputs": dict(named)}
