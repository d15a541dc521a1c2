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
from seqpipe.training.network import Network

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def check_precision(precision: str, device: str) -> None:
    """Raise EnvError if a device cannot train in `train.precision`, naming the precisions that it supports."""
    device_type = device.partition(":")[0]
    if precision == "fp16" and device_type == "cpu":
        raise EnvError("train.precision: fp16 needs a GPU (--device cuda); on a CPU use bf16 or fp32")
    if precision == "bf16" and device_type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise EnvError(f"train.precision: {torch.cuda.get_device_name(device)} does not support bf16; use fp16 or fp32")


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Use `train.matmul_precision` for matrix products in fp32, and restore the former precision afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


DENSE_ROWS = 10_000  # of a smaller table all rows are updated: that takes no longer than to find those of a batch


def _rows_only(optimizer: type[Optimizer]) -> type[Optimizer]:
    """Return the optimiser class with a step that updates only the rows of a sparse gradient.

    The wrappers for `torch.compile` are removed: they import `torch._dynamo`, which takes a second, as long as a short
    training, and nothing is compiled here.
    """
    library_step = inspect.unwrap(optimizer.step)

    @torch.no_grad()
    def step(self: Any) -> None:
        tables = []
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None and table.grad.is_sparse:
                    tables.append((group, table, table.grad))
                    table.grad = None  # the library does not support it
        library_step(self)  # it skips the step by itself if `found_inf` is set
        if tables and getattr(self, "found_inf", None):  # asked only then: it waits for a GPU
            return
        for group, table, gradient in tables:
            table.grad = gradient
            _update_rows(group, table, gradient.indices()[0], gradient.values(), self.state[table])

    eager = {name: inspect.unwrap(getattr(optimizer, name)) for name in ("add_param_group", "zero_grad", "state_dict")}
    return type(optimizer.__name__, (optimizer,), {**eager, "step": step})


def skip_steps(optimizer: Optimizer, if_true: Tensor) -> None:
    """Let further steps leave the weights as they are if the tensor is true, without waiting for a GPU to know it.

    GradScaler uses the same attribute, which PyTorch does not document.
    """
    vars(optimizer)["found_inf"] = if_true.float()


def _update_rows(group: dict[str, Any], table: Tensor, rows: Tensor, gradient: Tensor, state: dict[str, Any]) -> None:
    """Update rows (R,) of a table (V, D) by their gradient (R, D).

    SGD is exact. Adam (Kingma and Ba 2015; with the decay of Loshchilov and Hutter 2019) is lazy: a row's second moment
    and weights decay for all steps since its last gradient when it has the next. Its first moment would spread the
    effect of a gradient over later steps, in which the row does not move; the sum of these effects is applied at once.
    """
    lr = group["lr"]
    if "betas" not in group:
        table.index_add_(0, rows, gradient, alpha=-lr)
        return
    if "last_step" not in state:
        state["step"], state["last_step"] = (torch.zeros(size, device=table.device) for size in ((), len(table)))
        state["exp_avg_sq"] = torch.zeros_like(table)
    state["step"] += 1
    passed = (state["step"] - state["last_step"].index_select(0, rows))[:, None]
    state["last_step"].index_copy_(0, rows, state["step"].expand(len(rows)))
    beta = group["betas"][1]
    square = state["exp_avg_sq"].index_select(0, rows).mul_(beta**passed).addcmul_(gradient, gradient, value=1 - beta)
    state["exp_avg_sq"].index_copy_(0, rows, square)
    scale = (square / (1 - beta ** state["step"])).sqrt_().add_(group["eps"])
    weights = table.index_select(0, rows).mul_((1 - lr * group["weight_decay"]) ** passed)
    table.index_copy_(0, rows, weights.addcdiv_(gradient, scale, value=-lr))


OPTIMIZERS: Mapping[str, Any] = {
    "sgd": _rows_only(torch.optim.SGD),
    "adam": _rows_only(torch.optim.Adam),
    "adamw": _rows_only(torch.optim.AdamW),
}


def make_optimizer(network: Network, config: Config) -> Optimizer:
    """Return the optimiser: a parameter group for each learning rate, `lr` times `learning_rate_factor`."""
    settings = config.train.optimizer
    groups: dict[float, list[Tensor]] = {}
    for stage, module in network.stages:
        lr, factor = stage.common_keys.get("lr") or settings.lr, member(module, "learning_rate_factor")
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                groups.setdefault(lr * factor(name), []).append(parameter)
    parameters = [{"params": group, "lr": lr, "base_lr": lr} for lr, group in groups.items() if group]
    if not parameters:
        raise TrainingError("every stage is frozen; delete `freeze` from at least one")
    options = settings.model_dump(exclude={"use"})
    # Momentum of SGD and an L2 penalty give every row a gradient at each step.
    moves_every_row = options.get("momentum") or (settings.weight_decay and settings.use != "adamw")
    for module in network.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.sparse = module.num_embeddings > DENSE_ROWS and not moves_every_row
    return OPTIMIZERS[settings.use](parameters, fused=True, **options)


