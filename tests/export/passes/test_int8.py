"""Weights as integers: how near the products are, and that a row's answer hangs on nothing beside it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from gallery import RECIPES, gallery
from onnx import TensorProto, numpy_helper, parser
from tiny_pipelines import QUIET

from seqpipe import load
from seqpipe.config.loader import load_config
from seqpipe.errors import ParityError
from seqpipe.export.passes import int8 as quantising
from seqpipe.export.passes.int8 import in_int8, input_ranges
from seqpipe.runs.full_run import RunOptions, run_all

RANDOM = np.random.default_rng(3)
V, D, N = 90, 64, 70
TABLE, W = (RANDOM.normal(size=shape).astype(np.float32) for shape in ((V, D), (D, N)))
BIAS = RANDOM.normal(size=V).astype(np.float32)


def model(table: np.ndarray = TABLE, w: np.ndarray = W) -> bytes:
    """A table that is looked up in and that makes logits, and in a loop a product with a matrix as it stands."""
    graph = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        graph (int64[B, T] ids, float[B, {D}] rows)
            => (float[a, b, c] x, float[d, e, f] product, float[g, h] logits, float[k, l, m, n] made)
        <int64 steps = {{2}}, bool yes = {{1}}> {{
            x = Gather (table, ids)
            turned = Transpose <perm = [1, 0]> (table)
            product = MatMul (x, turned)
            logits = Gemm <transB = 1> (rows, table, bias)
            made = Loop (steps, yes) <body = body (int64 i, bool go) => (bool on, float[o, p, q] y) {{
                on = Identity (go) y = MatMul (x, w)
            }}>
        }}""")
    for name, array in {"table": table, "w": w, "bias": BIAS}.items():
        graph.graph.initializer.append(numpy_helper.from_array(array, name))
    return bytes(graph.SerializeToString())


def run(data: bytes, **feeds: Any) -> list[Any]:
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feeds)


IDS = RANDOM.integers(0, V, (4, 6))
ROWS = (RANDOM.normal(size=(4, D)) * [[1], [100], [0], [1e-6]]).astype(np.float32)


def test_products_are_near_and_their_weights_stand_there_once_as_integers() -> None:
    before, after = model(), in_int8(model())
    for exact, near in zip(run(before, ids=IDS, rows=ROWS), run(after, ids=IDS, rows=ROWS), strict=True):
        away = np.abs(exact - near).reshape(-1, exact.shape[-1]).max(1)
        assert (away <= 0.04 * np.abs(exact).reshape(-1, exact.shape[-1]).max(1)).all()
    weights = {tensor.name: tensor for tensor in onnx.load_from_string(after).graph.initializer}
    sizes = [np.prod(tensor.dims) for tensor in weights.values() if tensor.data_type == TensorProto.INT8]
    assert sum(sizes) == V * D + D * N
    assert not {"table", "w"} & {*weights}
    assert len(after) < 0.4 * len(before)


def test_each_row_and_column_of_a_weight_has_a_scale_of_its_own() -> None:
    of_rows, of_columns = (np.resize(np.float32([1, 100, 0.01]), size) for size in (V, N))
    data = model(TABLE * of_rows[:, None], W * of_columns)
    rows = of_rows[IDS][..., None]
    scales = (rows, rows * of_rows, of_rows, rows * of_columns)
    outputs = zip(run(data, ids=IDS, rows=ROWS), run(in_int8(data), ids=IDS, rows=ROWS), scales, strict=True)
    for number, (exact, near, scale) in enumerate(outputs):
        bias = BIAS if number == 2 else 0
        sizes, errors = ((np.abs(one) / scale).max(-1) for one in (exact - bias, exact - near))
        assert (errors <= 0.04 * sizes + 1e-4).all()


