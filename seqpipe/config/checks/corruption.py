"""The checks of a head that corrupts the inputs of a batch before the first stage reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seqpipe.config.component import Component, Input
from seqpipe.config.contract import (
    declared_corrupted_inputs,
    declared_features,
    has_member,
    member,
    replaces_mask,
)
from seqpipe.errors import PluginError


def corruption_problems(head: Component, source: Input, alone: bool) -> Iterator[tuple[Component, str]]:
    """What is wrong with the corruption that a head declares, each at its stage; no stage may show what it hides.

    Raises:
        PluginError: The declaration is no tuple of names.
    """
    names, has_method = declared_corrupted_inputs(head), has_member(head.cls, "corrupt_batch")
    if not names and (not has_method or callable(member(head.cls, "corrupted_inputs"))):
        return
    if not names or not has_method:
        yield head, "`corrupted_inputs` must name what `corrupt_batch` returns; add both, or neither"
    elif not alone:
        yield head, "it changes the text that every stage reads; let it be the only head of one source"
    else:
        for stage in source.stages:
            if shown := _shows(stage, names):
                yield stage, f"{shown}, which head {head.use!r} has to learn; leave one of the two out"


def _shows(stage: Component, corrupted: Sequence[str]) -> str:
    """By what a stage would show the text as it was before `corrupt_batch`, or its places; nothing if it does not."""
    if "ids" in corrupted and replaces_mask(stage):
        return "it makes other rows of the tokens"
    try:
        features = declared_features(stage)
    except PluginError:  # reported where features are declared
        return ""
    kept = {name: feature for name, feature in features.items() if name not in corrupted}
    shown = [name for name, feature in kept.items() if feature.shows_tokens or "mask" in corrupted]
    return f"its feature {shown[0]!r} is of the text as it was" if shown else ""
