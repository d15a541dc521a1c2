"""Host waits and operators of a training step's stages, counted without a GPU.

    python benchmarks/stage_waits.py pipelines/ner.yaml pipelines/dates.yaml

They are counted on a pretended device, so that what the stages do on a GPU is what counts. Operators that compute are
about the kernels of a GPU; a recurrent layer of the library is one, as in cuDNN, and its cells are a few.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import torch
from common import ROOT
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

sys.path.insert(0, str(ROOT))

from seqpipe.config.loader import load_config
from seqpipe.runs.check import build_trial

DEVICE = "meta"  # the only device besides the CPU that autograd knows in every build of PyTorch

# Operators of which the host reads a value, or the shape of the result. On CUDA it waits for all kernels before.
READS = {
    "_local_scalar_dense": "item",
    "equal": "item",
    "allclose": "item",
    "nonzero": "nonzero",
    "masked_select": "nonzero",
    "bincount": "unique",
    "_unique2": "unique",
    "unique_dim": "unique",
    "unique_consecutive": "unique",
    "_pack_padded_sequence": "copy to the host",
    "_coalesce": "unique",
    "multinomial": "item",
}
FREE = (
    "detach",
    "alias",
    "lift_fresh",
    "_unsafe_view",
    "_reshape_alias",
    "empty",
    "empty_like",
    "new_empty",
)  # no kernel
RESHAPES = ("transpose_", "t_", "squeeze_", "unsqueeze_", "as_strided_")  # of a tensor in place


class DeviceTensor(Tensor):
    """A tensor that claims to be on DEVICE; its values are in a tensor on the CPU."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> DeviceTensor:
        with torch._C._DisableTorchDispatch():
            empty = torch.empty_strided(values.shape, values.stride(), dtype=values.dtype, device=DEVICE)
            tensor: DeviceTensor = Tensor._make_subclass(cls, empty)
        tensor.values = values
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} outside of HostWaits")

    def tolist(self) -> Any:
        return self.cpu().tolist()


class HostWaits(TorchDispatchMode):
    """Run the operators of `DeviceTensor`s on the CPU; count those at which the host of a real device would wait.

    Such are reads of a value, shapes that depend on values, and copies between host and device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.kernels: Counter[str] = Counter()
        self._library = _LibraryFunctions()
        self._is_autocast_enabled = torch.is_autocast_enabled

    def __enter__(self) -> HostWaits:
        # PyTorch refuses the name of the pretended device.
        known: Callable[..., bool] = self._is_autocast_enabled
        torch.is_autocast_enabled = lambda *device: device != (DEVICE,) and known(*device)  # type: ignore[assignment]
        self._library.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        torch.is_autocast_enabled = self._is_autocast_enabled
        super().__exit__(*error)
        self._library.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), func.overloadpacket.__name__
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_there = any(isinstance(tensor, DeviceTensor) for tensor in tensors)
        if name == "lift_fresh" and tensors[0].device.type == DEVICE:
            raise RuntimeError(
                "torch.tensor copies from the host, and waits; make the tensor with torch.full or arange"
            )
        if (target := kwargs.get("device")) is not None:
            kwargs["device"], was_there, is_there = "cpu", is_there, torch.device(target).type == DEVICE
            if tensors and is_there != was_there:
                self.counts["copy to the device" if is_there else "copy to the host"] += 1
        elif is_there:
            self.counts.update(_waits(name, args, kwargs))
        if is_there and not func.is_view and name not in FREE:
            self.kernels[name] += 1
        result = func(*tree_map(_on_cpu, args), **tree_map(_on_cpu, kwargs))
        if not is_there:
            return result
        if name in RESHAPES:
            with torch._C._DisableTorchDispatch():
                func(*args, **kwargs)
        if name.endswith("_") and func._schema.is_mutable:
            return args[0]
        return tree_map(lambda value: DeviceTensor(value) if type(value) is Tensor else value, result)


def move_module(module: nn.Module) -> None:
    """Move parameters and buffers to the pretended device."""
    with HostWaits():
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    there = DeviceTensor(parameter.detach())
                    part._parameters[name] = nn.Parameter(there, parameter.requires_grad)
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    part._buffers[name] = DeviceTensor(buffer)


def _waits(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    if name == "copy_" and isinstance(args[0], DeviceTensor) != isinstance(args[1], DeviceTensor):
        return ["copy"]
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        return ["nonzero"] * sum(places is not None and places.dtype == torch.bool for places in args[1])
    if name == "repeat_interleave" and kwargs.get("output_size") is None:
        return ["item"]
    return [READS[name]] if name in READS else []


def _on_cpu(value: Any) -> Any:
    return value.values if isinstance(value, DeviceTensor) else value


# Recurrent layers and cells of the library, which a GPU does not compute operator by operator.

LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")  # one kernel of cuDNN each, in either direction
CELLS = ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
CELL_FORWARD, CELL_BACKWARD = 3, 7  # two products and the gates; gates, four products, two sums of biases


class _LibraryFunctions(TorchFunctionMode):
    """Run recurrent layers and cells of `DeviceTensor`s as one operator each."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        leaves, structure = tree_flatten((args, kwargs or {}))
        if name not in LAYERS + CELLS or not any(isinstance(leaf, DeviceTensor) for leaf in leaves):
            return func(*args, **(kwargs or {}))
        results = _AsOne.apply(func, structure, *leaves)
        return results if len(results) > 1 else results[0]


