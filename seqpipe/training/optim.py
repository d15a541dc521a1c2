"""Optimiser, learning-rate schedule, precision and weight averaging of training."""

from __future__ import annotations

import inspect
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from seqpipe.config.contract import member
from seqpipe.config.loader import Component, Config
from seqpipe.config.schema import Train
from seqpipe.errors import EnvError, TrainingError
from seqpipe.training.pipeline import Pipeline

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def check_precision(precision: str, device: str) -> None:
    """Raise EnvError if a device cannot train in `train.precision`, naming the precisions that it supports."""
    device_type = device.partition(":")[0]
    if precision == "fp16" and device_type == "cpu":
        raise EnvError("train.precision: fp16 needs a GPU (--device cuda); on a CPU use bf16 or fp32")
    if precision == "bf16" and device_type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise EnvError(f"train.precision: {torch.cuda.get_device_name(device)} does not support bf16; use fp16 or fp32")


def _eager(optimizer: type[Optimizer]) -> type[Optimizer]:
    """Return the optimiser class without the wrappers for `torch.compile`, which import `torch._dynamo`.

    That import takes a second, as long as a short training, and nothing is compiled here.
    """
    names = ("add_param_group", "zero_grad", "state_dict")
    eager: dict[str, Any] = {name: inspect.unwrap(getattr(optimizer, name)) for name in names}
    return type(optimizer.__name__, (optimizer,), {**eager, "step": torch.no_grad()(inspect.unwrap(optimizer.step))})


OPTIMIZERS: Mapping[str, Any] = {
    "sgd": _eager(torch.optim.SGD),
    "adam": _eager(torch.optim.Adam),
    "adamw": _eager(torch.optim.AdamW),
}


def make_optimizer(pipeline: Pipeline, config: Config) -> Optimizer:
    """Return the optimiser: a parameter group for each learning rate, `lr` times `learning_rate_factor`."""
    settings = config.train.optimizer
    groups: dict[float, list[Tensor]] = {}
    for stage, module in pipeline.stages:
        lr, factor = stage.common_keys.get("lr") or settings.lr, member(module, "learning_rate_factor")
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                groups.setdefault(lr * factor(name), []).append(parameter)
    parameters = [{"params": group, "lr": lr, "base_lr": lr} for lr, group in groups.items() if group]
    if not parameters:
        raise TrainingError("every stage is frozen; delete `freeze` from at least one")
    options = settings.model_dump(exclude={"use"})
    if settings.use == "sgd":
        for module in pipeline.modules():
            if isinstance(module, torch.nn.EmbeddingBag):  # a step updates only the rows of its batch
                module.sparse = not options["momentum"] and not options["weight_decay"]
        return OPTIMIZERS[settings.use](parameters, **options)  # the fused ones do not support sparse gradients
    return OPTIMIZERS[settings.use](parameters, fused=True, **options)


def clip_gradients(parameters: Iterable[Tensor], most: float) -> None:
    """Scale the gradients, dense and sparse, so that their norm is at most `most`."""
    values = []
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            values.append(parameter.grad.values())
        elif parameter.grad is not None:
            values.append(parameter.grad)
    factor = (most / (torch.nn.utils.get_total_norm(values) + 1e-6)).clamp(max=1.0)
    for value in values:
        value.mul_(factor)


def gradient_norms(stages: Iterable[tuple[Component, nn.Module]]) -> dict[str, float]:
    """Return the norm of the gradients, dense and sparse, of each stage by its key, of each of its `layers` if any."""
    gradients = defaultdict[str, list[Tensor]](list)
    for component, module in stages:
        for name, parameter in module.named_parameters():
            if (gradient := parameter.grad) is not None:
                layer = re.search(r"\blayers\.\d+", name)
                dense = gradient.coalesce().values() if gradient.is_sparse else gradient
                gradients[f"{component.key}.{layer[0]}" if layer else component.key].append(dense)
    return {key: float(torch.nn.utils.get_total_norm(values)) for key, values in gradients.items()}


def mean_norms(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each norm over several steps; a stage without a gradient at a step counts as 0."""
    keys = dict.fromkeys(key for norms in steps for key in norms)
    return {key: sum(norms.get(key, 0.0) for norms in steps) / len(steps) for key in keys}


def rate_factor(settings: Train, share: float) -> float:
    """Return the factor of the learning rate at this share of training: warm-up, then the schedule."""
    schedule = settings.schedule
    if share < schedule.warmup_ratio:
        return max(share, 1e-4) / schedule.warmup_ratio
    rest = (share - schedule.warmup_ratio) / (1 - schedule.warmup_ratio)
    if schedule.use == "linear":
        return 1 - rest * (1 - schedule.final_ratio)
    if schedule.use == "cosine":
        return schedule.final_ratio + (1 - schedule.final_ratio) * (1 + math.cos(math.pi * rest)) / 2
    return 1.0


class WeightAverage:
    """Exponential moving average of a module's parameters over optimiser steps; disabled with a decay of 0."""

    def __init__(self, module: nn.Module, decay: float):
        self.module, self.decay = module, decay
        self.tensors = self._copies() if decay else {}  # the averages by parameter name

    def _copies(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.module.named_parameters()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Continue from these averages."""
        self.tensors = {name: tensor.to(self.tensors[name].device) for name, tensor in tensors.items()}

    def update(self, step: int) -> None:
        """Update with the weights after this step; the decay is faster at the start."""
        decay = min(self.decay, (1 + step) / (10 + step))
        with torch.no_grad():
            for name, parameter in self.module.named_parameters() if self.tensors else ():
                self.tensors[name].lerp_(parameter, 1 - decay)

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Use the averages in place of the trained weights, if averaging is enabled."""
        if not self.tensors:
            yield
            return
        trained = self._copies()
        self._put(self.tensors)
        try:
            yield
        finally:
            self._put(trained)

    def _put(self, tensors: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                parameter.copy_(tensors[name])
