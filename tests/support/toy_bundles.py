"""Bundles with graphs written by hand, whose answers a person can check, and with any manifest, hashed and sealed."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from seqpipe.files import sha256
from seqpipe.runtime import bundle
from seqpipe.runtime.manifest import BUNDLE_FORMAT, MANIFEST, OF_TEXTS, Manifest, seal, unseal
from seqpipe_plugins.tokenizers.words import WordsTokenizer

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
AXES = ["batch_size", "sequence_length"]
MASK = {"axes": AXES, "dtype": "bool"}
VECTORS = {"Anna": (1.0, 0.5), "Bern": (-0.25, 2.0), "in": (0.125, -3.0)}  # of any other word: (0, 1)
LOOP_ROUNDS = 100_000  # of a loop that does nothing, for each 1 of the option `bias`
STUCK = "a" * 30_000 + "cb"
Values = Mapping[str, tuple[int, Sequence[str | int] | None]]  # element type and axes by name
node = helper.make_node


def write_bundle(path: Path, files: Mapping[str, bytes], content: Mapping[str, Any]) -> Path:
    """Write these files and a bundle.json of this content, with the hashes of the files and its own."""
    path.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (path / name).write_bytes(data)
    entries = {name: {"sha256": sha256(data), "bytes": len(data)} for name, data in files.items()}
    sealed = seal({"format": BUNDLE_FORMAT, "version": OF_TEXTS, **content, "files": entries})
    (path / MANIFEST).write_bytes(sealed)
    return path


def manifest_content(manifest: Manifest) -> dict[str, Any]:
    """The content of a manifest besides its files, as JSON."""
    content = unseal(seal(manifest.content()), "stated")
    return {key: value for key, value in content.items() if key != "files"}


def toy_manifest(name: str, kind: str, inputs: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """The content of a manifest with one output, which is called as the answer kind."""
    return {
        "name": name,
        "field": "text",
        "inputs": inputs,
        "outputs": [kind],
        "options": {},
        "answer": {"kind": kind, "target": None},
        "limits": {"tokens": 10_000},
        "reader": {"use": "jsonl", "options": {}},
        "golden": [],
        "metrics": {},
        "parity": {},
        "made_with": {},
        **changes,
    }


def value_infos(values: Values) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(name, *value) for name, value in values.items()]


def onnx_model(nodes: list[NodeProto], inputs: Values, outputs: Values, constants: Mapping[str, Any]) -> bytes:
    """The file of a model with one graph."""
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "toy", value_infos(inputs), value_infos(outputs), tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


SUM_CONSTANTS = {"axis_1": np.array([1]), "axis_2": np.array([2])}


def masked_sum(rows: str) -> list[NodeProto]:
    """Nodes that add up rows (B, T, F) by the input `mask` as `sum` (B, F); `weight` is the mask (B, T, 1)."""
    return [
        node("Cast", ["mask"], ["real"], to=FLOAT),
        node("Unsqueeze", ["real", "axis_2"], ["weight"]),
        node("Mul", [rows, "weight"], ["masked"]),
        node("ReduceSum", ["masked", "axis_1"], ["sum"], keepdims=0),
    ]


def write_sum_bundle(path: Path) -> Path:
    """Write a bundle that answers rows of two numbers with their sum, times the decode option `scale`."""
    rows = {"axes": [*AXES, 2], "dtype": "float32", "kind": "matrix", "means": [0.0, 0.0], "deviations": [1.0, 1.0]}
    nodes = [
        *masked_sum("matrix"),
        node("ReduceSum", ["sum", "axis_1"], ["unscaled"], keepdims=0),
        node("Mul", ["unscaled", "scale"], ["score"]),
    ]
    inputs: Values = {"matrix": (FLOAT, [*AXES, 2]), "mask": (BOOL, AXES), "scale": (FLOAT, [])}
    constants = {**SUM_CONSTANTS, "scale": np.array(1, np.float32)}
    model = onnx_model(nodes, inputs, {"score": (FLOAT, AXES[:1])}, constants)
    scale = {"type": "float", "default": 1.0, "minimum": 0, "maximum": 9}
    golden = [{"record": {"points": [[1, 2], [3, 4]]}, "answer": {"score": 10.0}}]
    changes: dict[str, Any] = {"field": "points", "options": {"scale": scale}, "limits": {"tokens": 100}}
    content = toy_manifest("sums", "score", {"matrix": rows, "mask": MASK}, golden=golden, **changes)
    return write_bundle(path, {"model.onnx": model}, content)


def write_vector_bundle(path: Path) -> Path:
    """Write a bundle that answers with two numbers, the sum of the vectors of the words."""
    tokenizer = WordsTokenizer().train([[*VECTORS, "calls", "nobody"]])
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    table = np.array([VECTORS.get(word, (0.0, 1.0)) for word in vocabulary], np.float32)
    nodes = [node("Gather", ["table", "ids"], ["x"]), *masked_sum("x"), node("Identity", ["sum"], ["vector"])]
    inputs: Values = {"ids": (INT64, AXES), "mask": (BOOL, AXES)}
    model = onnx_model(nodes, inputs, {"vector": (FLOAT, ["batch_size", 2])}, {**SUM_CONSTANTS, "table": table})
    changes = {
        "answer": {"kind": "vector", "target": None, "self_supervised": True},
        "golden": [{"record": {"text": "Anna in"}, "answer": {"vector": [1.125, -2.5]}}],
        "limits": {"tokens": 1000},
    }
    content = toy_manifest("vectors", "vector", {"ids": {"axes": AXES, "dtype": "int64"}, "mask": MASK}, **changes)
    return write_bundle(path, {"model.onnx": model, "tokenizer.json": tokenizer.to_str().encode()}, content)


def changed_bundle(source: Path, path: Path, files: Mapping[str, bytes] = MappingProxyType({}), **changes: Any) -> Path:
    """Write a bundle with other contents of these files, and changes of its manifest; all hashes are right."""
    content = bundle.read(source)
    return write_bundle(path, {**content.files, **files}, manifest_content(content.manifest) | changes)


def write_stuck_bundle(tiny: Path, path: Path) -> Path:
    """Write the toy, whose tokenizer takes the third power of the length of a word such as STUCK."""
    tokenizer = json.loads((tiny / "tokenizer.json").read_bytes())
    split = {"type": "Split", "pattern": {"Regex": "a*a*b"}, "behavior": "Isolated", "invert": False}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [tokenizer["pre_tokenizer"], split]}
    return changed_bundle(tiny, path, {"tokenizer.json": json.dumps(tokenizer).encode()}, name="stuck")


def write_slow_bundle(tiny: Path, path: Path) -> Path:
    """Write the toy with a loop before its table, the longer the greater `bias` is, and its scores as weights."""
    model = onnx.load(tiny / "model.onnx")
    (table,) = (tensor for tensor in model.graph.initializer if tensor.name == "table")
    table.name = "loop_input"
    body = helper.make_graph(
        [
            node("Identity", ["condition"], ["next_condition"]),
            node("Constant", [], ["factor"], value=helper.make_tensor("", FLOAT, [], [1.0])),
            node("Mul", ["state", "factor"], ["next_state"]),
        ],
        "body",
        value_infos({"i": (INT64, []), "condition": (BOOL, []), "state": (FLOAT, None)}),
        value_infos({"next_condition": (BOOL, []), "next_state": (FLOAT, None)}),
    )
    nodes = [
        node("Constant", [], ["rounds"], value=helper.make_tensor("", FLOAT, [], [LOOP_ROUNDS])),
        node("Mul", ["bias", "rounds"], ["bias_rounds"]),
        node("Cast", ["bias_rounds"], ["count"], to=INT64),
        node("Loop", ["count", "", "loop_input"], ["table"], body=body),
        *model.graph.node,
        node("Identity", ["scores"], ["explain.encoder"]),
    ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.output.extend(value_infos({"explain.encoder": (FLOAT, AXES)}))
    explain = {"encoder": {"over": "words", "axis": "sequence_length"}}
    return changed_bundle(tiny, path, {"model.onnx": model.SerializeToString()}, name="slow", explain=explain)
