"""Check the bytes of an untrusted model.onnx before onnxruntime loads it: forbidden content and declared sizes.

ONNX is protobuf: fields of a number, a wire type and a value (https://protobuf.dev/programming-guides/encoding/). The
few that matter are read here, since a deployment has neither the package `onnx` nor protobuf.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

MOST_ELEMENTS = 1 << 27  # of a tensor that an operator creates from a constant shape
MOST_DEPTH = 16  # of graphs within graphs
_MAX_SHAPE = 64  # elements of the longest constant that may be a shape
# Operators whose output size is the value of a constant input, and these inputs.
_SIZED = {
    b"ConstantOfShape": (0,), b"Expand": (1,), b"Tile": (1,), b"OneHot": (1,), b"Pad": (1,), b"Resize": (2, 3),
    b"MaxUnpool": (2,), b"CenterCropPad": (1,), b"HannWindow": (0,), b"HammingWindow": (0,), b"BlackmanWindow": (0,),
}  # fmt: skip
_RANDOM_OPERATORS = (b"RandomNormal", b"RandomUniform")  # their size is an attribute
# Types of tensors (TensorProto.DataType) that may be sizes, with the `struct` format of the field raw_data.
_NUMBERS = {1: "f", 6: "i", 7: "q", 11: "d", 12: "I", 13: "Q"}
_FLOATS, _INTEGERS = {4: "f", 10: "d"}, (5, 7, 11)  # other fields of a tensor with numbers
_RAW, _EXTERNAL = 9, 1  # field raw_data; data_location EXTERNAL
_DATA_FIELDS = (4, 5, 6, 7, _RAW, 10, 11)  # fields of a tensor with its elements
# Types of weights: bytes of a number, and the bits of infinity; then whole numbers, booleans and strings.
_FLOAT, _DOUBLE, _HALVES = 1, 11, (10, 16)
_WEIGHTS = {_FLOAT: (4, 0x7F8 << 20), _DOUBLE: (8, 0x7FF << 52), 10: (2, 0x7C00), 16: (2, 0x7F80)}
_OTHER_TYPES = (2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 21, 22)
# Known fields, some of which are refused separately; any other field is refused.
_FIELDS = {
    "the model": {*range(1, 9), 14, 20, 25}, "an import": {1, 2}, "a graph": {1, 2, 5, 10, 11, 12, 13, 15, 16},
    "an operator": {1, 2, 3, 4, 5, 6, 7, 9}, "an attribute": {*range(1, 12), 13, 20, 22, 23},
    "a tensor": {1, 2, 8, 12, 13, 14, 16, *_DATA_FIELDS},
}  # fmt: skip
_VARINT, _BYTES = 0, 2
_WIDTHS = {1: 8, 5: 4}  # bytes of the other wire types

Field = tuple[int, int, int, int]  # number, wire type, and a value from 0, or the start and end of its bytes
Numbers = list[float]  # the first numbers of a constant


@dataclass
class _Graph:
    """Facts about a model, collected while its bytes are read."""

    constants: dict[bytes, list[Numbers]] = field(default_factory=dict)  # by name: subgraphs may reuse a name
    sized: list[tuple[bytes, bytes]] = field(default_factory=list)  # operator, the input that is its size
    ranges: list[list[bytes]] = field(default_factory=list)  # the inputs of each Range

    def add_constant(self, name: bytes, numbers: Numbers) -> None:
        if numbers:
            self.constants.setdefault(name, []).append(numbers)


def refusal_reason(model: bytes) -> str:
    """Return the reason to refuse this graph, or ""."""
    graph = _Graph()
    try:
        for number, wire, a, b in _fields(model, 0, len(model), "the model"):
            if number == 7:
                _read_graph(model, a, b, graph, 0)
            elif number == 8:
                for part, _, first, last in _fields(model, a, b, "an import"):
                    if part == 1:
                        _check_domain(model[first:last])
            elif number in (20, 25):
                raise _RefusedError("it has functions or training steps; a bundle's graph has operators only")
            elif wire not in (_VARINT, _BYTES):
                raise ValueError
        _refuse_large(graph)
    except _RefusedError as error:
        return str(error)
    except (IndexError, ValueError):
        return "its bytes are not those of an ONNX graph"
    return ""


def nodes(model: bytes) -> Iterator[tuple[str, str, bool, list[bytes]]]:
    """Yield operator, name, whether it is in the body of a Loop or Scan, and inputs of every node of a valid model."""
    graphs = [(a, b, False) for number, _, a, b in _fields(model, 0, len(model), "the model") if number == 7]
    for at, end, in_loop in graphs:  # grows: the bodies of a graph's nodes follow it
        for a, b in ((a, b) for number, _, a, b in _fields(model, at, end, "a graph") if number == 1):
            fields = [*_fields(model, a, b, "an operator")]
            name, operator = (b"".join(model[a:b] for n, _, a, b in fields if n == field).decode() for field in (3, 4))
            yield operator, name, in_loop, [model[a:b] for n, _, a, b in fields if n == 1]
            attributes = (part for n, _, a, b in fields if n == 5 for part in _fields(model, a, b, "an attribute"))
            graphs += [(a, b, in_loop or operator in ("Loop", "Scan")) for n, _, a, b in attributes if n in (6, 11)]


def product_sizes(model: bytes) -> tuple[int, int]:
    """Return the number of weights of a valid model in products over all tokens, and the bytes of those in loops.

    The first are not those of tables, RNNs or loops; each generated token reads the second.
    """
    all_nodes = [*nodes(model)]
    others = {i for node in all_nodes if node[2] or node[0] in ("Gather", "GRU", "LSTM", "RNN") for i in node[3]}
    looped = {i for node in all_nodes if node[2] and node[0] in ("Gemm", "MatMul", "Transpose") for i in node[3]}
    graphs = (_fields(model, a, b, "a graph") for n, _, a, b in _fields(model, 0, len(model), "the model") if n == 7)
    count = size = 0
    for tensor in ([*_fields(model, a, b, "a tensor")] for graph in graphs for n, _, a, b in graph if n == 5):
        name = b"".join(model[a:b] for n, _, a, b in tensor if n == 8)
        if name in looped:
            size += sum(b - a for n, _, a, b in tensor if n == _RAW)
        if name not in others:
            count += math.prod(axis for n, wire, a, b in tensor if n == 1 for axis in _integers(model, wire, a, b))
    return count, size


class _RefusedError(Exception):
    """Content that is not allowed in a bundle's graph."""


