"""Decide how a PyTorch operator enters an ONNX graph: as it is, decomposed, or with arguments converted first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import onnxscript.function_libs.torch_lib.ops  # noqa: F401 (it fills the registry that `registration` holds)
import torch
from onnxscript.function_libs.torch_lib import registration
from torch import SymFloat, SymInt, Tensor

from seqpipe.nn import torch_internals
from seqpipe.nn.torch_internals import OpOverload, TypePromotionTable, is_composite, is_valid_to_preserve

aten, prims = torch.ops.aten, torch.ops.prims
_DTYPES: Mapping[type, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    SymInt: torch.int64,
    float: torch.float32,
    SymFloat: torch.float32,
}


class OnnxRegistry(torch_internals.OperatorRegistry):
    """Registry of the operators that the ONNX exporter translates; onnxscript's functions are loaded on first use.

    The exporter registers all 500 of them at once and reads their source code, which takes longer than a trace.
    """

    def __init__(self, opset: int):
        super().__init__(opset)
        self._waiting = dict(registration.default_registry.items())

    def get_decomps(self, target: Any) -> list[Any]:
        name = target.name() if isinstance(target, OpOverload) else f"{target.__module__}::{target.__name__}"
        if (waiting := self._waiting.pop(name, None)) is not None:
            for function in (*waiting.overloads, *waiting.complex):
                self.register(target, function, function in waiting.complex)
        entries: list[Any] = super().get_decomps(target)
        return entries


onnx_registry = cache(OnnxRegistry)  # by opset
_default_decompositions = cache(torch.export.default_decompositions)  # it builds its table at each call


@cache
def decomposition(func: OpOverload, registry: Any) -> Callable[..., Any] | None:
    """Return the decomposition that is recorded in place of an operator; None if the operator is recorded itself.

    Composite operators that return views are recorded themselves, except reshape. The first of PyTorch's tables counts.
    """
    if func is aten.pad.default:
        return _pad_integers
    recorded = registry.is_registered(func) and (not is_composite(func) or is_valid_to_preserve(func))
    if recorded or func.namespace in ("onnx", "onnx_symbolic") or func is aten.reshape.default:
        return None
    tables = _default_decompositions(), torch_internals.decomposition_table
    return next((table[func] for table in tables if func in table), func.decompose)


def _pad_integers(x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Pad integers by concatenation: onnxruntime has no Pad of integers on CUDA, and copies them to the CPU."""
    if x.dtype == torch.bool or x.is_floating_point() or mode != "constant" or any(width < 0 for width in pad):
        return NotImplemented
    for axis, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True), 1):
        sizes = [(*x.shape[:-axis], width, *x.shape[x.dim() - axis + 1 :]) for width in (before, after)]
        front, back = (x.new_full(size, int(value or 0)) for size in sizes)
        x = torch.cat([front, x, back], -axis)
    return x


promotions = cache(TypePromotionTable)  # PyTorch's type promotion rules for the arguments of each operator


def convert_type(value: Any, dtype: torch.dtype | None) -> Any:
    """Convert a tensor or number like PyTorch does before an operator of several types; ONNX does not convert."""
    if dtype is None or value is None:
        return value
    if isinstance(value, Tensor):
        return value if value.dtype == dtype else prims.convert_element_type.default(value, dtype)
    if isinstance(value, (list, tuple)):
        parts = [convert_type(part, dtype) for part in value]
        return value if all(a is b for a, b in zip(parts, value, strict=True)) else type(value)(parts)
    return value if _DTYPES[type(value)] == dtype else aten.scalar_tensor.default(value, dtype=dtype)
