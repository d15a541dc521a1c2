"""Tensors of the Open Inference Protocol: what is written is read again, and what is none is refused."""

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqpipe.answers.candidates import Vector
from seqpipe.answers.classification import Label, Score
from seqpipe.answers.extractive_span import ExtractiveSpan
from seqpipe.answers.registry import MultiHead
from seqpipe.answers.structured import Field, Structured
from seqpipe.answers.tagging import Spans
from seqpipe.errors import UsageError
from seqpipe.serve.inference_v2 import Tensor, outputs_of, read_request, write_response

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def body(*inputs: dict[str, Any], binary: bytes = b"", **more: Any) -> tuple[bytes, int | None]:
    """A request, and the length of its JSON if there are binary data."""
    content = json.dumps({"inputs": [*inputs], **more}).encode()
    return content + binary, len(content) if binary else None


def tensor(data: Any = ("a", "b"), **other: Any) -> dict[str, Any]:
    return {"name": "text", "datatype": "BYTES", "shape": [2], "data": data, **other}


@given(st.lists(TEXTS, min_size=1), st.lists(TEXTS, min_size=1))
def test_texts_are_read_from_json_and_from_tritons_binary_data(first: list[str], second: list[str]) -> None:
    triton = pytest.importorskip("tritonclient.utils")
    data = triton.serialize_byte_tensor(np.array([text.encode() for text in second], object)).item()
    inputs = [
        {"name": "a", "datatype": "BYTES", "shape": [len(first)], "data": first},
        {"name": "b", "datatype": "BYTES", "shape": [len(second), 1], "parameters": {"binary_data_size": len(data)}},
    ]
    content = json.dumps({"inputs": inputs}).encode()
    _, tensors = read_request(content + data, len(content))
    expected = [Tensor("a", "BYTES", (len(first),), first), Tensor("b", "BYTES", (len(second), 1), second)]
    assert tensors == {"a": expected[0], "b": expected[1]}


def test_binary_texts_are_read_without_copies_of_the_rest() -> None:
    class Counted(bytes):
        def __getitem__(self, place: Any) -> Any:
            part = super().__getitem__(place)
            copied.append(len(part))
            return part

    copied: list[int] = []
    size = {"parameters": {"binary_data_size": 4_000}}
    content, length = body({"name": "a", "datatype": "BYTES", "shape": [1_000], **size}, binary=b"\0" * 4_000)
    assert read_request(Counted(content), length)[1]["a"].data == [""] * 1_000
    assert sum(copied) < 2 * len(content)


def test_data_may_be_nested_as_the_shape_is() -> None:
    _, tensors = read_request(*body(tensor([["a"], ["b"]], shape=[2, 1])))
    assert tensors["text"].data == ["a", "b"]
    _, tensors = read_request(*body(tensor([], shape=[0])))
    assert tensors["text"].data == []


def sized(size: Any, **other: Any) -> dict[str, Any]:
    return {**tensor(**other), "parameters": {"binary_data_size": size}}


