"""A model repository for NVIDIA Triton: a Python model from texts to answers, and the graph alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seqpipe.commands.deploy.output import (
    NameRule,
    bundle_files,
    checked_bundle,
    next_steps,
    quoted,
    requirement,
    template,
    write_files,
)
from seqpipe.errors import BundleError
from seqpipe.features.sources import fields_of
from seqpipe.runtime.model import Model
from seqpipe.runtime.predictor import ROWS

NAMES = NameRule(r"[A-Za-z0-9][A-Za-z0-9_.-]*", 90, "letters, digits, '.', '_' and '-'")
IMAGE = "nvcr.io/nvidia/tritonserver:25.08-py3"
ANSWER = "answer_json"  # as `seqpipe serve` calls it in the Open Inference Protocol
BATCH = "batch_size"  # the first axis of every input and output of a graph that seqpipe exported
_TEXTS = 8 * ROWS  # of a batch, which the runtime divides among the cores
_TYPES = {"tensor(bool)": "TYPE_BOOL", "tensor(int64)": "TYPE_INT64", "tensor(float)": "TYPE_FP32"}


def write_triton(path: Path, output: Path, name: str | None, cuda: bool) -> str:
    """Writes the repository; the command to type next."""
    content = checked_bundle(path, output, cuda)
    name = NAMES.choose(name, content, "Triton")
    model = Model(content, "cpu", threads=1)
    write_files(
        output,
        {
            f"{name}/config.pbtxt": text_config(name, fields_of(model.predictor.featurizer), cuda),
            f"{name}/1/model.py": template("model.py", distribution=requirement(cuda), answer=ANSWER),
            **bundle_files(content, f"{name}/1/bundle"),
            f"{name}_graph/config.pbtxt": graph_config(f"{name}_graph", model.session, cuda),
            f"{name}_graph/1/model.onnx": content.files["model.onnx"],
        },
    )
    gpus = "--gpus all " if cuda else ""
    ports = "-p 8000:8000 -p 8001:8001 -p 8002:8002"
    inside = f"pip install '{requirement(cuda)}' && tritonserver --model-repository /models"
    mount = f"{quoted(output.resolve())}:/models:ro"
    return next_steps(output, f'docker run --rm {gpus}{ports} -v {mount} {IMAGE} sh -c "{inside}"')


def text_config(name: str, fields: Sequence[str], cuda: bool) -> str:
    """The config.pbtxt of the model that takes texts: one input for each field of a record."""
    inputs = [_tensor(field, "TYPE_STRING", [1]) for field in fields]
    return "\n".join(
        [
            f"name: {_text(name)}",
            'backend: "python"',
            f"max_batch_size: {_TEXTS}",
            *_list("input", inputs),
            *_list("output", [_tensor(ANSWER, "TYPE_STRING", [1])]),
            "dynamic_batching { } # takes what waits, without a delay",
            _instances(cuda),
            "",
        ]
    )


def graph_config(name: str, session: Any, cuda: bool) -> str:
    """The config.pbtxt of the graph. It is batched if the first axis of everything is the batch.

    Raises:
        BundleError: if a tensor has a type that no graph of a bundle has.
    """
    inputs, outputs = session.get_inputs(), session.get_outputs()
    is_batched = all(tensor.shape and tensor.shape[0] == BATCH for tensor in (*inputs, *outputs))
    optional = [tensor.name for tensor in session.get_overridable_initializers()]
    note = f"# These inputs stay at their defaults, as they have no batch: {', '.join(optional)}."
    return "\n".join(
        [
            *([note] if optional else []),
            f"name: {_text(name)}",
            'backend: "onnxruntime"',
            f"max_batch_size: {ROWS if is_batched else 0}",
            *_list("input", [_graph_tensor(tensor, is_batched) for tensor in inputs]),
            *_list("output", [_graph_tensor(tensor, is_batched) for tensor in outputs]),
            *(["dynamic_batching { } # of requests with equal shapes, without a delay"] if is_batched else []),
            _instances(cuda),
            "",
        ]
    )


def _graph_tensor(tensor: Any, is_batched: bool) -> str:
    if tensor.type not in _TYPES:
        raise BundleError(f"model.onnx: {tensor.name} is a {tensor.type}, which no bundle has; export it again")
    shape = tensor.shape[1:] if is_batched else tensor.shape
    return _tensor(tensor.name, _TYPES[tensor.type], [size if isinstance(size, int) else -1 for size in shape])


def _tensor(name: str, type: str, dims: Sequence[int]) -> str:
    """An input or output; Triton has no dims of length 0, but reshapes one number to them."""
    shape = f"dims: [ {', '.join(map(str, dims))} ]" if dims else "dims: [ 1 ] reshape { shape: [ ] }"
    return f"{{ name: {_text(name)} data_type: {type} {shape} }}"


def _list(key: str, items: Sequence[str]) -> list[str]:
    return [f"{key} [", *(f"  {item}{',' if i < len(items) else ''}" for i, item in enumerate(items, 1)), "]"]


def _instances(cuda: bool) -> str:
    return f"instance_group [ {{ count: 1 kind: {'KIND_GPU' if cuda else 'KIND_CPU'} }} ]"


def _text(text: str) -> str:
    """A string as protobuf's text format and JSON both write it."""
    return json.dumps(text, ensure_ascii=False)
