"""Components of a YAML: their construction, and their declarations."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seqpipe.answers.registry import TASKS, MultiHeadTask
from seqpipe.answers.task import HeadTask, check_settings
from seqpipe.answers.types import Array, Metric
from seqpipe.config.members import MEMBERS, REQUIRED
from seqpipe.config.plugins import Offer
from seqpipe.config.signature import DecodeOption, construct, keyword_options, optional_names
from seqpipe.errors import (
    ConfigError,
    PluginError,
    Problem,
    SeqpipeError,
    UsageError,
    did_you_mean,
    is_failed_allocation,
)
from seqpipe.features.kinds.base import FeatureKind
from seqpipe.features.parts import DataPath, paths_of

# A component that a YAML names, and the inputs of a pipeline.


@dataclass(frozen=True)
class Component:
    """One component of a YAML: its class, its options with all defaults, its common keys and its place.

    `common_keys` has those of its kind (name, field, target, weight, init, freeze, lr) with defaults; `init` is the
    absolute path of a run or None, and a head's `target_tokenizer` is a Component, "same" or None.
    """

    kind: str
    use: str
    options: Mapping[str, Any]
    common_keys: Mapping[str, Any]
    offer: Offer
    cls: type
    file: str = field(compare=False)
    line: int = field(compare=False)
    column: int = field(compare=False)
    key: str = field(compare=False)

    @property
    def name(self) -> str:
        """Name of the component: the common key `name`, else its `use`."""
        return self.common_keys.get("name") or self.offer.name

    @property
    def pairs(self) -> bool:
        """Return whether the tokenizer reads two texts of a record."""
        return isinstance(self.common_keys.get("field"), tuple)

    def problem(self, message: str) -> Problem:
        return Problem(self.file, self.line, self.column, self.key, message)

    def error(self, message: str) -> PluginError:
        """Return the error about a class that does not fit the contract."""
        return PluginError(f"{describe(self)}: {message}")


@dataclass(frozen=True)
class Input:
    """One input of a pipeline and the stages that read it; `name` is "" if the YAML gives none.

    Without a tokenizer its `field` contains numbers.
    """

    name: str
    field: str | None
    tokenizer: Component | None
    embedding: tuple[Component, ...]
    encoder: tuple[Component, ...]

    @property
    def stages(self) -> tuple[Component, ...]:
        return (*self.embedding, *self.encoder)

    @property
    def pairs(self) -> bool:
        """Return whether its tokenizer reads two texts of a record."""
        return self.tokenizer is not None and self.tokenizer.pairs


def by_source(inputs: Sequence[Input]) -> dict[str, Input]:
    """Return the inputs by the prefix of their features: "" for a single input, else the input's name."""
    if len(inputs) == 1:
        return {"": inputs[0]}
    return {source.name: source for source in inputs}


def describe(component: Component) -> str:
    """Return a component's description for messages: kind, `use` and distribution."""
    return f"{component.kind} {component.use!r} of {component.offer.distribution}"


def build_component(component: Component, *wired: Any) -> Any:
    """Construct a component from its wired arguments and its options.

    Raises:
        ConfigError: if the constructor raises UsageError about its options, at the component's place in the YAML.
        PluginError: if it raises any exception other than seqpipe's own.
    """
    try:
        return construct(component.cls, *wired, **component.options)
    except UsageError as error:
        raise ConfigError([component.problem(f"{describe(component)}: {error}")]) from error
    except SeqpipeError:
        raise
    except Exception as error:  # a plugin may raise any exception
        if is_failed_allocation(error):
            sizes = {key: value for key, value in component.options.items() if type(value) is int}
            fix = "; lower {}, which is {:,}".format(*max(sizes.items(), key=lambda item: item[1])) if sizes else ""
            message = f"{describe(component)}: its weights do not fit into memory{fix}"
            raise ConfigError([component.problem(message)]) from error
        message = f"its constructor raised {type(error).__name__}: {error} (--debug shows where)"
        raise PluginError(f"{component.key}: {describe(component)}: {message}") from error


# Only this part reads the members of components.
#
# A name similar to one of `MEMBERS` is a misspelling. `seqpipe plugins check` refuses it; `seqpipe check` refuses it
# for a required member and warns otherwise.

Metrics = Callable[[Sequence[Any], Sequence[Any]], Mapping[str, float]]  # gold and predicted answers to scores


def member(component: Any, name: str) -> Any:
    """Return a member of a component's class or of the module built from it, or the default of `MEMBERS`.

    Raises:
        KeyError: `MEMBERS` does not list the name, so nothing may read it.
    """
    default = MEMBERS[name].default
    return getattr(component, name, None if default is REQUIRED else default)


def has_member(component: Any, name: str) -> bool:
    """Return whether a component's class, or the module built from it, has this member of `MEMBERS` itself."""
    if name not in MEMBERS:
        raise KeyError(name)
    return hasattr(component, name)


def changes_by_epoch(reader: Any, source: DataPath) -> bool:
    """Return whether a reader yields other records of a source in each epoch."""
    return has_member(reader, "epoch") and any(map(reader.changes, paths_of(source)))


