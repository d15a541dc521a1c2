"""Find the stage that makes a pipeline's graph fail, by checking the stages one by one."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from seqpipe.config.contract import declared_features, describe
from seqpipe.config.members import ROWLESS
from seqpipe.errors import ExportError, ParityError, SeqpipeError
from seqpipe.export.graph import random_batches, shortest_row, stages_to_onnx, tensors_of, with_other_padding
from seqpipe.export.parity.decisions import OWN, SCORE_ATOL, SCORE_RTOL, Judge, in_float64, own_error
from seqpipe.features.document import Arrays
from seqpipe.runtime.session import import_onnxruntime, open_session
from seqpipe.training.network import Network

Outputs = tuple[Arrays, np.ndarray]  # of a stage, and the mask after it
ROUGH = 0.01  # allowed difference of a stage that does not compute in float64
_FIXED = "is a Python number fixed at export?"


@contextlib.contextmanager
def naming_stage_at_fault(network: Network, opset: int) -> Iterator[None]:
    """Add the stage at fault to the error of an export or comparison inside the block."""
    try:
        yield
    except ExportError as error:
        if any(describe(stage) in str(error) for stage, _ in network.stages):
            raise
        name, outputs = (error.input, error.outputs) if isinstance(error, ParityError) else ("", network.outputs)
        if fault := stage_at_fault(network, opset, name, outputs):
            error.args = (f"{error}\nat fault: {fault}",)
        raise


def stage_at_fault(network: Network, opset: int, name: str = "", outputs: Sequence[str] = ()) -> str:
    """Return the first stage that leaks, does not export or differs in its graph, with the fault.

    If all stages before the heads are sound, it is the head of the `outputs` that differ; "" if there are none. For an
    input of this `name` that the bundle reads differently, it is the stage that asks for it, or the tokenizer.
    """
    source, _, feature = name.rpartition(".")
    for stage, _ in network.stages:
        if feature in declared_features(stage) and network.source_of.get(stage.key, source) == source:
            return f"{stage.key}: {describe(stage)}: its feature {feature!r} differs when read from the manifest"
    if name:
        return f"the tokenizer of {name!r}: its file splits texts differently from training"
    network.eval()
    judge = Judge(network, {})
    before = len(network.stages) - len(network.heads)
    for count, (stage, _) in enumerate(network.stages[:before], 1):
        if fault := _fault(network, count, opset, judge):
            return f"{stage.key}: {describe(stage)}: {fault}"
    outputs = () if judge.fault else outputs  # rounding may explain what the stages before could not be judged by
    heads = [head for head in network.head_stages if any(output.startswith(head.prefix) for output in outputs)]
    names = ", or ".join(f"{head.component.key}: {describe(head.component)}" for head in heads)
    fix = f"the stages before {'it' if len(heads) == 1 else 'them'} export and answer the same; {_FIXED}"
    return names and f"{names}: {fix}"


def _fault(network: Network, count: int, opset: int, judge: Judge) -> str:
    """Return the fault of the stages up to this one: a leak in PyTorch, a failing export or run, or a difference."""

    def outputs(feeds: Arrays) -> Outputs:  # in float64, if the stages can
        exact = judge.compute(lambda network: _stage_outputs(network, count, in_float64(feeds)))
        return exact or _stage_outputs(network, count, feeds)

    # First check for a leak, in PyTorch only: real tokens that depend on padding or other rows also make the graph's
    # answers differ, and the error would then blame the graph for a fault of the stage.
    for feeds in random_batches(network.artifacts, 1, (3,), (2, 7)):
        whole, mask = outputs(feeds)
        for name, array in outputs(with_other_padding(network.artifacts, feeds))[0].items():
            if not _close(_real(array, mask), _real(whole[name], mask), ROUGH * bool(judge.fault)):
                return f"{name!r} of real tokens depends on values in the padding; use `mask`"
        row, alone = shortest_row(network.artifacts, feeds)
        for name, array in outputs(alone)[0].items():
            batch_row = whole[name] if array.shape == whole[name].shape else whole[name][row : row + 1]
            if not _close(array, batch_row[tuple(slice(0, n) for n in array.shape)], ROUGH * bool(judge.fault)):
                return f"{name!r} of a row depends on other rows and the padding; use `mask`"
    try:
        session = open_session(import_onnxruntime(), stages_to_onnx(network, count, opset), "cpu", Path("stages"))
        for feeds in random_batches(network.artifacts, 1, (1, 3), (7, 1)):
            got = session.run(None, {node.name: feeds[node.name] for node in session.get_inputs()})
            expected, mask = _stage_outputs(network, count, feeds)
            for (name, array), output in zip(expected.items(), map(partial(_real, mask=mask), got), strict=True):
                array = _real(array, mask)
                reference = array if _close(output, array) else _real(outputs(feeds)[0][name], mask)
                if not _close(output, reference, OWN * float(own_error(array, reference).max(initial=0.0))):
                    return f"{name!r} differs between PyTorch and the graph; {_FIXED}"
    except SeqpipeError as error:
        return str(error)
    except Exception as error:  # onnxruntime's exceptions have no other common base
        return f"its graph fails at another shape than the example's: {error}"
    return ""


def _stage_outputs(network: Network, count: int, feeds: Arrays) -> Outputs:
    """Return the outputs of stage number `count`, and the mask after it, which the stage may have replaced."""
    names = tensors_of(feeds)
    with torch.no_grad():
        *_, (stage, tensors) = itertools.islice(network.trace(names), count)
    arrays = {name: tensor.numpy() for name, tensor in tensors.items() if name not in ROWLESS}
    return arrays, arrays.get("mask", names[network.mask_at(stage)].numpy())


def _real(array: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the values of real tokens of an array (B, T, …); other arrays are unchanged."""
    return array[mask] if array.shape[:2] == mask.shape else array


def _close(got: np.ndarray, expected: np.ndarray, more: float = 0.0) -> bool:
    return got.shape == expected.shape and np.allclose(got, expected, rtol=SCORE_RTOL + more, atol=SCORE_ATOL + more)
