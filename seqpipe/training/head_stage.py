"""One head of a pipeline: its loss, its decision, and how near it was to another one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqpipe.answers.base import HeadAnswer
from seqpipe.answers.multi_head import part_of
from seqpipe.config.contract import declared_corrupted_inputs, has_member
from seqpipe.config.loader import Component
from seqpipe.training.stages import Names, call_stage, stage_error
from seqpipe.training.ties import decided, same_rows, score_gap


@dataclass(frozen=True)
class HeadStage:
    """A head and its place among several.

    Attributes:
        name: Its name; empty where it is the only head.
        component: Its component.
        module: What was built from that.
        answer: What it answers with.
    """

    name: str
    component: Component
    module: Any
    answer: HeadAnswer

    @property
    def prefix(self) -> str:
        """The beginning of the names of its targets, options and outputs."""
        return f"{self.name}." if self.name else ""

    def part(self, names: Mapping[str, Any]) -> Mapping[str, Any]:
        """What belongs to this head alone, by its names without their prefix."""
        return part_of(names, self.name) if self.name else names

    def call(self, method: Callable[..., Any], names: Names) -> Any:
        """Call a method of the head with the names it asks for; the head's part needs no prefix."""
        return call_stage(self.component, method, {**names, **self.part(names)})

    def corrupt(self, batch: Mapping[str, Tensor]) -> Names:
        """The batch as the first stage gets it in training: unchanged, or with the inputs that the head corrupts."""
        expected = declared_corrupted_inputs(self.component)
        if not expected:
            return dict(batch)
        corrupted = call_stage(self.component, self.module.corrupt_batch, dict(batch))
        if lacking := [name for name in expected if not isinstance(corrupted.get(name), Tensor)]:
            message = f"`corrupt_batch` returned no tensor {lacking[0]!r}, which its `corrupted_inputs` states"
            raise stage_error(self.component, message)
        return {**batch, **corrupted}

    def loss(self, names: Names) -> Tensor:
        """The loss, in fp32 also under autocast: most heads are small and their sums are long.

        A head that decides step by step does the greater part of the work, so it is left to autocast.
        """
        device = names["sources"][0]["mask"].device.type
        if not torch.is_autocast_enabled(device) or self.answer.is_stepwise:
            loss: Tensor = self.call(self.module.loss, names)
            return loss.float()
        with torch.autocast(device, enabled=False):
            names = {name: _in_fp32(value) for name, value in names.items()}
            fp32_loss: Tensor = self.call(self.module.loss, names)
        return fp32_loss

    def gap(self, names: Names, decision: Mapping[str, Tensor], alternative: Mapping[str, Tensor]) -> Tensor:
        """How far, (B,), the head is from taking one decision for the other: see `Pipeline.gap`."""
        decision, alternative = self.part(decision), self.part(alternative)
        if has_member(self.module, "margin"):
            others = {f"other_{name}": alternative[name] for name in decided(alternative)}
            outputs = {name: decision[name] for name in decided(decision)}
            gap = call_stage(self.component, self.module.margin, names | outputs | others)
        elif has_member(self.module, "score"):
            answer = self.answer
            gap = score_gap(
                answer.choices, answer.is_stepwise, lambda scored: self._score(names, scored), decision, alternative
            )
        else:
            gap = torch.full((len(names["sources"][0]["mask"]),), math.inf)
        return torch.where(same_rows(decision, alternative), 0.0, gap)

    def _score(self, names: Names, decision: Mapping[str, Tensor]) -> Tensor:
        scores: Tensor = call_stage(self.component, self.module.score, {**names, **decision})
        return scores


def _in_fp32(value: Any) -> Any:
    if isinstance(value, list):
        return [{name: _in_fp32(part) for name, part in names.items()} for names in value]
    return value.float() if value.is_floating_point() else value
