"""Tensors of the Open Inference Protocol v2, read and written as JSON or in its binary extension."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqpipe.errors import UsageError
from seqpipe.files import json_bytes

BYTES, FP32, INT64 = "BYTES", "FP32", "INT64"
_DTYPES = {FP32: "<f4", INT64: "<i8"}
_LENGTH = struct.Struct("<I")  # stands before each element of BYTES in binary data
_SIZE = "binary_data_size"


@dataclass(frozen=True)
class Tensor:
    """A named tensor.

    Args:
        name: Of the input or output.
        datatype: BYTES, FP32 or INT64.
        shape: Its sizes.
        data: All elements in row-major order; None: a number that is missing.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Sequence[Any]


def read_request(body: bytes, header_length: int | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """An inference request: its JSON object, and its input tensors, which are texts, by name.

    Args:
        body: Of the HTTP request.
        header_length: Bytes of JSON before the binary data, as Inference-Header-Content-Length says; None: all.

    Raises:
        UsageError: if it is none.
    """
    end = len(body) if header_length is None else header_length
    if not 0 <= end <= len(body):
        raise UsageError(f"Inference-Header-Content-Length is {end:,}; the body has {len(body):,} bytes")
    try:
        request = json.loads(body[:end])
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the body is not JSON: {str(error) or 'nested too deeply'}") from error
    inputs = request.get("inputs") if isinstance(request, dict) else None
    if not isinstance(inputs, list) or not inputs or not all(isinstance(entry, dict) for entry in inputs):
        raise UsageError("inputs: must be a list of tensors, each with name, shape, datatype and data")
    tensors, at = dict[str, Tensor](), end
    for entry in inputs:
        name, shape = _head(entry)
        parameters = _object(entry, "parameters", f"input {name!r}")
        if unknown := [key for key in parameters if key != _SIZE]:
            raise UsageError(f"input {name!r}: the parameter {unknown[0]!r} is not supported; leave it out")
        if name in tensors:
            raise UsageError(f"input {name!r} stands twice among the inputs")
        size = parameters.get(_SIZE)
        if size is None:
            data = _flat(entry.get("data"), name)
        else:
            data, at = _binary_texts(body, at, size, name), at + size
        if len(data) != math.prod(shape):
            raise UsageError(f"input {name!r}: {len(data):,} elements do not fill the shape {[*shape]}")
        tensors[name] = Tensor(name, BYTES, shape, data)
    if at != len(body):
        raise UsageError(f"the body has {len(body) - at:,} bytes more than its inputs state with {_SIZE}")
    return request, tensors


def write_response(
    content: Mapping[str, Any], tensors: Sequence[Tensor], is_binary: Callable[[str], bool]
) -> tuple[bytes, int | None]:
    """The body of a response, and the length of its JSON where binary data follow.

    Args:
        content: The keys besides `outputs`.
        tensors: The outputs.
        is_binary: Whether the output of this name is written as binary data.
    """
    outputs, parts = [], []
    for tensor in tensors:
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": [*tensor.shape]}
        if is_binary(tensor.name):
            parts.append(_to_bytes(tensor))
            entry["parameters"] = {_SIZE: len(parts[-1])}
        else:
            entry["data"] = [*tensor.data]
        outputs.append(entry)
    header = json_bytes({**content, "outputs": outputs})
    return (b"".join([header, *parts]), len(header)) if parts else (header, None)


def _head(entry: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    """The name and the shape of an input of texts."""
    name, shape, datatype = entry.get("name"), entry.get("shape"), entry.get("datatype")
    if not isinstance(name, str):
        raise UsageError(f"inputs: the name of a tensor must be a text, not {name!r}")
    if datatype != BYTES:
        raise UsageError(f"input {name!r}: the datatype must be {BYTES}, not {datatype!r}")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise UsageError(f"input {name!r}: the shape must be a list of sizes, not {shape!r}")
    if len(shape) not in (1, 2) or shape[1:] not in ([], [1]):
        raise UsageError(f"input {name!r}: the shape is {shape}; give [N] or [N, 1] for N texts")
    return name, tuple(shape)


def _object(entry: Mapping[str, Any], key: str, what: str) -> Mapping[str, Any]:
    value = entry.get(key) or {}
    if not isinstance(value, dict):
        raise UsageError(f"{what}: {key} must be an object, not {type(value).__name__}")
    return value


def _flat(data: Any, name: str) -> list[str]:
    """The texts of data in JSON, which may be nested as the shape is."""
    if not isinstance(data, list):
        raise UsageError(f"input {name!r}: data must be a list of texts, not {type(data).__name__}")
    texts = [text for part in data for text in (part if isinstance(part, list) else [part])]
    for text in texts:
        if not isinstance(text, str):
            raise UsageError(f"input {name!r}: an element of {BYTES} must be a text, not {type(text).__name__}")
    return texts


def _binary_texts(body: bytes, at: int, size: Any, name: str) -> list[str]:
    """The texts of binary data that begin here; UsageError if they are no UTF-8 or not just so many bytes."""
    if type(size) is not int or not 0 <= size <= len(body) - at:
        left = f"{len(body) - at:,} bytes are left of the body"
        raise UsageError(f"input {name!r}: {_SIZE} is {size!r}, and {left}")
    try:
        return [element.decode() for element in _elements(body[at : at + size])]
    except (UnicodeDecodeError, struct.error) as error:
        fault = "no UTF-8" if isinstance(error, UnicodeDecodeError) else "cut off"
        raise UsageError(f"input {name!r}: the binary data are {fault}: {error}") from error


def _elements(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + length
        if at > len(data):
            raise struct.error(f"an element has {length:,} bytes")
        yield data[at - length : at]


def _to_bytes(tensor: Tensor) -> bytes:
    if tensor.datatype == BYTES:
        elements = [text.encode("utf-8", "replace") for text in tensor.data]
        return b"".join(part for element in elements for part in (_LENGTH.pack(len(element)), element))
    numbers = [math.nan if number is None else number for number in tensor.data]
    return np.array(numbers, _DTYPES[tensor.datatype]).tobytes()
