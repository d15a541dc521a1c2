"""Functions of tensors as graphs in onnxruntime, and tensors that tests of modules need."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn

from seqpipe.export.graph import fill_weights
from seqpipe.export.passes.linear_layers import rewrite_linear_layers
from seqpipe.export.passes.loop_invariants import hoist_loop_invariants
from seqpipe.export.tracing.conversion import onnx_model

Arrays = dict[str, np.ndarray]
Call = Callable[..., Mapping[str, Tensor]]
Axes = Mapping[str, tuple[str, ...]]
_OUT = "out."  # an input and an output of one name are refused

AXES = {"x": ("b", "t"), "mask": ("b", "t")}  # of a batch of vectors and its mask


class ExportedGraph:
    """An exported function: call it with named tensors, get named arrays."""

    def __init__(self, path: Path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self.model = onnx.load(path)
        self.session = onnxruntime.InferenceSession(path, options)
        self.inputs = [i.name for i in self.session.get_inputs()]

    def __call__(self, **feed: Tensor) -> Arrays:
        arrays = self.session.run(None, {name: feed[name].numpy() for name in self.inputs})
        return dict(zip((o.name.removeprefix(_OUT) for o in self.session.get_outputs()), arrays, strict=True))

    @property
    def operators(self) -> list[str]:
        return [node.op_type for node in self.model.graph.node]


class _Wrapper(nn.Module):
    def __init__(self, module: nn.Module, call: Call, names: list[str]):
        super().__init__()
        self.module, self.call, self.names = module, call, names

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.call(**dict(zip(self.names, tensors, strict=True))).values())


def export(path: Path, module: nn.Module, call: Call, axes: Axes, **example: Tensor) -> ExportedGraph:
    """Export `call` of named tensors; `axes` names the dynamic axes of each. Example sizes differ, 2 or more."""
    module.eval().requires_grad_(False)
    names = list(example)
    dims = [{i: axis for i, axis in enumerate(axes[name]) if axis} for name in names]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = [f"{_OUT}{name}" for name in call(**example)]
        wrapper = _Wrapper(module, call, names)
        model = onnx_model(wrapper, example, dims, outputs, 18)
    hoist_loop_invariants(model.graph)
    rewrite_linear_layers(model.graph)
    fill_weights(model, dict(wrapper.named_parameters()) | dict(wrapper.named_buffers()))
    onnx.save(model, path)
    graph = ExportedGraph(path)
    assert {entry.domain for entry in graph.model.opset_import} == {""}
    return graph


def meta_device() -> torch.device:
    """In `with elsewhere():` a tensor that is created without a device is on the device meta, apart from all others."""
    return torch.device("meta")


def ragged_mask(*lengths: int) -> Tensor:
    """A mask with rows of these lengths."""
    return torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]  # (B, T)
