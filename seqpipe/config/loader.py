"""One YAML to one checked Config: every mistake at once, each with its place, its key and what to do about it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from seqpipe.config import attention_stages as attending
from seqpipe.config import contract, dataflow, yaml
from seqpipe.config import init_from as sources
from seqpipe.config.component import Component, Input
from seqpipe.config.model import Config, Data, resolved
from seqpipe.config.overrides import override
from seqpipe.config.plugins import Offer, Plugins
from seqpipe.config.schema import CHOICES, OF_A_SOURCE, TOP, DataKeys, Export, Plateau, PluginKeys, Train
from seqpipe.config.signature import (
    ALL_FRAME_KEYS,
    CHECKPOINT,
    FRAME_KEYS,
    TARGET_TOKENIZER_KEYS,
    Frame,
    Mistake,
    Model,
    options_model,
    unlike,
    validate,
    values,
    wired,
    words,
)
from seqpipe.config.yaml import Path as Where
from seqpipe.config.yaml import Plain, Tree
from seqpipe.errors import ConfigError, PluginError, Problem, UsageError, nearest

__all__ = ["Component", "Config", "Data", "load", "resolved"]


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
    # What could not be read is reported once, not again as a wrong or missing value.
    problems += [p for p in check.problems if not any(p.key == key or p.key.startswith(f"{key}.") for key in unread)]
    if problems or config is None:
        raise ConfigError(problems)
    return config


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
        inputs = self.inputs(top)
        head = self.stages("head", top.get("head"), ("head",))
        train = self.train(self.mapping(top.get("train"), ("train",)))
        export = self.keys(Export, self.mapping(top.get("export"), ("export",)), ("export",), "'export'")
        heads = tuple(one for one in head if one)
        self.watched(top, train, heads)
        if len(heads) == len(head) and inputs:
            self.wiring(inputs, heads, export)
        if self.problems or not (data and inputs and train and export and self.chosen):
            return None
        return Config(path, self.root, name, data, inputs, heads, train, export, self.chosen)

    def inputs(self, top: Mapping[str, Plain]) -> tuple[Input, ...] | None:
        """The sources, or the only one; None if one of them could not be made."""
        given = top.get("inputs")
        if given is None:
            return self.input(top, (), "")
        for key in (key for key in OF_A_SOURCE if top.get(key) is not None):
            self.complain((key,), "belongs to one of the inputs; move it there", key=True)
        if not isinstance(given, dict) or not given:
            told = "a mapping from the names of sources to their keys, such as {source: {field: text, tokenizer: …}}"
            self.complain(("inputs",), unlike(told, given))
            return None
        found = []
        for name, keys in given.items():
            where = ("inputs", name)
            if not SOURCE.fullmatch(name):
                self.complain(where, "a source is called by letters, digits and '_', the first a letter", key=True)
            if not isinstance(keys, dict):
                self.complain(where, unlike(f"a mapping of keys ({', '.join(OF_A_SOURCE)})", keys))
                return None
            for key in [key for key in keys if key not in OF_A_SOURCE]:
                hint = nearest(key, OF_A_SOURCE) or _there_is(OF_A_SOURCE)
                self.complain((*where, key), f"a source has no such key{hint}", key=True)
            found.append(self.input(keys, where, name))
        made = [source for one in found if one for source in one]
        return tuple(made) if len(made) == len(given) else None

    def input(self, given: Mapping[str, Plain], path: Where, name: str) -> tuple[Input] | None:
        """One source; None if one of its stages could not be made."""
        field, tokenizer = (self.field(given.get("field"), (*path, "field")), None) if name else (None, None)
        if not name or given.get("tokenizer") is not None:
            tokenizer = self.required("tokenizer", given, path, "tokenizer")
            if tokenizer is None:
                self.stages("embedding", given.get("embedding"), (*path, "embedding"))
                self.stages("encoder", given.get("encoder"), (*path, "encoder"))
                return None
            stated = given["tokenizer"]
            if field and isinstance(stated, dict) and tokenizer.frame["field"] != field and "field" in stated:
                self.complain((*path, "tokenizer", "field"), "the source says another field; delete one of them")
            tokenizer = replace(tokenizer, frame={**tokenizer.frame, "field": field}) if field else tokenizer
        elif not isinstance(field, str):
            cure = "name the one field that holds the numbers, or add a tokenizer to read a text"
            self.missing((*path, "field"), cure) if field is None else self.complain((*path, "field"), cure)
            return None
        stages = [self.stages(kind, given.get(kind), (*path, kind)) for kind in ("embedding", "encoder")]
        embedding, encoder = (tuple(one for one in some if one) for some in stages)
        complete = all(one for some in stages for one in some)
        number = None if tokenizer else field if isinstance(field, str) else None
        return (Input(name, number, tokenizer, embedding, encoder),) if complete else None

    def field(self, value: Plain, path: Where) -> str | tuple[str, ...] | None:
        """The field, or the two, that a source reads."""
        if value is None:
            return None
        made = self.keys(Frame, {"field": value}, path[:-1], "")
        return made.field if made else None

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
                key = str(mistake.where[0])
                hint = _renamed(key, names) or nearest(key, names) or _there_is(names)
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

    def stages(self, kind: str, value: Plain, path: Where) -> list[Component | None]:
        """The components of one place of the pipeline; None for each that could not be made."""
        if kind == "head" and (value is None or value == []):
            return [self.required(kind, {}, (), kind)]
        if value is None:
            return []
        if not isinstance(value, list):
            return [self.component(kind, value, path)]
        found = [self.component(kind, one, (*path, number)) for number, one in enumerate(value)]
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
            if head.key not in self.unsound and (option := contract.dev_option(head)):
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

    def wiring(self, inputs: Sequence[Input], head: Sequence[Component], export: Export | None) -> None:
        """Names are checked once every stage is known, and the head's options, on which its answer kind may depend."""
        if any(one.key in self.unsound for one in head):
            return
        nothing = "no stage has attention weights to look at; take one that has, such as head: {use: label, "
        nothing += "pool: attention}, or delete it"
        wanted = self.tree.problem(("export", "explain"), nothing) if export and export.explain else None
        self.problems += dataflow.problems(inputs, head) or attending.problems(inputs, head, wanted)


RENAMED = {"carry": "stateful"}  # old names of options
_ON_THE_HUB = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(@[\w./-]+)?", re.ASCII)
SOURCE = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
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


def _renamed(key: str, names: Sequence[str]) -> str:
    """The hint for an option that had another name in an earlier version."""
    name = RENAMED.get(key)
    return f"; it is called {name!r} now" if name in names else ""


def _there_is(names: Iterable[str], what: str = "there is") -> str:
    return f" ({what}: {', '.join(names) or 'none'})"


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
