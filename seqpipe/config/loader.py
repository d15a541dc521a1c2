"""Load one YAML into one checked Config, or every mistake at once: its place, its key and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from seqpipe.config import contract, yaml
from seqpipe.config.checks import attention, dataflow
from seqpipe.config.checks.candidates import has_candidates
from seqpipe.config.checks.components import ComponentChecks
from seqpipe.config.checks.keys import there_is
from seqpipe.config.checks.streaming import streaming_problems
from seqpipe.config.common_keys import CommonKeys
from seqpipe.config.component import Component, Input
from seqpipe.config.model import Config, Data, resolved
from seqpipe.config.option_models import validate
from seqpipe.config.overrides import override
from seqpipe.config.plugins import Plugins
from seqpipe.config.schema import CHOICES, OF_A_SOURCE, TOP, DataKeys, Export, Plateau, Train
from seqpipe.config.type_words import unlike, words
from seqpipe.config.yaml import Path as Where
from seqpipe.config.yaml_text import Plain, shown
from seqpipe.errors import ConfigError, Problem, nearest

__all__ = ["Component", "Config", "Data", "load", "resolved"]

INPUT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def load(
    path: Path,
    overrides: Sequence[str] = (),
    plugins: Plugins | None = None,
    files: bool = True,
    runs: bool = True,
) -> Config:
    """The checked Config of a YAML file with overrides such as `train.epochs=3`; ConfigError holds every mistake.

    With files=False the data files need not be there, with runs=False the runs that `init` names. What `needs` lists
    may be absent too.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else (error.strerror or str(error)).lower()
        raise ConfigError([Problem(str(path), 0, 0, "", f"{reason}; looked for {path.absolute()}")]) from None
    tree, problems = yaml.read(data, str(path))
    unread = {problem.key for problem in problems if problem.key}
    for text in overrides:
        problems += override(tree, text)
    check = _PipelineCheck(tree, plugins, path.absolute().parent, files, runs)
    config = check.config(path)
    # What could not be read is reported once, not again as a wrong or missing value.
    problems += [p for p in check.problems if not any(p.key == key or p.key.startswith(f"{key}.") for key in unread)]
    if problems or config is None:
        raise ConfigError(problems)
    return config


