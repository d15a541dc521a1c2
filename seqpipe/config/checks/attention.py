"""The attention weights that stages return for a person to look at: their names, and where in a text they stand.

Read from classes and options alone. A stage states the names in `explains`, which may depend on its options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from seqpipe.config.attention_maps import AXES, OVER, Attended
from seqpipe.config.component import Component, Input, describe
from seqpipe.config.contract import declaration, declared_features, replaces_mask
from seqpipe.config.signature import method_names
from seqpipe.errors import PluginError, Problem
from seqpipe.features.kinds.base import SENTENCES, TOKENS


def attended(inputs: Sequence[Input], head: Sequence[Component]) -> dict[str, dict[str, Attended]]:
    """Of each stage, by its key: the weights it returns, by name; of several inputs none."""
    every = [*(stage for source in inputs for stage in source.stages), *head]
    if len(inputs) > 1:
        return {stage.key: {} for stage in every}
    features = {name: feature for stage in every for name, feature in declared_features(stage).items()}
    axis, attentions = TOKENS, {}
    for stages in (inputs[0].embedding, inputs[0].encoder, head):
        for stage in stages:
            # Alone in a list is no other pipeline than alone, and its weights have no other name.
            key = stage.key.removesuffix(".0") if len(stages) == 1 else stage.key
            attentions[stage.key] = {
                name: _placed(f"{key}.{name}", over, axis) for name, over in explains(stage).items()
            }
            axis = _axis_after(stage, axis, features)
    return attentions


def axis_of(source: Input) -> str:
    """What the positions of a source's x count behind its encoders, as the axes of inputs are named; "" if unknown."""
    features = {name: feature for stage in source.stages for name, feature in declared_features(stage).items()}
    axis = TOKENS
    for stage in source.stages:
        axis = _axis_after(stage, axis, features)
    return axis


def explains(stage: Component) -> Mapping[str, str]:
    """The names that a stage states, and what each is over; PluginError if that cannot be."""
    weights = declaration(stage, "explains")
    if not isinstance(weights, Mapping) or not all(over in OVER for over in weights.values()):
        message = f"`explains` must be a dict from names to one of {', '.join(OVER)}, not {weights!r}"
        raise PluginError(f"{describe(stage)}: {message}")
    return weights


def problems(inputs: Sequence[Input], head: Sequence[Component], wanted: Problem | None) -> list[Problem]:
    """Report what is wrong with the stages' statements; `wanted` if weights are asked for and there are none."""
    misstated = []
    for stage in (*(stage for source in inputs for stage in source.stages), *head):
        try:
            explains(stage)
        except PluginError as error:
            misstated.append(stage.problem(str(error)))
    if misstated or wanted is None:
        return misstated
    if len(inputs) > 1:
        return [replace(wanted, message="of several inputs no attention weights are given; delete it")]
    every = attended(inputs, head)
    lost = [weights.key for names in every.values() for weights in names.values() if weights.axis not in AXES]
    if lost:
        message = f"an encoder before it replaces the tokens, so {lost[0]} has no place in the text"
        return [replace(wanted, message=f"{message}; delete it")]
    return [] if any(every.values()) else [wanted]


def _placed(key: str, over: str, axis: str) -> Attended:
    """Over words means over what the stage was given, which may be sentences."""
    if over == "sentences" or (over == "words" and axis == SENTENCES):
        return Attended(key, "sentences", SENTENCES)
    return Attended(key, over, axis)


def _axis_after(stage: Component, axis: str, features: Mapping[str, Any]) -> str:
    """The axis of x after a stage: that of the feature by which it replaces the mask, "" if it does so by none."""
    if stage.kind != "encoder" or not replaces_mask(stage):
        return axis
    names, _ = method_names(stage.cls.forward)  # type: ignore[attr-defined]
    axes = [features[name].axes[1] for name in names if name in features]
    return next((feature_axis for feature_axis in axes if feature_axis != TOKENS), "")
