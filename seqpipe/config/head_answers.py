"""What a head answers with: its answer kind, the settings of that kind, and how its own scores are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from seqpipe.answers.base import HeadAnswer, check_settings
from seqpipe.answers.multi_head import MultiHead
from seqpipe.answers.registry import ANSWER_KINDS
from seqpipe.answers.types import WHOLE_TEXT, Array, Metric
from seqpipe.config.component import Component, describe
from seqpipe.config.contract import declaration, member
from seqpipe.errors import PluginError, nearest

Arrays = Mapping[str, Array]
TARGETS: Arrays = {name: array for kind in ANSWER_KINDS.values() for name, array in kind.targets.items()}
DECIDED: Arrays = {name: array for kind in ANSWER_KINDS.values() for name, array in kind.decided.items()}


@dataclass(frozen=True)
class HeadArrays:
    """What an answer kind gives to a head's methods; by default all that any kind gives.

    Args:
        targets: What `loss` may ask for.
        decided: What `decide` may return, and `score` ask for.
        has_labels: Whether the head may be built from `labels`.
        no_self_supervision: Why a self-supervised head cannot have the kind; "" if it can.
        joins_sources: Whether of several sources the head may read the first, with a vector of each other beside its x.
    """

    targets: Arrays = field(default_factory=lambda: TARGETS)
    decided: Arrays = field(default_factory=lambda: DECIDED)
    has_labels: bool = True
    no_self_supervision: str = ""
    joins_sources: bool = False


def head_arrays(head: Component) -> HeadArrays:
    """What the answer kind of a head gives to its methods; PluginError if it states none that fits."""
    kind, settings = answer_kind(head), answer_settings(head)
    message = ""
    if not kind.may_self_supervise:
        names = ", ".join(name for name, allowed in ANSWER_KINDS.items() if allowed.may_self_supervise)
        message = f"a self-supervised head answers with {names}, not with {kind.kind}"
    targets, decided = kind.declared_targets(settings), kind.declared_decided(settings)
    return HeadArrays(targets, decided, kind.has_labels, message, kind.joins_sources)


def answer_kind(head: Component) -> type[HeadAnswer]:
    """The head's answer kind; PluginError if its class names none."""
    name = declaration(head, "answer")
    if isinstance(name, str) and name in ANSWER_KINDS:
        return ANSWER_KINDS[name]
    fault = "its class has no `answer`" if name is None else f"`answer` is {name!r}{nearest(str(name), ANSWER_KINDS)}"
    raise PluginError(f"{describe(head)}: {fault}; an answer kind is one of {', '.join(ANSWER_KINDS)}")


def reads_whole_text(head: Component) -> bool:
    """Whether a head decides about a text as a whole, not about its words or a passage."""
    return answer_kind(head).declared_subject(answer_settings(head)) == WHOLE_TEXT


def answer_settings(head: Component) -> dict[str, Any]:
    """What the head states for its answer kind, completed by the kind's defaults; PluginError for what does not fit."""
    settings = declaration(head, "answer_settings")
    if not isinstance(settings, Mapping):
        message = f"its `answer_settings` must return a dict, not {type(settings).__name__}"
        raise PluginError(f"{describe(head)}: {message}")
    try:
        return check_settings(answer_kind(head), settings)
    except ValueError as error:
        raise PluginError(f"{describe(head)}: `answer_settings`: {error}") from error


def reads_every_token(head: Component) -> bool:
    """Whether all tokens of a text are read, those of white space alone too."""
    return bool(answer_settings(head).get("every_token", answer_kind(head).every_token))


def metric_types(heads: Iterable[Component]) -> dict[str, Metric]:
    """How the scores of these heads are read, by name: those of their answer kinds, and their own."""
    metrics = dict(MultiHead.metrics)
    for head in heads:
        metrics |= answer_kind(head).declared_metrics(answer_settings(head))
        metrics |= member(head.cls, "score_types")
    return metrics
