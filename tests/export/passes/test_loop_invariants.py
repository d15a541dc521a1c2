"""Nodes of a loop that compute the same at each step are moved before it, and the answers stay what they were."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import GraphProto, ModelProto, numpy_helper, parser

from seqpipe.export.passes.loop_invariants import bodies, hoist_loop_invariants, place_weights


@pytest.fixture(autouse=True)
def quiet() -> None:
    onnxruntime.set_default_logger_severity(3)


def loop(nodes: str, before: str = "") -> ModelProto:
    """x (R, D) goes through these nodes, which make `after` of `before`, as often as `times` says."""
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        graph (float[R, D] x, int64 times, float[D] w) => (float[R, D] y)
        <bool yes = {{1}}, float two = {{2}}, float zero = {{0}}, int64 count = {{2}}, int64[1] axis = {{0}}> {{
            {before} square = Mul (w, w)
            y = Loop (times, yes, x) <body = body (int64 i, bool go, float[R, D] before)
                => (bool go_on, float[R, D] after) {{ {nodes} go_on = Identity (go) }}>
        }}""")
    name_nodes(model.graph)
    return model


def name_nodes(graph: GraphProto) -> None:
    for node in graph.node:
        node.name = f"node_{node.output[0]}"
        for body in bodies(node):
            name_nodes(body)


def inner(model: ModelProto) -> GraphProto:
    (body,) = (body for node in model.graph.node for body in bodies(node))
    return body


def run(model: ModelProto, times: int) -> Any:
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(1)
    x, w = random.normal(size=(3, 4)).astype(np.float32), random.normal(size=4).astype(np.float32)
    return session.run(None, {"x": x, "w": w, "times": np.array(times)})[0]


def operators(graph: GraphProto) -> str:
    return " ".join(node.op_type for node in graph.node)


def moved(model: ModelProto) -> ModelProto:
    """The model after the pass; it computes what it did, however often its loop runs."""
    changed = ModelProto.FromString(model.SerializeToString())
    hoist_loop_invariants(changed.graph)
    for times in (0, 1, 5):
        np.testing.assert_array_equal(run(changed, times), run(model, times))
    return changed


EQUAL = "again = Mul (w, w) e = Exp (before) f = Exp (before) g = Add (e, f) after = Add (g, again)"
# Nodes of the loop; operators that stay in it, and those before it.
NODES = {
    "independent of the loop": ("e = Exp (w) f = Mul (e, two) after = Add (before, f)", "Add", "Exp Mul"),
    "shape of the state": ("s = Shape (before) v = Expand (w, s) after = Add (before, v)", "Add", "Shape Expand"),
    "other shape": ("v = Add (before, before) s = Shape (v) after = Expand (w, s)", "Add Shape Expand", ""),
    "number of the step": ("number = Cast <to = 1> (i) after = Add (before, number)", "Cast Add", ""),
    "constant state": ("v = Add (before, w) s = Shape (before) after = Expand (w, s)", "Add Expand", "Shape"),
    "random": ("u = RandomUniformLike (w) v = Mul (u, zero) after = Add (before, v)", "RandomUniformLike Mul Add", ""),
    "equal": (EQUAL, "Exp Add Add", ""),
}


@pytest.mark.parametrize("name", NODES)
def test_nodes_leave_a_loop_if_they_compute_the_same_at_each_step(name: str) -> None:
    nodes, inside, before = NODES[name]
    changed = moved(loop(nodes))
    assert operators(inner(changed)) == f"{inside} Identity"
    assert operators(changed.graph).split() == ["Mul", *before.split(), "Loop"]


def test_a_size_that_steps_change_is_read_in_the_loop() -> None:
    sizes = "width = Shape <start = 1> (before) rows = Shape <start = 0, end = 1> (before)"
    model = loop(
        f"after = Concat <axis = 0> (before, before) {sizes} shape = Concat <axis = 0> (width, rows) "
        "all = Shape (before)"
    )
    inner(model).output[1].type.tensor_type.shape.dim[0].dim_param = "more"
    assert operators(inner(moved(model))) == "Concat Shape Concat Shape Identity"


