"""Exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """The average of a module's parameters over optimiser steps; none with a decay of 0.

    Attributes:
        tensors: The averages by parameter name.
    """

    def __init__(self, module: nn.Module, decay: float):
        self.module, self.decay = module, decay
        self.tensors = self._copies() if decay else {}

    def _copies(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.module.named_parameters()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Continue from these averages."""
        self.tensors = {name: tensor.to(self.tensors[name].device) for name, tensor in tensors.items()}

    def update(self, step: int) -> None:
        """Add the weights after this step; the first steps decay faster."""
        decay = min(self.decay, (1 + step) / (10 + step))
        with torch.no_grad():
            for name, parameter in self.module.named_parameters() if self.tensors else ():
                self.tensors[name].lerp_(parameter, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The averages in place of the trained weights, where averaging is on."""
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