def test_a_row_has_the_same_numbers_whatever_stands_beside_it() -> None:
    data = in_int8(model())
    whole = run(data, ids=IDS, rows=ROWS)
    for row in range(4):
        alone = run(data, ids=IDS[row : row + 1], rows=ROWS[row : row + 1])
        assert np.array_equal(whole[1][row], alone[1][0])
        assert np.array_equal(whole[2][row], alone[2][0])
        assert np.array_equal(whole[3][:, row], alone[3][:, 0])


def test_inputs_of_a_known_range_have_one_scale_and_rows_stay_independent() -> None:
    rows = RANDOM.uniform(-0.5, 2, (7, D)).astype(np.float32)
    ranges = input_ranges(model(), [{"ids": IDS, "rows": row[None]} for row in rows])
    assert ranges["table"] == pytest.approx((min(rows.min(), TABLE[IDS].min()), max(rows.max(), TABLE[IDS].max())))
    assert {*ranges} == {"table"}  # the product with w is in a loop
    data = in_int8(model(), ranges)
    kinds, without = ([n.op_type for n in onnx.load_from_string(one).graph.node] for one in (data, in_int8(model())))
    assert not {"Abs", "ReduceMax", "Div"} & {*kinds}
    assert without.count("ReduceMax") == 2
    exact, whole = (run(graph, ids=IDS, rows=rows)[1:3] for graph in (model(), data))
    for expected, near in zip(exact, whole, strict=True):
        assert np.abs(expected - near).max() <= 0.04 * np.abs(expected).max()
    for i, row in enumerate(rows):
        assert np.array_equal(whole[1][i], run(data, ids=IDS[:1], rows=row[None])[2][0])


def test_a_product_whose_rows_differ_in_size_has_a_scale_for_each() -> None:
    rows = np.ones((9, D), np.float32)
    for largest, expected in ((2, {"table"}), (1000, set[str]())):
        rows[0] = largest
        assert {*input_ranges(model(), [{"ids": IDS, "rows": rows}])} == expected


def test_the_largest_sums_do_not_overflow() -> None:
    table = np.where(np.arange(V)[:, None] % 2, 1.0, -1.0).astype(np.float32).repeat(D, 1)
    rows = np.ones((2, D), np.float32)
    logits = run(in_int8(model(table)), ids=IDS, rows=rows)[2]
    assert np.allclose(logits, rows @ table.T + BIAS, rtol=1e-5)


def test_sums_of_two_products_fit_16_bits_whichever_two_of_four_are_added() -> None:
    w = (W * RANDOM.choice([1, 30], W.shape)).astype(np.float32)
    for tensor in onnx.load_from_string(in_int8(model(w=w))).graph.initializer:
        if tensor.data_type == TensorProto.INT8:
            weights = np.abs(numpy_helper.to_array(tensor).astype(int))  # (N, K), K a multiple of 4
            largest = np.sort(weights.reshape(len(weights), -1, 4), 2)[..., 2:].sum(2).max(1)
            assert (largest * 255 < 2**15).all()
            assert (largest >= 125).all()  # and the range is used


def test_a_bundle_in_int8_has_integers_as_weights_and_answers_right() -> None:
    bundle = gallery("int8").bundle
    weights = onnx.load(bundle / "model.onnx").graph.initializer
    assert [tensor.data_type for tensor in weights].count(TensorProto.INT8) > 1
    model = load(bundle, "cpu")
    assert model.manifest.parity["precision"] == "int8"
    answers = model(["a lovely x day", "a sad y day", "a usual z day"])
    assert [answer["label"] for answer in answers] == ["good", "bad", "fine"]


def test_a_bundle_that_int8_spoils_is_not_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantising, "_MAX_WEIGHT", 0.1)  # every weight becomes 0
    with pytest.raises(ParityError, match=r"in int8 and .* in fp32 on 12 records; set export.precision: fp32"):
        run_all(load_config(RECIPES["int8"].write(folder)), QUIET, RunOptions("cpu"))
    assert not [*folder.glob("runs/*/bundle")]