class _PipelineCheck(ComponentChecks):
    """The check of one tree, which gives one Config or problems."""

    def config(self, path: Path) -> Config | None:
        top = self.tree.data
        if not isinstance(top, dict):
            self.complain((), f"a pipeline is a mapping of keys ({', '.join(TOP)}), not {shown(top)}")
            return None
        self.known_keys(top, TOP, ())
        name = self.name(top.get("name"), path)
        data = self.data(top)
        inputs = self.inputs(top)
        stages = self.stages("head", top.get("head"), ("head",))
        train = self.train(self.mapping(top.get("train"), ("train",)))
        export = self.keys(Export, self.mapping(top.get("export"), ("export",)), ("export",), "'export'")
        heads = tuple(head for head in stages if head)
        self.needs_dev(top, train, heads)
        if data and data.candidates and len(heads) == len(stages) and not any(map(has_candidates, heads)):
            self.complain(
                ("data", "candidates"),
                "no head chooses from them; take one that answers with a candidate, or delete it",
            )
        if len(heads) == len(stages) and inputs:
            self.wiring(inputs, heads, export)
        if self.problems or not (data and inputs and train and export and self.plugin_keys):
            return None
        return Config(path, self.root, name, data, inputs, heads, train, export, self.plugin_keys, self.needs)

    def inputs(self, top: Mapping[str, Plain]) -> tuple[Input, ...] | None:
        """The inputs, or the only one; None if one of them could not be made."""
        named = top.get("inputs")
        if named is None:
            only = self.input(top, (), "")
            return (only,) if only else None
        for key in (key for key in OF_A_SOURCE if top.get(key) is not None):
            self.complain((key,), "belongs to one of the inputs; move it there", key=True)
        if not isinstance(named, dict) or not named:
            expected = (
                "a mapping from the names of sources to their keys, such as {source: {field: text, tokenizer: …}}"
            )
            self.complain(("inputs",), unlike(expected, named))
            return None
        inputs = []
        for name, keys in named.items():
            where = ("inputs", name)
            if not INPUT_NAME.fullmatch(name):
                self.complain(where, "the name of a source has letters, digits and '_', the first a letter", key=True)
            if not isinstance(keys, dict):
                self.complain(where, unlike(f"a mapping of keys ({', '.join(OF_A_SOURCE)})", keys))
                return None
            self.known_keys(keys, OF_A_SOURCE, where, "a source has ")
            inputs.append(self.input(keys, where, name))
        complete = tuple(source for source in inputs if source)
        return complete if len(complete) == len(named) else None

    def input(self, keys: Mapping[str, Plain], path: Where, name: str) -> Input | None:
        """One input; None if one of its stages could not be made."""
        field = self.field(keys.get("field"), (*path, "field")) if name else None
        tokenizer, number = None, None
        if not name or keys.get("tokenizer") is not None:
            tokenizer = self.required("tokenizer", keys, path, "tokenizer")
            if tokenizer and field:
                tokenizer = self.with_field(tokenizer, field, keys["tokenizer"], path)
        elif isinstance(field, str):
            number = field
        else:
            cure = "name the one field that holds the numbers, or add a tokenizer to read a text"
            self.missing((*path, "field"), cure) if field is None else self.complain((*path, "field"), cure)
            return None
        embedding = self.stages("embedding", keys.get("embedding"), (*path, "embedding"))
        encoder = self.stages("encoder", keys.get("encoder"), (*path, "encoder"))
        if not (tokenizer or number) or None in embedding or None in encoder:
            return None
        return Input(name, number, tokenizer, tuple(filter(None, embedding)), tuple(filter(None, encoder)))

    def with_field(self, tokenizer: Component, field: str | tuple[str, ...], keys: Plain, path: Where) -> Component:
        """The tokenizer of a named input, which reads the input's field."""
        if isinstance(keys, dict) and "field" in keys and tokenizer.common_keys["field"] != field:
            self.complain((*path, "tokenizer", "field"), "the source says another field; delete one of them")
        return replace(tokenizer, common_keys={**tokenizer.common_keys, "field": field})

    def field(self, value: Plain, path: Where) -> str | tuple[str, ...] | None:
        """The field, or the two, that an input reads."""
        if value is None:
            return None
        common = self.keys(CommonKeys, {"field": value}, path[:-1], "")
        return common.field if common else None

    def name(self, name: Plain, path: Path) -> str:
        rule = "is no name for a run; write letters, digits, '.', '_' and '-', the first a letter or digit"
        if name is None and not _NAME.fullmatch(path.stem):
            self.missing(("name",), f"the file's name {path.stem!r} {rule}")
        elif name is not None and not isinstance(name, str):
            self.complain(("name",), unlike("text", name))
        elif name is not None and not _NAME.fullmatch(name):
            self.complain(("name",), f"{name!r} {rule}")
        return path.stem if name is None else str(name)

    def data(self, top: Mapping[str, Plain]) -> Data | None:
        if top.get("data") is None:
            readers = there_is(self.plugins.names("reader"), "readers")
            self.missing(("data",), f"write data: {{reader: {{use: NAME}}, train: FILE}}{readers}")
            return None
        mapping = self.mapping(top["data"], ("data",))
        if not isinstance(top["data"], dict):
            return None
        reader = self.required("reader", mapping, ("data",), "reader")
        rest = {key: value for key, value in mapping.items() if key != "reader"}
        keys, mistakes = validate(DataKeys, rest)
        self.report(mistakes, ("data",), ["reader", *DataKeys.model_fields], "'data'", "key")
        wrong = {mistake.where[0] for mistake in mistakes}
        folder = reader is not None and contract.member(reader.cls, "folder")
        paths = [(where, text) for where, text in _paths(rest) if where[0] not in wrong]
        files = {where: self.file(text, ("data", *where), folder) for where, text in paths}
        if keys is None or reader is None:
            return None
        tests = {str(where[-1]): file for where, file in files.items() if where[0] == "test"}
        choices = keys.misaligned, keys.unseen_labels, keys.overlaps
        return Data(reader, files["train",], files.get(("dev",)), tests, *choices, files.get(("candidates",)))

    def train(self, mapping: Mapping[str, Plain]) -> Train | None:
        chosen = {
            key: self.choice(key, mapping[key], ("train", key)) for key in CHOICES if mapping.get(key) is not None
        }
        rest = {key: value for key, value in mapping.items() if key not in CHOICES}
        train = self.keys(Train, rest, ("train",), "'train'")
        return train and train.model_copy(update=chosen)

    def choice(self, key: str, value: Plain, path: Where) -> BaseModel | None:
        """An optimizer or a schedule: `use` says which keys there are; without it, it is the usual one."""
        mapping = self.mapping(self.with_use(value, path), path)
        use, models = mapping.get("use", Train.model_fields[key].default.use), CHOICES[key]
        if not isinstance(use, str) or use not in models:
            self.complain((*path, "use"), unlike(words(Literal[tuple(models)]), use) + nearest(str(use), models))
            return None
        return self.keys(models[use], {**mapping, "use": use}, path, f"{key} {use!r}")

    def needs_dev(self, top: Mapping[str, Plain], train: Train | None, heads: Sequence[Component]) -> None:
        """What watches the dev score needs dev data."""
        data = top.get("data")
        if train is None or not isinstance(data, dict) or data.get("dev") is not None:
            return
        for head in heads:
            if head.key not in self.unsound and (option := contract.dev_option(head)):
                message = f"what {head.use!r} chooses under {option!r} is chosen on dev data"
                problem = head.problem(f"{message}; write data.dev, or change it")
                self.problems.append(replace(problem, key=f"{head.key}.{option}"))
        if train.patience:
            message = "the dev score is what it waits for; write data.dev, or delete patience"
            self.complain(("train", "patience"), message)
        if train.metric:
            self.complain(("train", "metric"), "it is a score of data.dev; write data.dev, or delete metric")
        if isinstance(train.schedule, Plateau):
            message = "'plateau' follows the dev score; write data.dev, or use another schedule"
            self.complain(("train", "schedule", "use"), message)

    def wiring(self, inputs: Sequence[Input], heads: Sequence[Component], export: Export | None) -> None:
        """Names are checked once every stage is known, and the head's options, on which its answer kind may depend."""
        if any(head.key in self.unsound for head in heads):
            return
        none = "no stage has attention weights to look at; take one that has, such as head: {use: label, "
        none += "pool: attention}, or delete it"
        wanted = self.tree.problem(("export", "explain"), none) if export and export.explain else None
        problems = dataflow.problems(inputs, heads) or attention.problems(inputs, heads, wanted)
        if export and export.streaming and not problems:
            problems = streaming_problems(inputs, heads, export, self.tree)
        self.problems += problems


def _paths(data: Mapping[str, Plain]) -> Iterator[tuple[Where, str]]:
    """The paths in `data`, each by where it stands."""
    for key in ("train", "dev", "test", "candidates"):
        value = data.get(key)
        if isinstance(value, str):
            yield (key,), value
        elif isinstance(value, dict):
            yield from (((key, name), text) for name, text in value.items() if isinstance(text, str))
