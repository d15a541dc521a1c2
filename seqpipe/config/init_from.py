"""Stages of the run that `init` names, and their matching with components."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seqpipe.config import yaml
from seqpipe.config.contract import Component, member
from seqpipe.config.run_layout import BEST, BUNDLE, CHECKPOINTS, LAST, STATE, YAML
from seqpipe.config.signature import ALL_COMMON_KEYS
from seqpipe.config.yaml import Plain, format_value, plain
from seqpipe.errors import UsageError

_TARGET = ".target_tokenizer"


@dataclass(frozen=True)
class Stage:
    """A stage of a run's YAML; `number` is its position among those of its kind, `source` its input.

    A single source has the name "".
    """

    key: str
    number: int
    use: str
    name: str
    distribution: str
    options: Mapping[str, Plain]
    source: str = ""
    parts: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # of joined stages: kind and number

    def fits(self, component: Component) -> bool:
        """Return whether it is of the component's class."""
        offer = component.offer
        return self.use == offer.name and self.distribution in ("", offer.distribution)


def run_problem(folder: Path) -> str:
    """Return the reason why a folder cannot be used by `init`, with the fix; "" if it can."""
    name, fix = relative_path(folder), "name a folder that `seqpipe train` or `seqpipe run` wrote"
    if (folder / STATE).is_file() and (folder / YAML).is_file():
        checkpoints = folder / CHECKPOINTS
        if not (checkpoints / LAST).is_file():
            return f"the run {name} is not trained yet; train it first: seqpipe train {relative_path(folder / YAML)}"
        if not any(checkpoints.glob(BEST)):
            return f"the run {name} stopped before its first epoch ended; resume it first"
        return ""
    if (folder / BUNDLE).is_file():
        parent = folder.parent
        run = f", {relative_path(parent)}" if (parent / STATE).is_file() else ""
        return f"{name} is a bundle, which has no weights for training; name the run that it was exported from{run}"
    if folder.is_dir():
        return f"{name} is not a run (no {STATE}); {fix}"
    hint = ""
    local_run = Path("runs", folder.name)
    if (local_run / STATE).is_file():
        hint = f"; a path counts from the YAML's folder, and {local_run} is {os.path.abspath(local_run)}"
    return f"no such run (looked for {folder}){hint}; {fix}"


def relative_path(folder: Path) -> str:
    """Return a folder relative to the working directory, for messages."""
    return Path(os.path.relpath(folder)).as_posix()


def counterpart(component: Component, folder: Path) -> Stage:
    """Return the stage of a run from which a component is initialised: same kind, `use` and position.

    A head is first looked up by its name. If the stage at this position has another `use`, the only stage of the list
    with this `use` matches. The `number` of a target tokenizer is that of its head. A component with `joined_from` (the
    kind and `use` of each part, by name) is initialised from these stages of the run.

    Raises:
        UsageError: There is none; the message lists what the run has.
    """
    if joined_from := member(component.cls, "joined_from"):
        return _joined_stage(component, folder, joined_from)
    candidates = _stages(component, folder)
    fitting = [stage for stage in candidates if stage.fits(component)]
    named = [stage for stage in fitting if component.kind == "head" and stage.name == component.name]
    same_place = [stage for stage in fitting if _place(stage.key) == _place(component.key)]
    for matching in (named, same_place, fitting):
        if len(matching) == 1:
            return matching[0]
    has = ", ".join(f"{stage.key} {stage.use!r}" for stage in candidates) or "none"
    fix = "put both at the same position, or delete init" if fitting else "choose a `use` that it has, or delete init"
    noun = "target tokenizer" if component.key.endswith(_TARGET) else component.kind
    what = f"several {noun}s" if fitting else f"no {noun}"
    raise UsageError(f"the run {relative_path(folder)} has {what} {component.use!r} (it has: {has}); {fix}")