def test_weights_of_a_loop_in_a_loop_are_constants_of_the_body_around_it() -> None:
    step = "c = Gemm <transB = 1> (b, m) d = MatMul (c, turned) e = MatMul (d, m) h = Identity (g)"
    body = f"step (int64 j, bool g, float[R, 4] b) => (bool h, float[R, 4] e) {{ {step} }}"
    model = loop(f"after = Loop (count, yes, before) <body = {body}>", "turned = Transpose <perm = [1, 0]> (n)")
    random = np.random.default_rng(2)
    weights = [numpy_helper.from_array(random.normal(size=(4, 4)).astype(np.float32), name) for name in "mn"]
    model.graph.initializer.extend(weights)
    changed = ModelProto.FromString(model.SerializeToString())
    place_weights(changed.graph)
    np.testing.assert_allclose(run(changed, 3), run(model, 3), rtol=1e-5)
    outer = inner(changed)
    assert operators(outer) == "Transpose Transpose Loop Identity"
    (step_after,) = bodies(outer.node[2])
    assert [node.input[1] for node in step_after.node[:3]] == [*(node.output[0] for node in outer.node[:2]), "m"]


def test_a_name_that_is_taken_outside_is_changed() -> None:
    model, other = (loop("e = Exp (w) after = Add (before, e)") for _ in range(2))
    second = other.graph.node[1]
    inner(other).node[0].op_type = "Neg"
    second.name, second.output[0], second.input[2] = "second", "z", "y"
    model.graph.node.append(second)
    model.graph.output[0].name = "z"
    changed = moved(model)
    assert operators(changed.graph) == "Mul Exp Loop Neg Loop"
    assert len({node.name for node in changed.graph.node}) == 5


def test_out_of_a_loop_in_a_loop_a_node_goes_as_far_as_it_can() -> None:
    deep = """deep (float[R, D] t, float[R, D] row) => (float[R, D] u, float[R, D] made) {
        e = Exp (w) f = Add (before, number) g = Add (e, f) h = Add (g, row) u = Add (h, t)
        s = Shape (row) made = Expand (w, s)
    }"""
    model = loop(f"""
        number = Cast <to = 1> (i)
        one_row = Unsqueeze (before, axis)
        rows = Concat <axis = 0> (one_row, one_row)
        last, every = Scan <body = {deep}, num_scan_inputs = 1> (before, rows)
        greatest = ReduceMax <keepdims = 0> (every, axis)
        after = Add (last, greatest)
    """)
    changed = moved(model)
    assert operators(changed.graph) == "Mul Exp Loop"
    body = inner(changed)
    assert operators(body) == "Cast Unsqueeze Concat Add Add Scan ReduceMax Add Identity"
    (deepest,) = (graph for node in body.node for graph in bodies(node))
    assert operators(deepest) == "Add Add Shape Expand"  # a row of what is gone through has its own shape


def test_constants_leave_a_condition_sizes_enter_it_and_costly_nodes_stay() -> None:
    branch = """{0} () => (float[N, M] {0}_y) {{
        {0}_turned = Transpose (m) {0}_product = Mul (before, {0}_turned) {0}_y = Expand ({0}_product, size)
    }}"""
    branches = ", ".join(f"{name}_branch = {branch.format(name)}" for name in ("then", "else"))
    model = loop(f"size = Shape (before) after = If (go) <{branches}>")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 1), np.float32), "m"))
    after = moved(model)
    assert operators(after.graph) == "Mul Shape Transpose Loop"
    assert operators(inner(after)) == "If Identity"
    (condition, _) = inner(after).node
    assert [operators(branch) for branch in bodies(condition)] == ["Shape Mul Expand"] * 2


def test_sizes_that_are_computed_from_each_other_enter_a_condition_in_order() -> None:
    size = "shape = Shape (before) first = Gather <axis = 0> (shape, axis) size = Mul (first, count)"
    body = "wide = ConstantOfShape (size) sum = ReduceSum <keepdims = 0> (wide) scaled = Add (before, sum)"
    branches = f"then_branch = a () => (float[R, D] a) {{ {body} a = Identity (scaled) }}"
    branches += ", else_branch = b () => (float[R, D] b) { b = Identity (before) }"
    after = moved(loop(f"{size} after = If (go) <{branches}>"))
    (then, _) = bodies(inner(after).node[-2])
    assert operators(then) == "Shape Gather Mul ConstantOfShape ReduceSum Add Identity"


def test_a_constant_that_a_loop_stores_moves_before_it() -> None:
    model = loop("after = Add (before, bias)")
    inner(model).initializer.append(numpy_helper.from_array(np.full(4, 2, np.float32), "bias"))
    changed = moved(model)
    assert list(inner(changed).initializer) == []
    assert len(changed.graph.initializer) == len(model.graph.initializer) + 1