def is_quadratic(stage: Component) -> bool:
    """Return whether a stage costs the square of the length of a text; PluginError for another declaration."""
    cost = declaration(stage, "length_cost")
    if cost not in ("linear", "quadratic"):
        raise stage.error(f"its `length_cost` must be linear or quadratic, not {cost!r}")
    return bool(cost == "quadratic")


def under_options(cls: type, name: str, options: Mapping[str, Any]) -> Any:
    """Return a member of a component's class; call it with the options if it is a static method of the options."""
    value = member(cls, name)
    return value(dict(options)) if MEMBERS[name].by_options and callable(value) else value


def declaration(component: Component, name: str) -> Any:
    """Return a member of a component's class under its options; PluginError if that raises."""
    try:
        return under_options(component.cls, name, component.options)
    except Exception as error:  # a plugin may raise any exception
        raise component.error(f"`{name}` raised {type(error).__name__}: {error}") from error


def misspelt_members(cls: type, place: str) -> list[tuple[str, str]]:
    """Return public names of a class that look like misspelt members of its place, each with that member.

    Inflected forms of a member's name are not misspellings: `scores` beside `score`, `decided` beside `decide`.
    """
    members = [name for name, entry in MEMBERS.items() if place in entry.places]
    defined: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        if base.__module__.partition(".")[0] not in ("torch", "builtins", "typing", "abc"):
            defined |= vars(base)
    misspelt = []
    for name in sorted(defined.keys() - MEMBERS.keys()):
        if name.startswith("_"):
            continue
        close = difflib.get_close_matches(name.lower(), members, 1, 0.8)
        if not close or close[0] in defined:
            continue
        right = close[0]
        is_method = callable(defined[name]) or isinstance(defined[name], (staticmethod, classmethod, property))
        word = right if right.endswith("ss") else right.removesuffix("s")
        if not (is_method and name in (word, *(f"{word}{ending}" for ending in ("s", "d", "ed", "ing")))):
            misspelt.append((name, right))
    return misspelt


def decode_options(cls: type) -> dict[str, DecodeOption]:
    """Return the decode options of a head, from the keyword-only parameters of its `decide`; {} without `decide`."""
    decide = member(cls, "decide")
    return keyword_options(cls, decide) if decide is not None else {}


def declared_features(stage: Component) -> Mapping[str, FeatureKind]:
    """Return the features that a stage declares; PluginError if they are not a dict of features."""
    features = declaration(stage, "features")
    if not isinstance(features, Mapping):
        raise stage.error(f"its `features` must be a dict from names to features, not {type(features).__name__}")
    for name, feature in features.items():
        if not isinstance(feature, FeatureKind):
            raise stage.error(f"its feature {name!r} must be one such as seqpipe.plugin.Chars(), not {feature!r}")
    return features


def is_self_supervised(head: Component) -> bool:
    """Return whether a head is self-supervised: its records need no target."""
    return bool(declaration(head, "self_supervised"))


def declared_corrupted_inputs(head: Component) -> tuple[str, ...]:
    """Return the names that a head's `corrupt_batch` replaces or adds before the first stage.

    Raises:
        PluginError: They are not a tuple of names.
    """
    names = declaration(head, "corrupted_inputs")
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
        raise head.error(f"its `corrupted_inputs` must be a tuple such as ('ids', 'mask'), not {names!r}")
    return tuple(names)


def state_source(source: Input) -> str:
    """Return the source whose final state is the initial state of this source's encoders; "" if there is none."""
    names = (str(declaration(stage, "state_source")) for stage in source.encoder)
    return next(filter(None, names), "")


def read_by_heads(inputs: Sequence[Input]) -> tuple[Input, ...]:
    """Return the sources that heads read: all except those whose state initialises another source."""
    states = {state_source(source) for source in inputs}
    return tuple(source for source in inputs if not source.name or source.name not in states)


def run_order(inputs: Sequence[Input]) -> tuple[Input, ...]:
    """Return the sources, each after the one whose state initialises it, without those of a cycle."""
    ordered: dict[str, Input] = {}
    for _ in inputs:
        for source in inputs:
            if state_source(source) in ("", *ordered):
                ordered.setdefault(source.name, source)
    return tuple(ordered.values())


def can_copy(head: Component) -> bool:
    """Return whether a head may copy words of its input."""
    return any(feature.copies_tokens for feature in declared_features(head).values())


def is_language_model_head(head: Component) -> bool:
    """Return whether a head is a language model: it has no target and reads the stages through `incremental`."""
    return has_member(head.cls, "corpus")


def dev_option(head: Component) -> str:
    """Return the option by which a head chooses a value on dev data; "" if it chooses none."""
    needs = member(head.cls, "needs_dev")
    return str(needs(dict(head.options))) if needs else ""


def declared_inactive_options(head: Component) -> tuple[str, ...]:
    """Return the inactive decode options under a head's options, which a bundle does not list."""
    names = member(head.cls, "inactive_options")
    return tuple(names(dict(head.options))) if names else ()


