"""The component contract: every member that seqpipe looks for on a component, and the one place that reads them.

A component is any class of the right shape; it need not inherit from anything. `MEMBERS` lists what seqpipe reads, with
the default that holds where a class leaves a member out. A member that is nearly one of them is a misspelling, which
`seqpipe check` and `seqpipe plugins check` refuse. The tables of docs/reference/contract.md are made from it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seqpipe.config.component import Component, describe
from seqpipe.config.signature import DecodeOption, keyword_options, optional_names
from seqpipe.errors import PluginError, nearest

Metrics = Callable[[Sequence[Any], Sequence[Any]], Mapping[str, float]]  # gold and predicted answers to scores

STAGE = ("embedding", "encoder", "head")
REQUIRED = object()  # default of a member that every class of its place has
ABSENT = None  # default of a member that a class may leave out


@dataclass(frozen=True)
class Member:
    """One member of a component class or of what is built from it.

    Args:
        places: The kinds of component that may have it.
        form: What it is: an attribute of the class or of the instance, a method, a static method.
        type: Its type, or a method's signature.
        meaning: What it says, one sentence.
        default: What holds where it is left out.
        by_options: Whether a static method of the options may stand in its place.
    """

    places: tuple[str, ...]
    form: str
    type: str
    meaning: str
    default: Any = ABSENT
    by_options: bool = False


MEMBERS: Mapping[str, Member] = {
    # readers
    "read": Member(("reader",), "method", "(path) -> iterator of records", "Read a file record by record.", REQUIRED),
    "fields": Member(("reader",), "class attribute", "tuple of str", "The fields that its records may have."),
    "records": Member(
        ("reader",), "method", "(lines, name) -> iterator of records", "Read lines of text, such as standard input."
    ),
    "files": Member(("reader",), "method", "(path) -> list of paths", "Every file that belongs to a path."),
    "changes": Member(("reader",), "method", "(path) -> bool", "Whether each epoch has other records.", ABSENT),
    "epoch": Member(("reader",), "method", "(path, number) -> iterator of records", "The records of one epoch."),
    # tokenizers
    "train": Member(
        ("tokenizer",), "method", "(texts) -> tokenizers.Tokenizer", "Fit a tokenizer to the training texts.", REQUIRED
    ),
    # every stage
    "features": Member(
        STAGE,
        "class attribute",
        "dict from names to features",
        "Features it needs besides ids and mask.",
        {},
        True,
    ),
    "returns": Member(
        ("embedding", "encoder"),
        "class attribute",
        "tuple of names, or dict from names to a shape and a dtype",
        "What `forward` returns.",
        ("x",),
    ),
    "explains": Member(
        ("embedding", "encoder", "head"),
        "class attribute",
        "dict from names to words, sentences, pairs, written or steps",
        "Which returned arrays are attention weights, and over what.",
        {},
        True,
    ),
    "dim": Member(("embedding", "encoder"), "attribute", "int", "Width of the x that it returns.", REQUIRED),
    "forward": Member(
        ("embedding", "encoder"), "method", "(names…) -> x or a dict", "Compute x from the names it asks for.", REQUIRED
    ),
    "rows": Member(
        STAGE, "attribute", "dict from parameters to axes", "Which rows of a parameter belong to which names.", {}
    ),
    "join_state": Member(STAGE, "method", "(state) -> state", "Join the parts of a state for `init`.", dict),
    "split_state": Member(STAGE, "method", "(state) -> state", "The inverse of `join_state`.", dict),
    "joined_from": Member(
        STAGE, "class attribute", "dict from parts to kind and use", "The stages of a run that `init` joins.", ABSENT
    ),
    "learning_rate_factor": Member(
        STAGE, "method", "(parameter name) -> float", "Factor of the learning rate of a parameter.", lambda name: 1.0
    ),
    "messages": Member(STAGE, "method", "() -> list of str", "Messages printed before training.", ABSENT),
    "example_length": Member(
        STAGE, "attribute", "int or None", "A length of text that export has to compare as well.", ABSENT
    ),
    "first_tokens": Member(("encoder",), "attribute", "int", "The most tokens of the first text of a pair.", ABSENT),
    # embeddings and encoders of a language model
    "tokenwise": Member(
        ("embedding",), "class attribute", "bool", "Whether a token's vector depends on that token alone.", False
    ),
    "embed": Member(
        ("encoder",), "method", "(ids) -> dict", "Of an encoder without an embedding: the vectors of tokens.", ABSENT
    ),
    "causal_fix": Member(
        ("encoder",),
        "static method",
        "(options) -> str",
        "Of a causal encoder: the setting that it lacks to be causal, or an empty string.",
        ABSENT,
    ),
    "cache_shape": Member(
        ("encoder",), "attribute", "(int, int)", "Shape of a slot of its cache: one a token, or one."
    ),
    "import_cache": Member(("encoder",), "method", "(cache) -> memory", "Import the cache from an input of the graph."),
    "export_cache": Member(
        ("encoder",), "method", "(prefix, state, slots) -> Tensor", "Export the cache as an output of the graph."
    ),
    "prefill": Member(
        ("encoder",), "method", "(x, mask, prefix) -> x and memory", "Read several tokens of a prompt at once."
    ),
    "init_cache": Member(
        ("encoder",), "method", "(prefix, max_length) -> state", "Create the state of a decoding loop."
    ),
    "step": Member(("encoder",), "method", "(x, t, prefix, state) -> x and state", "Decode one token."),
    "max_length": Member(("encoder",), "attribute", "int or None", "The most tokens of a text.", ABSENT),
    "set_stateful": Member(
        ("encoder",), "method", "(rows or None)", "Start or stop carrying states across batches.", ABSENT
    ),
    "carried_state": Member(("encoder",), "attribute", "Tensor or None", "The states that are carried.", ABSENT),
    # heads
    "answer": Member(("head",), "class attribute", "str", "The answer kind.", ABSENT, True),
    "loss": Member(("head",), "method", "(names…) -> Tensor", "The training loss, one number.", REQUIRED),
    "decide": Member(
        ("head",), "method", "(names…, *, options) -> dict", "The decision, inside the exported graph.", REQUIRED
    ),
    "score": Member(("head",), "method", "(names…) -> (B,)", "Log-probability of a decision.", ABSENT),
    "margin": Member(("head",), "method", "(names…) -> (B,)", "Distance to another decision.", ABSENT),
    "explain": Member(("head",), "method", "(names…) -> dict", "Attention weights of a decision.", ABSENT),
    "metrics": Member(("head",), "static method", "(options, gold, predicted) -> dict", "Metrics of its own.", ABSENT),
    "needs_dev": Member(
        ("head",), "static method", "(options) -> str", "The option under which it chooses something on dev.", ABSENT
    ),
    "evidence": Member(("head",), "method", "(names…) -> dict", "Rows of a dev batch to choose from.", ABSENT),
    "calibrate": Member(("head",), "method", "(evidence)", "Choose on dev, into buffers.", ABSENT),
    "calibration": Member(("head",), "method", "() -> JSON", "What was chosen.", ABSENT),
    "inactive_options": Member(
        ("head",),
        "static method",
        "(options) -> list of str",
        "Decode options without effect under these options.",
        ABSENT,
    ),
    "corpus": Member(
        ("head",),
        "static method",
        "(options) -> dict",
        "Of a language model: packed, context and stateful, how it reads its training texts.",
        ABSENT,
        True,
    ),
    "self_supervised": Member(("head",), "class attribute", "bool", "Whether it is self-supervised.", False, True),
    "corrupted_inputs": Member(
        ("head",), "class attribute", "tuple of names", "What `corrupt_batch` replaces or adds.", (), True
    ),
    "corrupt_batch": Member(("head",), "method", "(names…) -> dict", "Corrupt the inputs of a batch.", ABSENT),
    "measures": Member(("head",), "method", "(names…) -> dict", "Sums and counts of its own dev scores.", ABSENT),
    "special_tokens": Member(
        ("head",), "class attribute", "tuple of str", "Further special tokens of the vocabulary.", (), True
    ),
    "fill_mask": Member(
        ("head",), "static method", "(options) -> dict", "Of a masked language model: the mask and its share.", ABSENT
    ),
    "span_corruption": Member(
        ("head",), "static method", "(options) -> dict", "Of span corruption: share and mean length.", ABSENT
    ),
    "adds_bos": Member(("head",), "attribute", "bool", "Of a language model: whether [BOS] begins a text.", ABSENT),
}

NEAR = 0.8  # similarity from which a name is taken for a misspelling
HELPERS = ("record",)  # names of helper methods that are nearly a member's


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
    own = {name for base in cls.__mro__[:-1] if not _is_library(base) for name in vars(base)}
    found = []
    for name in sorted(own - MEMBERS.keys()):
        if name.startswith("_") or name in HELPERS:
            continue
        close = difflib.get_close_matches(name.lower(), members, 1, NEAR)
        if close and close[0] not in own:
            found.append((name, close[0]))
    return found


def _is_library(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in ("torch", "builtins", "typing", "abc")


def decode_options(cls: type) -> dict[str, DecodeOption]:
    """The decode options of a head, from the keyword-only parameters of its `decide`; none if it has no `decide`."""
    decide = member(cls, "decide")
    return keyword_options(cls, decide) if decide is not None else {}


def declared_features(stage: Component) -> Mapping[str, Any]:
    """The features that a stage declares; PluginError if they are no dict."""
    features = declaration(stage, "features")
    if not isinstance(features, Mapping):
        message = f"its `features` must be a dict from names to features, not {type(features).__name__}"
        raise PluginError(f"{describe(stage)}: {message}")
    return features


@dataclass(frozen=True)
class Answer:
    """What a head's `loss` gets for an answer kind, and what its `decide` returns."""

    targets: tuple[str, ...]
    decided: tuple[str, ...]
    has_labels: bool


