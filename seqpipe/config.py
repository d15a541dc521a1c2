"""One YAML to one checked Config: every mistake at once, each with its place, its key and what to do about it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from seqpipe import attending, sources, wiring, yaml
from seqpipe.errors import ConfigError, PluginError, Problem, UsageError, nearest
from seqpipe.overrides import override
from seqpipe.plugins import Offer, Plugins
from seqpipe.settings import CHOICES, STAGES, TOP, DataKeys, Export, Plateau, PluginKeys, Train
from seqpipe.signature import (
    ALL_FRAME_KEYS,
    CHECKPOINT,
    FRAME_KEYS,
    TARGET_TOKENIZER_KEYS,
    Frame,
    Mistake,
    Model,
    options_model,
    plain,
    unlike,
    validate,
    values,
    wired,
    words,
)
from seqpipe.wiring import Component
from seqpipe.yaml import Path as Where
from seqpipe.yaml import Plain, Tree

__all__ = ["Component", "Config", "Data", "load", "resolved"]


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
    tokenizer: Component
    embedding: tuple[Component, ...]
    encoder: tuple[Component, ...]
    head: tuple[Component, ...]
    train: Train
    export: Export
    plugins: PluginKeys = field(default=PluginKeys(), compare=False)  # what it may be made of is not what it is

    @property
    def components(self) -> tuple[Component, ...]:
        """Every component of the pipeline, in the order in which data meets them."""
        targets = [head.frame.get("target_tokenizer") for head in self.head]
        others = [one for one in targets if isinstance(one, Component)]
        return (self.data.reader, self.tokenizer, *self.embedding, *self.encoder, *self.head, *others)

    @property
    def versions(self) -> dict[str, str]:
        """Distribution and version of every component, by its key in the resolved file."""
        found = {}
        for one in self.components:
            stage = one.key.split(".")[0]
            alone = stage in STAGES and len(getattr(self, stage)) == 1  # a list of one is written without a number
            key = one.key.replace(f"{stage}.0", stage, 1) if alone else one.key
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


def load(
    path: Path,
    overrides: Sequence[str] = (),
    plugins: Plugins | None = None,
    files: bool = True,
    sources: bool = True,
) -> Config:
    """The checked Config of a YAML file with overrides such as `train.epochs=3`; ConfigError holds every mistake.

    With files=False the data files need not be there, with sources=False the runs that `init` names.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        told = "no such file" if isinstance(error, FileNotFoundError) else (error.strerror or str(error)).lower()
        raise ConfigError([Problem(str(path), 0, 0, "", f"{told}; looked for {path.absolute()}")]) from None
    tree, problems = yaml.read(data, str(path))
    unread = {problem.key for problem in problems if problem.key}
    for text in overrides:
        problems += override(tree, text)
    check = _Check(tree, plugins, path.absolute().parent, files, sources)
    config = check.config(path)
    # What could not be read is told once, not again as a wrong or missing value.
    problems += [p for p in check.problems if not any(p.key == key or p.key.startswith(f"{key}.") for key in unread)]
    if problems or config is None:
        raise ConfigError(problems)
    return config


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
        "tokenizer": one(config.tokenizer),
        **{kind: several(getattr(config, kind)) for kind in STAGES},
        "train": config.train.model_dump(mode="json"),
        "export": config.export.model_dump(mode="json"),
        "plugins": {"allow": plain(config.plugins.allow), "versions": config.versions},
    }


