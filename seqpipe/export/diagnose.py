"""A pipeline whose graph fails in, the first stage that is at fault out: found by looking at the stages one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from seqpipe.config.component import describe
from seqpipe.config.names import ROWLESS
from seqpipe.errors import ExportError, PluginError, SeqpipeError
from seqpipe.export.graph import stages_to_onnx
from seqpipe.export.parity import CLOSE, RELATIVE, grid, pollute, shortest
from seqpipe.features.document import Arrays
from seqpipe.runtime.onnx_runtime import onnxruntime
from seqpipe.training.pipeline import Pipeline


@contextlib.contextmanager
def blamed(pipeline: Pipeline, opset: int) -> Iterator[None]:
    """Name the stage at fault of an export or a comparison that fails inside."""
    try:
        yield
    except ExportError as error:
        if any(describe(stage) in str(error) for stage, _ in pipeline.stages):
            raise
        raise type(error)(f"{error}\nat fault: {culprit(pipeline, opset)}") from error


def culprit(pipeline: Pipeline, opset: int) -> str:
    """The first stage that leaks, does not export or differs in its graph, and which of these; else the head."""
    pipeline.eval()
    before = len(pipeline.stages) - len(pipeline.heads)
    for count, (stage, _) in enumerate(pipeline.stages[:before], 1):
        if told := _leak(pipeline, count) or _graph_fault(pipeline, count, opset):
            return f"{stage.key}: {describe(stage)}: {told}"
    heads = [stage for stage, _ in pipeline.stages[before:]]
    told = ", or ".join(f"{head.key}: {describe(head)}" for head in heads)
    return f"{told}: the stages before {'it' if len(heads) == 1 else 'them'} export and answer the same"


def _leak(pipeline: Pipeline, count: int) -> str:
    """Whether real tokens change with the padding or the rows around them, in PyTorch alone."""
    for feeds in grid(pipeline.artifacts, 1, (3,), (2, 7)):
        whole, real = _made(pipeline, count, feeds)
        for name, array in _made(pipeline, count, pollute(pipeline.artifacts, feeds))[0].items():
            if not _close(_real(array, real), _real(whole[name], real)):
                return f"{name!r} of real tokens changes with what stands in the padding; use `mask`"
        row, alone = shortest(pipeline.artifacts, feeds)
        for name, array in _made(pipeline, count, alone)[0].items():
            here = whole[name] if array.shape == whole[name].shape else whole[name][row : row + 1]
            if not _close(array, here[tuple(slice(0, n) for n in array.shape)]):
                return f"{name!r} of a row changes with the rows and the padding around it; use `mask`"
    return ""


def _graph_fault(pipeline: Pipeline, count: int, opset: int) -> str:
    """Whether the graph of the stages so far cannot be made, fails, or differs."""
    try:
        session = onnxruntime.InferenceSession(stages_to_onnx(pipeline, count, opset), _quiet())
        for feeds in grid(pipeline.artifacts, 1, (1, 3), (7, 1)):
            given = {one.name: feeds[one.name] for one in session.get_inputs()}
            got = session.run(None, given)
            made, real = _made(pipeline, count, feeds)
            for (name, array), mine in zip(made.items(), got, strict=True):
                if not _close(_real(mine, real), _real(array, real)):
                    return f"{name!r} differs between PyTorch and the graph; is a Python number baked in at export?"
    except SeqpipeError as error:
        return str(error)
    except Exception as error:  # onnxruntime's exceptions share no base but Exception
        return f"its graph fails at another shape than the example's: {error}"
    return ""


def _made(pipeline: Pipeline, count: int, feeds: Arrays) -> tuple[Arrays, np.ndarray]:
    """What the stage of this number makes, and the mask that stands after it: it may have made another."""
    names: dict[str, Tensor] = {name: torch.from_numpy(np.array(array)) for name, array in feeds.items()}
    with torch.no_grad():
        for number, (stage, made) in enumerate(pipeline.trace(names), 1):
            if number == count:
                found = {name: tensor.numpy() for name, tensor in made.items() if name not in ROWLESS}
                return found, found.get("mask", names[pipeline.mask_at(stage)].numpy())
    raise PluginError(f"the pipeline has no stage {count}")


def _real(array: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The real tokens of (B, T, …); all of anything else."""
    return array[mask] if array.shape[:2] == mask.shape else array


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=RELATIVE, atol=CLOSE)


def _quiet() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    return options
