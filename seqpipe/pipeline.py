"""A checked Config and what was learned in, one PyTorch module out: embedding, encoder and head, wired by names."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seqpipe.config import Component, Config
from seqpipe.errors import PluginError, SeqpipeError
from seqpipe.features import Arrays
from seqpipe.learned import Learned
from seqpipe.predictor import Predictor
from seqpipe.signature import decode_options
from seqpipe.wiring import built, own_metrics, who

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
        self.head: Any = _build(config.head[0], wired)
        self.outputs = learned.kind.outputs
        self.stages: list[tuple[Component, nn.Module]] = list(
            zip(
                (*config.embedding, *config.encoder, *config.head),
                (*self.embedding, *self.encoder, self.head),
                strict=True,
            )
        )
        for stage, module in self.stages:
            module.requires_grad_(not stage.frame.get("freeze"))

    def forward(self, names: Names) -> Names:
        """Features (B, T, …) to everything the head may ask for: the features, x, and what else the stages returned."""
        names = dict(names)
        for _ in self.trace(names):
            pass
        return names

    def trace(self, names: Names) -> Iterator[tuple[Component, Names]]:
        """Each stage before the head, with what it makes of the names; they are joined by it on the way."""
        embedded: list[Tensor] = []
        for stage, module in self.stages[:-1]:
            made = _made(stage, module, names)
            yield stage, made
            if stage.kind == "embedding":
                embedded.append(made["x"])
                names["x"] = torch.cat(embedded, -1) if len(embedded) == len(self.embedding) > 1 else made["x"]
            else:
                names |= made

    def not_finite(self, batch: Mapping[str, Tensor]) -> str:
        """Which stage is the first to make a NaN or an infinity of this batch, in words."""
        with torch.no_grad():
            for stage, made in self.trace(dict(batch)):
                if "x" in made and not torch.isfinite(made["x"][batch["mask"]]).all():
                    return f"{stage.key}: {who(stage)}: `forward` returned NaN or infinity for real tokens"
        return f"{self.stages[-1][0].key}: {who(self.stages[-1][0])}: `loss` returned NaN or infinity"

    def loss(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The head's loss of a batch of features and targets, times its weight."""
        loss: Tensor = self._head(self.head.loss, self(dict(batch)))
        return loss * self.stages[-1][0].frame.get("weight", 1.0)

    def decide(self, features: Mapping[str, Tensor], options: Mapping[str, Any]) -> dict[str, Tensor]:
        """The head's decision; options it does not get have the defaults of its signature."""
        decision: dict[str, Tensor] = dict(self._head(self.head.decide, self(dict(features)), **options))
        for name in self.outputs:
            if name not in decision:
                raise _fault(self.stages[-1][0], f"`decide` returned no {name!r}, which its answer kind needs")
        return decision

    def score(self, features: Mapping[str, Tensor], decision: Mapping[str, Tensor]) -> Tensor:
        """The model's own score of a given decision, (B,): what tells a tie from an error."""
        score: Tensor = self._head(self.head.score, {**self(dict(features)), **decision})
        return score

    def margin(self, features: Mapping[str, Tensor]) -> Tensor | None:
        """How far each row, (B,), is from being decided otherwise, where the head says so; None where it does not."""
        if not hasattr(self.head, "margin"):
            return None
        margin: Tensor = self._head(self.head.margin, self(dict(features)))
        return margin

    def _head(self, method: Callable[..., Any], names: Names, **options: Any) -> Any:
        with _blamed(self.stages[-1][0], f"`{method.__name__}`"):
            return call(method, names, **options)


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
    made = built(stage, *asked)
    if not isinstance(made, nn.Module):
        raise _fault(stage, "it is not a torch.nn.Module")
    return made


def _dim(stage: Component, module: nn.Module) -> int:
    dim = getattr(module, "dim", None)
    if not isinstance(dim, int):
        raise _fault(stage, "it must state its width as `self.dim`, an int")
    return dim


def _made(stage: Component, module: nn.Module, names: Names) -> Names:
    """What a stage makes of the names, by name; PluginError if that is not what it stated."""
    with _blamed(stage, "`forward`"):
        returned = call(module.forward, names)
    made: Names = returned if isinstance(returned, dict) else {"x": returned}
    for name in getattr(stage.cls, "returns", ("x",)):
        if not isinstance(made.get(name), Tensor):
            raise _fault(stage, f"`forward` returned no tensor {name!r}, which its `returns` states")
    if "x" in made and (made["x"].dim() != 3 or made["x"].shape[2] != module.dim):
        raise _fault(stage, f"`forward` returned x of shape {tuple(made['x'].shape)}; (B, T, {module.dim}) was stated")
    return made


@contextlib.contextmanager
def _blamed(stage: Component, what: str) -> Iterator[None]:
    """Whatever a component raises is told as its own."""
    try:
        yield
    except (SeqpipeError, MemoryError):
        raise
    except Exception as error:  # a plugin may raise anything at all
        raise _fault(stage, f"{what} raised {type(error).__name__}: {error} (--debug shows where)") from error


def _fault(stage: Component, told: str) -> PluginError:
    return PluginError(f"{stage.key}: {who(stage)}: {told}")


def predictor(
    pipeline: Pipeline, config: Config, device: str = "cpu", before: Callable[[], None] = lambda: None
) -> Predictor:
    """A Predictor that decides with PyTorch, else the same code as at deployment; `before` is called at each run."""
    learned = pipeline.learned
    options = option_table(config.head[0])

    def run(feeds: Arrays) -> Arrays:
        before()
        tensors = {
            name: torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device)
            for name, array in feeds.items()
        }
        chosen = {
            name: len(feeds[name]) if option["type"] == "size" else tensors[name] for name, option in options.items()
        }
        was_training = pipeline.training
        pipeline.eval()
        with torch.no_grad():
            decision = pipeline.decide({name: tensors[name] for name in tensors if name not in options}, chosen)
        pipeline.train(was_training)
        return {name: tensor.cpu().numpy() for name, tensor in decision.items()}

    head = config.head[0]
    metrics = own_metrics(head.cls, head.options, who(head))
    return Predictor(learned.featurizer, learned.kind, run, options, {"tokens": MOST_TOKENS}, metrics=metrics)
