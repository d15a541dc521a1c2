"""The one place that reads the members of components.

A member that is nearly one of `MEMBERS` is a misspelling, which `seqpipe check` and `seqpipe plugins check` refuse.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from seqpipe.config.component import Component, Input, describe
from seqpipe.config.members import MEMBERS, REQUIRED
from seqpipe.config.signature import DecodeOption, keyword_options, optional_names
from seqpipe.errors import PluginError
from seqpipe.features.kinds.base import FeatureKind

Metrics = Callable[[Sequence[Any], Sequence[Any]], Mapping[str, float]]  # gold and predicted answers to scores


NEAR = 0.8  # similarity from which a name is taken for a misspelling
HELPERS = ("message", "record")  # names of helper methods that are nearly a member's


def member(component: Any, name: str) -> Any:
    """A member of a component's class or of the module built from it, or the default of `MEMBERS`.

    Raises:
        KeyError: `MEMBERS` does not list the name: then nothing may look for it.
    """
    default = MEMBERS[name].default
    return getattr(component, name, None if default is REQUIRED else default)


def has_member(component: Any, name: str) -> bool:
    """Whether a component's class, or the module built from it, has this member of `MEMBERS` itself."""
    if name not in MEMBERS:
        raise KeyError(name)
    return hasattr(component, name)


def under_options(cls: type, name: str, options: Mapping[str, Any]) -> Any:
    """A member of a component's class; if it may be a static method of the options and is one, what that returns."""
    value = member(cls, name)
    return value(dict(options)) if MEMBERS[name].by_options and callable(value) else value


def declaration(component: Component, name: str) -> Any:
    """A member of a component's class under its options; PluginError if reading it raises."""
    try:
        return under_options(component.cls, name, component.options)
    except Exception as error:  # a plugin may raise anything at all
        reason = f"{type(error).__name__}: {error}"
        raise PluginError(f"{describe(component)}: `{name}` raised {reason}") from error


def misspelt_members(cls: type, place: str) -> list[tuple[str, str]]:
    """The public names that a class defines and that are nearly a member of its place, each with that member."""
    members = [name for name, entry in MEMBERS.items() if place in entry.places]
    defined = {name for base in cls.__mro__[:-1] if not _is_library(base) for name in vars(base)}
    misspelt = []
    for name in sorted(defined - MEMBERS.keys()):
        if name.startswith("_") or name in HELPERS:
            continue
        close = difflib.get_close_matches(name.lower(), members, 1, NEAR)
        if close and close[0] not in defined:
            misspelt.append((name, close[0]))
    return misspelt