class _Check:
    """One tree in, one Config or problems out."""

    def __init__(self, tree: Tree, plugins: Plugins | None, root: Path, files: bool, sources: bool):
        self.tree, self.root, self.files, self.sources = tree, root, files, sources
        self.problems: list[Problem] = []
        given = tree.data.get("plugins") if isinstance(tree.data, dict) else None
        self.chosen = self.keys(PluginKeys, self.mapping(given, ("plugins",)), ("plugins",), "'plugins'")
        self.plugins = plugins or Plugins(allow=self.chosen.requirements if self.chosen else ())
        self.unsound: set[str] = set()  # keys of components whose options are wrong

    def config(self, path: Path) -> Config | None:
        top = self.tree.data
        if not isinstance(top, dict):
            self.complain((), f"a pipeline is a mapping of keys ({', '.join(TOP)}), not {yaml.shown(top)}")
            return None
        for key in [key for key in top if key not in TOP]:
            self.complain((key,), f"no such key{nearest(key, TOP) or _there_is(TOP)}", key=True)
        name = self.name(top.get("name"), path)
        data = self.data(top)
        tokenizer = self.required("tokenizer", top, (), "tokenizer")
        stages = {kind: self.stages(kind, top.get(kind)) for kind in STAGES}
        train = self.train(self.mapping(top.get("train"), ("train",)))
        export = self.keys(Export, self.mapping(top.get("export"), ("export",)), ("export",), "'export'")
        self.watched(top, train, [head for head in stages["head"] if head])
        self.wiring(stages, tokenizer, export)
        if self.problems or not (data and tokenizer and train and export and self.chosen):
            return None
        embedding, encoder, head = (tuple(one for one in stages[kind] if one) for kind in STAGES)
        stages_and_keys = (embedding, encoder, head, train, export, self.chosen)
        return Config(path, self.root, name, data, tokenizer, *stages_and_keys)

    def complain(self, path: Where, message: str, *, key: bool = False) -> None:
        self.problems.append(self.tree.problem(path, message, key=key))

    def missing(self, path: Where, what: str) -> None:
        """A required key that is not there is told where its parent begins."""
        spot = self.tree.spot(path[:-1], key=True)
        self.problems.append(Problem(spot.file, spot.line, spot.column, yaml.key_text(path), f"missing; {what}"))

    def mapping(self, value: Plain, path: Where) -> dict[str, Plain]:
        if value is None or isinstance(value, dict):
            return value or {}
        self.complain(path, unlike("a mapping of keys", value))
        return {}

    def keys(self, model: type[Model], given: Mapping[str, Plain], path: Where, who: str) -> Model | None:
        """The given keys as a model; what is wrong with them as problems."""
        made, mistakes = validate(model, given)
        self.tell(mistakes, path, list(model.model_fields), who, "key")
        return made

    def tell(self, mistakes: Sequence[Mistake], path: Where, names: Sequence[str], who: str, noun: str) -> None:
        """Mistakes in the keys below `path`, as problems; `names` are the keys that there could be."""
        for mistake in mistakes:
            where = (*path, *mistake.where)
            if mistake.kind == "missing":
                self.missing(where, f"{who} needs {mistake.message}")
            elif mistake.kind == "unknown":
                hint = nearest(str(mistake.where[0]), names) or _there_is(names)
                self.complain(where, f"{who} has no such {noun}{hint}", key=True)
            else:
                self.complain(where, mistake.message)

    def name(self, name: Plain, path: Path) -> str:
        rule = "letters, digits, '.', '_' and '-', the first a letter or digit"
        if name is None and not _NAME.fullmatch(path.stem):
            self.missing(
                ("name",), f"the file's own name, {path.stem!r}, will not do for a run; write a name of {rule}"
            )
        elif name is not None and not isinstance(name, str):
            self.complain(("name",), unlike("text", name))
        elif name is not None and not _NAME.fullmatch(name):
            self.complain(("name",), f"{name!r} will not do for a run; write a name of {rule}")
        return path.stem if name is None else str(name)

    def data(self, top: Mapping[str, Plain]) -> Data | None:
        if top.get("data") is None:
            self.missing(
                ("data",),
                "write data: {reader: {use: NAME}, train: FILE}" + _there_is(self.plugins.names("reader"), "readers"),
            )
            return None
        given = self.mapping(top["data"], ("data",))
        if not isinstance(top["data"], dict):
            return None
        reader = self.required("reader", given, ("data",), "reader")
        rest = {key: value for key, value in given.items() if key != "reader"}
        made, mistakes = validate(DataKeys, rest)
        self.tell(mistakes, ("data",), ["reader", *DataKeys.model_fields], "'data'", "key")
        wrong = {mistake.where[0] for mistake in mistakes}
        found = {where: self.file(text, ("data", *where)) for where, text in _texts(rest) if where[0] not in wrong}
        if made is None or reader is None:
            return None
        tests = {str(where[-1]): at for where, at in found.items() if where[0] == "test"}
        return Data(reader, found["train",], found.get(("dev",)), tests, made.misaligned, made.unseen_labels)

    def file(self, text: str, path: Where) -> Path:
        """A path of the YAML, from the folder of the YAML; a problem if no file is there."""
        at = Path(os.path.abspath(self.root / text))
        if "\0" in text:
            self.complain(path, "a path cannot hold the character U+0000")
        elif self.files and os.path.isdir(at):
            self.complain(path, f"{text!r} is a folder, not a file (looked at {at})")
        elif self.files and not os.path.exists(at):
            hint = "; no URL is fetched: download the file first" if "://" in text else _neighbour(at)
            self.complain(path, f"no such file {text!r} (looked for {at}){hint}")
        return at

    def required(self, kind: str, given: Mapping[str, Plain], path: Where, key: str) -> Component | None:
        if given.get(key) is None:
            self.missing((*path, key), f"write {key}: {{use: NAME}}{_there_is(self.plugins.names(kind))}")
            return None
        return self.component(kind, given[key], (*path, key))

    def stages(self, kind: str, value: Plain) -> list[Component | None]:
        """The components of one place of the pipeline; None for each that could not be made."""
        if kind == "head" and (value is None or value == []):
            return [self.required(kind, {}, (), kind)]
        if value is None:
            return []
        if not isinstance(value, list):
            return [self.component(kind, value, (kind,))]
        found = [self.component(kind, one, (kind, number)) for number, one in enumerate(value)]
        names: set[str] = set()
        for number, one in enumerate(found) if kind == "head" else ():
            if one and one.name in names:
                told = f"two heads are called {one.name!r}; give one of them another name"
                self.complain((kind, number, *(("name",) if one.frame["name"] else ())), told)
            names |= {one.name} if one else set()
        return found

    def spelt_out(self, value: Plain, path: Where) -> Plain:
        """A bare name as the mapping that it is short for."""
        if not isinstance(value, str):
            return value
        self.tree.values[(*path, "use")] = self.tree.spot(path)
        return {"use": value}

    def component(self, kind: str, value: Plain, path: Where, allowed: Sequence[str] = ()) -> Component | None:
        """One component of the YAML: its frame keys, its class, its options."""
        allowed = allowed or FRAME_KEYS[kind]
        given = self.spelt_out(value, path)
        if not isinstance(given, dict):
            self.complain(path, unlike(f"the name of {_a(kind)} or {{use: NAME, …}}", value))
            return None
        frame = self.frame(given, path, allowed)
        options = {key: one for key, one in given.items() if key not in ALL_FRAME_KEYS}
        found = self.found(kind, given, path)
        if found is None:
            return None
        use, offer, cls, model = found
        made, mistakes = validate(model, options)
        names = [info.alias or name for name, info in model.model_fields.items()] + list(allowed)
        self.tell(mistakes, path, names, repr(use), "option")
        folders = {info.alias or name for name, info in model.model_fields.items() if CHECKPOINT in info.metadata}
        chosen = {
            name: self.checkpoint(str(one), (*path, name)) if name in folders else self.paths(one, (*path, name))
            for name, one in (values(made) if made else {}).items()
        }
        spot, key = self.tree.spot((*path, "use")), yaml.key_text(path)
        if made is None:
            self.unsound.add(key)
        component = Component(kind, use, chosen, frame, offer, cls, spot.file, spot.line, spot.column, key)
        self.source(component, path)
        return component

    def source(self, component: Component, path: Where) -> None:
        """What a component starts from has to be a trained run that has such a stage."""
        folder = component.frame.get("init")
        if folder is None or not self.sources:
            return
        told = sources.fault(folder)
        try:
            if not told:
                sources.counterpart(component, folder)
        except UsageError as error:
            told = str(error)
        if told:
            self.complain((*path, "init"), told)

    def found(
        self, kind: str, given: Mapping[str, Plain], path: Where
    ) -> tuple[str, Offer, type, type[BaseModel]] | None:
        """What `use` names: the offer, its class, and the model of its options."""
        use = given.get("use")
        if use is None:
            other = next((key for key in given if key.lower() in ("uses", "type", "kind", "class")), "")
            hint = f"; is {other!r} meant to be 'use'?" if other else ""
            self.missing((*path, "use"), f"say which {kind}{_there_is(self.plugins.names(kind))}{hint}")
            return None
        if not isinstance(use, str):
            self.complain((*path, "use"), unlike(f"the name of {_a(kind)}", use))
            return None
        try:
            offer = self.plugins.find(kind, use)
            cls = offer.load()
        except PluginError as error:
            self.complain((*path, "use"), str(error))
            return None
        try:
            model, asked = options_model(cls), wired(cls)
        except PluginError as error:
            self.complain((*path, "use"), f"{kind} {use!r} of {offer.distribution}: {error}")
            return None
        if asked and kind in ("reader", "tokenizer"):
            told = f"nothing is wired into {_a(kind)}, but its constructor asks for {asked[0]!r}"
            self.complain((*path, "use"), f"{kind} {use!r} of {offer.distribution}: {told}")
            return None
        return use, offer, cls, model

    def frame(self, given: Mapping[str, Plain], path: Where, allowed: Sequence[str]) -> dict[str, Any]:
        """The frame keys that are allowed here, with their defaults; those that mean nothing here as problems."""
        for key in given:
            if key in ALL_FRAME_KEYS and key not in allowed:
                places = [kind for kind, keys in FRAME_KEYS.items() if key in keys]
                told = f"means nothing here, only beside the `use` of {_a(' or '.join(places))}; delete it"
                self.complain((*path, key), told, key=True)
        usual = [key for key in allowed if key in Frame.model_fields]
        chosen = {key: given[key] for key in usual if key in given}
        made = self.keys(Frame, chosen, path, "") or Frame()
        frame = {key: getattr(made, key) for key in usual}
        if frame.get("init") is not None:
            frame["init"] = Path(os.path.abspath(self.root / frame["init"]))
        if "target_tokenizer" in allowed:
            chosen_one = given.get("target_tokenizer")
            where = (*path, "target_tokenizer")
            plainly = chosen_one is None or chosen_one == "same"
            made_one = chosen_one if plainly else self.component("tokenizer", chosen_one, where, TARGET_TOKENIZER_KEYS)
            frame["target_tokenizer"] = made_one
            if made_one is None and not plainly:
                self.unsound.add(yaml.key_text(path))
        return frame

    def paths(self, value: Any, path: Where) -> Any:
        """An option's value with the paths in it made absolute."""
        if isinstance(value, Path):
            return self.file(str(value), path)
        if isinstance(value, (list, tuple)):
            return type(value)(self.paths(one, (*path, number)) for number, one in enumerate(value))
        if isinstance(value, dict):
            return {key: self.paths(one, (*path, key)) for key, one in value.items()}
        return value

    def checkpoint(self, text: str, path: Where) -> Path | str:
        """A folder, from the folder of the YAML, if there is one of that name; else a name on the hub."""
        at = Path(os.path.abspath(self.root / text))
        if at.is_dir():
            return at
        if not _ON_THE_HUB.fullmatch(text):
            what = "is a file, not a folder" if at.is_file() else "is no folder"
            self.complain(path, f"{text!r} {what} (looked for {at}), and no name on the hub, such as org/name")
        return text

    def train(self, given: Mapping[str, Plain]) -> Train | None:
        chosen = {key: self.choice(key, given[key], ("train", key)) for key in CHOICES if given.get(key) is not None}
        rest = {key: value for key, value in given.items() if key not in CHOICES}
        made = self.keys(Train, rest, ("train",), "'train'")
        return made and made.model_copy(update=chosen)

    def choice(self, key: str, value: Plain, path: Where) -> BaseModel | None:
        """An optimizer or a schedule: `use` says which keys there are; without it, it is the usual one."""
        given = self.mapping(self.spelt_out(value, path), path)
        use = given.get("use", Train.model_fields[key].default.use)
        if not isinstance(use, str) or use not in CHOICES[key]:
            self.complain(
                (*path, "use"), unlike(words(Literal[tuple(CHOICES[key])]), use) + nearest(str(use), CHOICES[key])
            )
            return None
        return self.keys(CHOICES[key][use], {**given, "use": use}, path, f"{key} {use!r}")

    def watched(self, top: Mapping[str, Plain], train: Train | None, heads: Sequence[Component]) -> None:
        """What watches the dev score needs dev data."""
        data = top.get("data")
        if train is None or not isinstance(data, dict) or data.get("dev") is not None:
            return
        for head in heads:
            if head.key not in self.unsound and (option := wiring.needs_dev(head)):
                told = f"what {head.use!r} chooses under {option!r} is chosen on dev data; write data.dev, or change it"
                self.problems.append(replace(head.problem(told), key=f"{head.key}.{option}"))
        if train.patience:
            self.complain(
                ("train", "patience"), "the dev score is what it waits for; write data.dev, or delete patience"
            )
        if isinstance(train.schedule, Plateau):
            self.complain(
                ("train", "schedule", "use"), "'plateau' follows the dev score; write data.dev, or use another schedule"
            )

    def wiring(
        self, stages: Mapping[str, Sequence[Component | None]], tokenizer: Component | None, export: Export | None
    ) -> None:
        """Names are checked once every stage is known, and the head's options, on which its answer kind may depend."""
        known = [[one for one in stages[kind] if one] for kind in STAGES]
        pairs = tokenizer is not None and tokenizer.pairs
        complete = all(one for kind in STAGES for one in stages[kind])
        if complete and not any(head.key in self.unsound for head in known[2]):
            nothing = "no stage has attention weights to look at; take one that has, such as head: {use: label, "
            nothing += "pool: attention}, or delete it"
            wanted = self.tree.problem(("export", "explain"), nothing) if export and export.explain else None
            self.problems += wiring.problems(known[0], known[1], known[2], pairs) or attending.problems(
                known[0], known[1], known[2], wanted
            )


_ON_THE_HUB = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(@[\w./-]+)?", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _texts(data: Mapping[str, Plain]) -> Iterator[tuple[Where, str]]:
    """The paths in `data`, each by where it stands."""
    for key in ("train", "dev", "test"):
        value = data.get(key)
        if isinstance(value, str):
            yield (key,), value
        elif isinstance(value, dict):
            yield from (((key, name), text) for name, text in value.items() if isinstance(text, str))


def _neighbour(at: Path) -> str:
    try:
        return nearest(at.name, sorted(os.listdir(at.parent))[:1000])
    except OSError:
        return f"; there is no folder {at.parent}"


def _there_is(names: Iterable[str], what: str = "there is") -> str:
    return f" ({what}: {', '.join(names) or 'none'})"


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
