"""Attention weights as a bundle describes them: the name of the graph's output, over what, at which axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seqpipe.features.kinds.base import SENTENCES, TOKENS, WORDS

OVER = ("words", "sentences", "pairs", "written", "steps")
AXES = (TOKENS, WORDS, SENTENCES)
PREFIX = "explain."  # of the graph's outputs


@dataclass(frozen=True)
class Attended:
    """Attention weights that a stage returns.

    Args:
        key: The stage's key in the YAML and the stage's own name for them, such as `head.attention`.
        over: `words` (B, N), `sentences` (B, N), `pairs` (B, heads, N, N) or `written` (B, M, N), M counting the tokens
            of the first text of an answer; or `steps` (B, M), of each of these a probability: that it was generated.
        axis: What N counts, as the axes of inputs are named: `sequence_length`, `word_count` or `sentence_count`.
    """

    key: str
    over: str
    axis: str

    @property
    def output(self) -> str:
        return PREFIX + self.key

    def manifest(self) -> dict[str, str]:
        return {"over": self.over, "axis": self.axis}


def attended_from(manifest: Mapping[str, Any]) -> list[Attended]:
    """The attentions that a bundle's `explain` describes; ValueError names one that is none."""
    attentions = [Attended(key, entry["over"], entry["axis"]) for key, entry in manifest.items()]
    for attention in attentions:
        if attention.over not in OVER or attention.axis not in AXES:
            raise ValueError(f"explain.{attention.key}: over {attention.over!r} at {attention.axis!r}")
    return attentions
