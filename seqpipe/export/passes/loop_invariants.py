"""Hoist loop invariants: values that are the same at each step of a loop are computed once, before it.

The exporter writes a step as it was traced, including the sizes of a loop's state, numbers computed from them, and
everything that depends only on the options. For a short text that is most of the cost of a step in onnxruntime.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from onnx import GraphProto, NodeProto, ValueInfoProto, helper

_BEFORE = {"Loop": 2, "Scan": 0}  # inputs of the node, and of its body, before the state
_RANDOM_OPS = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")


def hoist_loop_invariants(graph: GraphProto, outer: Collection[str] = ()) -> None:
    """Move nodes out of the bodies of Loop and Scan, and constants out of those of If, in place; join equal nodes.

    The size of an axis of a loop's state that no step changes is that of its first value. `outer` are names of
    constants of the graphs around this one.
    """
    names = {value.name for value in (*graph.input, *graph.initializer)}
    names |= {name for node in graph.node for name in (node.name, *node.output)}
    constants = {*outer, *(tensor.name for tensor in graph.initializer)}.difference(value.name for value in graph.input)
    sizes: list[NodeProto] = []  # nodes that compute sizes
    sized: set[str] = set()  # their outputs
    nodes: list[NodeProto] = []
    for node in graph.node:
        for body in bodies(node):
            hoist_loop_invariants(body, constants)
        if node.op_type in _BEFORE:
            nodes += _take_invariants(node, graph, names)
        elif node.op_type == "If":
            nodes += _take_constants(node, constants, names)
            _copy_sizes(node, sizes, names)
        elif node.op_type == "Shape" or (
            sized.intersection(node.input) and sized.union(constants).issuperset(node.input)
        ):
            sizes.append(node)
            sized.update(node.output)
        nodes.append(node)
    # The first of several equal nodes stays, unless a later one is an output of the graph. Attributes are compared as
    # bytes, since some of them, such as bodies, do not define equality.
    results = {output.name for output in graph.output}
    first_of: dict[tuple[object, ...], NodeProto] = {}
    renamed: dict[str, str] = {}
    kept = []
    for node in nodes:
        _rename(node, renamed)
        if node.op_type not in _RANDOM_OPS and not any(True for _ in bodies(node)):
            attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
            first = first_of.setdefault((node.op_type, node.domain, *node.input, *attributes, len(node.output)), node)
            if first is not node and not results.intersection(node.output):
                renamed |= dict(zip(node.output, first.output, strict=True))
                continue
        kept.append(node)
    replace_nodes(graph, kept)


def place_weights(graph: GraphProto) -> None:
    """Transpose the weights of a loop within a loop in the body around it, in place.

    onnxruntime packs a weight when it loads the graph if the weight is a constant of the product's graph, or of the one
    around it, and else at every product. A transposed constant is a constant of the graph that transposes it.
    """
    constants = {tensor.name for tensor in graph.initializer}.difference(value.name for value in graph.input)
    sources: dict[str, str] = {}  # of transposed weights
    for node in graph.node:
        if node.input and constants.issuperset(node.input) and node.op_type not in (*_RANDOM_OPS, *_BEFORE):
            constants.update(node.output)
            if node.op_type == "Transpose" and any([*attribute.ints] == [1, 0] for attribute in node.attribute):
                sources[node.output[0]] = node.input[0]
    for number, body in enumerate(body for node in graph.node for body in bodies(node)):
        placed: dict[str, NodeProto] = {}
        for node in (node for loop in body.node for inner in bodies(loop) for node in all_nodes(inner)):
            name = node.input[1] if node.op_type in ("Gemm", "MatMul", "MatMulInteger") else ""
            source = sources.get(name)
            for attribute in node.attribute if name in constants else ():
                if attribute.name == "transB" and attribute.i:
                    source, attribute.i = name, 0
            if source is not None:
                node.input[1] = f"{source}.{number}.near"
                placed[source] = helper.make_node("Transpose", [source], [node.input[1]], perm=[1, 0])
        replace_nodes(body, [*placed.values(), *body.node])


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs inside a node."""
    for attribute in node.attribute:
        yield from ([attribute.g] if attribute.HasField("g") else [])
        yield from attribute.graphs


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield the nodes of a graph and of all graphs inside."""
    for node in graph.node:
        yield node
        for inner in bodies(node):
            yield from all_nodes(inner)


def shape_of(value: ValueInfoProto) -> tuple[int | str | None, ...]:
    """Return the sizes of a value: numbers, names, or None where unknown."""
    return tuple(
        dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else None)
        for dim in value.type.tensor_type.shape.dim
    )


def _take_constants(node: NodeProto, constants: set[str], names: set[str]) -> list[NodeProto]:
    """Take the nodes that compute constants, such as transposed weights, out of both branches of an If."""
    moved = []
    for body in bodies(node):
        results, renamed, kept = {value.name for value in body.output}, dict[str, str](), list[NodeProto]()
        for inner in body.node:
            _rename(inner, renamed)
            fixed = inner.input and constants.issuperset(inner.input) and not results.intersection(inner.output)
            if fixed and inner.op_type not in _RANDOM_OPS and not any(True for _ in bodies(inner)):
                moved.append(_move(inner, renamed, names))
                constants.update(inner.output)
            else:
                kept.append(inner)
        replace_nodes(body, kept)
    return moved


def _copy_sizes(node: NodeProto, sizes: Sequence[NodeProto], names: set[str]) -> None:
    """Copy the nodes that compute the sizes that a branch of an If reads into it.

    There onnxruntime knows them as sizes, which it computes on the CPU; others it would compute on a GPU.
    """
    for body in bodies(node):
        read = {name for inner in all_nodes(body) for name in inner.input}
        copies: list[NodeProto] = []
        for size in reversed(sizes):
            if read.intersection(size.output):
                read.update(size.input)
                copies.insert(0, NodeProto.FromString(size.SerializeToString()))
        renamed: dict[str, str] = {}
        for copy in copies:
            _rename(copy, renamed)
            _move(copy, renamed, names)
        for inner in body.node:
            _rename(inner, renamed)
        replace_nodes(body, [*copies, *body.node])


def _take_invariants(loop: NodeProto, graph: GraphProto, names: set[str]) -> list[NodeProto]:
    """Take the invariant nodes out of the body of a loop; return them in order."""
    (body,) = bodies(loop)
    before = _BEFORE[loop.op_type]
    initial = {inner.name: outer for inner, outer in zip(body.input[before:], loop.input[before:], strict=True)}
    if loop.op_type == "Scan":
        # A scanned input has another shape outside: the sequence, not one row of it.
        scanned = next(attribute.i for attribute in loop.attribute if attribute.name == "num_scan_inputs")
        initial = dict([*initial.items()][: len(initial) - scanned])
    after = body.output[1:] if loop.op_type == "Loop" else body.output  # the state, before a scan's rows
    changes: dict[str, list[bool]] = {}  # of each axis
    for old, new in zip(body.input[before:], after, strict=False):
        sizes, new_sizes = shape_of(old), shape_of(new)
        changes[old.name] = [size is None or size not in new_sizes[i : i + 1] for i, size in enumerate(sizes)]
    # Names of values that vary between steps or must stay: nodes that read one of them stay inside as well. An output
    # of the body must be computed in it, so a constant that is an output stays too.
    inside = {value.name for value in body.input}
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
        if node.op_type == "Shape" and node.input[0] in initial:
            axes = {attribute.name: attribute.i for attribute in node.attribute}
            if not any(changes[node.input[0]][axes.get("start", 0) : axes.get("end")]):
                node.input[0] = initial[node.input[0]]
        fixed = not inside.intersection(node.input) and not results.intersection(node.output)
        if fixed and node.op_type not in _RANDOM_OPS and not any(True for _ in bodies(node)):
            moved.append(_move(node, renamed, names))
        else:
            inside.update(node.output)
            kept.append(node)
    replace_nodes(body, kept)
    return moved


def _move(node: NodeProto, renamed: dict[str, str], names: set[str]) -> NodeProto:
    """Give a node and its outputs new names for the graph around its own."""
    for i, name in enumerate(node.output):
        if name:
            node.output[i] = renamed[name] = _new(name, names)
    node.name = _new(node.name, names) if node.name else ""
    return node


def _rename(node: NodeProto, renamed: Mapping[str, str]) -> None:
    """Rename the inputs of a node, in the bodies of its loops too."""
    node.input[:] = [renamed.get(name, name) for name in node.input]
    for body in bodies(node):
        for inner in body.node:
            _rename(inner, renamed)


def _new(name: str, names: set[str]) -> str:
    """Return a new name, and add it to the names."""
    while name in names:
        name += "_"
    names.add(name)
    return name


def replace_nodes(graph: GraphProto, nodes: list[NodeProto]) -> None:
    kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]  # `del` clears their content
    del graph.node[:]
    graph.node.extend(kept)
