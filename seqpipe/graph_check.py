"""Look at the bytes of a foreign model.onnx before onnxruntime does: what it may not hold, and sizes it only states.

ONNX is protobuf: fields of a number, a wire type and a value (https://protobuf.dev/programming-guides/encoding/). The
few that matter are read here, for a machine that deploys has neither the package `onnx` nor protobuf.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

MOST_ELEMENTS = 1 << 27  # of a tensor that an operator makes of a constant shape
MOST_DEPTH = 16  # of graphs within graphs
_SHAPE = 64  # elements of the longest constant that may be a shape
# Operators whose output is as large as the numbers in a constant input say, and which input that is.
_SIZED = {
    b"ConstantOfShape": 0, b"Expand": 1, b"Tile": 1, b"OneHot": 1, b"Pad": 1, b"Resize": 3, b"MaxUnpool": 2,
    b"CenterCropPad": 1, b"HannWindow": 0, b"HammingWindow": 0, b"BlackmanWindow": 0,
}  # fmt: skip
_RANDOM = (b"RandomNormal", b"RandomUniform")  # their attribute says it
_INT64, _RAW, _EXTERNAL = 7, 9, 1  # TensorProto.DataType.INT64, its field raw_data, its data_location EXTERNAL
_DATA = (4, 5, 6, 7, _RAW, 10, 11)  # fields of a tensor that hold its elements
_VARINT, _BYTES = 0, 2
_WIDTHS = {1: 8, 5: 4}  # bytes of the other wire types

Field = tuple[int, int, int, int]  # number, wire type, and a value from 0, or where its bytes begin and end


@dataclass
class _Graph:
    """What is known of a model so far."""

    constants: dict[bytes, list[int]] = field(default_factory=dict)  # int64 values of small ones, by name
    sized: list[tuple[bytes, bytes]] = field(default_factory=list)  # operator, the input that says its size
    ranges: list[list[bytes]] = field(default_factory=list)  # the inputs of each Range


def fault_of(model: bytes) -> str:
    """What forbids to open this graph; "" if nothing does."""
    graph = _Graph()
    try:
        for number, wire, a, b in _fields(model, 0, len(model)):
            if number == 7:
                _read_graph(model, a, b, graph, 0)
            elif number == 8:
                _read_domain(model, a, b)
            elif number in (20, 25):
                raise _RefusedError("it holds functions or training steps; a bundle's graph has operators alone")
            elif wire not in (_VARINT, _BYTES):
                raise ValueError
    except _RefusedError as error:
        return str(error)
    except (IndexError, ValueError):
        return "its bytes are not those of an ONNX graph"
    return _too_large(graph)


class _RefusedError(Exception):
    """Something that no graph of a bundle has."""


def _fields(data: bytes, at: int, end: int) -> Iterator[Field]:
    """The fields of the message between two positions; ValueError or IndexError if it is none."""
    while at < end:
        key, at = _varint(data, at)
        wire = key & 7
        if wire == _BYTES:
            size, at = _varint(data, at)
            begin, at = at, at + size
            if at > end:
                raise ValueError
            yield key >> 3, wire, begin, at
        elif wire == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, wire, value, 0
        elif wire in _WIDTHS:
            at += _WIDTHS[wire]
            yield key >> 3, wire, at - _WIDTHS[wire], at
        else:
            raise ValueError
    if at != end:
        raise ValueError


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    value = shift = 0
    while byte >= 128:
        value |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if shift > 63:
            raise ValueError
        byte = data[at]
    return value | byte << shift, at + 1


def _read_domain(data: bytes, at: int, end: int) -> None:
    for number, _, a, b in _fields(data, at, end):
        if number == 1 and data[a:b] not in (b"", b"ai.onnx"):
            raise _RefusedError(f"it holds operators of {_named(data[a:b])}; a bundle's are all of the domain ai.onnx")


def _read_graph(data: bytes, at: int, end: int, graph: _Graph, depth: int) -> None:
    if depth > MOST_DEPTH:
        raise _RefusedError(f"graphs stand within graphs more than {MOST_DEPTH} deep")
    for number, _, a, b in _fields(data, at, end):
        if number == 1:
            _read_node(data, a, b, graph, depth)
        elif number == 5:
            _read_tensor(data, a, b, graph)
        elif number == 15:
            raise _RefusedError("it holds a sparse tensor; a bundle's are dense")


def _read_node(data: bytes, at: int, end: int, graph: _Graph, depth: int) -> None:
    inputs: list[bytes] = []
    integers: list[int] = []  # of its attributes
    output = operator = b""
    for number, _, a, b in _fields(data, at, end):
        if number == 1:
            inputs.append(data[a:b])
        elif number == 2:
            output = data[a:b]
        elif number == 4:
            operator = data[a:b]
        elif number == 5:
            integers += _read_attribute(data, a, b, graph, depth)
    if operator == b"Constant" or operator in _RANDOM:
        graph.constants[output] = integers
    if operator in _SIZED and len(inputs) > _SIZED[operator]:
        graph.sized.append((operator, inputs[_SIZED[operator]]))
    elif operator == b"Range":
        graph.ranges.append(inputs)
    elif operator in _RANDOM:
        graph.sized.append((operator, output))


def _read_attribute(data: bytes, at: int, end: int, graph: _Graph, depth: int) -> list[int]:
    """The integers of an attribute, where there are few."""
    integers: list[int] = []
    for number, wire, a, b in _fields(data, at, end):
        if number in (6, 11):
            _read_graph(data, a, b, graph, depth + 1)
        elif number in (5, 10):
            integers += _read_tensor(data, a, b, graph)
        elif number in (22, 23):
            raise _RefusedError("it holds a sparse tensor; a bundle's are dense")
        elif number in (3, 8):
            integers += _integers(data, wire, a, b)
    return integers[: _SHAPE + 1]


def _read_tensor(data: bytes, at: int, end: int, graph: _Graph) -> list[int]:
    """The elements of a tensor of int64, where there are few."""
    dims: list[int] = []
    integers: list[int] = []
    name, kind, held = b"", 0, 0
    for number, wire, a, b in _fields(data, at, end):
        if number == 1:
            dims += _integers(data, wire, a, b)
        elif number == 2:
            kind = a
        elif number == 8:
            name = data[a:b]
        elif number == 13 or (number == 14 and a == _EXTERNAL):
            raise _RefusedError("it reads a tensor from another file; a bundle's graph holds its weights itself")
        elif number in _DATA:
            held += b - a if wire == _BYTES else 10
            if number == _RAW and b - a <= 8 * _SHAPE:
                integers = [*struct.unpack(f"<{(b - a) // 8}q", data[a : b - (b - a) % 8])]
            elif number == 7:
                integers += _integers(data, wire, a, b)
    elements = math.prod(dims[:_SHAPE])
    if min(dims, default=0) < 0 or len(dims) > _SHAPE or elements > 2 * held:  # the smallest elements have 4 bits
        raise _RefusedError(f"{_named(name)} states the shape {str(dims)[:60]} and holds {held:,} bytes")
    if kind != _INT64:
        return []
    graph.constants[name] = integers
    return integers


def _integers(data: bytes, wire: int, at: int, end: int) -> list[int]:
    """One integer, or several that are packed: of very many the first."""
    if wire == _VARINT:
        return [_signed(at)]
    found: list[int] = []
    while at < end and len(found) <= _SHAPE:
        value, at = _varint(data, at)
        found.append(_signed(value))
    return found


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _too_large(graph: _Graph) -> str:
    """The first operator that is told by constants to make more elements than any sound graph does."""
    for operator, name in graph.sized:
        sizes = [max(1, abs(one)) for one in graph.constants.get(name, ())]
        size = max(sizes, default=1) if operator == b"Pad" else math.prod(sizes)
        if size > MOST_ELEMENTS:
            return f"{operator.decode()} would make {size:,} elements or more; the limit is {MOST_ELEMENTS:,}"
    for inputs in graph.ranges:
        ends = [graph.constants.get(name) for name in inputs]
        if len(ends) == 3 and ends[0] and ends[1] and ends[2] and ends[2][0]:
            size = (ends[1][0] - ends[0][0]) // ends[2][0]
            if size > MOST_ELEMENTS:
                return f"Range would make {size:,} elements; the limit is {MOST_ELEMENTS:,}"
    return ""


def _named(name: bytes) -> str:
    return repr(name[:100].decode(errors="replace"))
