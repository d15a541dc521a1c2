"""Load one YAML into one checked Config, or report all problems at once: place, key and fix."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement
from pydantic import BaseModel
from yaml.representer import RepresenterError

from seqpipe.config import checks, contract, dataflow, init_from, yaml
from seqpipe.config.contract import Component, Input
from seqpipe.config.model import Config, Data, Need, resolved
from seqpipe.config.plugins import Offer, Plugins
from seqpipe.config.run_layout import BUNDLE, STATE
from seqpipe.config.schema import (
    CHOICES,
    OF_A_SOURCE,
    SECTIONS,
    STAGES,
    TOP,
    Card,
    DataKeys,
    Export,
    NeedKeys,
    Plateau,
    PluginKeys,
    SelfTraining,
    Teacher,
    Train,
)
from seqpipe.config.signature import (
    ALL_COMMON_KEYS,
    COMMON_KEYS,
    TARGET_TOKENIZER_KEYS,
    CommonKeys,
    Mistake,
    Model,
    component_options,
    describe_type,
    mismatch_message,
    option_fields,
    validate_model,
    values,
)
from seqpipe.config.yaml import Path as Where
from seqpipe.config.yaml import Plain, Spot, Tree, dump, format_value, plain
from seqpipe.errors import LFS_FIX, LFS_POINTER, ConfigError, DataError, PluginError, Problem, UsageError, did_you_mean
from seqpipe.features.parts import DataPart, DataPath, Files, paths_of
from seqpipe.files import download, match_files
from seqpipe.types import CHECKPOINT, FOLDER

__all__ = ["Component", "Config", "Data", "load_config", "resolved"]

INPUT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
INHERITED = "checkpoint"  # option of a stage that may be that of the tokenizer of its source
OVERRIDE = "--set "  # beginning of the place of a value that an override has
RENAMED = {"carry": "stateful"}  # old names of options
UNSUPPORTED = {"fsdp": ": FSDP is not supported; each of several devices has all weights (--devices N)"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ON_THE_HUB = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(@[\w./-]+)?", re.ASCII)
_COMPONENTS = ("reader", "tokenizer", *STAGES, "target_tokenizer", "optimizer", "schedule")


def load_config(
    source: Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    plugins: Plugins | None = None,
    files: bool = True,
    runs: bool = True,
    plugin_files: Sequence[Path] = (),
) -> Config:
    """Return the checked Config of a YAML file with overrides such as `train.epochs=3`; ConfigError lists all problems.

    With files=False the data files may be missing, with runs=False the runs that `init` names; folders in `needs`
    always may. `source` may be the content of a file, with paths relative to the current folder. `plugin_files` are
    plugins of one Python file each, which no YAML can name.
    """
    if isinstance(source, Mapping):
        path = Path("pipeline")
        try:
            text = dump(plain(source))
        except RepresenterError as error:
            raise UsageError(f"a pipeline has plain values only; {error.args[1]!r} is not one") from error
        tree, problems = yaml.read_tree(text.encode(), str(path))
        tree = Tree(str(path), tree.data)  # without positions: there is no file
    else:
        path = Path(source)
        try:
            data = path.read_bytes()
        except OSError as error:
            reason = "no such file" if isinstance(error, FileNotFoundError) else (error.strerror or str(error)).lower()
            raise ConfigError([Problem(str(path), 0, 0, "", f"{reason}; looked for {path.absolute()}")]) from None
        tree, problems = yaml.read_tree(data, str(path))
    unread = {problem.key for problem in problems if problem.key}
    for text in overrides:
        problems += override(tree, text)
    loader = _Loader(tree, plugins, path.absolute().parent, files, runs, plugin_files)
    config = loader.config(path)
    # A value that could not be read is reported once, not again as wrong or missing.
    problems += [p for p in loader.problems if not any(p.key == key or p.key.startswith(f"{key}.") for key in unread)]
    if problems or config is None:
        raise ConfigError(problems)
    return config


# Overrides such as `train.epochs=3`, written into the tree of a YAML as if they were in the file.


def override(tree: Tree, text: str) -> list[Problem]:
    """Write one `a.b=c` into the tree; return the problems if that fails."""
    spot = Spot(f"{OVERRIDE}{text}", 0, 0)
    key, equals, value = text.partition("=")
    steps = key.strip().split(".")
    if not equals or not all(steps):
        return [Problem(spot.file, 0, 0, "", "an override is key=value, such as train.epochs=3")]
    if not isinstance(tree.data, dict):
        return []  # reported elsewhere: the file is not a mapping
    try:
        new = yaml.scalar(value, spot.file)
        holder, path = _reach(tree, steps, spot)
    except ConfigError as error:
        return [Problem(spot.file, 0, 0, key, problem.message) for problem in error.problems]
    except LookupError as error:
        return [Problem(spot.file, 0, 0, key, str(error.args[0]))]
    holder[path[-1]] = new
    for spots in (tree.keys, tree.values):
        for old in [old for old in spots if old[: len(path)] == path]:
            del spots[old]
        spots[path] = spot
    return []


def _reach(tree: Tree, steps: Sequence[str], spot: Spot) -> tuple[Plain, Where]:
    """Return the container of the last step, and the full path; create missing mappings along the path."""
    holder: Any = tree.data
    path: Where = ()
    if steps[0] in STAGES and steps[1:2] == ["0"] and not isinstance(holder.get(steps[0]), list):
        steps = [steps[0], *steps[2:]]  # a single component is the first of its list
    for number, step in enumerate(steps):
        at: str | int = step
        if isinstance(holder, list):
            if not step.isdecimal() or int(step) >= len(holder):
                fix = f"write a number from 0 to {len(holder) - 1}"
                raise LookupError(f"{yaml.key_text(path)!r} has {len(holder)} entries; {fix}")
            at = int(step)
        path = (*path, at)
        if number == len(steps) - 1:
            break
        child: Any = holder[int(at)] if isinstance(holder, list) else holder.get(at)
        if child is None:
            child, tree.keys[path], tree.values[path] = {}, spot, spot
        elif isinstance(child, str) and next(s for s in reversed(path) if isinstance(s, str)) in _COMPONENTS:
            child, tree.values[(*path, "use")] = {"use": child}, tree.spot(path)
        elif not isinstance(child, (dict, list)):
            raise LookupError(f"{yaml.key_text(path)!r} is {format_value(child)}, which has no keys")
        holder[at] = child
        holder = child
    return holder, path


# One tree into one Config.


class _Loader:
    """Builds a Config from a tree, and collects the problems.

    With files=False the data files may be missing, with runs=False the runs that `init` names.
    """

    def __init__(
        self, tree: Tree, plugins: Plugins | None, root: Path, files: bool, runs: bool, plugin_files: Sequence[Path]
    ):
        self.tree, self.root, self.files, self.runs = tree, root, files, runs
        self.problems: list[Problem] = []
        self.invalid: set[str] = set()  # keys of components with invalid options
        self.tokenizer_checkpoint: Plain = None  # the default of stages without a checkpoint
        keys = tree.data.get("plugins") if isinstance(tree.data, dict) else None
        self.plugin_keys = self.keys(PluginKeys, self.mapping(keys, ("plugins",)), ("plugins",), "'plugins'")
        allow = self.plugin_keys.allow if self.plugin_keys else ()
        self.plugin_files = tuple(plugin_files)
        requirements = None if allow is None else [Requirement(text) for text in allow]
        self.plugins = plugins or Plugins(allow=requirements, files=plugin_files)
        self.needs = self.all_needs()

    def config(self, path: Path) -> Config | None:
        top = self.tree.data
        if not isinstance(top, dict):
            problem = f"a pipeline is a mapping of keys ({', '.join(TOP)}), not {format_value(top)}"
            if path.suffix not in (".yaml", ".yml"):
                problem += f"; to write one for this data: {shlex.join(['seqpipe', 'init', str(path)])}"
            self.error((), problem)
            return None
        self.known_keys(top, TOP, ())
        name = self.name(top.get("name"), path)
        data = self.data(top)
        inputs = self.inputs(top)
        stages = self.stages("head", top.get("head"), ("head",))
        train = self.train(self.mapping(top.get("train"), ("train",)))
        export = self.keys(Export, self.mapping(top.get("export"), ("export",)), ("export",), "'export'")
        heads = tuple(head for head in stages if head)
        card = self.card(self.mapping(top.get("card"), ("card",)), data, heads)
        self.needs_dev(top, train, heads)
        if data and data.candidates and len(heads) == len(stages) and not any(map(checks.has_candidates, heads)):
            self.error(("data", "candidates"), "no head chooses from candidates; use one that does, or delete it")
        if data and train and len(heads) == len(stages):
            self.unlabelled(data, train, heads)
        if len(heads) == len(stages) and inputs:
            self.wiring(inputs, heads, export)
        if self.problems or not (data and inputs and train and export and card and self.plugin_keys):
            return None
        keys, needs = self.plugin_keys, self.needs
        return Config(path, self.root, name, data, inputs, heads, train, export, keys, needs, self.plugin_files, card)

    def inputs(self, top: Mapping[str, Plain]) -> tuple[Input, ...] | None:
        """Build the inputs; None if one of them failed."""
        named = top.get("inputs")
        if named is None:
            only = self.input(top, (), "")
            return (only,) if only else None
        for key in (key for key in OF_A_SOURCE if top.get(key) is not None):
            self.error((key,), "belongs to one of the inputs; move it into that input", key=True)
        if not isinstance(named, dict) or not named:
            example = "{source: {field: text, tokenizer: …}}"
            expected = f"a mapping from the names of sources to their keys, such as {example}"
            self.error(("inputs",), mismatch_message(expected, named))
            return None
        inputs = []
        for name, keys in named.items():
            where = ("inputs", name)
            if not INPUT_NAME.fullmatch(name):
                self.error(where, "the name of a source has letters, digits and '_', the first a letter", key=True)
            if not isinstance(keys, dict):
                self.error(where, mismatch_message(f"a mapping of keys ({', '.join(OF_A_SOURCE)})", keys))
                return None
            self.known_keys(keys, OF_A_SOURCE, where, "a source has ")
            inputs.append(self.input(keys, where, name))
        complete = tuple(source for source in inputs if source)
        return complete if len(complete) == len(named) else None

    def input(self, keys: Mapping[str, Plain], path: Where, name: str) -> Input | None:
        """Build one input; None if one of its stages failed."""
        field: str | tuple[str, ...] | None = None
        if name and keys.get("field") is not None:
            common = self.keys(CommonKeys, {"field": keys["field"]}, path, "")
            field = common.field if common else None
        tokenizer, number = None, None
        if not name or keys.get("tokenizer") is not None:
            tokenizer = self.required("tokenizer", keys, path, "tokenizer")
            stated_options = keys.get("tokenizer")
            self.tokenizer_checkpoint = stated_options.get(INHERITED) if isinstance(stated_options, dict) else None
            if tokenizer and field:
                stated = isinstance(keys["tokenizer"], dict) and "field" in keys["tokenizer"]
                if stated and tokenizer.common_keys["field"] != field:
                    self.error((*path, "tokenizer", "field"), "the source names another field; delete one of them")
                tokenizer = replace(tokenizer, common_keys={**tokenizer.common_keys, "field": field})
        elif isinstance(field, str):
            number = field
        else:
            fix = "name the field of the numbers, or add a tokenizer to read a text"
            self.add_missing((*path, "field"), fix) if field is None else self.error((*path, "field"), fix)
            return None
        embedding = self.stages("embedding", keys.get("embedding"), (*path, "embedding"))
        encoder = self.stages("encoder", keys.get("encoder"), (*path, "encoder"))
        if not (tokenizer or number) or None in embedding or None in encoder:
            return None
        return Input(name, number, tokenizer, tuple(filter(None, embedding)), tuple(filter(None, encoder)))

    def name(self, name: Plain, path: Path) -> str:
        rule = "is not valid for a run; use letters, digits, '.', '_' and '-', the first a letter or digit"
        if name is None and not _NAME.fullmatch(path.stem):
            self.add_missing(("name",), f"the file's name {path.stem!r} {rule}")
        elif name is not None and not isinstance(name, str):
            self.error(("name",), mismatch_message("text", name))
        elif name is not None and not _NAME.fullmatch(name):
            self.error(("name",), f"{name!r} {rule}")
        return path.stem if name is None else str(name)

    def data(self, top: Mapping[str, Plain]) -> Data | None:
        if top.get("data") is None:
            readers = list_names(self.plugins.names("reader"), "readers")
            self.add_missing(("data",), f"write data: {{reader: {{use: NAME}}, train: FILE}}{readers}")
            return None
        mapping = self.mapping(top["data"], ("data",))
        if not isinstance(top["data"], dict):
            return None
        reader = self.required("reader", mapping, ("data",), "reader")
        entries = {key: value for key, value in mapping.items() if key != "reader"}
        keys, mistakes = validate_model(DataKeys, entries)
        self.report(mistakes, ("data",), ["reader", *DataKeys.model_fields], "'data'", "key")
        wrong = {mistake.where[0] for mistake in mistakes}
        folder = reader is not None and contract.member(reader.cls, "folder")
        files: dict[Where, Path | Files] = {}
        for key in ("train", "dev", "test", "unlabelled", "candidates", "add"):
            value = entries.get(key) if key not in wrong else None
            sets = {(key, name): paths for name, paths in value.items()} if isinstance(value, dict) else {(key,): value}
            for where, paths in sets.items():
                if isinstance(paths, (str, list)):
                    files[where] = self.data_files(paths, ("data", *where), folder)
        if keys is None or reader is None:
            return None
        if keys.offsets != "characters":
            if "offsets" not in reader.options:
                self.error(("data", "offsets"), f"the reader {reader.use!r} reads no offsets of spans; delete it")
            reader = replace(reader, options={**reader.options, "offsets": keys.offsets})
        if reader.key not in self.invalid and contract.has_member(reader.cls, "files"):
            for key_path, source in files.items():
                self.refuse_common_files(reader, source, ("data", *key_path))
        train: DataPath = files["train",]
        dev: DataPath | None = files.get(("dev",))
        tests: dict[str, DataPath] = {str(where[-1]): file for where, file in files.items() if where[0] == "test"}
        shares = {role: entries[role] for role in ("dev", "test") if isinstance(entries.get(role), (int, float))}
        if keys.bad_rows == "skip" and not contract.has_member(reader.cls, "left_out"):
            self.error(("data", "bad_rows"), f"the reader {reader.use!r} cannot leave records out; delete the key")
        added = paths_of(files["add",]) if ("add",) in files else ()
        if keys.fold and (keys.fold[0] > keys.fold[1] or keys.fold[1] < 2):
            self.error(("data", "fold"), f"must be a number and a count of at least 2, such as [1, 5], not {keys.fold}")
        if keys.fold and keys.test is not None:
            self.error(("data", "test"), "the fold is the test set; delete data.test, or data.fold")
        split = (keys.split.field, keys.split.dev, keys.split.test) if keys.split else None
        named = {role for role, value in zip(("dev", "test"), split[1:], strict=True) if value} if split else set()
        for role in named & {key for key in ("dev", "test") if entries.get(key) is not None}:
            self.error(("data", role), f"data.split names the {role} data; delete data.{role}, or data.split.{role}")
        if keys.split and keys.fold:
            self.error(("data", "fold"), "data.split says which records are test data; delete one of the two")
        if shares or keys.fold or added or split:
            shared = float(shares.get("dev", 0)), float(shares.get("test", 0))
            train = part = DataPart(files["train",], "train", *shared, keys.split_seed, keys.group, keys.fold, added)
            train = part = replace(part, split=split)
            dev = replace(part, role="dev") if "dev" in {*shares, *named} else dev
            tests = {"test": replace(part, role="test")} if "test" in {*shares, *named} or keys.fold else tests
        rules = keys.model_dump(include={"misaligned", "unseen_labels", "overlaps", "bad_rows", "split_seed", "group"})
        candidates, unlabelled = files.get(("candidates",)), files.get(("unlabelled",))
        return Data(reader, train, dev, tests, candidates=candidates, unlabelled=unlabelled, **rules)

    def train(self, mapping: Mapping[str, Plain]) -> Train | None:
        present = [key for key in CHOICES if mapping.get(key) is not None]
        chosen = {key: self.choice(key, mapping[key], ("train", key)) for key in present}
        if (teacher := mapping.get("teacher")) is not None:
            chosen["teacher"] = self.teacher(teacher, ("train", "teacher"))
        if (value := mapping.get(key := "self_training")) is not None:
            chosen[key] = self.keys(SelfTraining, self.mapping(value, ("train", key)), ("train", key), repr(key))
        entries = {key: value for key, value in mapping.items() if key not in (*CHOICES, "teacher", "self_training")}
        train = self.keys(Train, entries, ("train",), "'train'")
        return train and train.model_copy(update=chosen)

    def teacher(self, value: Plain, path: Where) -> Teacher | None:
        """Build the teacher, which may be missing when a run resumes; a bundle in the folder of its run is the run."""
        keys = {"path": value} if isinstance(value, str) else self.mapping(value, path)
        teacher = self.keys(Teacher, keys, path, "'teacher'")
        at = Path(os.path.abspath(self.root / (teacher.path if teacher else "")))
        if teacher and not at.exists() and (hint := self.expansion_hint(teacher.path, path)):
            self.error(path, f"no such folder {teacher.path!r} (looked for {at}){hint}")
        at = at.parent if (at / BUNDLE).is_file() and (at.parent / STATE).is_file() else at
        return teacher and teacher.model_copy(update={"path": str(at)})

    def choice(self, key: str, value: Plain, path: Where) -> BaseModel | None:
        """Build an optimizer or a schedule: `use` determines its keys, and has a default."""
        mapping = self.with_use(value, path) if isinstance(value, str) else self.mapping(value, path)
        use, models = mapping.get("use", Train.model_fields[key].default.use), CHOICES[key]
        if not isinstance(use, str) or use not in models:
            message = mismatch_message(describe_type(Literal[tuple(models)]), use)
            self.error((*path, "use"), message + did_you_mean(str(use), models))
            return None
        return self.keys(models[use], {**mapping, "use": use}, path, f"{key} {use!r}")

    def needs_dev(self, top: Mapping[str, Plain], train: Train | None, heads: Sequence[Component]) -> None:
        """Record a problem for each option that needs dev data where there is none."""
        data = top.get("data")
        if train is None or not isinstance(data, dict) or data.get("dev") is not None:
            return
        if isinstance(data.get("split"), dict) and data["split"].get("dev") is not None:
            return
        for head in heads:
            if head.key not in self.invalid and (option := contract.dev_option(head)):
                message = f"with {option!r}, {head.use!r} chooses a value on dev data"
                problem = head.problem(f"{message}; write data.dev, or change it")
                self.problems.append(replace(problem, key=f"{head.key}.{option}"))
        for key in ("patience", "metric", "self_training"):
            if getattr(train, key):
                self.error(("train", key), f"it needs the dev score; write data.dev, or delete {key}")
        if isinstance(train.schedule, Plateau):
            message = "'plateau' needs the dev score; write data.dev, or use another schedule"
            self.error(("train", "schedule", "use"), message)

    def card(self, mapping: Mapping[str, Plain], data: Data | None, heads: Sequence[Component]) -> Card | None:
        """Build the keys of the model card; record a problem for scores by group that nothing has."""
        card = self.keys(Card, mapping, ("card",), "'card'")
        if card and card.by and data and not (data.dev or data.tests):
            self.error(("card", "by"), "no set has scores; write data.test, or delete the key")
        if card and card.by and any(map(contract.is_language_model_head, heads)):
            self.error(("card", "by"), "a run keeps no answers of a language model; use seqpipe evaluate --by")
        return card

    def unlabelled(self, data: Data, train: Train, heads: Sequence[Component]) -> None:
        """Record a problem for unlabelled texts that nothing reads, and for self-training that is not possible."""
        if train.self_training is None:
            invalid = any(problem.key.startswith(("train.self_training", "train.teacher")) for problem in self.problems)
            if data.unlabelled and not train.teacher and not invalid:
                fix = "write train: {self_training: {}}, add train.teacher, or delete it"
                self.error(("data", "unlabelled"), f"nothing reads it; {fix}")
            return
        if train.teacher:
            self.error(("train", "self_training"), "train.teacher answers the unlabelled texts; delete one of the two")
        if not data.unlabelled:
            self.error(("train", "self_training"), "it needs texts; name them in data.unlabelled, or delete the key")
        for head in heads:
            if head.key not in self.invalid and not contract.task_class(head).self_trains:
                message = f"{head.use!r} answers with neither labels nor tags, which train.self_training needs"
                self.problems.append(head.problem(f"{message}; delete that key"))

    def wiring(self, inputs: Sequence[Input], heads: Sequence[Component], export: Export | None) -> None:
        """Check the data flow, after all stages are known and the head's options, which determine its answer kind."""
        if any(head.key in self.invalid for head in heads):
            return
        none = "no stage has attention weights; use one that has, such as head: {use: label, "
        none += "pool: attention}, or delete it"
        wanted = self.tree.problem(("export", "explain"), none) if export and export.explain else None
        problems = dataflow.problems(inputs, heads) or checks.attention_problems(inputs, heads, wanted)
        if export and export.streaming and not problems:
            problems = checks.streaming_problems(inputs, heads, export, self.tree)
        self.problems += problems

    # A component: its class, its options, its common keys, and the files named there.

    def required(self, kind: str, mapping: Mapping[str, Plain], path: Where, key: str) -> Component | None:
        if mapping.get(key) is None:
            self.add_missing((*path, key), f"write {key}: {{use: NAME}}{list_names(self.plugins.names(kind))}")
            return None
        return self.component(kind, mapping[key], (*path, key))

    def stages(self, kind: str, value: Plain, path: Where) -> list[Component | None]:
        """Build the components of one place of the pipeline; None for each that failed."""
        if kind == "head" and (value is None or value == []):
            return [self.required(kind, {}, (), kind)]
        if value is None:
            return []
        if not isinstance(value, list):
            return [self.component(kind, value, path)]
        components = [self.component(kind, item, (*path, number)) for number, item in enumerate(value)]
        names: set[str] = set()
        for number, component in enumerate(components):
            if kind != "head" or component is None:
                continue
            if component.name in names:
                where = (*path, number, "name") if component.common_keys["name"] else (*path, number)
                self.error(where, f"two heads are called {component.name!r}; give one of them another name")
            names.add(component.name)
        return components

    def component(self, kind: str, value: Plain, path: Where, allowed: Sequence[str] = ()) -> Component | None:
        """Build one component of the YAML: its common keys, its class, its options."""
        allowed = allowed or COMMON_KEYS[kind]
        mapping = self.with_use(value, path) if isinstance(value, str) else value
        if not isinstance(mapping, dict):
            self.error(path, mismatch_message(f"the name of {_with_article(kind)} or {{use: NAME, …}}", value))
            return None
        resolved = self.resolved(kind, mapping, path)
        # `init` is the common key if it names a run, and the option of a component that has one if it is a mapping.
        has_option = resolved is not None and "init" in option_fields(resolved[3])
        own_init = {"init": init} if has_option and isinstance(init := mapping.get("init"), dict) else {}
        common = self.common_keys({k: item for k, item in mapping.items() if k not in own_init}, path, allowed)
        if resolved is None:
            return None
        use, offer, cls, model = resolved
        stated = {key: option for key, option in mapping.items() if key not in ALL_COMMON_KEYS} | own_init
        shared = option_fields(model).get(INHERITED)
        if kind in STAGES and shared and CHECKPOINT in shared.metadata and self.tokenizer_checkpoint is not None:
            stated = {INHERITED: self.tokenizer_checkpoint, **stated}
        instance, mistakes = validate_model(model, stated)
        if mistakes:
            self.report(mistakes, path, [*option_fields(model), *allowed], repr(use), "option")
        spot, key = self.tree.spot((*path, "use")), yaml.key_text(path)
        if instance is None:
            self.invalid.add(key)
        options = self.option_paths(instance, path) if instance else {}
        component = Component(kind, use, options, common, offer, cls, spot.file, spot.line, spot.column, key)
        if common.get("freeze") and common.get("lr"):
            self.error((*path, "lr"), "freeze: true switches it off; delete one of the two")
        if self.runs and common.get("init") is not None:
            self.init(component, common["init"], path)
        return component

    def init(self, component: Component, folder: Path, path: Where) -> None:
        """Check `init`: its folder must be a trained run with a matching stage."""
        problem = init_from.run_problem(folder)
        if problem and any(need.path == folder and need.run for need in self.needs):
            return  # `needs` runs it first
        try:
            if not problem:
                init_from.counterpart(component, folder)
        except UsageError as error:
            problem = str(error)
        if problem:
            text, key = str(folder).removeprefix(f"{self.root}{os.sep}"), (*path, "init")
            self.error(key, problem + self.expansion_hint(text, key))

    def resolved(
        self, kind: str, mapping: Mapping[str, Plain], path: Where
    ) -> tuple[str, Offer, type, type[BaseModel]] | None:
        """Return `use`, its offer, class, and model of options; record a problem and return None if it is wrong."""
        use, where = mapping.get("use"), (*path, "use")
        if use is None:
            meant = next((key for key in mapping if key.lower() in ("uses", "type", "kind", "class")), "")
            hint = f"; is {meant!r} meant to be 'use'?" if meant else ""
            self.add_missing(where, f"name the {kind}{list_names(self.plugins.names(kind))}{hint}")
            return None
        if not isinstance(use, str):
            self.error(where, mismatch_message(f"the name of {_with_article(kind)}", use))
            return None
        try:
            offer = self.plugins.find(kind, use)
            cls = offer.load()
        except PluginError as error:
            stated = self.plugin_keys.versions if self.plugin_keys else {}
            made_with = stated.get(yaml.key_text(path), "").partition(" sha256:")[0]
            hint = f"; the run was made with {made_with}: give this file by --plugin" if ".py" in made_with else ""
            self.error(where, f"{error}{hint}")
            return None
        try:
            return use, offer, cls, component_options(kind, cls)
        except PluginError as error:
            self.error(where, f"{kind} {use!r} of {offer.distribution}: {error}")
            return None

    def common_keys(self, mapping: Mapping[str, Plain], path: Where, allowed: Sequence[str]) -> dict[str, Any]:
        """Return the common keys that are allowed here, with their defaults; record a problem for any other."""
        for key in mapping:
            if key in ALL_COMMON_KEYS and key not in allowed:
                places = " or ".join(kind for kind, keys in COMMON_KEYS.items() if key in keys)
                message = f"has no meaning here, only beside the `use` of {_with_article(places)}; delete it"
                self.error((*path, key), message, key=True)
        present = {key: mapping[key] for key in allowed if key in mapping and key in CommonKeys.model_fields}
        instance = self.keys(CommonKeys, present, path, "") or CommonKeys()
        common: dict[str, Any] = {key: value for key, value in instance if key in allowed}
        if common.get("init") is not None:
            common["init"] = Path(os.path.abspath(self.root / common["init"]))
        if "target_tokenizer" in allowed:
            common["target_tokenizer"] = self.target_tokenizer(mapping.get("target_tokenizer"), path)
        return common

    def target_tokenizer(self, value: Plain, path: Where) -> Component | Plain:
        """Build the target tokenizer of a head: a component, "same" or None."""
        if value is None or value == "same":
            return value
        component = self.component("tokenizer", value, (*path, "target_tokenizer"), TARGET_TOKENIZER_KEYS)
        if component is None:
            self.invalid.add(yaml.key_text(path))
        return component

    def option_paths(self, options: BaseModel, path: Where) -> dict[str, Any]:
        """Return the options by name, with absolute paths."""
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
        """Return an option's value with absolute paths."""
        if isinstance(value, Path):
            is_needed = self.runs or path[-2] != "init"  # the weights of a trained run are its own
            return self.file(str(value), path) if is_needed else Path(os.path.abspath(self.root / value))
        if isinstance(value, (list, tuple)):
            return type(value)(self.paths(item, (*path, number)) for number, item in enumerate(value))
        if isinstance(value, dict):
            return {key: self.paths(item, (*path, key)) for key, item in value.items()}
        return value

    def data_files(self, value: str | list[str], path: Where, folder: bool) -> Path | Files:
        """Resolve a key of `data`: a path, a pattern or a folder of data files, or a list of them."""
        files: list[Path] = []
        listed = {path: value} if isinstance(value, str) else {(*path, i): text for i, text in enumerate(value)}
        for where, text in listed.items():
            try:
                if self.files and "://" in text:
                    files += self.remote_files(text, where)
                    continue
                matches = match_files(text, self.root, folder) if self.files and "\0" not in text else []
            except UsageError as error:
                self.error(where, str(error) + self.expansion_hint(text, where))
                continue
            existing = [str(match) for match in matches if os.path.exists(match)]
            matches = [self.file(name, where, folder) for name in existing or [text]]
            for match in matches:
                if match in files:
                    self.error(where, f"{match} is named twice; name it once")
            files += matches
        return files[0] if len(files) == 1 else Files(tuple(files or [self.root]))

    def remote_files(self, url: str, path: Where) -> list[Path]:
        """Download the files of a URL, which only an override may name; record a problem for one of the YAML."""
        spot = self.tree.spot(path)
        if spot.line or not spot.file.startswith(OVERRIDE):
            reason = "no URL of a YAML is opened, since the file may be a stranger's"
            fix = f"name it on the command line, {yaml.key_text(path)}={url}, or download the file first"
            self.error(path, f"{reason}; {fix}")
            return []
        return download(url)

    def refuse_common_files(self, reader: Component, source: Path | Files, path: Where) -> None:
        """Record a problem if the reader reads two of these files together, such as parallel ones."""
        first: dict[Path, Path] = {}
        for file in source.paths if isinstance(source, Files) and not self.problems else ():
            try:
                before = first.setdefault(contract.build_component(reader).files(file)[0], file)
            except DataError as error:
                self.error(path, str(error))
            else:
                if before != file:
                    self.error(path, f"{file} is read together with {before}; name one file of each group")

    def file(self, text: str, path: Where, folder: bool = False) -> Path:
        """Resolve a path of the YAML relative to its folder; record a problem if it does not exist."""
        at = Path(os.path.abspath(self.root / text))
        if "\0" in text:
            self.error(path, "a path cannot contain the character U+0000")
        elif self.files and os.path.exists(at) and os.path.isdir(at) != folder:
            kinds = ("a file, not a folder", "a folder, not a file")
            self.error(path, f"{text!r} is {kinds[not folder]} ({at})")
        elif self.files and not os.path.exists(at):
            try:
                hint = did_you_mean(at.name, sorted(os.listdir(at.parent))[:1000])
            except OSError:
                hint = f"; there is no folder {at.parent}"
            hint = "; no URL is fetched: download the file first" if "://" in text else hint
            hint = self.expansion_hint(text, path) or hint
            self.error(path, f"no such {'folder' if folder else 'file'} {text!r} (looked for {at}){hint}")
        elif self.files and not folder and not os.path.isfile(at):
            self.error(path, f"{text!r} is a pipe or a device, which cannot be read twice; save it to a file first")
        elif self.files and not folder:
            with contextlib.suppress(OSError), at.open("rb") as file:  # what cannot be read is an error of its reader
                if file.read(len(LFS_POINTER)) == LFS_POINTER:
                    self.error(path, f"{at}: {LFS_FIX}")
        return at

    def expansion_hint(self, text: str, path: Where) -> str:
        """Return the fix for a path that only a shell expands; "" for other paths."""
        if re.search(r"\$\{?\w|%\w+%", text):
            override = f'{yaml.key_text(path)}="{text}"'
            return f"; variables in a YAML are not replaced: write the path, or give it on the command line: {override}"
        home = os.path.expanduser(text)
        return f"; ~ is not expanded: write {home}" if home != text else ""

    def folder(self, text: str, path: Where) -> Path:
        """Resolve a folder of the YAML relative to its folder; record a problem if it neither exists nor is a need."""
        at = Path(os.path.abspath(self.root / text))
        is_made = any(need.path == at for need in self.needs if not at.exists())
        return at if is_made else self.file(text, path, folder=True)

    def checkpoint(self, text: str, path: Where) -> Path | str:
        """Resolve a checkpoint: a folder relative to that of the YAML if it exists, else a name on the hub."""
        at = Path(os.path.abspath(self.root / text))
        if at.is_dir() or any(need.path == at for need in self.needs if not at.exists()):
            return at
        if not _ON_THE_HUB.fullmatch(text):
            what = "is a file, not a folder" if at.is_file() else "is not a folder"
            hint = self.expansion_hint(text, path)
            self.error(path, f"{text!r} {what} (looked for {at}), and not a name on the hub, such as org/name{hint}")
        return text

    def all_needs(self) -> tuple[Need, ...]:
        """Return the entries of `needs` whose folder another key refers to; record their problems.

        An override may name another folder: a need that no key refers to is dropped.
        """
        top = self.tree.data
        value = top.get("needs") if isinstance(top, dict) else None
        if not isinstance(top, dict) or value is None:
            return ()
        if not isinstance(value, list):
            expected = "a list of mappings such as {path: FOLDER, run: FILE.yaml}"
            self.error(("needs",), mismatch_message(expected, value))
            return ()
        others = {key: entry for key, entry in top.items() if key != "needs"}
        texts = {text for _, text in yaml.flatten(others) if isinstance(text, str) and "\0" not in text}
        used = {os.path.abspath(self.root / text) for text in texts}
        entries = []
        for number, item in enumerate(value):
            where = ("needs", number)
            keys = self.keys(NeedKeys, self.mapping(item, where), where, "an entry of 'needs'")
            if keys is None:
                continue
            path = Path(os.path.abspath(self.root / keys.path))
            run = Path(os.path.abspath(self.root / keys.run)) if keys.run else None
            if run and not run.is_file():
                hint = self.expansion_hint(str(keys.run), (*where, "run"))
                self.error((*where, "run"), f"no such file {keys.run!r} (looked for {run}){hint}")
            elif str(path) in used:
                entries.append(Need(path, run, keys.make, keys.pieces, self.tree.problem(where, "")))
        return tuple(entries)

    # The checks of every mapping of keys.

    def error(self, path: Where, message: str, *, key: bool = False) -> None:
        self.problems.append(self.tree.problem(path, message, key=key))

    def add_missing(self, path: Where, what: str) -> None:
        """Record a problem for a missing key at the position of its parent."""
        problem = self.tree.problem(path[:-1], f"missing; {what}", key=True)
        self.problems.append(replace(problem, key=yaml.key_text(path)))

    def mapping(self, value: Plain, path: Where) -> dict[str, Plain]:
        if value is None or isinstance(value, dict):
            return value or {}
        self.error(path, mismatch_message("a mapping of keys", value))
        return {}

    def known_keys(self, mapping: Mapping[str, Plain], known: Iterable[str], path: Where, owner: str = "") -> None:
        """Record a problem for each unknown key."""
        known = list(known)
        for key in [key for key in mapping if key not in known]:
            inner = [name for name, model in SECTIONS.items() if key in model.model_fields and not path]
            hint = f"; did you mean '{inner[0]}.{key}'?" if inner else did_you_mean(key, known) or list_names(known)
            self.error((*path, key), f"{owner}no such key{hint}", key=True)

    def keys(self, model: type[Model], mapping: Mapping[str, Plain], path: Where, owner: str) -> Model | None:
        """Validate the keys of a mapping as a model; record their problems."""
        instance, mistakes = validate_model(model, mapping)
        if mistakes:
            self.report(mistakes, path, list(model.model_fields), owner, "key")
        return instance

    def report(self, mistakes: Sequence[Mistake], path: Where, known: Sequence[str], owner: str, noun: str) -> None:
        """Record the mistakes in the keys below `path` as problems; `known` are the valid keys."""
        for mistake in mistakes:
            where = (*path, *mistake.where)
            if mistake.kind == "missing":
                self.add_missing(where, f"{owner} needs {mistake.message}")
            elif mistake.kind == "unknown":
                key = str(mistake.where[0])
                renamed = RENAMED.get(key)
                hint = f"; it is now called {renamed!r}" if renamed in known else did_you_mean(key, known)
                hint = UNSUPPORTED.get(key.lower()) or hint or list_names(known)
                self.error(where, f"{owner} has no such {noun}{hint}", key=True)
            else:
                self.error(where, mistake.message)

    def with_use(self, name: str, path: Where) -> dict[str, Plain]:
        """Return the mapping that a bare name abbreviates."""
        self.tree.values[(*path, "use")] = self.tree.spot(path)
        return {"use": name}


def list_names(names: Iterable[str], what: str = "there is") -> str:
    return f" ({what}: {', '.join(names) or 'none'})"


def _with_article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
