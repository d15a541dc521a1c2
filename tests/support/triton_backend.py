"""The module `triton_python_backend_utils` of Triton's Python backend, as far as models of seqpipe use it.

Tensors of strings hold bytes, parameters are one text of JSON, and a response has either tensors or an error: so it is
written in the README of triton-inference-server/python_backend.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from repository_scripts import load_script


class Tensor:
    def __init__(self, name: str, array: np.ndarray):
        if not isinstance(array, np.ndarray):
            raise TypeError("a tensor is made of a NumPy array")
        if array.dtype.kind == "O" and not all(isinstance(element, str | bytes) for element in array.reshape(-1)):
            raise TypeError("the elements of a tensor of strings are str or bytes")
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        if self._array.dtype.kind != "O":
            return self._array
        raw = [element.encode() if isinstance(element, str) else element for element in self._array.reshape(-1)]
        array = np.empty(len(raw), np.object_)
        array[:] = raw
        return array.reshape(self._array.shape)


class TritonError:
    def __init__(self, message: str):
        self._message = message

    def message(self) -> str:
        return self._message


class InferenceResponse:
    def __init__(self, output_tensors: Sequence[Tensor], error: TritonError | None = None):
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


class InferenceRequest:
    """A request with these elements of each input, of the shape [N, 1] that a model with batches gets."""

    def __init__(self, inputs: Mapping[str, Sequence[str | bytes]], parameters: Mapping[str, Any] | None = None):
        self._tensors = {}
        for name, elements in inputs.items():
            array = np.empty((len(elements), 1), np.object_)
            array[:, 0] = elements
            self._tensors[name] = Tensor(name, array)
        self._parameters = json.dumps(parameters or {})

    def parameters(self) -> str:
        return self._parameters


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    return request._tensors.get(name)


def start(repository: Path, name: str, config: Mapping[str, Any]) -> Any:
    """The model of this name, as the backend starts it."""
    with mock.patch.dict(sys.modules, {"triton_python_backend_utils": sys.modules[__name__]}):
        module = load_script(repository / name / "1" / "model.py")
    model = module.TritonPythonModel()
    model.initialize({
        "model_config": json.dumps(config), "model_name": name, "model_version": "1",
        "model_repository": str(repository / name), "model_instance_name": f"{name}_0",
        "model_instance_kind": "CPU", "model_instance_device_id": "0",
    })  # fmt: skip
    return model