def _joined_stage(component: Component, folder: Path, joined_from: Mapping[str, tuple[str, str]]) -> Stage:
    stages: dict[str, tuple[str, Stage]] = {}
    for part, (kind, use) in joined_from.items():
        candidates = _stages_of_kind(kind, *_yaml(folder))
        fitting = [stage for stage in candidates if stage.use == use]
        if len(fitting) != 1:
            has = ", ".join(f"{stage.key} {stage.use!r}" for stage in candidates) or "none"
            what = f"{'several' if fitting else 'no'} {kind} {use!r} (it has: {has})"
            fix = f"{component.use!r} starts from one: name another run, or delete init"
            raise UsageError(f"the run {relative_path(folder)} has {what}; {fix}")
        stages[part] = kind, fitting[0]
    options = {name: value for _, stage in stages.values() for name, value in stage.options.items()}
    options.pop("dropout", None)
    key = " and ".join(stage.key for _, stage in stages.values())
    parts = {part: (kind, stage.number) for part, (kind, stage) in stages.items()}
    return Stage(key, 0, component.use, component.use, "", options, parts=parts)


def differing(component: Component, stage: Stage) -> list[str]:
    """Return the options, except paths, that differ between a component and its initial stage, as text."""
    options = {name: plain(value) for name, value in component.options.items() if not isinstance(value, Path)}
    return [
        f"{name} was {format_value(stage.options[name])} and is {format_value(value)}"
        for name, value in options.items()
        if name in stage.options and stage.options[name] != value
    ]


def _stages(component: Component, folder: Path) -> list[Stage]:
    """Return the stages of the component's kind in a run's YAML."""
    top, versions = _yaml(folder)
    if not component.key.endswith(_TARGET):
        return _stages_of_kind(component.kind, top, versions)
    tokenizers = []
    source, *_ = [*_stages_of_kind("tokenizer", top, versions), None]
    for head, keys in zip(_parse_stages("head", top["head"], versions), _as_list(top["head"]), strict=True):
        writer = keys.get("target_tokenizer")
        if writer == "same" and source is not None:
            tokenizers.append(replace(source, key=f"{head.key}{_TARGET}", number=head.number, name="", source=""))
        elif writer:
            (tokenizer,) = _parse_stages(f"{head.key}{_TARGET}", writer, versions)
            tokenizers.append(replace(tokenizer, number=head.number, name=""))
    return tokenizers


def _yaml(folder: Path) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Return the YAML of a run, and the package versions of its stages."""
    tree, problems = yaml.read_tree((folder / YAML).read_bytes(), str(folder / YAML))
    if problems or not isinstance(tree.data, dict):
        raise UsageError(f"{relative_path(folder / YAML)}: cannot be read, so the run is damaged; name another")
    top: dict[str, Any] = tree.data
    return top, (top.get("plugins") or {}).get("versions") or {}


def _stages_of_kind(kind: str, top: Mapping[str, Any], versions: Mapping[str, str]) -> list[Stage]:
    """Return the stages of a kind, of all sources."""
    inputs: Mapping[str, Any] = top.get("inputs") or {}
    if kind == "head" or not inputs:
        return _parse_stages(kind, top.get(kind), versions)
    stages: list[Stage] = []
    for name, keys in inputs.items():
        listed = _parse_stages(f"inputs.{name}.{kind}", keys.get(kind), versions)
        alone = name if len(inputs) > 1 else ""
        stages += [replace(stage, number=len(stages) + i, source=alone) for i, stage in enumerate(listed)]
    return stages


def _place(key: str) -> tuple[str, int]:
    """Return the source of a stage, and its position in that source's list, from its key."""
    steps = key.split(".")
    number = next((int(step) for step in steps if step.isdigit()), 0)
    return (steps[1] if steps[0] == "inputs" else ""), number


def _as_list(value: Any) -> Sequence[Mapping[str, Any]]:
    return value if isinstance(value, list) else [value] if value else []


def _parse_stages(key: str, value: Any, versions: Mapping[str, str]) -> list[Stage]:
    stages = []
    for number, keys in enumerate(_as_list(value)):
        where = f"{key}.{number}" if isinstance(value, list) else key
        use = str(keys["use"]).rpartition("/")[2]
        distribution = versions.get(where, "").rpartition(" ")[0]
        options = {name: option for name, option in keys.items() if name not in ALL_COMMON_KEYS}
        stages.append(Stage(where, number, use, str(keys.get("name") or use), distribution, options))
    return stages
