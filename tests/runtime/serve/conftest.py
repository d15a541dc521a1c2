"""Bundles for servers: one that is as slow as a request wants and shows what it looked at, and one that writes text."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from nn.test_kv_cache import bundled
from onnx import TensorProto, helper

from seqpipe.runtime import bundle

ROUNDS = 100_000  # of a loop that does nothing, for each 1 of the option `bias`
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def slowed(model: onnx.ModelProto) -> None:
    """Puts a loop before the toy's table that takes as long as `bias` says, and gives the scores as weights."""
    (table,) = (tensor for tensor in model.graph.initializer if tensor.name == "table")
    table.name = "table_given"
    inputs = [("i", INT64, []), ("go", BOOL, []), ("state", FLOAT, None)]
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Constant", [], ["one"], value=helper.make_tensor("", FLOAT, [], [1.0])),
            helper.make_node("Mul", ["state", "one"], ["next"]),
        ],
        "body",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(*one) for one in (("on", BOOL, []), ("next", FLOAT, None))],
    )
    nodes = [
        helper.make_node("Constant", [], ["rounds"], value=helper.make_tensor("", FLOAT, [], [ROUNDS])),
        helper.make_node("Mul", ["bias", "rounds"], ["many"]),
        helper.make_node("Cast", ["many"], ["count"], to=INT64),
        helper.make_node("Loop", ["count", "", "table_given"], ["table"], body=body),
        *model.graph.node,
        helper.make_node("Identity", ["scores"], ["explain.encoder"]),
    ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    axes = ["batch_size", "sequence_length"]
    model.graph.output.append(helper.make_tensor_value_info("explain.encoder", FLOAT, axes))


@pytest.fixture(scope="session")
def slow_bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy, whose run takes the longer the greater `bias` is, and which explains."""
    content = bundle.read(tiny_bundle)
    model = onnx.load_from_string(content.files["model.onnx"])
    slowed(model)
    stated = {key: value for key, value in content.manifest.items() if key not in ("files", "sha256")}
    stated |= {"name": "slow", "explain": {"encoder": {"over": "words", "axis": "sequence_length"}}}
    path = tmp_path_factory.mktemp("slow") / "bundle"
    bundle.write(path, {**content.files, "model.onnx": model.SerializeToString()}, stated)
    return path


@pytest.fixture(scope="session")
def writer_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model without training."""
    folder = tmp_path_factory.mktemp("writer")
    bundled(folder)
    return folder / "bundle"
