"""What a head answers with: its answer kind, the settings of that kind, and how its own scores are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from seqpipe.answers.base import HeadAnswer, check_settings
from seqpipe.answers.multi_head import MultiHead
from seqpipe.answers.registry import ANSWER_KINDS
from seqpipe.answers.types import Metric
from seqpipe.config.component import Component, describe
from seqpipe.config.contract import declaration, member
from seqpipe.errors import PluginError, nearest


def answer_kind(head: Component) -> type[HeadAnswer]:
    """The head's answer kind; PluginError if its class names none."""
    name = declaration(head, "answer")
    if isinstance(name, str) and name in ANSWER_KINDS:
        return ANSWER_KINDS[name]
    fault = "its class has no `answer`" if name is None else f"`answer` is {name!r}{nearest(str(name), ANSWER_KINDS)}"
    raise PluginError(f"{describe(head)}: {fault}; an answer kind is one of {', '.join(ANSWER_KINDS)}")


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


def metric_types(heads: Iterable[Component]) -> dict[str, Metric]:
    """How the scores of these heads are read, by name: those of their answer kinds, and their own."""
    metrics = dict(MultiHead.metrics)
    for head in heads:
        metrics |= answer_kind(head).declared_metrics(answer_settings(head))
        metrics |= member(head.cls, "score_types")
    return metrics