SHARED = {"shared_memory_region": "x"}
REFUSED = {
    "no JSON": ((b"{", None), "the body is not JSON"),
    "deep": ((b"[" * 100_000, None), "the body is not JSON"),
    "a key twice": ((b'{"inputs": [], "id": "a", "id": "b"}', None), "the key 'id' is given twice"),
    "NaN": ((b'{"inputs": NaN}', None), "NaN is not JSON"),
    "a list": ((b"[]", None), "the body must be a JSON object, not list"),
    "no inputs": ((b"{}", None), "inputs: is missing: a list of tensors"),
    "an empty list": (body(), "inputs: should be a list of tensors"),
    "header too long": ((body(tensor())[0], 10_000), "Inference-Header-Content-Length is 10,000; the body has"),
    "no name": (body(tensor(name=3)), "inputs.0.name: should be a valid string, not 3"),
    "another type": (body(tensor(datatype="FP32")), "inputs.0.datatype: should be 'BYTES', not 'FP32'"),
    "no shape": (body(tensor(shape=None)), "inputs.0.shape: should be a valid list, not null"),
    "negative": (body(tensor(shape=[-1])), "inputs.0.shape.0: should be greater than or equal to 0, not -1"),
    "a matrix": (body(tensor(shape=[1, 2])), r"the shape is \[1, 2\]; give \[N\] or \[N, 1\]"),
    "no axis": (body(tensor(shape=[])), r"the shape is \[\]; give \[N\]"),
    "too few": (body(tensor(shape=[3])), r"2 elements do not fill the shape \[3\]"),
    "a number": (body(tensor(["a", 3])), "an element of BYTES must be a text, not int"),
    "no data": (body(tensor(None)), "data must be a list of texts, not NoneType"),
    "twice": (body(tensor(), tensor()), "input 'text' occurs twice"),
    "shared memory": (
        body(tensor(parameters=SHARED)),
        "parameters.shared_memory_region: is not supported; omit it",
    ),
    "no parameters": (body(tensor(parameters=[1])), "inputs.0.parameters: should be a valid dictionary"),
    "more than there is": (body(sized(9), binary=b"\1\0\0\0a"), "binary_data_size is 9, but 5 bytes are left"),
    "no size": (body(sized("5"), binary=b"\1\0\0\0a"), "binary_data_size: should be a valid integer, not '5'"),
    "less than there is": (body(sized(5, shape=[1]), binary=b"\1\0\0\0ab"), "1 bytes more than the binary_data_size"),
    "cut off": (body(sized(5, shape=[1]), binary=b"\2\0\0\0a"), "the binary data is cut off"),
    "cut length": (body(sized(3, shape=[1]), binary=b"\2\0\0"), "the binary data is cut off"),
    "no UTF-8": (body(sized(5, shape=[1]), binary=b"\1\0\0\0\xff"), "the binary data is not UTF-8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_request_is_refused_by_name(name: str) -> None:
    request, message = REFUSED[name]
    with pytest.raises(UsageError, match=message):
        read_request(*request)


@given(st.lists(TEXTS), st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_binary_outputs_are_read_by_tritons_own_library(texts: list[str], numbers: list[float]) -> None:
    tensors = [
        Tensor("t", "BYTES", (len(texts),), texts),
        Tensor("n", "FP32", (len(numbers),), numbers),
        Tensor("i", "INT64", (2,), [3, -4]),
    ]
    written, length = write_response({"id": "7"}, tensors, lambda name: name != "i")
    content, data = json.loads(written[:length]), written[length:]
    first, second, third = content.pop("outputs")
    assert content == {"id": "7"}
    assert third == {"name": "i", "datatype": "INT64", "shape": [2], "data": [3, -4]}
    at = first["parameters"]["binary_data_size"]
    triton = pytest.importorskip("tritonclient.utils")
    assert [text.decode() for text in triton.deserialize_bytes_tensor(data[:at])] == texts
    assert np.frombuffer(data[at:], "<f4").tolist() == numbers
    assert second["parameters"]["binary_data_size"] == len(data) - at


def test_json_has_null_for_a_number_that_is_missing_and_binary_data_nan() -> None:
    tensors = [Tensor("n", "FP32", (2,), [0.5, None])]
    written, length = write_response({}, tensors, lambda name: False)
    assert (json.loads(written)["outputs"][0]["data"], length) == ([0.5, None], None)
    written, length = write_response({}, tensors, lambda name: True)
    assert struct.unpack("<f", written[length:][:4]) == (0.5,)
    assert np.isnan(np.frombuffer(written[length:], "<f4")[1])


def test_what_is_plain_of_an_answer_has_an_output_of_its_own() -> None:
    kinds = MultiHead({"intent": Label(("a",)), "slots": Spans(("O", "B-x")), "near": Vector(("a",)), "stars": Score()})
    outputs = outputs_of(kinds)
    types = dict.fromkeys(("answer_json", "intent.label"), "BYTES")
    types |= dict.fromkeys(("intent.score", "near.vector", "stars.score"), "FP32")
    assert {name: output.datatype for name, output in outputs.items()} == types
    answers = [
        {"intent": {"label": "a", "score": 0.5}, "slots": [], "near": {"vector": [1.0, 2.0]}, "stars": {"score": 3.0}},
        {"intent": {"label": None, "score": 0.0}, "slots": [], "near": {"vector": None}, "stars": {"score": None}},
    ]
    made = {name: output.tensor(answers, (2, 1)) for name, output in outputs.items()}
    assert [json.loads(text) for text in made["answer_json"].data] == answers
    assert made["intent.label"] == Tensor("intent.label", "BYTES", (2, 1), ["a", ""])
    assert made["near.vector"] == Tensor("near.vector", "FP32", (2, 2), [1.0, 2.0, None, None])
    assert made["stars.score"].data == [3.0, None]


def test_a_typed_output_of_several_alternatives_is_that_of_the_best() -> None:
    best = {"answer": "Rome", "score": 0.75, "start": 3, "end": 7}
    answers = [[best, {"answer": "", "score": 0.25, "start": 0, "end": 0}]]
    outputs = outputs_of(ExtractiveSpan())
    assert [outputs[name].tensor(answers, (1,)).data for name in ("answer", "start")] == [["Rome"], [3]]
    assert outputs["start"].datatype == "INT64"
    assert json.loads(outputs["answer_json"].tensor(answers, (1,)).data[0]) == answers[0]


def test_what_a_tensor_cannot_hold_is_in_the_json_alone() -> None:
    fields = (
        Field("mood", "text", "label", "mood", ("a",)),
        Field("root", "text", "position", "root"),
        Field("name", "text", "span", "name"),
        Field("tag", "word", "label", "tag", ("N",)),
    )
    assert [*outputs_of(Structured(fields))] == ["answer_json", "mood"]
