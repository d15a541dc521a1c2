"""Graphs that give NaN, or what is no answer: the record is named, and no score is made up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import forged
import numpy as np
import onnx
import pytest
from factory import seqpipe
from onnx import helper, numpy_helper

from seqpipe import Model, load
from seqpipe.answers.base import AnswerKind
from seqpipe.answers.candidates import Vector
from seqpipe.answers.classification import Label, Score
from seqpipe.answers.registry import MultiHead
from seqpipe.answers.tagging import Spans, Tags
from seqpipe.errors import BundleError, DataError
from seqpipe.features.document import Doc
from seqpipe.runtime import bundle
from seqpipe.runtime.predictor import number_outputs, refuse_nan

TWO = [Doc("a b", ["a", "b"], [(0, 1), (2, 3)], [4, 5]), Doc("a", ["a"], [(0, 1)], [4])]


@pytest.fixture(scope="module")
def overflowing(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy that computes NaN for the word Zoe, of weights that are masked out."""
    content = bundle.read(tiny_bundle)
    model = onnx.load_from_string(content.files["model.onnx"])
    (table,) = (tensor for tensor in model.graph.initializer if tensor.name == "table")
    numbers = numpy_helper.to_array(table).copy()
    numbers[-1] = -np.inf  # of unknown words with a capital
    table.CopyFrom(numpy_helper.from_array(numbers, "table"))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((), np.float32), "zero"))
    nodes = [*model.graph.node]
    (at,) = (i for i, node in enumerate(nodes) if node.output[0] == "evidence")
    nodes[at].output[0] = "entries"
    nodes.insert(at + 1, helper.make_node("Mul", ["entries", "zero"], ["zeros"]))
    nodes.insert(at + 2, helper.make_node("Add", ["entries", "zeros"], ["evidence"]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    path = tmp_path_factory.mktemp("overflowing") / "bundle"
    bundle.write(path, {**content.files, "model.onnx": model.SerializeToString()}, content.manifest)
    return path


def test_an_answer_that_would_hold_nan_names_its_record(overflowing: Path) -> None:
    model = load(overflowing, "cpu", threads=1)
    assert [span["word"] for span in model("Anna in Bern")] == ["Anna", "Bern"]
    with pytest.raises(
        DataError,
        match=r"^record 3: the model's 'scores' is NaN for this input: the weights overflow; leave it out, or",
    ):
        model(["Anna", "in Bern", "Zoe in Bern"])
    with pytest.raises(DataError, match=r"^x:7: the model's 'scores' is NaN"):
        model({"text": "Zoe", "where": "x:7"})


def test_the_command_names_the_line_and_answers_those_before(overflowing: Path) -> None:
    done = seqpipe("predict", overflowing, "--device", "cpu", stdin=b"Anna\nin Bern\nZoe\nBen\n")
    assert (done.code, "standard input:3: the model's 'scores' is NaN" in done.err) == (3, True)
    assert [json.loads(line)[0]["word"] for line in done.out.splitlines()] == ["Anna", "Bern"]


def test_nan_behind_the_end_of_a_text_means_nothing() -> None:
    scores = np.array([[0.5, 0.5], [0.5, np.nan]], np.float32)
    refuse_nan(number_outputs(Tags(["O"])), TWO, {"scores": scores})
    with pytest.raises(DataError, match="'scores' is NaN"):
        refuse_nan(number_outputs(Tags(["O"])), TWO, {"scores": scores[::-1]})


@pytest.mark.parametrize(
    ("kind", "name", "number"),
    [
        (Score(), "score", np.nan),
        (Score(), "score", np.inf),
        (Vector(["a"]), "vector", -np.inf),
        (Label(["a"]), "scores", np.nan),
        (Spans(["O"]), "closes", np.nan),
        (Spans(["O"]), "path_scores", np.nan),
        (MultiHead({"how": Label(["a"])}), "how.scores", np.nan),
    ],
)
def test_every_kind_of_number_is_looked_at(kind: AnswerKind, name: str, number: float) -> None:
    array = np.full((2,) if name == "score" else (2, 1), 0.5, np.float32)
    refuse_nan(number_outputs(kind), TWO, {name: array})
    array[1] = number
    with pytest.raises(DataError, match=f"'{name}' is {'NaN' if np.isnan(number) else 'infinite'}"):
        refuse_nan(number_outputs(kind), TWO, {name: array})


def with_labels(tiny_bundle: Path, path: Path, answer: Mapping[str, Any], width: int) -> Path:
    """A toy that answers with a label, of as many scores as are given."""
    axes = ["batch_size"]
    zeros = numpy_helper.from_array(np.zeros(width, np.float32), "zeros")
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMax", ["ids", "last"], ["label"], keepdims=0),
            helper.make_node("Unsqueeze", ["label", "last"], ["column"]),
            helper.make_node("Cast", ["column"], ["number"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Add", ["number", "zeros"], ["scores"]),
        ],
        "labels",
        [
            helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [*axes, "sequence_length"]),
            helper.make_tensor_value_info("mask", onnx.TensorProto.BOOL, [*axes, "sequence_length"]),
        ],
        [
            helper.make_tensor_value_info("label", onnx.TensorProto.INT64, axes),
            helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, [*axes, width]),
        ],
        [zeros, numpy_helper.from_array(np.array([1]), "last")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    content = bundle.read(tiny_bundle)
    inputs = {name: entry for name, entry in content.manifest.inputs.items() if name != "chars"}
    changes = {"answer": answer, "options": {}, "inputs": inputs, "outputs": ["label", "scores"], "golden": []}
    files = {**content.files, "model.onnx": model.SerializeToString()}
    return forged.write(path, files, forged.plain(content.manifest) | changes)


def test_labels_and_scores_of_another_number_are_refused_at_once(tiny_bundle: Path, tmp_path: Path) -> None:
    answer = {"kind": "label", "labels": ["a", "b", "c"], "target": None}
    with pytest.raises(BundleError, match=r"labels: there are 3, but model\.onnx scores 5; .* export it again"):
        load(with_labels(tiny_bundle, tmp_path / "five", answer, 5), "cpu", threads=1)


def test_a_label_that_there_is_not_is_an_error_of_the_bundle(tiny_bundle: Path, tmp_path: Path) -> None:
    answer = {"kind": "label", "labels": ["a", "b", "c"], "target": None}
    model: Model = load(with_labels(tiny_bundle, tmp_path / "three", answer, 3), "cpu", threads=1)
    with pytest.raises(BundleError, match="not an answer of kind 'label' \\(IndexError"):
        model("Anna")  # its id is over 2
