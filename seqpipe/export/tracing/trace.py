"""Trace a module once into FX graphs that PyTorch's ONNX exporter translates, its loops included.

`torch.export` runs a program with loops four times: Dynamo traces each loop, then shapes are collected, then the graph
is recorded, then it is decomposed. Here one dispatch mode does all of it while the program runs once on fake tensors.
It sits below autograd, where composite operators such as `layer_norm` still arrive whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from onnx_ir import SymbolicDim
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._export.utils import _compiling_state_context
from torch.fx.experimental import _config as shapes_config
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from seqpipe.export.tracing.fake_tensors import FakeMode, axis_sizes, fake_input
from seqpipe.export.tracing.frame import Frame
from seqpipe.export.tracing.onnx_registry import OnnxRegistry
from seqpipe.export.tracing.recorder import Recorder, UntraceableError
from seqpipe.nn import loops


@dataclass(frozen=True)
class Traced:
    """A traced program.

    Attributes:
        frame: Its graph; inputs are the weights, then the program's own.
        weights: Parameters and buffers by name.
        axes: The name of each free axis by its symbol, as shapes in the graph show it.
    """

    frame: Frame
    weights: Mapping[str, Tensor]
    axes: dict[str | SymbolicDim, str]


def trace(
    module: nn.Module, inputs: Mapping[str, Tensor], axes: Sequence[Mapping[int, str]], registry: OnnxRegistry
) -> Traced:
    """Run a module in evaluation once, on fake tensors.

    Args:
        module: Takes the inputs by position and returns a tuple of tensors.
        inputs: Examples by name; only their shapes and types matter.
        axes: For each input, the names of its free axes.
        registry: The operators that the ONNX exporter translates; others are decomposed.

    Raises:
        UntraceableError: for a program that `torch.export` has to trace.
        RuntimeError: if a free axis turns out to be fixed; and whatever the module raises.
    """
    shapes = ShapeEnv()
    fake = FakeMode(shapes)
    recorder = Recorder(fake, registry)
    weights = dict(module.named_parameters()) | dict(module.named_buffers())
    # Sizes of 0 and 1 must not be told apart from others by looking at them: `backed_size_oblivious`.
    with shapes_config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        sizes = axis_sizes(inputs, axes)
        examples = [fake_input(fake, tensor, free, sizes) for tensor, free in zip(inputs.values(), axes, strict=True)]
        for name, tensor in (*weights.items(), *zip(inputs, examples, strict=True)):
            recorder.frame.bind(tensor, recorder.frame.add_input(name.replace(".", "_"), tensor))
        symbols: dict[Any, str] = {
            tensor.shape[axis].node.expr: name
            for tensor, free in zip(examples, axes, strict=True)
            for axis, name in free.items()
        }
        with (
            fake,
            _compiling_state_context(),
            _no_fast_path(),
            enable_python_dispatcher(),
            torch._C._AutoDispatchBelowAutograd(),
            loops.exported_by(recorder),
            recorder,
        ):
            try:
                results = module(*examples)
            except Exception as error:
                if recorder.untraceable:
                    raise UntraceableError(recorder.untraceable) from error
                raise
    for symbol, name in symbols.items():
        if (size := shapes.replace(symbol)).is_Integer:
            raise RuntimeError(f"the axis {name!r} is specialized to {size}, its size in the example")
    recorder.frame.results = [recorder.frame.node(tensor) for tensor in results]
    recorder.frame.graph.output(tuple(recorder.frame.results))
    return Traced(recorder.frame, weights, {str(symbol): name for symbol, name in symbols.items()})


@contextlib.contextmanager
def _no_fast_path() -> Iterator[None]:
    """Without the operator that is a whole layer of `nn.TransformerEncoder`: nothing translates it."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
