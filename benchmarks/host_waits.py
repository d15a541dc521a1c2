"""Counts of what makes a program wait for its GPU, and of the operators it runs; it needs no GPU.

    with HostWaits() as waits:
        pipeline.loss(batch).backward()
    print(waits.waits, waits.operators)

All tensors count as if they were on the GPU. A wait is an operator whose result the host needs before it can go on (a
number, a shape that depends on values), or a copy that blocks: `item`, a tensor as a bool, int or list, a boolean mask
as index, `nonzero`, `unique`, `.cpu()`, `.numpy()`, and `torch.tensor(numbers, device=…)`, which copies from pageable
memory. Each has its operator and the line of seqpipe, of its components or of the caller that asks for it.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Operators that wait whatever their arguments are; `_coalesce` counts distinct rows, `_ctc_loss` reads lengths.
WAITING = {
    *("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "bincount", "_unique2"),
    *("unique_dim", "unique_consecutive", "_coalesce", "_ctc_loss", "_pack_padded_sequence"),
}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
FILLS = {"index_put", "index_put_"}
READS = {"tolist", "numpy", "cpu", "__array__"}  # methods of a tensor that copy it to the host, or read it there
COPIES = {torch.tensor, torch.as_tensor, Tensor.new_tensor}
# Operators without a kernel, besides those whose schema says that they are views.
FREE = {"detach", "alias", "lift_fresh", "t", "_unsafe_view", "_reshape_alias", "empty", "empty_like", "new_empty"}
PLACES = ("seqpipe", "seqpipe_plugins", "strangers")  # folders of code whose lines are named


def place() -> str:
    """The line of seqpipe or of a component that runs now, else of the first caller outside PyTorch."""
    frame, first = sys._getframe(2), ""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path != Path(__file__) and "torch" not in path.parts:
            line = f"{'/'.join(path.parts[-2:])}:{frame.f_lineno}"
            first = first or line
            if any(folder in path.parts for folder in PLACES) and path.parts[-2] != "tests":
                return line
        frame = frame.f_back  # type: ignore[assignment]
    return first


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


class _Functions(TorchFunctionMode):
    """Reads of tensors by the host that no operator shows where all tensors are on the CPU."""

    def __init__(self, waits: Counter[tuple[str, str]]):
        super().__init__()
        self.waits = waits

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, options = getattr(function, "__name__", ""), kwargs or {}
        copies = function in COPIES and (name == "new_tensor" or options.get("device") is not None)
        moves = name == "to" and any(
            isinstance(part, str) and part == "cpu" for part in (*args[1:2], options.get("device"))
        )  # written so, not another tensor's device
        if copies or moves or (name in READS and args and isinstance(args[0], Tensor)):
            self.waits[name, place()] += 1
        return function(*args, **options)


class HostWaits(TorchDispatchMode):
    """Context in which waits and operators are counted.

    Attributes:
        waits: Number of waits by operator and line.
        operators: Number of operators by name, those without a kernel left out: about the kernels of a GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[tuple[str, str]] = Counter()
        self.operators: Counter[str] = Counter()
        self._stack = ExitStack()

    def __enter__(self) -> HostWaits:
        self._stack.enter_context(_Functions(self.waits))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, options = operator._schema.name.removeprefix("aten::"), kwargs or {}
        is_masked = name in INDEXED and any(map(_is_mask, args[1]))
        is_masked &= not (name in FILLS and args[2].numel() == 1)  # a GPU runs `masked_fill`
        counts_repeats = name == "repeat_interleave" and options.get("output_size") is None
        if name in WAITING or is_masked or counts_repeats:
            self.waits[name, place()] += 1
        if not operator.is_view and name not in FREE:
            self.operators[name] += 1
        return operator(*args, **options)