def head_metrics(cls: type, options: Mapping[str, Any], whose: str) -> Metrics | None:
    """Return a head's own `metrics(options, gold, predicted)`, checked when called; None if it has none."""
    function = member(cls, "metrics")
    if function is None:
        return None

    def metrics(gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        try:
            scores = function(dict(options), gold, predicted)
            return {str(name): float(value) for name, value in scores.items()}
        except Exception as error:  # a plugin may raise any exception
            raise PluginError(f"{whose}: `metrics` raised {type(error).__name__}: {error}") from error

    return metrics


def invalidated_names(returned: Iterable[str]) -> set[str]:
    """Return the names invalidated by an encoder's outputs: they describe the x of an earlier stage."""
    returned = set(returned)
    return {"window", "other_window", "other_x"} - returned if "x" in returned else set()


def expected_outputs(cls: type, available: Iterable[str]) -> list[str]:
    """Return the names that an encoder's `forward` must return: its `returns`, without those of missing inputs."""
    lacking = optional_names(member(cls, "forward")).difference(available) if has_member(cls, "forward") else set()
    return [name for name in member(cls, "returns") if name not in lacking]


def stated_shapes(cls: type) -> dict[str, tuple[str, str]]:
    """Return shape and dtype of the names in a stage's `returns` that declare them, from "(B, T, H) float32"."""
    returns = member(cls, "returns")
    if not isinstance(returns, Mapping):
        return {}
    parts = {name: str(stated).rpartition(" ") for name, stated in returns.items() if stated}
    return {name: (shape, dtype) for name, (shape, _, dtype) in parts.items()}


def replaces_mask(stage: Component) -> bool:
    """Return whether an encoder replaces the rows of tokens with others, and their mask."""
    return "mask" in member(stage.cls, "returns")


# The answer of a head: its answer kind, the settings of that kind, and its own metrics.

Arrays = Mapping[str, Array]
TARGETS: Arrays = {name: array for task in TASKS.values() for name, array in task.targets.items()}
DECIDED: Arrays = {name: array for task in TASKS.values() for name, array in task.kind_type.decided.items()}


@dataclass(frozen=True)
class HeadArrays:
    """Arrays that an answer kind passes to a head's methods; by default those of all kinds."""

    targets: Arrays = field(default_factory=lambda: TARGETS)  # names that `loss` may ask for
    decided: Arrays = field(default_factory=lambda: DECIDED)  # names that `decide` may return, and `score` ask for
    task: type[HeadTask] | None = None


def head_arrays(head: Component) -> HeadArrays:
    """Return the arrays of a head's methods; PluginError if it declares no valid answer kind."""
    task, settings = task_class(head), answer_settings(head)
    return HeadArrays(task.declared_targets(settings), task.declared_decided(settings), task)


def task_class(head: Component) -> type[HeadTask]:
    """Return the task class of a head's answer kind; PluginError if its class names none."""
    name = declaration(head, "answer")
    if isinstance(name, str) and name in TASKS:
        return TASKS[name]
    fault = "its class has no `answer`" if name is None else f"`answer` is {name!r}{did_you_mean(str(name), TASKS)}"
    raise head.error(f"{fault}; an answer kind is one of {', '.join(TASKS)}")


def answer_settings(head: Component) -> dict[str, Any]:
    """Return a head's settings for its answer kind, with the kind's defaults; PluginError if they do not fit."""
    settings = declaration(head, "answer_settings")
    if not isinstance(settings, Mapping):
        raise head.error(f"its `answer_settings` must return a dict, not {type(settings).__name__}")
    try:
        return check_settings(task_class(head), settings)
    except ValueError as error:
        raise head.error(f"`answer_settings`: {error}") from error


def reads_every_token(head: Component) -> bool:
    """Return whether all tokens of a text are read, including those of white space only."""
    return bool(answer_settings(head).get("every_token", task_class(head).kind_type.every_token))


def metric_types(heads: Iterable[Component]) -> dict[str, Metric]:
    """Return the metrics of these heads by name: those of their answer kinds, and the heads' own."""
    metrics = {**MultiHeadTask.metrics, "loss": Metric(percent=False, more_is_better=False)}
    for head in heads:
        metrics |= task_class(head).declared_metrics(answer_settings(head))
        metrics |= member(head.cls, "score_types")
    return metrics


# How a language-model head reads its training texts.


@dataclass(frozen=True)
class CorpusSettings:
    """Settings that a language-model head declares in its `corpus`."""

    packed: bool  # whether the records are one token corpus, cut into windows anywhere; else each is a separate text
    context: int  # number of tokens of a window
    stateful: bool  # whether recurrent states are carried from a window to the next (truncated BPTT)


def corpus_settings(head: Component) -> CorpusSettings | None:
    """Return how a head reads its corpus under its options; None for a head that is not a language model.

    Raises:
        PluginError: It does not declare all three settings.
    """
    settings = declaration(head, "corpus")
    if settings is None:
        return None
    try:
        return CorpusSettings(**settings)
    except TypeError as error:
        raise head.error(f"its `corpus` must be a dict of packed, context and stateful, not {settings!r}") from error
