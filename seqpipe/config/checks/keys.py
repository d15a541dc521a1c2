"""Checks of the keys of one YAML: every mistake becomes a Problem with its place, its key and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from seqpipe.config import yaml
from seqpipe.config.option_models import Mistake, Model, validate
from seqpipe.config.type_words import unlike
from seqpipe.config.yaml import Path as Where
from seqpipe.config.yaml import Tree
from seqpipe.config.yaml_text import Plain
from seqpipe.errors import Problem, nearest

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
            hint = nearest(key, known) or there_is(known)
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
                hint = _renamed(key, known) or nearest(key, known) or there_is(known)
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
