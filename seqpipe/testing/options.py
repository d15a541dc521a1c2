"""The checks that every kind of component shares: options that a YAML can hold, members that are spelt right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seqpipe.config import yaml
from seqpipe.config.contract import misspelt_members
from seqpipe.config.signature import options_model, validate, values
from seqpipe.config.yaml_text import dump, plain
from seqpipe.errors import PluginError
from seqpipe.testing.report import Check, FaultError

ROUND_TRIP, UNKNOWN, MEMBERS = "options round-trip", "unknown option refused", "members are spelt right"
_SIGNATURE = (
    "What the pipeline wires in comes by position (dim, vocabulary, sizes, labels, target_vocabulary); options stand "
    "after a '*', each with a type and, if it may be left out, its default: def __init__(self, dim, *, hidden: int = 8)"
)
_MEMBERS = "Correct the name; a member of your own that is no part of the contract may begin with an underscore"
_PLAIN = (
    "Give the option a type that plain YAML data has (int, float, bool, str, Path, a list or tuple of them, a dict, "
    "Literal, or … | None) and make of it what you need in the constructor, not in the type"
)


@dataclass(frozen=True)
class Subject:
    """A component under test: a class of one of the five kinds, and its options."""

    kind: str
    cls: type
    options: Mapping[str, Any]

    @property
    def chosen(self) -> dict[str, Any]:
        """The options as the component gets them from a YAML, every default included."""
        return _read(self, plain(dict(self.options)))


def option_checks(subject: Subject) -> list[Check]:
    return [
        Check(ROUND_TRIP, lambda: _round_trip(subject), _PLAIN),
        Check(UNKNOWN, lambda: _unknown_refused(subject), _SIGNATURE),
    ]


def member_check(subject: Subject) -> Check:
    """The check of a class's own members, for kinds that may leave members of the contract out."""
    return Check(MEMBERS, lambda: _spelt_right(subject), _MEMBERS)


def _spelt_right(subject: Subject) -> None:
    """A member that seqpipe does not look for has no effect, and nothing else would say so."""
    if misspelt := misspelt_members(subject.cls, subject.kind):
        raise FaultError("; ".join(f"{name!r} is not read; {right!r} is" for name, right in misspelt), _MEMBERS)


def _round_trip(subject: Subject) -> None:
    """What is written into the resolved YAML of a run has to be read as the same options again."""
    first = subject.chosen
    second = _read(subject, yaml.parse(dump(plain(first)).encode(), "options").data or {})
    for name, value in first.items():
        if value != second[name] or type(value) is not type(second[name]):
            raise FaultError(
                f"option {name!r} is {value!r} at first, and {second[name]!r} when the YAML that a run saves is read",
                _PLAIN,
            )


def _unknown_refused(subject: Subject) -> None:
    name = "no_such_option"
    try:
        _, mistakes = validate(options_model(subject.cls), {**plain(dict(subject.options)), name: 1})
    except PluginError as error:
        raise FaultError(str(error), _SIGNATURE) from error
    if not any(mistake.kind == "unknown" and mistake.where == (name,) for mistake in mistakes):
        raise FaultError(f"option {name!r} is taken without a word, and so would a misspelt one be", _SIGNATURE)


def _read(subject: Subject, options: Mapping[str, Any]) -> dict[str, Any]:
    try:
        instance, mistakes = validate(options_model(subject.cls), options)
    except PluginError as error:
        raise FaultError(str(error), _SIGNATURE) from error
    if instance is None:
        words = {"unknown": "there is no such option", "missing": "it has no default and was not given"}
        mistake_texts = [f"{'.'.join(map(str, m.where))}: {words.get(m.kind, m.message)}" for m in mistakes]
        raise FaultError(
            f"these options do not fit: {'; '.join(mistake_texts)}",
            "Give the component's own options by keyword, as a YAML would",
        )
    return values(instance)