def coalesce_gradients(parameters: Iterable[Tensor]) -> None:
    """Sum the rows of each sparse gradient that have the same number, as all functions of gradients here expect."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()


def _values(gradient: Tensor) -> Tensor:
    return gradient.values() if gradient.is_sparse else gradient


def gradient_values(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the values of the gradients, dense and sparse."""
    return [_values(parameter.grad) for parameter in parameters if parameter.grad is not None]


def clip_gradients(parameters: Iterable[Tensor], most: float) -> None:
    """Scale the gradients, dense and sparse, so that their norm is at most `most`."""
    values = gradient_values(parameters)
    factor = (most / (torch.nn.utils.get_total_norm(values) + 1e-6)).clamp(max=1.0)
    for value in values:
        value.mul_(factor)


def gradient_norms(stages: Iterable[tuple[Component, nn.Module]]) -> dict[str, Tensor]:
    """Return the norm of the gradients, dense and sparse, of each stage by its key, of each of its `layers` if any."""
    gradients = defaultdict[str, list[Tensor]](list)
    for component, module in stages:
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                layer = re.search(r"\blayers\.\d+", name)
                gradients[f"{component.key}.{layer[0]}" if layer else component.key].append(_values(parameter.grad))
    return {key: torch.nn.utils.get_total_norm(values) for key, values in gradients.items()}


def mean_norms(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each norm over several steps; a stage without a gradient at a step counts as 0."""
    keys = dict.fromkeys(key for norms in steps for key in norms)
    return {key: sum(norms.get(key, 0.0) for norms in steps) / len(steps) for key in keys}


def rate_factor(settings: Train, share: float) -> float:
    """Return the factor of the learning rate at this share of training: warm-up, then the schedule."""
    schedule = settings.schedule
    if share < schedule.warmup_ratio:
        return max(share, 1e-4) / schedule.warmup_ratio
    progress = (share - schedule.warmup_ratio) / (1 - schedule.warmup_ratio)
    if schedule.use == "linear":
        return 1 - progress * (1 - schedule.final_ratio)
    if schedule.use == "cosine":
        return schedule.final_ratio + (1 - schedule.final_ratio) * (1 + math.cos(math.pi * progress)) / 2
    return 1.0


class WeightAverage:
    """Exponential moving average of a module's parameters over optimiser steps; disabled with a decay of 0.

    A row w of a table without a gradient does not change, so n steps with the decays d_i move its average a to
    w + (a - w) d_1 ... d_n. That is computed when the row changes next, or the averages are used.
    """

    def __init__(self, module: nn.Module, decay: float):
        self.parameters = dict(module.named_parameters()) if decay else {}
        self.decay = decay
        self.tensors = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}  # averages
        self.log_decay = 0.0  # logarithm of the product of the decays of all steps
        self.logs: dict[str, Tensor] = {}  # (V,) for each table with sparse gradients: it, when a row was computed

    def state_dict(self) -> dict[str, Any]:
        return {"tensors": self.tensors, "log_decay": self.log_decay, "logs": self.logs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from these averages."""
        for part in ("tensors", "logs"):
            tensors = {name: tensor.to(self.parameters[name].device) for name, tensor in state[part].items()}
            setattr(self, part, tensors)
        self.log_decay = state["log_decay"]

    @torch.no_grad()
    def before_step(self) -> None:
        """Compute the averages of the rows that a step changes."""
        for name, parameter in self.parameters.items():
            if parameter.grad is not None and parameter.grad.is_sparse:
                if name not in self.logs:
                    logs = torch.full((len(parameter),), self.log_decay, dtype=torch.float64)
                    self.logs[name] = logs.to(parameter.device)
                self._catch_up(name, parameter.grad.indices()[0])
            elif parameter.grad is not None and name in self.logs:
                self._catch_up(name)

    def _catch_up(self, name: str, rows: Tensor | slice = slice(None)) -> None:
        table, average, logs = self.parameters[name], self.tensors[name], self.logs[name]
        factor = (self.log_decay - logs[rows]).exp().to(table.dtype)[:, None]
        average[rows] = torch.lerp(table[rows], average[rows], factor)
        logs[rows] = self.log_decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update with the weights after this step; the decay is faster at the start."""
        if self.parameters:
            decay = min(self.decay, (1 + step) / (10 + step))
            self.log_decay += math.log(decay)
            for name in self.parameters.keys() - self.logs.keys():
                self.tensors[name].lerp_(self.parameters[name], 1 - decay)

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Use the averages in place of the trained weights, if averaging is enabled."""
        with torch.no_grad():
            for name in self.logs:
                self._catch_up(name)
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, parameter in self.parameters.items():
            weights = parameter.clone()
            parameter.copy_(self.tensors[name])
            self.tensors[name].copy_(weights)
