"""Quantisation: the weights of a graph's matrix products and tables as 8-bit integers.

Each column of a weight has a scale. The inputs of a product have one scale, from the range that they had on examples
(`input_ranges`), or each row has one that is computed when the graph runs. So rows do not depend on each other. Inputs
are unsigned: onnxruntime is 14 to 30 times slower with signed ones.

Processors without VNNI instructions add two products of an unsigned and a signed byte in 16 bits, and cut sums that
do not fit. So the scale of a column is such that the two largest weights of each four add up to at most 127: all
processors give the same sums, and weights have about 7.5 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.checker import check_model

from seqpipe.answers.candidates import CANDIDATE_VECTORS
from seqpipe.export.passes.loop_invariants import all_nodes, bodies, place_weights, replace_nodes
from seqpipe.features.document import Arrays
from seqpipe.runtime.session import import_onnxruntime, open_session

MIN_INT8_SIZE = 4096  # minimum numbers of a quantized weight
_MAX_WEIGHT, _MAX_INPUT, _INPUT_ZERO_POINT = 126, 127, 128  # maxima of weights and inputs as integers, and an input's 0
_MIN_SCALE = 1e-12
Ranges = Mapping[str, tuple[float, float]]  # of the inputs of the products with each weight
# Maximum ratio of a range to the maximum of the median row, whose integers are then twice as coarse as with its scale.
_MAX_RANGE_RATIO = 4


class _Weight(NamedTuple):
    """A weight matrix of the graph: its initializer, and whether a product uses it transposed."""

    name: str
    transposed: bool


def in_int8(graph: bytes, ranges: Ranges | None = None) -> bytes:
    """Return the bytes of a model with its matrix products and look-ups of at least `MIN_INT8_SIZE` numbers in int8.

    `ranges` are those of `input_ranges`.
    """
    model = ModelProto.FromString(graph)
    _Quantiser(model.graph, ranges or {}).quantise()
    data = bytes(model.SerializeToString())
    check_model(data)
    return data


def input_ranges(graph: bytes, batches: Iterable[Arrays]) -> Ranges:
    """Return the least and the greatest input of the products with each weight, over these inputs of the graph.

    A weight is left out if its inputs differ too much in size, or if it has products in loops alone: those of a
    language model have the weights of the products that read the prompt.
    """
    model = ModelProto.FromString(graph)
    quantiser = _Quantiser(model.graph, {})
    products = [(part[0].name, node.input[0]) for node in model.graph.node if (part := quantiser.product(node))]
    names = [*dict.fromkeys(name for _, name in products)]
    if not names:
        return {}
    del model.graph.output[:]
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    _drop_unused(model.graph)
    session = open_session(import_onnxruntime(), model.SerializeToString(), "cpu", Path("int8"))
    extremes = {weight: [np.zeros((2, 0), np.float32)] for weight, _ in products}  # of each row
    for feeds in batches:
        inputs = dict(zip(names, session.run(names, feeds), strict=True))
        for weight, name in products:
            extremes[weight].append(np.stack([inputs[name].min(-1).ravel(), inputs[name].max(-1).ravel()]))
    ranges = dict[str, tuple[float, float]]()
    for weight, parts in extremes.items():
        low, high = np.concatenate(parts, 1)
        least, most = min(0.0, *low.tolist()), max(0.0, *high.tolist())
        if len(low) and most - least <= _MAX_RANGE_RATIO * np.median(np.maximum(-low, high)):
            ranges[weight] = least, most
    return ranges


class _Quantiser:
    """The graph, and the integers of its weights so far."""

    def __init__(self, graph: GraphProto, ranges: Ranges):
        self.graph, self.ranges = graph, ranges
        self.scales: dict[str, np.ndarray] = {}
        # Concatenations of weights, such as a cell's gates, are computed, so that they are weights too.
        constants = {tensor.name: tensor for tensor in graph.initializer}
        kept: list[NodeProto] = []
        for node in graph.node:
            axes = [attribute.i for attribute in node.attribute if attribute.name == "axis"]
            parts = [constants.get(name) for name in node.input]
            if node.op_type == "Concat" and all(part is not None and _is_matrix(part) for part in parts):
                arrays = [numpy_helper.to_array(part) for part in parts if part is not None]
                graph.initializer.append(numpy_helper.from_array(np.concatenate(arrays, axes[0]), node.output[0]))
            else:
                kept.append(node)
        replace_nodes(graph, kept)
        _drop_unused(graph)
        # Vectors of candidates are replaceable data, not weights.
        self.weights = {
            tensor.name: tensor
            for tensor in graph.initializer
            if tensor.name != CANDIDATE_VECTORS
            and _is_matrix(tensor)
            and tensor.dims[0] * tensor.dims[1] >= MIN_INT8_SIZE
        }
        self.transposed: dict[str, str] = {}  # outputs of a Transpose of a weight
        for node in all_nodes(graph):
            if node.op_type == "Transpose" and node.input[0] in self.weights:
                self.transposed[node.output[0]] = node.input[0]
        self.first: list[NodeProto] = []  # nodes before all others
        self.products: dict[str, str] = {}  # integers of a weight for its products
        self.count = 0

    def quantise(self) -> None:
        self.add("int8.last", np.array([-1]))
        self.add("int8.1", np.array(1))
        self.body(self.graph)
        # onnxruntime joins MatMulInteger, Cast and Mul to one operator if the factor is a product of a number and a
        # vector that it cannot compute when it loads the graph. So the number 1 depends on the size of an input.
        nodes = [
            helper.make_node("Shape", [self.graph.input[0].name], ["int8.sizes"]),
            helper.make_node("ReduceMin", ["int8.sizes"], ["int8.size"], keepdims=0),
            helper.make_node("Clip", ["int8.size", "int8.1", "int8.1"], ["int8.number"]),
            helper.make_node("Cast", ["int8.number"], ["int8.one"], to=TensorProto.FLOAT),
        ]
        replace_nodes(self.graph, [*self.first, *nodes, *self.graph.node])
        _drop_unused(self.graph)
        place_weights(self.graph)

    def body(self, graph: GraphProto) -> None:
        nodes: list[NodeProto] = []
        for node in graph.node:
            for inner in bodies(node):
                self.body(inner)
            nodes += self.replacement(node)
        replace_nodes(graph, nodes)

    def replacement(self, node: NodeProto) -> list[NodeProto]:
        """Return the nodes that replace a node."""
        settings = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type == "Gather" and node.input[0] in self.weights and settings.get("axis", 0) == 0:
            return self.looked_up(node)
        product = self.product(node)
        return [node] if product is None else self.quantised(node, *product)

    def product(self, node: NodeProto) -> tuple[_Weight, str] | None:
        """Return the weight and the bias of a product with a weight."""
        settings = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type == "MatMul" and (weight := self.weight(node.input[1])):
            return weight, ""
        plain = all(settings.get(name, 1.0) == 1.0 for name in ("alpha", "beta")) and not settings.get("transA")
        if node.op_type == "Gemm" and plain and (weight := self.weight(node.input[1])):
            bias = node.input[2] if len(node.input) > 2 else ""
            return _Weight(weight.name, weight.transposed != bool(settings.get("transB"))), bias
        return None

    def weight(self, name: str) -> _Weight | None:
        if name in self.weights:
            return _Weight(name, False)
        return _Weight(self.transposed[name], True) if name in self.transposed else None

    def quantised(self, node: NodeProto, weight: _Weight, bias: str) -> list[NodeProto]:
        integers, key = self.integers(weight)
        x, out = node.input[0], node.output[0]
        self.count += 1
        nodes: list[NodeProto] = []

        def add(kind: str, *inputs: str, out: str = "", **settings: int) -> str:
            output = out or f"int8.{self.count}.{len(nodes)}"
            nodes.append(helper.make_node(kind, list(inputs), [output], **settings))
            return output

        top = "" if weight.name in self.ranges else add("ReduceMax", add("Abs", x), "int8.last")  # (…, 1)
        # In a row of zeros 0 / 0 becomes some integer, and the product with the row's maximum 0 again.
        rows = add("QuantizeLinear", add("Div", x, top) if top else x, f"{key}.step", f"{key}.zero")
        sums = add("Cast", add("MatMulInteger", rows, integers, f"{key}.zero"), to=TensorProto.FLOAT)
        product = add("Mul", sums, add("Mul", "int8.one", f"{key}.scale"))
        product = add("Mul", product, top) if top else product
        product = add("Add", product, bias) if bias else product
        nodes[-1].output[0] = out
        return nodes

    def looked_up(self, node: NodeProto) -> list[NodeProto]:
        name, out = node.input[0], node.output[0]
        self.rowwise(name, numpy_helper.to_array(self.weights[name]))
        self.count += 1
        at = f"int8.{self.count}"
        return [
            helper.make_node("Gather", [f"{name}.int8", node.input[1]], [f"{at}.rows"]),
            helper.make_node("Gather", [f"{name}.scale", node.input[1]], [f"{at}.scales"]),
            helper.make_node("Cast", [f"{at}.rows"], [f"{at}.numbers"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"{at}.numbers", f"{at}.scales"], [out]),
        ]

    def integers(self, weight: _Weight) -> tuple[str, str]:
        """Return the names of a weight's integers (K, N), and of the scales of its inputs and products."""
        key = f"{weight.name}.product{'.turned' * weight.transposed}"
        if key not in self.products:
            array, rows = numpy_helper.to_array(self.weights[weight.name]), weight.name
            if not weight.transposed:
                rows += ".columns"
            self.rowwise(rows, array if weight.transposed else array.T)
            self.products[key] = f"{rows}.int8.turned"
            self.first.append(helper.make_node("Transpose", [f"{rows}.int8"], [self.products[key]], perm=[1, 0]))
            step, zero = 1 / _MAX_INPUT, _INPUT_ZERO_POINT  # of a row with the maximum 1
            if weight.name in self.ranges:
                low, high = self.ranges[weight.name]
                step = max(high - low, _MIN_SCALE) / 255
                zero = round(-low / step)
            self.add(f"{key}.step", np.array(step, np.float32))
            self.add(f"{key}.zero", np.array(zero, np.uint8))
            self.add(f"{key}.scale", self.scales[rows][:, 0] * np.float32(step))
        return self.products[key], key

    def rowwise(self, name: str, array: np.ndarray) -> None:
        """Add a weight to the graph as integers whose rows have scales."""
        if name not in self.scales:
            integers, self.scales[name] = _integers(array)
            self.add(f"{name}.int8", integers)
            self.add(f"{name}.scale", self.scales[name])

    def add(self, name: str, array: np.ndarray) -> None:
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))


