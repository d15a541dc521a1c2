"""Graphs that give NaN, or what is no answer: the record is named, and no score is made up."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tiny_pipelines import seqpipe
from toy_bundles import changed_bundle

from seqpipe import load
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
    """A toy that computes NaN for the word Zoe."""
    model = onnx.load(tiny_bundle / "model.onnx")
    (table,) = (tensor for tensor in model.graph.initializer if tensor.name == "table")
    numbers = numpy_helper.to_array(table).copy()
    numbers[-1] = -np.inf  # of unknown words with a capital; its softmax is NaN
    table.CopyFrom(numpy_helper.from_array(numbers, "table"))
    files = {"model.onnx": model.SerializeToString()}
    return changed_bundle(tiny_bundle, tmp_path_factory.mktemp("overflowing") / "bundle", files)


def test_an_answer_that_would_hold_nan_names_its_record(overflowing: Path) -> None:
    model = load(overflowing, "cpu", threads=1)
    assert [span["word"] for span in model("Anna in Bern")] == ["Anna", "Bern"]
    message = r"^record 3: the model's 'scores' is NaN for this input: the weights overflow; leave it out, or"
    with pytest.raises(DataError, match=message):
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


NUMBERS = [
    (Score(), "score", np.nan),
    (Score(), "score", np.inf),
    (Vector(["a"]), "vector", -np.inf),
    (Label(["a"]), "scores", np.nan),
    (Spans(["O"]), "closes", np.nan),
    (Spans(["O"]), "path_scores", np.nan),
    (MultiHead({"how": Label(["a"])}), "how.scores", np.nan),
]


@pytest.mark.parametrize(("kind", "name", "number"), NUMBERS)
def test_every_kind_of_number_is_looked_at(kind: AnswerKind, name: str, number: float) -> None:
    array = np.full((2,) if name == "score" else (2, 1), 0.5, np.float32)
    refuse_nan(number_outputs(kind), TWO, {name: array})
    array[1] = number
    with pytest.raises(DataError, match=f"'{name}' is {'NaN' if np.isnan(number) else 'infinite'}"):
        refuse_nan(number_outputs(kind), TWO, {name: array})


def labelling_bundle(tiny_bundle: Path, path: Path, width: int) -> Path:
    """Write a toy whose answer is one of three labels and whose graph returns this many scores."""
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 18]>
        labels (int64[batch_size, sequence_length] ids, bool[batch_size, sequence_length] mask)
            => (int64[batch_size] label, float[batch_size, {width}] scores)
        <int64[1] last = {{1}}> {{
            label = ReduceMax <keepdims = 0> (ids, last)
            column = Unsqueeze (label, last)
            number = Cast <to = 1> (column)
            size = Constant <value_ints = [1, {width}]> ()
            scores = Expand (number, size)
        }}""")
    inputs = {name: entry for name, entry in bundle.read(tiny_bundle).manifest.inputs.items() if name != "chars"}
    answer = {"kind": "label", "labels": ["a", "b", "c"], "target": None}
    changes = {"answer": answer, "options": {}, "inputs": inputs, "outputs": ["label", "scores"], "golden": []}
    return changed_bundle(tiny_bundle, path, {"model.onnx": model.SerializeToString()}, **changes)


def test_labels_that_the_bundle_lacks_are_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"labels: there are 3, but model\.onnx scores 5; .* export it again"):
        load(labelling_bundle(tiny_bundle, tmp_path / "five", 5), "cpu", threads=1)
    model = load(labelling_bundle(tiny_bundle, tmp_path / "three", 3), "cpu", threads=1)
    with pytest.raises(BundleError, match="not an answer of kind 'label' \\(IndexError"):
        model("Anna")  # its id is over 2
