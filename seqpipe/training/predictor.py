"""A Predictor that decides with PyTorch; all else is the code of deployment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from seqpipe.config.component import describe
from seqpipe.config.contract import declared_inactive_options, decode_options, head_metrics
from seqpipe.config.head_answers import metric_types
from seqpipe.config.loader import Component, Config
from seqpipe.features.document import Arrays
from seqpipe.runtime.predictor import Predictor
from seqpipe.training.measures import evaluation
from seqpipe.training.pipeline import Pipeline


def option_table(*heads: Component) -> dict[str, dict[str, Any]]:
    """The heads' active decode options as a bundle lists them; of several heads by the heads' names."""
    return {
        f"{head.name}.{name}" if len(heads) > 1 else name: {
            "type": option.type,
            "default": option.default,
            "minimum": option.minimum,
            "maximum": option.maximum,
        }
        for head in heads
        for name, option in decode_options(head.cls).items()
        if name not in declared_inactive_options(head)
    }


def predictor(
    pipeline: Pipeline,
    config: Config,
    device: str = "cpu",
    before: Callable[[], None] = lambda: None,
    explain: bool = False,
) -> Predictor:
    """A Predictor over a pipeline.

    Args:
        pipeline: Decides.
        config: Its configuration.
        device: Where it is.
        before: Called before each run.
        explain: Whether its runs return the attention weights too.
    """
    artifacts = pipeline.artifacts
    options = option_table(*config.head)

    def run(feeds: Arrays) -> Arrays:
        before()
        tensors = {
            name: torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device)
            for name, array in feeds.items()
        }
        values = {
            name: len(feeds[name]) if option["type"] == "size" else tensors[name] for name, option in options.items()
        }
        features = {name: tensor for name, tensor in tensors.items() if name not in options}
        with evaluation(pipeline):
            decision = pipeline.decide(features, values, explain)
        return {name: tensor.cpu().numpy() for name, tensor in decision.items()}

    metrics = {}
    for task, head in zip(artifacts.tasks, config.head, strict=True):
        if functions := head_metrics(head.cls, head.options, describe(head)):
            metrics[task.name] = functions
    return Predictor(
        artifacts.featurizer,
        artifacts.kind,
        run,
        options,
        pipeline.limits,
        metrics=metrics,
        score_types=metric_types(config.head),
    )
