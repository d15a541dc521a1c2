"""Dev measures of a pipeline and what its heads choose on dev: perplexities, the heads' own sums, calibration."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from seqpipe.config.component import describe
from seqpipe.config.contract import dev_option, has_member
from seqpipe.training.pipeline import Pipeline
from seqpipe.training.stages import errors_of

Batches = Iterable[Mapping[str, Tensor]]
_MAX_EXPONENT = 700.0  # exp of more overflows a float


@contextmanager
def evaluation(pipeline: Pipeline) -> Iterator[None]:
    """Evaluation mode without gradients; the mode before is restored."""
    was_training = pipeline.training
    pipeline.eval()
    with torch.no_grad():
        yield
    pipeline.train(was_training)


def calibrate(pipeline: Pipeline, batches: Callable[[], Batches]) -> None:
    """Let every head that chooses something on dev do so, from its evidence of these batches of dev data."""
    choosing = [head for head in pipeline.head_stages if dev_option(head.component)]
    if not choosing:
        return
    evidence = [defaultdict[str, list[Tensor]](list) for _ in choosing]
    with evaluation(pipeline):
        for batch in batches():
            names = pipeline(dict(batch))
            for head, columns in zip(choosing, evidence, strict=True):
                for name, rows in head.call(head.module.evidence, names).items():
                    columns[name].append(rows)
    for head, columns in zip(choosing, evidence, strict=True):
        with errors_of(head.component, "`calibrate`"):
            head.module.calibrate({name: torch.cat(rows) for name, rows in columns.items()})


def perplexities(pipeline: Pipeline, batches: Batches) -> dict[str, float]:
    """Of each head that writes text, by its name, exp of the mean loss of a target token."""
    heads = [
        head for head in pipeline.head_stages if head.answer.counts_tokens and not has_member(head.module, "measures")
    ]
    losses, tokens = ({head.name: 0.0 for head in heads} for _ in range(2))
    with evaluation(pipeline):
        for batch in batches if heads else ():
            names = pipeline(pipeline.corrupt(batch))
            for head in heads:
                count = float({**names, **head.part(names)}["target_mask"].sum())
                losses[head.name] += float(head.call(head.module.loss, names)) * count
                tokens[head.name] += count
    return {name: _mean("perplexity", loss, tokens[name]) for name, loss in losses.items()}


def head_measures(pipeline: Pipeline, batches: Batches) -> dict[str, dict[str, float]]:
    """Of each head that has `measures`, by its name, their means over all batches; of a perplexity exp of the mean."""
    heads = [head for head in pipeline.head_stages if has_member(head.module, "measures")]
    sums: dict[str, dict[str, Tensor]] = {head.name: {} for head in heads}
    with evaluation(pipeline):
        for batch in batches if heads else ():
            names = pipeline(pipeline.corrupt(batch))
            for head in heads:
                for name, pair in head.call(head.module.measures, names).items():
                    sums[head.name][name] = sums[head.name].get(name, torch.zeros(2)) + pair.cpu()
    return {head: {name: _mean(name, *pair.tolist()) for name, pair in pairs.items()} for head, pairs in sums.items()}


def _mean(name: str, total: float, count: float) -> float:
    mean = total / max(1.0, count)
    return math.exp(min(mean, _MAX_EXPONENT)) if name.endswith("perplexity") else mean


def first_not_finite(pipeline: Pipeline, batch: Mapping[str, Tensor]) -> str:
    """Describe the first stage that makes a NaN or an infinity of this batch."""
    with torch.no_grad():
        names = pipeline.corrupt(batch)
        for stage, outputs in pipeline.trace(names):
            mask = outputs.get("mask", names[pipeline.mask_at(stage)])
            if "x" in outputs and not torch.isfinite(outputs["x"][mask]).all():
                return f"{stage.key}: {describe(stage)}: `forward` returned NaN or infinity for real tokens"
        for head in pipeline.head_stages:
            if not torch.isfinite(head.loss(names)):
                return f"{head.component.key}: {describe(head.component)}: `loss` returned NaN or infinity"
    return "none: computed again, every stage is finite"
