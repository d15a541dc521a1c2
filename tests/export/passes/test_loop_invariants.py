"""What comes out the same at each step of a loop is done before it, and the answers stay what they were."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from seqpipe.export.passes.loop_invariants import bodies, hoist_loop_invariants, place_weights

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, dtype: int, *shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def constant(name: str, made: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(made), name)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=f"node_{outputs.split()[0]}", **attributes)


def loop(nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto] | None = None) -> ModelProto:
    """x (R, D) goes through these nodes, which make `after` of `before`, as often as `times` says."""
    state = [value("before", FLOAT, "R", "D")]
    end = helper.make_node("Identity", ["go"], ["go_on"])
    body = helper.make_graph(
        [*nodes, end],
        "body",
        [value("i", INT), value("go", BOOL), *state],
        [value("go_on", BOOL), value("after", FLOAT, "R", "D")],
        constants,
    )
    graph = helper.make_graph(
        [node("Mul", "w w", "square"), node("Loop", "times yes x", "y", body=body)],
        "graph",
        [value("x", FLOAT, "R", "D"), value("times", INT), value("w", FLOAT, "D")],
        [value("y", FLOAT, "R", "D")],
        [constant("yes", True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def inner(model: ModelProto) -> GraphProto:
    (body,) = (body for one in model.graph.node for body in bodies(one))
    return body


def run(model: ModelProto, times: int) -> Any:
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(1)
    x, w = random.normal(size=(3, 4)).astype(np.float32), random.normal(size=4).astype(np.float32)
    return session.run(None, {"x": x, "w": w, "times": np.array(times)})[0]


def operators(graph: GraphProto) -> list[str]:
    return [one.op_type for one in graph.node]


def moved(model: ModelProto) -> ModelProto:
    """The model with its loops relieved; it computes what it did, as often as it is asked to."""
    changed = ModelProto.FromString(model.SerializeToString())
    hoist_loop_invariants(changed.graph)
    for times in (0, 1, 5):
        np.testing.assert_array_equal(run(changed, times), run(model, times))
    return changed


def test_a_size_that_steps_change_is_read_in_the_loop() -> None:
    nodes = [node("Concat", "before before", "after", axis=0), node("Shape", "before", "width", start=1)]
    nodes += [node("Shape", "before", "rows", start=0, end=1)]
    model = loop([*nodes, node("Concat", "width rows", "shape", axis=0), node("Shape", "before", "all")])
    model.graph.node[1].attribute[0].g.output[1].type.tensor_type.shape.dim[0].dim_param = "more"
    assert operators(inner(moved(model))) == ["Concat", "Shape", "Concat", "Shape", "Identity"]


def test_weights_of_a_loop_in_a_loop_are_constants_of_the_body_around_it() -> None:
    step = [node("Gemm", "b m", "c", transB=1), node("MatMul", "c turned", "d"), node("MatMul", "d m", "e")]
    step.append(node("Identity", "g", "h"))
    inputs = [value("j", INT), value("g", BOOL), value("b", FLOAT, "R", 4)]
    body = helper.make_graph(step, "step", inputs, [value("h", BOOL), value("e", FLOAT, "R", 4)])
    model = loop([node("Loop", "two yes before", "after", body=body)])
    model.graph.node.insert(0, node("Transpose", "n", "turned", perm=[1, 0]))
    random = np.random.default_rng(2)
    weights = [constant(name, random.normal(size=(4, 4)).astype(np.float32)) for name in "mn"]
    model.graph.initializer.extend([*weights, constant("two", 2)])
    changed = ModelProto.FromString(model.SerializeToString())
    place_weights(changed.graph)
    np.testing.assert_allclose(run(changed, 3), run(model, 3), rtol=1e-5)
    (outer,) = (graph for one in changed.graph.node for graph in bodies(one))
    assert operators(outer) == ["Transpose", "Transpose", "Loop", "Identity"]
    (step_after,) = bodies(outer.node[2])
    assert [one.input[1] for one in step_after.node[:3]] == [*(one.output[0] for one in outer.node[:2]), "m"]


def test_what_reads_nothing_of_the_loop_leaves_it() -> None:
    model = loop([node("Exp", "w", "e"), node("Mul", "e two", "f"), node("Add", "before f", "after")], [two()])
    changed = moved(model)
    assert operators(inner(changed)) == ["Add", "Identity"]
    assert operators(changed.graph) == ["Mul", "Exp", "Mul", "Loop"]


def test_the_shape_of_the_state_is_that_of_what_the_loop_begins_with() -> None:
    nodes = [node("Shape", "before", "s"), node("Expand", "w s", "wide"), node("Add", "before wide", "after")]
    changed = moved(loop(nodes))
    assert operators(inner(changed)) == ["Add", "Identity"]


def test_the_shape_of_something_else_stays() -> None:
    nodes = [node("Add", "before before", "more"), node("Shape", "more", "s"), node("Expand", "w s", "after")]
    assert "Shape" in operators(inner(moved(loop(nodes))))


def test_what_follows_the_steps_stays() -> None:
    nodes = [node("Cast", "i", "number", to=FLOAT), node("Add", "before number", "after")]
    assert operators(inner(moved(loop(nodes)))) == ["Cast", "Add", "Identity"]


def test_a_state_that_becomes_something_fixed_is_still_made_inside() -> None:
    nodes = [node("Add", "before w", "sum"), node("Shape", "before", "s"), node("Expand", "w s", "after")]
    assert "Expand" in operators(inner(moved(loop(nodes))))


def test_chance_stays() -> None:
    nodes = [node("RandomUniformLike", "w", "u"), node("Mul", "u zero", "none"), node("Add", "before none", "after")]
    changed = moved(loop(nodes, [constant("zero", np.float32(0))]))
    assert "RandomUniformLike" in operators(inner(changed))


def test_what_two_nodes_make_alike_is_made_once() -> None:
    nodes = [
        node("Mul", "w w", "again"),
        node("Exp", "before", "e"),
        node("Exp", "before", "f"),
        node("Add", "e f", "g"),
        node("Add", "g again", "after"),
    ]
    changed = moved(loop(nodes))
    assert operators(changed.graph) == ["Mul", "Loop"]
    assert operators(inner(changed)) == ["Exp", "Add", "Add", "Identity"]


def test_a_name_that_is_taken_outside_is_changed() -> None:
    one, other = loop([node("Exp", "w", "e"), node("Add", "before e", "after")]), ModelProto()
    other.CopyFrom(one)
    second = other.graph.node[1]
    inner(other).node[0].op_type = "Neg"
    second.name, second.output[0], second.input[2] = "second", "z", "y"
    one.graph.node.append(second)
    one.graph.output[0].name = "z"
    changed = moved(one)
    assert operators(changed.graph) == ["Mul", "Exp", "Loop", "Neg", "Loop"]
    assert len({each.name for each in changed.graph.node}) == 5


def test_out_of_a_loop_in_a_loop_it_goes_as_far_as_it_can() -> None:
    deep = helper.make_graph(
        [
            node("Exp", "w", "e"),
            node("Add", "before number", "f"),
            node("Add", "e f", "g"),
            node("Add", "g row", "h"),
            node("Add", "h t", "u"),
            node("Shape", "row", "s"),
            node("Expand", "w s", "made"),
        ],
        "deep",
        [value("t", FLOAT, "R", "D"), value("row", FLOAT, "R", "D")],
        [value("u", FLOAT, "R", "D"), value("made", FLOAT, "R", "D")],
    )
    nodes = [
        node("Cast", "i", "number", to=FLOAT),
        node("Unsqueeze", "before zero", "one_row"),
        node("Concat", "one_row one_row", "rows", axis=0),
        node("Scan", "before rows", "last every", body=deep, num_scan_inputs=1),
        node("ReduceMax", "every zero", "most", keepdims=0),
        node("Add", "last most", "after"),
    ]
    changed = moved(loop(nodes, [constant("zero", [0])]))
    assert operators(changed.graph) == ["Mul", "Exp", "Loop"]
    body = inner(changed)
    assert operators(body) == ["Cast", "Unsqueeze", "Concat", "Add", "Add", "Scan", "ReduceMax", "Add", "Identity"]
    (deepest,) = (found for one in body.node for found in bodies(one))
    assert operators(deepest) == ["Add", "Add", "Shape", "Expand"]  # a row of what is gone through has its own shape


def two() -> onnx.TensorProto:
    return constant("two", np.float32(2))


@pytest.fixture(autouse=True)
def quiet() -> None:
    onnxruntime.set_default_logger_severity(3)


def test_constants_leave_a_condition_sizes_enter_it_and_what_costs_time_stays() -> None:
    branches = {}
    for name in ("then", "else"):
        nodes = [node("Transpose", "m", f"{name}_turned"), node("Mul", f"before {name}_turned", f"{name}_product")]
        nodes.append(node("Expand", f"{name}_product size", f"{name}_y"))
        output = value(f"{name}_y", FLOAT, None, None)
        branches[f"{name}_branch"] = helper.make_graph(nodes, name, [], [output], [])
    model = loop([node("Shape", "before", "size"), node("If", "go", "after", **branches)])
    model.graph.initializer.append(constant("m", np.ones((4, 1), np.float32)))
    after = moved(model)
    assert operators(after.graph) == ["Mul", "Shape", "Transpose", "Loop"]
    assert operators(inner(after)) == ["If", "Identity"]
    (condition, _) = inner(after).node
    assert [operators(branch) for branch in bodies(condition)] == [["Shape", "Mul", "Expand"]] * 2
