"""Fake tensors to run a program on: only shapes and types, with symbols for free axes."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext


class FakeMode(FakeTensorMode):
    """Fake tensors without what makes a trace slow.

    That is a wrapper that keeps Dynamo out of every call (a fifth of the time), and a cache of results (a third): each
    operator of a program runs once, so that the cache is filled and hardly read.
    """

    def __init__(self, shapes: ShapeEnv):
        super().__init__(shape_env=shapes, allow_non_fake_inputs=True, export=True)
        self.cache_enabled = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    __torch_dispatch__ = inspect.unwrap(FakeTensorMode.__torch_dispatch__)


def axis_sizes(inputs: Mapping[str, Tensor], axes: Sequence[Mapping[int, str]]) -> dict[str, int]:
    """The size of each free axis while tracing: its example's, or the next that no other one has."""
    sizes: dict[str, int] = {}
    for tensor, free in zip(inputs.values(), axes, strict=True):
        for axis, name in free.items():
            if name not in sizes:
                sizes[name] = next(
                    size for size in itertools.count(max(2, tensor.shape[axis])) if size not in sizes.values()
                )
    return sizes


def fake_input(fake: FakeTensorMode, tensor: Tensor, free: Mapping[int, str], sizes: Mapping[str, int]) -> Any:
    """A fake input. Free axes of the same size are the same symbol (DUCK)."""
    shape = [sizes[free[axis]] if axis in free else size for axis, size in enumerate(tensor.shape)]
    dims = [DimDynamic.DUCK if axis in free else DimDynamic.STATIC for axis in range(tensor.dim())]
    example = torch.empty(shape, dtype=tensor.dtype)
    return fake.from_tensor(example, symbolic_context=StatelessSymbolicContext(dynamic_sizes=dims))