class _AsOne(torch.autograd.Function):
    """A function of tensors on the pretended device, with its gradient, computed on the CPU."""

    @staticmethod
    def forward(ctx: Any, func: Any, structure: Any, *leaves: Any) -> tuple[Tensor, ...]:
        inputs = [
            leaf.values.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, DeviceTensor) else leaf
            for leaf in leaves
        ]
        args, kwargs = tree_unflatten(inputs, structure)
        with torch.enable_grad():
            results = func(*args, **kwargs)
        ctx.results = results if isinstance(results, tuple) else (results,)
        ctx.inputs, ctx.name = inputs, func.__name__
        _count_kernels(ctx.name, CELL_FORWARD)
        return tuple(DeviceTensor(result.detach()) for result in ctx.results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        wanted = [i for i, leaf in enumerate(ctx.inputs) if isinstance(leaf, Tensor) and leaf.requires_grad]
        values = [_on_cpu(grad) for grad in grads]
        gradients = torch.autograd.grad(ctx.results, [ctx.inputs[i] for i in wanted], values, allow_unused=True)
        _count_kernels(ctx.name, CELL_BACKWARD)
        to_inputs: list[Any] = [None] * len(ctx.inputs)
        for i, grad in zip(wanted, gradients, strict=True):
            to_inputs[i] = None if grad is None else DeviceTensor(grad)
        return None, None, *to_inputs


def _count_kernels(name: str, of_cell: int) -> None:
    waits = _get_current_dispatch_mode()
    assert isinstance(waits, HostWaits)
    waits.kernels[name] += of_cell if name in CELLS else 1


@dataclass(frozen=True)
class StepCounts:
    """Counts of the stages of a training step.

    Args:
        waits: Host waits by kind.
        forward: Operators of stages and loss, by name.
        backward: Operators of the gradients, by name.
        tokens: Number of tokens of the longest text of the batch.
        losses: The loss on the CPU and on the pretended device.
    """

    waits: Mapping[str, int]
    forward: Mapping[str, int]
    backward: Mapping[str, int]
    tokens: int
    losses: tuple[float, float]


def count_step(file: Path, overrides: Sequence[str] = ()) -> StepCounts:
    """Count a step of a pipeline with random weights on its first batch."""
    trial = build_trial(load_config(file, overrides))
    network = trial.network.train()
    torch.manual_seed(0)
    loss = network.loss(trial.batch)
    move_module(network)
    torch.manual_seed(0)
    with HostWaits() as forward:
        there = network.loss({name: DeviceTensor(tensor) for name, tensor in trial.batch.items()})
    with HostWaits() as backward:
        there.backward()
    assert isinstance(there, DeviceTensor)
    tokens = max(tensor.shape[1] for name, tensor in trial.batch.items() if name.endswith("mask"))
    waits, losses = forward.counts + backward.counts, (loss.item(), there.values.item())
    return StepCounts(waits, forward.kernels, backward.kernels, tokens, losses)


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("files", nargs="+", type=Path, metavar="FILE", help="pipelines, with their data")
    table = common.Table("scale", "waits", "pipeline", "waits", "operators, forward", "backward", "tokens")
    for file in options.parse_args().files:
        counts = count_step(file)
        waits, forward, backward = (sum(part.values()) for part in (counts.waits, counts.forward, counts.backward))
        table.row(file.stem, waits, forward, backward, counts.tokens)


if __name__ == "__main__":
    main()