def _integers(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantise a weight (N, K); return the integers and the scale of each row (N, 1)."""
    fours = np.pad(np.abs(weight), ((0, 0), (0, -weight.shape[1] % 4))).reshape(len(weight), -1, 4)
    # Rounding adds up to 1/2 to each of the two, so their sum is at most 127, and 255 * 127 fits 16 bits.
    most = np.sort(fours, 2)[..., 2:].sum(2).max(1, keepdims=True)
    scale = np.maximum(most, np.float32(_MIN_SCALE)) / np.float32(_MAX_WEIGHT)
    return np.rint(weight / scale).astype(np.int8), scale.astype(np.float32)


def _is_matrix(tensor: TensorProto) -> bool:
    return tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2


def _drop_unused(graph: GraphProto) -> None:
    """Remove nodes and initializers that nothing reads, such as those of transposed weights."""
    read = {value.name for value in graph.input}  # the default of an input

    def keep_read(part: GraphProto) -> None:
        read.update(output.name for output in part.output)
        nodes = list[NodeProto]()
        for node in reversed(part.node):
            if read.intersection(node.output):
                nodes.append(node)
                read.update(node.input)
                for body in bodies(node):
                    keep_read(body)
        replace_nodes(part, nodes[::-1])

    keep_read(graph)
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
