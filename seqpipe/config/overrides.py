"""Overrides such as `train.epochs=3`, written into the tree of a YAML as if they stood in the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seqpipe.config import yaml
from seqpipe.config.schema import STAGES
from seqpipe.config.yaml import Path as Where
from seqpipe.config.yaml import Spot, Tree
from seqpipe.config.yaml_text import Plain, shown
from seqpipe.errors import ConfigError, Problem

_COMPONENTS = ("reader", "tokenizer", *STAGES, "target_tokenizer", "optimizer", "schedule")


def override(tree: Tree, text: str) -> list[Problem]:
    """Writes one `a.b=c` into the tree; what is wrong with it otherwise."""
    spot = Spot(f"--set {text}", 0, 0)
    key, equals, value = text.partition("=")
    steps = key.strip().split(".")
    if not equals or not all(steps):
        return [Problem(spot.file, 0, 0, "", "an override is key=value, such as train.epochs=3")]
    if not isinstance(tree.data, dict):
        return []  # the file is reported to be no mapping
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
    """What holds the last step, and the full path; mappings that are not there yet are made on the way."""
    holder: Any = tree.data
    path: Where = ()
    if steps[0] in STAGES and steps[1:2] == ["0"] and not isinstance(holder.get(steps[0]), list):
        steps = [steps[0], *steps[2:]]  # a component alone is the first of its list
    for number, step in enumerate(steps):
        at: str | int = step
        if isinstance(holder, list):
            if not step.isdecimal() or int(step) >= len(holder):
                raise LookupError(
                    f"{yaml.key_text(path)!r} has {len(holder)} entries; write a number from 0 to {len(holder) - 1}"
                )
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
            raise LookupError(f"{yaml.key_text(path)!r} is {shown(child)}, which has no keys")
        holder[at] = child
        holder = child
    return holder, path
