"""The key `needs` of one YAML: folders that the pipeline starts from, and where each comes from if it is not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from seqpipe.config.checks.keys import KeyChecks
from seqpipe.config.schema import NeedKeys
from seqpipe.config.type_words import unlike
from seqpipe.config.yaml_text import Plain
from seqpipe.errors import Problem


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