def _fields(data: bytes, at: int, end: int, what: str) -> Iterator[Field]:
    """Yield the fields of the message between two positions; ValueError or IndexError if it is not valid."""
    known = _FIELDS[what]
    while at < end:
        key, at = _varint(data, at)
        if key >> 3 not in known:
            raise _RefusedError(f"{what} has the field {key >> 3}, which is not allowed in a bundle; export it again")
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


def _check_domain(name: bytes) -> None:
    if name not in (b"", b"ai.onnx"):
        raise _RefusedError(f"it has operators of {_quote(name)}; a bundle's are all of the domain ai.onnx")


def _read_graph(data: bytes, at: int, end: int, graph: _Graph, depth: int) -> None:
    if depth > MOST_DEPTH:
        raise _RefusedError(f"graphs are nested more than {MOST_DEPTH} deep")
    for number, _, a, b in _fields(data, at, end, "a graph"):
        if number == 1:
            _read_node(data, a, b, graph, depth)
        elif number == 5:
            _read_tensor(data, a, b, graph)
        elif number == 15:
            raise _RefusedError("it has a sparse tensor; a bundle's are dense")


def _read_node(data: bytes, at: int, end: int, graph: _Graph, depth: int) -> None:
    inputs: list[bytes] = []
    numbers: Numbers = []  # of its attributes
    output = operator = b""
    for number, _, a, b in _fields(data, at, end, "an operator"):
        if number == 1:
            inputs.append(data[a:b])
        elif number == 2:
            output = data[a:b]
        elif number == 4:
            operator = data[a:b]
        elif number == 5:
            numbers += _read_attribute(data, a, b, graph, depth)
        elif number == 7:
            _check_domain(data[a:b])
    if operator == b"Constant" or operator in _RANDOM_OPERATORS:
        graph.add_constant(output, numbers)
    graph.sized += [(operator, inputs[i]) for i in _SIZED.get(operator, ()) if i < len(inputs)]
    if operator == b"Range":
        graph.ranges.append(inputs)
    elif operator in _RANDOM_OPERATORS:
        graph.sized.append((operator, output))


def _read_attribute(data: bytes, at: int, end: int, graph: _Graph, depth: int) -> Numbers:
    """Return the numbers of an attribute, if they are few."""
    numbers: Numbers = []
    for number, wire, a, b in _fields(data, at, end, "an attribute"):
        if number in (6, 11):
            _read_graph(data, a, b, graph, depth + 1)
        elif number in (5, 10):
            numbers += _read_tensor(data, a, b, graph)
        elif number in (22, 23):
            raise _RefusedError("it has a sparse tensor; a bundle's are dense")
        elif number in (3, 8):
            numbers += _integers(data, wire, a, b)
        elif number in (2, 7):
            _check_weights(data, _FLOAT, a, b, "an attribute")
            numbers += _unpack("f", data[a:b])
    return numbers[: _MAX_SHAPE + 1]


