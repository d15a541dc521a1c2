"""A toy bundle that reads rows of numbers and answers with a number: all axes of its graph begin with the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import forged
import numpy as np
from onnx import TensorProto, helper, numpy_helper


def build_sums(path: Path) -> Path:
    """Writes the bundle: it answers rows of two numbers with their sum, times the decode option `scale`."""
    rows = ["batch_size", "sequence_length"]
    nodes = [
        helper.make_node("Cast", ["mask"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["matrix", "last"], ["by_row"], keepdims=0),
        helper.make_node("Mul", ["by_row", "real"], ["shown"]),
        helper.make_node("ReduceSum", ["shown", "row"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "scale"], ["score"]),
    ]
    graph = helper.make_graph(
        nodes,
        "sums",
        [
            helper.make_tensor_value_info("matrix", TensorProto.FLOAT, [*rows, 2]),
            helper.make_tensor_value_info("mask", TensorProto.BOOL, rows),
            helper.make_tensor_value_info("scale", TensorProto.FLOAT, []),
        ],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch_size"])],
        [
            numpy_helper.from_array(np.array(1, np.float32), "scale"),
            numpy_helper.from_array(np.array([2]), "last"),
            numpy_helper.from_array(np.array([1]), "row"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    axes: dict[str, Any] = {"axes": rows}
    matrix = {"kind": "matrix", "means": [0.0, 0.0], "deviations": [1.0, 1.0], "axes": [*rows, 2], "dtype": "float32"}
    manifest: dict[str, Any] = {
        "name": "sums",
        "field": "points",
        "inputs": {"matrix": matrix, "mask": {**axes, "dtype": "bool"}},
        "outputs": ["score"],
        "options": {"scale": {"type": "float", "default": 1.0, "minimum": 0, "maximum": 9}},
        "answer": {"kind": "score", "target": None},
        "limits": {"tokens": 100},
        "reader": {"use": "jsonl", "options": {}},
        "golden": [{"record": {"points": [[1, 2], [3, 4]]}, "answer": {"score": 10.0}}],
        "metrics": {},
        "parity": {},
        "made_with": {},
    }
    forged.write(path, {"model.onnx": model.SerializeToString()}, manifest)
    return path
