"""The Open Inference Protocol v2, spoken by Triton's own client and by hand."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from serving import Server

from seqpipe import Model
from seqpipe.version import VERSION

pytest_plugins = ["protocol_server"]

triton = pytest.importorskip("tritonclient.http")
InferenceServerException = pytest.importorskip("tritonclient.utils").InferenceServerException
Client = triton.InferenceServerClient
TEXTS = ["Anna meets Ben in New York .", "", "Bern", "Anna calls 你好"]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        yield client


def text_tensor(texts: list[str], shape: list[int], binary: bool = True, name: str = "text") -> triton.InferInput:
    tensor = triton.InferInput(name, shape, "BYTES")
    tensor.set_data_from_numpy(np.array(texts, object).reshape(shape), binary_data=binary)
    return tensor


def answers(result: triton.InferResult) -> list[Any]:
    return [json.loads(text) for text in result.as_numpy("answer_json").ravel()]


def test_the_client_finds_the_server_and_the_bundle(client: Client) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("toy")
    assert client.is_model_ready("toy", "1")
    assert client.get_server_metadata() == {"name": "seqpipe", "version": VERSION, "extensions": ["binary_tensor_data"]}
    assert client.get_model_metadata("toy") == {
        "name": "toy",
        "versions": ["1"],
        "platform": "seqpipe_onnx",
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [{"name": "answer_json", "datatype": "BYTES", "shape": [-1]}],
    }


@pytest.mark.parametrize("shape", [[4], [4, 1]])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("outputs", [None, False, True])
def test_the_clients_answers_are_those_of_the_model(
    client: Client, tiny: Model, shape: list[int], binary: bool, outputs: bool | None
) -> None:
    asked = None if outputs is None else [triton.InferRequestedOutput("answer_json", binary_data=outputs)]
    result = client.infer("toy", [text_tensor(TEXTS, shape, binary)], outputs=asked, request_id="7")
    assert answers(result) == tiny(TEXTS)
    assert result.as_numpy("answer_json").shape == tuple(shape)
    assert result.get_response().items() >= {"id": "7", "model_name": "toy", "model_version": "1"}.items()


def test_a_vector_is_an_output_of_numbers(client: Client, vectors: Model) -> None:
    output = {"name": "vector", "datatype": "FP32", "shape": [-1, -1]}
    assert client.get_model_metadata("vectors")["outputs"][1:] == [output]
    expected = [answer["vector"] for answer in vectors(["Bern", "Anna in", "x"])]
    for binary in (False, True):
        asked = [triton.InferRequestedOutput("vector", binary_data=binary)]
        result = client.infer("vectors", [text_tensor(["Bern", "Anna in", "x"], [3, 1])], outputs=asked)
        numbers = result.as_numpy("vector")
        assert (numbers.dtype, numbers.tolist()) == (np.float32, expected)
        assert result.as_numpy("answer_json") is None
    both = client.infer("vectors", [text_tensor(["Bern", ""], [2])])
    assert answers(both) == [{"vector": expected[0]}, {"vector": None}]
    assert np.isnan(both.as_numpy("vector")[1]).all()


def test_decode_options_and_documents_are_parameters(client: Client, tiny: Model) -> None:
    result = client.infer("toy", [text_tensor(TEXTS, [4])], parameters={"bias": -5.0})
    assert answers(result) == tiny(TEXTS, bias=-5.0) != tiny(TEXTS)
    result = client.infer("toy", [text_tensor(["Anna. Ben."], [1])], parameters={"documents": True})
    assert answers(result) == [tiny("Anna. Ben.", documents=True)]


CLASSES = triton.InferRequestedOutput("answer_json", class_count=2)
REFUSED = [
    ({"parameters": {"bais": 1.0}}, "no decode option 'bais'; did you mean 'bias'?"),
    ({"parameters": {"bias": 21.0}}, "bias: 21.0 is not between -20 and 20"),
    ({"priority": 3}, "no decode option 'priority'"),
    ({"sequence_id": 3}, "no decode option 'sequence_id'"),
    ({"outputs": [triton.InferRequestedOutput("spans")]}, r"no output 'spans' \(there is: answer_json\)"),
    ({"outputs": [CLASSES]}, "outputs.0.parameters.classification: is not supported"),
    ({"inputs": [text_tensor(["Bern"], [1], name="txt")]}, r"no input 'txt'; did you mean 'text'\? \(there is: text\)"),
    ({"model_version": "2"}, "'toy' has no version '2'"),
    ({"model_name": "tpy"}, "no bundle 'tpy'; did you mean 'toy'?"),
    ({"inputs": [text_tensor(["a"] * 10, [10])]}, "10 inputs are over the limit of 9"),
    ({"request_compression_algorithm": "gzip"}, "Content-Encoding: gzip is not supported"),
    ({"timeout": -3}, "parameters.timeout: should be greater than 0, not -3"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_a_refusal_has_the_form_that_the_client_expects(client: Client, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InferenceServerException, match=message):
        client.infer(**{"model_name": "toy", "inputs": [text_tensor(["Bern"], [1])], **changes})