def _read_tensor(data: bytes, at: int, end: int, graph: _Graph) -> Numbers:
    """Return the elements of a tensor whose type can hold a size, if they are few."""
    dims: list[int] = []
    numbers: Numbers = []
    name, kind, held, raw_at, packs_integers = b"", 0, 0, (0, 0), False
    for number, wire, a, b in _fields(data, at, end, "a tensor"):
        if number == 1:
            dims += _integers(data, wire, a, b)
        elif number == 2:
            kind = a
        elif number == 8:
            name = data[a:b]
        elif number == 13 or (number == 14 and a == _EXTERNAL):
            raise _RefusedError("it reads a tensor from another file; a bundle's graph contains its weights")
        elif number in _DATA_FIELDS:
            held += b - a if wire == _BYTES else 10
            packs_integers = packs_integers or number == 5
            if number == _RAW:
                if wire != _BYTES or raw_at[1]:
                    raise ValueError
                raw_at = a, b
            elif number in _FLOATS:
                _check_weights(data, _DOUBLE if number == 10 else _FLOAT, a, b, "a tensor")
                numbers += _unpack(_FLOATS[number], data[a:b]) if b - a <= 8 * _MAX_SHAPE else []
            elif number in _INTEGERS:
                numbers += _integers(data, wire, a, b)
    elements = math.prod(dims[:_MAX_SHAPE])
    if min(dims, default=0) < 0 or len(dims) > _MAX_SHAPE or elements > 2 * held:  # the smallest elements have 4 bits
        raise _RefusedError(f"{_quote(name)} declares the shape {str(dims)[:60]} but has {held:,} bytes")
    if kind in _WEIGHTS and not (kind in _HALVES and packs_integers):
        _check_weights(data, kind, *raw_at, _quote(name))
    elif kind not in _OTHER_TYPES:
        raise _RefusedError(f"the tensor {_quote(name)} has the type {kind}, which is not allowed in a bundle")
    if kind not in _NUMBERS:
        return []
    begin, end = raw_at
    numbers += _unpack(_NUMBERS[kind], data[begin:end]) if end - begin <= 8 * _MAX_SHAPE else []
    graph.add_constant(name, numbers)
    return numbers


def _check_weights(data: bytes, kind: int, at: int, end: int, what: str) -> None:
    """Refuse weights that are NaN or +infinite; -infinity occurs in masks."""
    width, infinity = _WEIGHTS[kind]
    if (count := (end - at) // width) < 1:
        return
    # Bits sort like numbers, for both signs, and NaN comes after infinity. This is as fast as comparing numbers, takes
    # no more memory, and numpy has no bfloat16.
    bits = np.frombuffer(data, f"<u{width}", count, at)
    if bits.view(f"<i{width}").max() >= infinity or bits.max() > infinity | 1 << (8 * width - 1):
        holds = "has numbers that are NaN or infinite: the weights overflowed in training"
        raise _RefusedError(f"{what} {holds}; lower train.optimizer.lr and train again")


def _unpack(kind: str, data: bytes) -> Numbers:
    """Unpack consecutive little-endian numbers of a `struct` type."""
    whole = len(data) // struct.calcsize(f"<{kind}")
    return [*struct.unpack_from(f"<{whole}{kind}", data)]


def _integers(data: bytes, wire: int, at: int, end: int) -> list[int]:
    """Return one integer, or several packed ones; only the first if they are very many."""
    if wire == _VARINT:
        return [_to_signed(at)]
    sizes: list[int] = []
    while at < end and len(sizes) <= _MAX_SHAPE:
        value, at = _varint(data, at)
        sizes.append(_to_signed(value))
    return sizes


def _to_signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _refuse_large(graph: _Graph) -> None:
    """Refuse an operator whose constant inputs make its output larger than in any valid graph."""
    for operator, name in graph.sized:
        for numbers in graph.constants.get(name, ()):
            sizes = [max(1.0, abs(number)) for number in numbers]
            _check_size(operator, max(sizes) if operator == b"Pad" else math.prod(sizes))
    for inputs in graph.ranges:
        start, limit, step = (
            [number[0] for number in graph.constants.get(name, ())] for name in (*inputs, b"", b"")[:3]
        )
        if start and limit and any(step):
            span = max(max(limit) - min(start), max(start) - min(limit))
            _check_size(b"Range", span / min(abs(by) for by in step if by))


def _check_size(operator: bytes, size: float) -> None:
    if not size <= MOST_ELEMENTS:  # NaN is refused too
        extent = f"{size:,.0f} elements" if math.isfinite(size) else "any number of elements"
        raise _RefusedError(f"{operator.decode()} would create {extent}; the limit is {MOST_ELEMENTS:,}")


def _quote(name: bytes) -> str:
    return repr(name[:100].decode(errors="replace"))