_TAGS = Answer(("tags",), ("tags", "scores", "opens", "closes", "paths", "path_scores"), True)
ANSWERS: Mapping[str, Answer] = {
    "tags": _TAGS,
    "spans": _TAGS,
    "label": Answer(("label",), ("label", "scores"), True),
    "labels": Answer(("label",), ("labels", "scores"), True),
    "score": Answer(("score",), ("score",), False),
    "text": Answer(("target_ids", "target_mask"), ("tokens", "scores"), False),
    "pointers": Answer(("pointers", "pointers_mask"), ("pointers", "scores"), False),
    "vector": Answer(("label",), ("vector",), True),
    "span": Answer(("start", "end"), ("starts", "ends", "scores"), False),
}


def answer_kind(head: Component) -> str:
    """The head's answer kind; PluginError if it is none of `ANSWERS`."""
    answer = declaration(head, "answer")
    if isinstance(answer, str) and answer in ANSWERS:
        return answer
    said = "its class has no `answer`" if answer is None else f"`answer` is {answer!r}{nearest(str(answer), ANSWERS)}"
    raise PluginError(f"{describe(head)}: {said}; an answer kind is one of {', '.join(ANSWERS)}")


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


def feature_kind(feature: object) -> str:
    """The kind of a declared feature; "" of an object that is none, which is refused elsewhere."""
    return str(getattr(feature, "kind", ""))


def can_copy(head: Component) -> bool:
    """Whether a head may copy words of its input."""
    return any(feature_kind(feature) == "copy" for feature in declared_features(head).values())


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


def expected_outputs(cls: type, given: Iterable[str]) -> list[str]:
    """What an encoder's `forward` has to return: its `returns`, but for optional parameters that it is not given."""
    lacking = optional_names(member(cls, "forward")).difference(given) if has_member(cls, "forward") else set()
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