def _is_library(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in ("torch", "builtins", "typing", "abc")


def decode_options(cls: type) -> dict[str, DecodeOption]:
    """The decode options of a head, from the keyword-only parameters of its `decide`; none if it has no `decide`."""
    decide = member(cls, "decide")
    return keyword_options(cls, decide) if decide is not None else {}


def declared_features(stage: Component) -> Mapping[str, FeatureKind]:
    """The features that a stage declares; PluginError if they are no dict of features."""
    features = declaration(stage, "features")
    if not isinstance(features, Mapping):
        message = f"its `features` must be a dict from names to features, not {type(features).__name__}"
        raise PluginError(f"{describe(stage)}: {message}")
    for name, feature in features.items():
        if not isinstance(feature, FeatureKind):
            message = f"its feature {name!r} must be one such as seqpipe.Chars(), not {feature!r}"
            raise PluginError(f"{describe(stage)}: {message}")
    return features


def is_self_supervised(head: Component) -> bool:
    """Whether a head learns from the text itself: its records need no target."""
    return bool(declaration(head, "self_supervised"))


def declared_corrupted_inputs(head: Component) -> tuple[str, ...]:
    """The names that a head's `corrupt_batch` replaces or adds before the first stage.

    Raises:
        PluginError: They are no tuple of names.
    """
    names = declaration(head, "corrupted_inputs")
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
        message = f"its `corrupted_inputs` must be a tuple of names such as ('ids', 'target_ids'), not {names!r}"
        raise PluginError(f"{describe(head)}: {message}")
    return tuple(names)


def special_tokens(head: Component) -> tuple[str, ...]:
    """The tokens that a head needs in the vocabulary of its input besides those that every one has."""
    return tuple(declaration(head, "special_tokens"))


def state_source(source: Input) -> str:
    """The other source whose state the encoders of a source start from; "" if there is none."""
    names = (str(declaration(stage, "state_source")) for stage in source.encoder)
    return next(filter(None, names), "")


def read_by_heads(inputs: Sequence[Input]) -> tuple[Input, ...]:
    """The sources that heads read: all but those whose state another source starts from."""
    states = {state_source(source) for source in inputs}
    return tuple(source for source in inputs if not source.name or source.name not in states)


def run_order(inputs: Sequence[Input]) -> tuple[Input, ...]:
    """The sources, each behind the one whose state it starts from; those of a cycle are left out."""
    ordered: dict[str, Input] = {}
    for _ in inputs:
        for source in inputs:
            if state_source(source) in ("", *ordered):
                ordered.setdefault(source.name, source)
    return tuple(ordered.values())


def can_copy(head: Component) -> bool:
    """Whether a head may copy words of its input."""
    return any(feature.copies_tokens for feature in declared_features(head).values())


def is_language_model_head(head: Component) -> bool:
    """Whether a head is a language model: it has no target and reads the stages through `incremental`."""
    return has_member(head.cls, "corpus")


def dev_option(head: Component) -> str:
    """The option of a head under which it chooses something on dev data; "" if it chooses nothing."""
    needs = member(head.cls, "needs_dev")
    return str(needs(dict(head.options))) if needs else ""


def declared_inactive_options(head: Component) -> tuple[str, ...]:
    """The decode options without effect under a head's options, which a bundle then does not list."""
    names = member(head.cls, "inactive_options")
    return tuple(names(dict(head.options))) if names else ()


def head_metrics(cls: type, options: Mapping[str, Any], whose: str) -> Metrics | None:
    """A head's own `metrics(options, gold, predicted)`, checked when called; None if it has none."""
    function = member(cls, "metrics")
    if function is None:
        return None

    def metrics(gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        try:
            scores = function(dict(options), gold, predicted)
            return {str(name): float(value) for name, value in scores.items()}
        except Exception as error:  # a plugin may raise anything at all
            raise PluginError(f"{whose}: `metrics` raised {type(error).__name__}: {error}") from error

    return metrics


_OF_X = ("window", "other_window", "other_x")  # what is known of the tokens of one x


def invalidated_names(returned: Iterable[str]) -> set[str]:
    """The names that hold no longer when an encoder returns these: they describe the x of an earlier one."""
    returned = set(returned)
    return set(_OF_X) - returned if "x" in returned else set()


def expected_outputs(cls: type, available: Iterable[str]) -> list[str]:
    """What an encoder's `forward` has to return: its `returns`, but for optional parameters that it is not given."""
    lacking = optional_names(member(cls, "forward")).difference(available) if has_member(cls, "forward") else set()
    return [name for name in member(cls, "returns") if name not in lacking]


def stated_shapes(cls: type) -> dict[str, tuple[str, str]]:
    """Shape and dtype of each returned name of which a stage's `returns` says them, as "(B, T, H) float32"."""
    returns = member(cls, "returns")
    if not isinstance(returns, Mapping):
        return {}
    parts = {name: str(stated).rpartition(" ") for name, stated in returns.items() if stated}
    return {name: (shape, dtype) for name, (shape, _, dtype) in parts.items()}


def replaces_mask(stage: Component) -> bool:
    """Whether an encoder returns rows of its own in place of the tokens, with a mask of their own."""
    return "mask" in member(stage.cls, "returns")
