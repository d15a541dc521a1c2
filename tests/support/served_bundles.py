"""Bundles for servers: one as slow as a request wants that explains, one of vectors, and a small language model."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import forged
import numpy as np
import onnx
from factory import QUIET, moods, write_jsonl
from onnx import TensorProto, helper, numpy_helper

from seqpipe.runtime import bundle
from seqpipe_plugins.tokenizers.words import Words

ROUNDS = 100_000  # of a loop that does nothing, for each 1 of the option `bias`
STUCK = "a" * 30_000 + "cb"
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
VECTORS = {"Anna": (1.0, 0.5), "Bern": (-0.25, 2.0), "in": (0.125, -3.0)}  # of any other word: (0, 1)


def _vector_graph(vocabulary: list[str]) -> bytes:
    """The sum of the vectors of a text's words."""
    axes = ["batch_size", "sequence_length"]
    table = np.array([VECTORS.get(word, (0.0, 1.0)) for word in vocabulary], np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),  # (B, T, 2)
        helper.make_node("Cast", ["mask"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["real", "last"], ["weight"]),
        helper.make_node("Mul", ["x", "weight"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "words"], ["vector"], keepdims=0),
    ]
    constants = {"table": table, "last": np.array([2]), "words": np.array([1])}
    graph = helper.make_graph(
        nodes,
        "vectors",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, axes),
            helper.make_tensor_value_info("mask", TensorProto.BOOL, axes),
        ],
        [helper.make_tensor_value_info("vector", TensorProto.FLOAT, ["batch_size", 2])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def write_vector_bundle(path: Path) -> Path:
    """Writes a bundle that answers with two numbers, the sum of what each word has."""
    tokenizer = Words().train([[*VECTORS, "calls", "nobody"]])
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    axes = ["batch_size", "sequence_length"]
    manifest = {
        "name": "vectors",
        "field": "text",
        "inputs": {"ids": {"axes": axes, "dtype": "int64"}, "mask": {"axes": axes, "dtype": "bool"}},
        "outputs": ["vector"],
        "options": {},
        "answer": {"kind": "vector", "target": None, "self_supervised": True},
        "limits": {"tokens": 1000},
        "reader": {"use": "jsonl", "options": {}},
        "golden": [{"record": {"text": "Anna in"}, "answer": {"vector": [1.125, -2.5]}}],
        "metrics": {},
        "parity": {},
        "made_with": {},
    }
    files = {"model.onnx": _vector_graph(vocabulary), "tokenizer.json": tokenizer.to_str().encode()}
    forged.write(path, files, manifest)
    return path


def train_language_model(folder: Path) -> Path:
    """Trains a language model of letters for a moment: its bundle."""
    import torch

    from seqpipe.config.loader import load
    from seqpipe.config.yaml import dump
    from seqpipe.pipeline.full_run import run_all

    torch.set_num_threads(1)
    for name, count in (("train", 60), ("dev", 10), ("test", 10)):
        write_jsonl(folder / f"{name}.jsonl", moods(count, 3))
    content = {
        "name": "lm",
        "data": {"reader": "jsonl", "train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl"},
        "tokenizer": "chars",
        "embedding": {"use": "lookup", "dim": 24},
        "encoder": {"use": "gru", "hidden": 24, "direction": "forward"},
        "head": {"use": "lm", "packed": False},
        "train": {"epochs": 6, "batch_tokens": 128, "optimizer": {"use": "adamw", "lr": 0.03}, "threads": 1},
    }
    (folder / "lm.yaml").write_text(dump(content))
    with contextlib.chdir(folder):
        run_all(load(folder / "lm.yaml"), QUIET, "cpu")
    return folder / "runs" / "lm" / "bundle"


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


def write_stuck_bundle(tiny: Path, path: Path) -> Path:
    """Writes the toy, whose tokenizer takes the third power of the length of a word such as STUCK."""
    content = bundle.read(tiny)
    tokenizer = json.loads(content.files["tokenizer.json"])
    split = {"type": "Split", "pattern": {"Regex": "a*a*b"}, "behavior": "Isolated", "invert": False}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [tokenizer["pre_tokenizer"], split]}
    files = {**content.files, "tokenizer.json": json.dumps(tokenizer).encode()}
    return forged.write(path, files, forged.plain(content.manifest) | {"name": "stuck"})


def write_slow_bundle(tiny: Path, path: Path) -> Path:
    """Writes the toy, whose run takes the longer the greater `bias` is, and which explains."""
    content = bundle.read(tiny)
    model = onnx.load_from_string(content.files["model.onnx"])
    slowed(model)
    changes = {"name": "slow", "explain": {"encoder": {"over": "words", "axis": "sequence_length"}}}
    files = {**content.files, "model.onnx": model.SerializeToString()}
    return forged.write(path, files, forged.plain(content.manifest) | changes)
