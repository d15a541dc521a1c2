"""A rewritten graph answers as before; GELUs become what onnxruntime knows, layers of a transformer one Gemm each."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper, parser

from seqpipe.export.passes.linear_layers import rewrite_linear_layers

START = """
    size = Shape <start: int = 0, end: int = 2> (x)
    heads = Concat <axis: int = 0> (size, twos)
    joined = Concat <axis: int = 0> (size, width)
    m = LayerNormalization <axis: int = -1> (x, scale, b)
"""
GELU = """
    {y}d = Div({x}, root)
    {y}e = Erf({y}d)
    {y}a = Add({y}e, one)
    {y}h = Mul({half}, {y}a)
    {y} = Mul({x}, {y}h)
"""
CONSTANTS = {
    "W": np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32),
    "b": np.random.default_rng(2).normal(size=4).astype(np.float32),
    "scale": np.random.default_rng(3).normal(size=4).astype(np.float32),
    **{name: np.float32(number) for name, number in {"root": 2**0.5, "one": 1, "half": 0.5, "quarter": 0.25}.items()},
    "twos": np.array([2, 2]),
    "width": np.array([4]),
    "kept": np.array([0, 0, -1]),
    "axis": np.array([1]),
}


def layer(x: str, y: str) -> str:
    """Graph of a layer of BERT without its attention: heads are split off and joined again."""
    return f"""
    {y}q = MatMul({x}, W)
    {y}qb = Add({y}q, b)
    {y}split = Reshape <allowzero: int = 1> ({y}qb, heads)
    {y}t = Transpose <perm: ints = [0, 2, 1, 3]> ({y}split)
    {y}u = Transpose <perm: ints = [0, 2, 1, 3]> ({y}t)
    {y}whole = Reshape <allowzero: int = 1> ({y}u, joined)
    {y}o = MatMul({y}whole, W)
    {y}ob = Add({y}o, b)
    {y}s = Add({y}ob, {x})
    {y}n = LayerNormalization <axis: int = -1> ({y}s, scale, b)
    {y}f = MatMul({y}n, W)
    {y}fb = Add({y}f, b)
    {GELU.format(x=f"{y}fb", y=f"{y}g", half="half")}
    {y}p = MatMul({y}g, W)
    {y}pb = Add({y}p, b)
    {y}z = Add({y}pb, {y}n)
    {y} = LayerNormalization <axis: int = -1> ({y}z, scale, b)
    """


LAYERS = layer("m", "k") + layer("k", "y")


def model(body: str, *outputs: str) -> ModelProto:
    """A graph from x (B, T, 4) to y and other outputs, with the shapes in it, as the exporter gives them."""
    types = ", ".join(f"float[B, T, 4] {name}" for name in ("y", *outputs))
    model = parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]> g (float[B, T, 4] x) => ({types}) {{ {body} }}'
    )
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in CONSTANTS.items())
    for name in [node.output[0] for node in model.graph.node if node.op_type == "Reshape"]:
        shape = ["B", "T", 2, 2] if name.endswith("split") else ["B", "T", 4]
        model.graph.value_info.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    return onnx.shape_inference.infer_shapes(model)


def changed(before: ModelProto) -> ModelProto:
    """The model rewrite_linear_layers, after a look at whether it still answers the same at several sizes."""
    after = ModelProto()
    after.CopyFrom(before)
    rewrite_linear_layers(after.graph)
    onnx.checker.check_model(after, full_check=True)
    sides = [onnxruntime.InferenceSession(one.SerializeToString()) for one in (before, after)]
    for size in [(1, 1), (2, 3), (5, 7)]:
        x = np.random.default_rng(4).normal(size=(*size, 4)).astype(np.float32)
        for one, other in zip(*(side.run(None, {"x": x}) for side in sides), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)
    return after


def optimized(made: ModelProto, folder: Path) -> Counter[str]:
    """The operators that onnxruntime makes of it."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(folder / "model.onnx"), 3
    onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(folder / "model.onnx").graph.node)


def on_rows(made: ModelProto) -> list[str]:
    return [node.output[0] for node in made.graph.node if node.output[0].endswith(".rows")]


def test_a_gelu_of_the_exporter_becomes_one_node(tmp_path: Path) -> None:
    before = model(GELU.format(x="x", y="y", half="half"))
    assert optimized(before, tmp_path)["Erf"] == 1
    assert optimized(changed(before), tmp_path)["Gelu"] == 1


UNCHANGED = {
    "another factor than GELU's": GELU.format(x="x", y="y", half="quarter"),
    "a GELU whose product is read elsewhere": GELU.format(x="x", y="w", half="half") + "y = Add(w, wh)",
    "no erf": "a = Add(x, one) h = Mul(half, a) y = Mul(x, h)",
    "few linear layers": START + "q = MatMul(m, W) y = Add(q, b)",
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_other_graphs_are_left_alone(name: str) -> None:
    before = model(UNCHANGED[name])
    assert changed(before) == before


def test_layers_of_a_transformer_run_on_rows_also_if_their_weights_are_transposed_in_the_graph(tmp_path: Path) -> None:
    before = model(START + LAYERS)
    assert optimized(before, tmp_path)["SkipLayerNormalization"] == 4
    kinds = optimized(changed(before), tmp_path)
    assert (kinds["Gemm"], kinds["MatMul"], kinds["SkipLayerNormalization"], kinds["Gelu"]) == (8, 0, 0, 2)
    transposed = model("Wt = Transpose <perm: ints = [1, 0]> (W)" + START + LAYERS.replace("W)", "Wt)"))
    kinds = optimized(changed(transposed), tmp_path)
    assert (kinds["Gemm"], kinds["MatMul"], kinds["SkipLayerNormalization"]) == (8, 0, 0)


@pytest.mark.parametrize(
    "more",
    [
        "other = Add(kn, kn)",
        "sum = ReduceSum(kn, axis) other = Add(kn, sum)",
        "same = Reshape(kn, kept) other = Add(same, same)",
        "yes = Cast <to: int = 9> (one) other = If (yes) <then_branch = t () => (float[B, T, 4] a) { a = Neg(kn) },"
        "else_branch = e () => (float[B, T, 4] c) { c = Abs(kn) }>",
    ],
    ids=["an output of the graph", "a sum over tokens", "a Reshape that keeps sizes", "the body of a branch"],
)
def test_what_looks_across_tokens_still_gets_three_axes(more: str) -> None:
    after = changed(model(START + LAYERS + more, "other"))
    assert "kn.rows" in on_rows(after)


def test_a_graph_without_shapes_is_left_alone() -> None:
    before = model(START + LAYERS)
    del before.graph.value_info[:]
    assert not on_rows(changed(before))
