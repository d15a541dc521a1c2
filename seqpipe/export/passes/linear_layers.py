"""Rewrite GELUs and linear layers into the form that onnxruntime runs fastest.

Every operator is still one of ai.onnx. The gain was measured with a BERT; see benchmarks/bert.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from seqpipe.export.passes.loop_invariants import bodies, shape_of

_EACH = frozenset(("Add", "Div", "Erf", "Gelu", "LayerNormalization", "Mul", "Pow", "Relu", "Sigmoid", "Sub", "Tanh"))
_ENOUGH = 4  # linear layers per return to three axes, which takes three nodes

Shape = tuple[int | str | None, ...]


def rewrite_linear_layers(graph: GraphProto) -> None:
    """Change the graph in place; its results stay the same."""
    # Weights have no values yet, so a scalar with a value is a constant of the program.
    constants = [tensor for tensor in graph.initializer if tensor.raw_data and not tensor.dims]
    _rewrite_gelus(graph, {tensor.name for tensor in constants if numpy_helper.to_array(tensor) == 0.5})
    _Rows(graph).replace()


def _rewrite_gelus(graph: GraphProto, halves: set[str]) -> None:
    """Change x * (0.5 * (1 + f)), f an Erf or a Tanh, to (x * 0.5) * (1 + f), which onnxruntime recognises as a GELU.

    0.5 is a power of two, so the product is bit-equal.
    """
    producers = {name: node for node in graph.node for name in node.output}
    users = [name for node in graph.node for name in _read(node)]
    for outer in graph.node:
        for body in bodies(outer):
            _rewrite_gelus(body, halves)
        for x, inner in (outer.input, outer.input[::-1]) if outer.op_type == "Mul" else ():
            product = producers.get(inner)
            if product is None or product.op_type != "Mul" or users.count(inner) > 1:
                continue
            half, factor = product.input if product.input[0] in halves else product.input[::-1]
            total = producers.get(factor)
            if half not in halves or total is None or total.op_type != "Add":
                continue
            if any(i in producers and producers[i].op_type in ("Erf", "Tanh") for i in total.input):
                product.input[:] = [x, half]
                outer.input[:] = [inner, factor]
                break


class _Rows:
    """(B, T, D) reshaped to (B * T, D) from a layer norm on, while operators are token-wise.

    A linear layer over a matrix is one Gemm with bias, one over three axes a MatMul and an Add. And onnxruntime fuses a
    sum and a layer norm over three axes to its SkipLayerNormalization, which on a CPU costs several times as much as
    the two.
    """

    def __init__(self, graph: GraphProto):
        self.graph = graph
        self.shapes = {value.name: shape_of(value) for value in (*graph.value_info, *graph.input, *graph.output)}
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.matrices = {name for name, tensor in self.constants.items() if len(tensor.dims) == 2}
        self.matrices |= {n.output[0] for n in graph.node if n.op_type == "Transpose" and n.input[0] in self.matrices}
        self.nodes: list[NodeProto] = []
        self.rows: dict[str, str] = {}  # the version with two axes of a tensor with three
        self.available = {*self.constants, *(value.name for value in graph.input)}
        self.starts: dict[str, str] = {}  # possible first rows, and the tensor that they are a view of
        self.axes: dict[Shape, str] = {}  # a tensor with these two first axes
        self.sizes: list[TensorProto] = []
        self.layers = self.returns = 0

    def replace(self) -> None:
        """Replace the nodes, unless there is too little to gain."""
        for node in self.graph.node:
            self._node(node)
        for output in self.graph.output:
            self._back(output.name)
        if self.layers < max(1, self.returns) * _ENOUGH:
            return
        # Unused rows, whose readers use the tensor with three axes, are dropped.
        outputs, nodes = {output.name for output in self.graph.output}, []
        for node in reversed(self.nodes):
            if outputs.intersection(node.output):
                outputs.update(_read(node))
                nodes.append(node)
        nodes.reverse()
        kept = {name for node in nodes for name in (*_read(node), *node.output)}
        infos = [value for value in self.graph.value_info if value.name in kept]
        for field, values in ((self.graph.node, nodes), (self.graph.value_info, infos)):
            del field[:]
            field.extend(values)
        self.graph.initializer.extend(self.sizes)

    def _node(self, node: NodeProto) -> None:
        first = node.input[0] if node.input else ""
        second = self.constants.get(node.input[1]) if len(node.input) > 1 else None
        # A linear layer multiplies by a constant matrix. Its input must already be rows, or a possible start of rows.
        is_layer = node.op_type == "MatMul" and node.input[1] in self.matrices
        is_layer = is_layer and (first in self.rows or (first in self.starts and self._fits(first)))
        is_free = False
        if node.op_type == "Reshape" and first in self.rows:
            # Unless `allowzero` is set, a 0 means the former size, which rows do not have.
            is_free = any(a.name == "allowzero" and a.i for a in node.attribute)
            is_free = is_free or (second is not None and 0 not in numpy_helper.to_array(second))
        is_tokenwise = node.op_type in _EACH and any(name in self.rows for name in node.input)
        if is_tokenwise:
            # Its output for a token must depend on that token only: its inputs are as wide as its output, or constants
            # of one axis, and it works along the last axis.
            shape = self.shapes.get(node.output[0])
            along_last = all(a.i == -1 for a in node.attribute if a.name == "axis") and len(node.output) == 1
            is_tokenwise = along_last and all(
                len(self.constants[i].dims) <= 1
                if i in self.constants
                else self.shapes.get(i) == shape and self._fits(i)
                for i in node.input
            )
        if is_layer and self._fits(node.output[0]):
            self.layers += 1
            self._add_rows(node, [self._flat(first), node.input[1]])
        elif is_tokenwise:
            self._add_rows(node, [i if i in self.constants else self._flat(i) for i in node.input])
        elif is_free:
            self._add(_with(node, [self.rows[first], node.input[1]], node.output[0]))
        else:
            for name in _read(node):
                self._back(name)
            self._add(node)
        if node.op_type == "Reshape":
            self.starts[node.output[0]] = self.nodes[-1].input[0]
        elif node.op_type == "LayerNormalization":
            self.starts[node.output[0]] = node.output[0]

    def _fits(self, name: str) -> bool:
        shape = self.shapes.get(name, ())
        return len(shape) == 3 and None not in shape and isinstance(shape[-1], int)

    def _flat(self, name: str) -> str:
        if name not in self.rows:
            width = self.shapes[name][-1]
            self.axes.setdefault(self.shapes[name][:2], name)
            self.rows[name] = f"{name}.rows"
            source = self.starts.get(name, name)
            self._add(helper.make_node("Reshape", [source, self._sizes("rows", -1, width)], [self.rows[name]]))
        return self.rows[name]

    def _back(self, name: str) -> None:
        """Restore the tensor with three axes, if there are only its rows."""
        if name in self.available or name not in self.rows:
            return
        self.returns += 1
        *front, width = self.shapes[name]
        axes, sizes = f"{name}.axes", f"{name}.sizes"
        self._add(helper.make_node("Shape", [self.axes[tuple(front)]], [axes], start=0, end=2))
        self._add(helper.make_node("Concat", [axes, self._sizes("width", width)], [sizes], axis=0))
        self._add(helper.make_node("Reshape", [self.rows[name], sizes], [name]))

    def _sizes(self, kind: str, *sizes: int | str | None) -> str:
        name = f"{kind}.{sizes[-1]}"
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.array(sizes, np.int64), name)
            self.sizes.append(self.constants[name])
        return name

    def _add_rows(self, node: NodeProto, inputs: list[str]) -> None:
        name = node.output[0]
        self.rows[name] = f"{name}.rows"
        self._add(_with(node, inputs, self.rows[name]))

    def _add(self, node: NodeProto) -> None:
        self.nodes.append(node)
        self.available.update(node.output)


def _with(node: NodeProto, inputs: list[str], output: str) -> NodeProto:
    new = NodeProto()
    new.CopyFrom(node)
    new.input[:], new.output[:] = inputs, [output]
    return new


def _read(node: NodeProto) -> Iterator[str]:
    """Yield all names that a node reads, including the bodies of its loops."""
    yield from node.input
    for body in bodies(node):
        for inner in body.node:
            yield from _read(inner)
        yield from (output.name for output in body.output)
