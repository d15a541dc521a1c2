"""A checked Config and what was learned in, one PyTorch module out: embedding, encoder and head, wired by names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seqpipe.config import Component, Config
from seqpipe.errors import PluginError
from seqpipe.features import Arrays
from seqpipe.learned import Learned
from seqpipe.predictor import Predictor
from seqpipe.signature import decode_options

MOST_TOKENS = 100_000  # of one text: the limit that a bundle states
Names = dict[str, Any]


class Pipeline(nn.Module):
    """The stages of one YAML. Each method of a stage is given what its parameters name."""

    def __init__(self, config: Config, learned: Learned):
        super().__init__()
        self.learned = learned
        wired: Names = {
            "vocabulary": learned.vocabulary,
            "target_vocabulary": learned.target_vocabulary,
            "labels": learned.labels,
            "sizes": {name: feature.size for name, feature in learned.featurizer.features.items()},
        }
        self.embedding = nn.ModuleList(_build(stage, wired) for stage in config.embedding)
        wired["dim"] = sum(_dim(stage, made) for stage, made in zip(config.embedding, self.embedding, strict=True))
        self.encoder = nn.ModuleList()
        for stage in config.encoder:
            self.encoder.append(_build(stage, wired))
            wired["dim"] = _dim(stage, self.encoder[-1])
        self.head = _build(config.head[0], wired)
        self.stages = list(
            zip((*config.embedding, *config.encoder, *config.head), (*self.embedding, *self.encoder, self.head), strict=True)
        )
        for stage, module in self.stages:
            module.requires_grad_(not stage.frame.get("freeze"))

    def forward(self, names: Names) -> Names:
        """Features (B, T, …) to everything the head may ask for: the features, x, and what else the stages returned."""
        names = dict(names)
        embedded = [call(module.forward, names) for module in self.embedding]
        if embedded:
            names["x"] = torch.cat(embedded, -1) if len(embedded) > 1 else embedded[0]  # (B, T, D)
        for stage, module in self.stages[len(embedded) : -1]:
            names |= _named(call(module.forward, names))
            _check_width(stage, module, names["x"])
        return names

    def loss(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The head's loss of a batch of features and targets."""
        return call(self.head.loss, self(dict(batch)))

    def decide(self, features: Mapping[str, Tensor], options: Mapping[str, Any]) -> dict[str, Tensor]:
        """The head's decision; options it does not get have the defaults of its signature."""
        return dict(call(self.head.decide, self(dict(features)), **options))

    def score(self, features: Mapping[str, Tensor], decision: Mapping[str, Tensor]) -> Tensor:
        """The model's own score of a given decision, (B,): what tells a tie from an error."""
        return call(self.head.score, {**self(dict(features)), **decision})


def call(method: Callable[..., Any], names: Mapping[str, Any], **options: Any) -> Any:
    """Calls a stage's method with what its positional parameters name."""
    wanted = inspect.signature(method).parameters.values()
    return method(*(names[p.name] for p in wanted if p.kind is not p.KEYWORD_ONLY), **options)


def option_table(head: Component) -> dict[str, dict[str, Any]]:
    """The head's decode options as a bundle lists them: type, default, minimum, maximum."""
    return {
        name: {"type": option.type, "default": option.default, "minimum": option.minimum, "maximum": option.maximum}
        for name, option in decode_options(head.cls).items()
    }


def _build(stage: Component, wired: Names) -> nn.Module:
    parameters = list(inspect.signature(stage.cls).parameters.values())
    asked = [wired[p.name] for p in parameters if p.kind is not p.KEYWORD_ONLY]
    made = stage.cls(*asked, **stage.options)
    if not isinstance(made, nn.Module):
        raise PluginError(f"{stage.key}: {stage.kind} {stage.use!r} of {stage.offer.distribution} is not a torch.nn.Module")
    return made


def _dim(stage: Component, module: nn.Module) -> int:
    dim = getattr(module, "dim", None)
    if not isinstance(dim, int):
        raise PluginError(
            f"{stage.key}: {stage.kind} {stage.use!r} of {stage.offer.distribution} must state its width as `self.dim`, an int"
        )
    return dim


def _named(returned: Any) -> Names:
    return returned if isinstance(returned, dict) else {"x": returned}


def _check_width(stage: Component, module: nn.Module, x: Tensor) -> None:
    if x.dim() != 3 or x.shape[2] != module.dim:
        raise PluginError(
            f"{stage.key}: {stage.kind} {stage.use!r} of {stage.offer.distribution} returned x of shape {tuple(x.shape)}; "
            f"(B, T, {module.dim}) was stated"
        )


def predictor(pipeline: Pipeline, config: Config, device: str = "cpu", before: Callable[[], None] = lambda: None) -> Predictor:
    """A Predictor that decides with PyTorch: the same texts-to-answers code as at deployment. `before` is called at each run."""
    learned = pipeline.learned
    options = option_table(config.head[0])

    def run(feeds: Arrays) -> Arrays:
        before()
        tensors = {name: torch.from_numpy(np.require(array, requirements="CW")).to(device) for name, array in feeds.items()}
        chosen = {
            name: len(feeds[name]) if option["type"] == "size" else tensors[name] for name, option in options.items()
        }
        was_training = pipeline.training
        pipeline.eval()
        with torch.no_grad():
            decision = pipeline.decide({name: tensors[name] for name in tensors if name not in options}, chosen)
        pipeline.train(was_training)
        return {name: tensor.cpu().numpy() for name, tensor in decision.items()}

    return Predictor(learned.featurizer, learned.kind, run, options, {"tokens": MOST_TOKENS})
