"""A graph in, the same graph out, in which a loop does once what comes out the same at each of its steps.

The exporter writes a step as it was traced: the sizes of what a loop keeps, numbers made of them, and all that follows
from the options alone stand inside. For one short text that is most of what a step costs in onnxruntime.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from onnx import GraphProto, NodeProto

_BEFORE = {"Loop": 2, "Scan": 0}  # inputs of the node, and of its body, that stand before the state
_CHANCE = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")


def hoisted(graph: GraphProto) -> None:
    """Moves nodes out of the bodies of Loop and Scan, in place, and makes equal nodes one.

    A loop's state keeps its shapes (see `seqpipe.nn.loops`): the shape of a part of it is that of what it begins with.
    """
    names = {*_names(graph)}
    nodes: list[NodeProto] = []
    for node in graph.node:
        for body in bodies(node):
            hoisted(body)
        if node.op_type in _BEFORE:
            nodes += _moved(node, graph, names)
        nodes.append(node)
    _replace(graph, _once(nodes, {output.name for output in graph.output}))


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs inside a node."""
    for attribute in node.attribute:
        yield from ([attribute.g] if attribute.HasField("g") else [])
        yield from attribute.graphs


def _moved(loop: NodeProto, graph: GraphProto, names: set[str]) -> list[NodeProto]:
    """What leaves the body of a loop, in the order in which it stood there."""
    (body,) = bodies(loop)
    before = _BEFORE[loop.op_type]
    begins = {inner.name: outer for inner, outer in zip(body.input[before:], loop.input[before:], strict=True)}
    if loop.op_type == "Scan":  # what it goes through has another shape outside
        scanned = next(attribute.i for attribute in loop.attribute if attribute.name == "num_scan_inputs")
        begins = dict([*begins.items()][: len(begins) - scanned])
    inside = {value.name for value in body.input}  # what may be another at each step, or may not leave
    results = {value.name for value in body.output}
    renamed: dict[str, str] = {}
    for constant in body.initializer:
        if constant.name in results:
            inside.add(constant.name)
        else:
            constant.name = renamed[constant.name] = _new(constant.name, names)
            graph.initializer.append(constant)
    held = [constant for constant in body.initializer if constant.name in inside]
    del body.initializer[:]
    body.initializer.extend(held)
    moved, kept = [], []
    for node in body.node:
        _rename(node, renamed)
        if node.op_type == "Shape" and node.input[0] in begins:
            node.input[0] = begins[node.input[0]]
        fixed = not inside.intersection(node.input) and not results.intersection(node.output)
        if fixed and node.op_type not in _CHANCE and not any(True for _ in bodies(node)):
            for i, name in enumerate(node.output):
                if name:
                    node.output[i] = renamed[name] = _new(name, names)
            node.name = _new(node.name, names) if node.name else ""
            moved.append(node)
        else:
            inside.update(node.output)
            kept.append(node)
    _replace(body, kept)
    return moved


def _once(nodes: Iterable[NodeProto], results: set[str]) -> list[NodeProto]:
    """The nodes without those that do what another has done."""
    done: dict[tuple[object, ...], NodeProto] = {}
    renamed: dict[str, str] = {}
    kept = []
    for node in nodes:
        _rename(node, renamed)
        if node.op_type not in _CHANCE and not any(True for _ in bodies(node)):
            attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
            first = done.setdefault((node.op_type, node.domain, *node.input, *attributes, len(node.output)), node)
            if first is not node and not results.intersection(node.output):
                renamed |= dict(zip(node.output, first.output, strict=True))
                continue
        kept.append(node)
    return kept


def _rename(node: NodeProto, renamed: Mapping[str, str]) -> None:
    """Gives what a node reads, in the bodies of its loops too, its new name."""
    node.input[:] = [renamed.get(name, name) for name in node.input]
    for body in bodies(node):
        for inner in body.node:
            _rename(inner, renamed)


def _new(name: str, names: set[str]) -> str:
    """The name, or where it is taken another one, which is taken from then on."""
    while name in names:
        name += "_"
    names.add(name)
    return name


def _names(graph: GraphProto) -> Iterator[str]:
    """All names of a graph, of values and of nodes."""
    yield from (value.name for value in (*graph.input, *graph.initializer))
    yield from (name for node in graph.node for name in (node.name, *node.output))


def _replace(graph: GraphProto, nodes: list[NodeProto]) -> None:
    kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]  # `del` takes their content
    del graph.node[:]
    graph.node.extend(kept)
