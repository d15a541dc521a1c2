"""Checks of the components of one YAML: what `use` names, its options, its common keys, and the files they name."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from seqpipe.config import init_from, yaml
from seqpipe.config.checks.keys import KeyChecks, there_is
from seqpipe.config.checks.needs import needs
from seqpipe.config.common_keys import ALL_COMMON_KEYS, COMMON_KEYS, TARGET_TOKENIZER_KEYS, CommonKeys
from seqpipe.config.component import Component
from seqpipe.config.option_models import option_fields, options_model, validate, values
from seqpipe.config.plugins import Offer, Plugins
from seqpipe.config.schema import PluginKeys
from seqpipe.config.signature import wired
from seqpipe.config.type_words import unlike
from seqpipe.config.yaml import Path as Where
from seqpipe.config.yaml import Tree
from seqpipe.config.yaml_text import Plain
from seqpipe.errors import PluginError, UsageError, nearest
from seqpipe.types import CHECKPOINT, FOLDER

_ON_THE_HUB = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(@[\w./-]+)?", re.ASCII)


class _Resolved(NamedTuple):
    """What `use` names: the offer, its class, and the model of its options."""

    use: str
    offer: Offer
    cls: type
    model: type[BaseModel]


class ComponentChecks(KeyChecks):
    """Components made of the mappings of one tree.

    With files=False the data files need not be there, with runs=False the runs that `init` names.
    """

    def __init__(self, tree: Tree, plugins: Plugins | None, root: Path, files: bool, runs: bool):
        super().__init__(tree)
        self.root, self.files, self.runs = root, files, runs
        keys = tree.data.get("plugins") if isinstance(tree.data, dict) else None
        self.plugin_keys = self.keys(PluginKeys, self.mapping(keys, ("plugins",)), ("plugins",), "'plugins'")
        self.plugins = plugins or Plugins(allow=self.plugin_keys.requirements if self.plugin_keys else ())
        self.needs = needs(self, root)
        self.unsound: set[str] = set()  # keys of components whose options are wrong

    def required(self, kind: str, mapping: Mapping[str, Plain], path: Where, key: str) -> Component | None:
        if mapping.get(key) is None:
            self.missing((*path, key), f"write {key}: {{use: NAME}}{there_is(self.plugins.names(kind))}")
            return None
        return self.component(kind, mapping[key], (*path, key))

    def stages(self, kind: str, value: Plain, path: Where) -> list[Component | None]:
        """The components of one place of the pipeline; None for each that could not be made."""
        if kind == "head" and (value is None or value == []):
            return [self.required(kind, {}, (), kind)]
        if value is None:
            return []
        if not isinstance(value, list):
            return [self.component(kind, value, path)]
        components = [self.component(kind, item, (*path, number)) for number, item in enumerate(value)]
        if kind == "head":
            self.different_names(components, path)
        return components

    def different_names(self, heads: Sequence[Component | None], path: Where) -> None:
        names: set[str] = set()
        for number, head in enumerate(heads):
            if head is None:
                continue
            if head.name in names:
                where = (*path, number, "name") if head.common_keys["name"] else (*path, number)
                self.complain(where, f"two heads are called {head.name!r}; give one of them another name")
            names.add(head.name)

    def component(self, kind: str, value: Plain, path: Where, allowed: Sequence[str] = ()) -> Component | None:
        """One component of the YAML: its common keys, its class, its options."""
        allowed = allowed or COMMON_KEYS[kind]
        mapping = self.with_use(value, path)
        if not isinstance(mapping, dict):
            self.complain(path, unlike(f"the name of {_with_article(kind)} or {{use: NAME, …}}", value))
            return None
        common = self.common_keys(mapping, path, allowed)
        resolved = self.resolved(kind, mapping, path)
        if resolved is None:
            return None
        use, offer, cls, model = resolved
        instance, mistakes = validate(
            model, {key: option for key, option in mapping.items() if key not in ALL_COMMON_KEYS}
        )
        self.report(mistakes, path, [*option_fields(model), *allowed], repr(use), "option")
        spot, key = self.tree.spot((*path, "use")), yaml.key_text(path)
        if instance is None:
            self.unsound.add(key)
        options = self.option_paths(instance, path) if instance else {}
        component = Component(kind, use, options, common, offer, cls, spot.file, spot.line, spot.column, key)
        self.init(component, path)
        return component

    def init(self, component: Component, path: Where) -> None:
        """What a component starts from has to be a trained run that has such a stage."""
        folder = component.common_keys.get("init")
        if folder is None or not self.runs:
            return
        problem = init_from.run_problem(folder)
        if problem and any(need.path == folder and need.run for need in self.needs):
            return  # it is run before
        try:
            if not problem:
                init_from.counterpart(component, folder)
        except UsageError as error:
            problem = str(error)
        if problem:
            self.complain((*path, "init"), problem)

    def resolved(self, kind: str, mapping: Mapping[str, Plain], path: Where) -> _Resolved | None:
        """What `use` names; None if it names nothing that can be used, which is then a problem."""
        use, where = mapping.get("use"), (*path, "use")
        if use is None:
            meant = next((key for key in mapping if key.lower() in ("uses", "type", "kind", "class")), "")
            hint = f"; is {meant!r} meant to be 'use'?" if meant else ""
            self.missing(where, f"say which {kind}{there_is(self.plugins.names(kind))}{hint}")
            return None
        if not isinstance(use, str):
            self.complain(where, unlike(f"the name of {_with_article(kind)}", use))
            return None
        try:
            offer = self.plugins.find(kind, use)
            cls = offer.load()
        except PluginError as error:
            self.complain(where, str(error))
            return None
        try:
            model, wired_names = options_model(cls), wired(cls)
        except PluginError as error:
            self.complain(where, f"{kind} {use!r} of {offer.distribution}: {error}")
            return None
        if wired_names and kind in ("reader", "tokenizer"):
            message = f"nothing is wired into {_with_article(kind)}, but its constructor asks for {wired_names[0]!r}"
            self.complain(where, f"{kind} {use!r} of {offer.distribution}: {message}")
            return None
        return _Resolved(use, offer, cls, model)

    def common_keys(self, mapping: Mapping[str, Plain], path: Where, allowed: Sequence[str]) -> dict[str, Any]:
        """The common keys that are allowed here, with their defaults; those that mean nothing here as problems."""
        for key in mapping:
            if key in ALL_COMMON_KEYS and key not in allowed:
                places = " or ".join(kind for kind, keys in COMMON_KEYS.items() if key in keys)
                message = f"means nothing here, only beside the `use` of {_with_article(places)}; delete it"
                self.complain((*path, key), message, key=True)
        present = {key: mapping[key] for key in allowed if key in mapping and key in CommonKeys.model_fields}
        instance = self.keys(CommonKeys, present, path, "") or CommonKeys()
        common: dict[str, Any] = {key: value for key, value in instance if key in allowed}
        if common.get("init") is not None:
            common["init"] = Path(os.path.abspath(self.root / common["init"]))
        if "target_tokenizer" in allowed:
            common["target_tokenizer"] = self.target_tokenizer(mapping.get("target_tokenizer"), path)
        return common

    def target_tokenizer(self, value: Plain, path: Where) -> Component | Plain:
        """The target tokenizer of a head: a component, "same" or None."""
        if value is None or value == "same":
            return value
        component = self.component("tokenizer", value, (*path, "target_tokenizer"), TARGET_TOKENIZER_KEYS)
        if component is None:
            self.unsound.add(yaml.key_text(path))
        return component

    def option_paths(self, options: BaseModel, path: Where) -> dict[str, Any]:
        """The options by name, with the paths in them made absolute."""
        fields, absolute = option_fields(type(options)), {}
        for name, value in values(options).items():
            if CHECKPOINT in fields[name].metadata:
                absolute[name] = self.checkpoint(str(value), (*path, name))
            elif FOLDER in fields[name].metadata and value is not None:
                absolute[name] = self.folder(str(value), (*path, name))
            else:
                absolute[name] = self.paths(value, (*path, name))
        return absolute

    def paths(self, value: Any, path: Where) -> Any:
        """An option's value with the paths in it made absolute."""
        if isinstance(value, Path):
            return self.file(str(value), path)
        if isinstance(value, (list, tuple)):
            return type(value)(self.paths(item, (*path, number)) for number, item in enumerate(value))
        if isinstance(value, dict):
            return {key: self.paths(item, (*path, key)) for key, item in value.items()}
        return value

    def file(self, text: str, path: Where, folder: bool = False) -> Path:
        """A path of the YAML, from the folder of the YAML; a problem if no file, or no folder, is there."""
        at = Path(os.path.abspath(self.root / text))
        if "\0" in text:
            self.complain(path, "a path cannot hold the character U+0000")
        elif self.files and os.path.exists(at) and os.path.isdir(at) != folder:
            kinds = ("a file, not a folder", "a folder, not a file")
            self.complain(path, f"{text!r} is {kinds[not folder]} (looked at {at})")
        elif self.files and not os.path.exists(at):
            hint = "; no URL is fetched: download the file first" if "://" in text else _neighbour(at)
            self.complain(path, f"no such {'folder' if folder else 'file'} {text!r} (looked for {at}){hint}")
        return at

    def folder(self, text: str, path: Where) -> Path:
        """A folder, from the folder of the YAML; a problem if none is there, and none that `needs` makes."""
        at = Path(os.path.abspath(self.root / text))
        is_made = any(need.path == at for need in self.needs if not at.exists())
        return at if is_made else self.file(text, path, folder=True)

    def checkpoint(self, text: str, path: Where) -> Path | str:
        """A folder, from the folder of the YAML, if there is one of that name; else a name on the hub."""
        at = Path(os.path.abspath(self.root / text))
        if at.is_dir() or any(need.path == at for need in self.needs if not at.exists()):
            return at
        if not _ON_THE_HUB.fullmatch(text):
            what = "is a file, not a folder" if at.is_file() else "is no folder"
            self.complain(path, f"{text!r} {what} (looked for {at}), and no name on the hub, such as org/name")
        return text


def _neighbour(at: Path) -> str:
    try:
        return nearest(at.name, sorted(os.listdir(at.parent))[:1000])
    except OSError:
        return f"; there is no folder {at.parent}"


def _with_article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
