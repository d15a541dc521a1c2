"""The OpenAPI document: valid, true of what the server answers, and shown."""

from pathlib import Path
from typing import Any

import pytest
from serving import Server, assert_as_described, assert_refused_by_both, schema_of, schema_violations

from seqpipe import Model
from seqpipe.serve.openapi import document as document_of
from seqpipe.serve.settings import Settings

pytest_plugins = ["protocol_server"]

TEXTS = ["Anna meets Ben in New York .", "", "Bern"]
TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["Bern"]}


@pytest.fixture(scope="module")
def document(server: Server) -> Any:
    return server.get("/openapi.json").json


def test_the_document_is_valid_openapi(document: Any) -> None:
    validator = pytest.importorskip("openapi_spec_validator").OpenAPIV31SpecValidator
    assert document["openapi"] == "3.1.0"
    assert [str(error) for error in validator(document).iter_errors()] == []
    broken = {**document, "paths": {"/v1": {"get": {"responses": {"200": {}}}}}}
    assert [*validator(broken).iter_errors()] != []


def test_a_bundle_is_described_with_its_labels_options_and_fields(document: Any) -> None:
    schemas = document["components"]["schemas"]
    span = schemas["toy.Answer"]["items"]["properties"]
    assert set(span["entity_group"]["enum"]) == {"person", "city"}
    bias = {"type": "number", "minimum": -20, "maximum": 20, "default": 0.0}
    assert schemas["toy.Options"]["properties"] == {"bias": bias}
    assert schemas["toy.Input"]["anyOf"][1]["required"] == ["text"]
    for name, modes in (("toy", {"documents"}), ("slow", {"documents", "explain"}), ("lm", {"stream"})):
        assert {"documents", "explain", "stream"} & schemas[f"{name}.Request"]["properties"].keys() == modes
    assert schemas["EmbeddingRequest"]["properties"]["model"]["enum"] == ["vectors"]
    completion = schemas["CompletionRequest"]["properties"]
    assert (completion["model"]["enum"], completion["repetition_penalty"]["minimum"]) == (["lm"], 1)
    assert not {"max_length", "beams", "n_best"} & completion.keys()


REQUESTS: list[tuple[str, str, Any]] = [
    ("POST", "/v1/toy", {"inputs": "Anna"}),
    ("POST", "/v1/toy", {"inputs": TEXTS, "options": {"bias": -3}}),
    ("POST", "/v1/toy", {"inputs": [{"text": "Anna"}, {"words": ["New", "York"]}]}),
    ("POST", "/v1/toy", {"inputs": "Anna. Ben.", "documents": True}),
    ("POST", "/v1/slow", {"inputs": "Anna", "explain": True}),
    ("POST", "/v1/vectors", {"inputs": ["Anna", ""]}),
    ("POST", "/v1/lm", {"inputs": "a", "options": {"max_length": 5, "beams": 2, "n_best": 2, "stop": ["x"]}}),
    ("POST", "/v1/lm", {"inputs": ["a"], "options": {"seed": 3, "top_p": 0.5}}),
    ("POST", "/v1/completions", {"model": "lm", "prompt": "a", "max_tokens": 3, "n": 2, "repetition_penalty": 2}),
    ("POST", "/v1/embeddings", {"model": "vectors", "input": ["Anna", "Bern"]}),
    ("POST", "/v1/embeddings", {"model": "vectors", "input": "Anna", "encoding_format": "base64"}),
    ("POST", "/v2/models/toy/infer", {"id": "7", "inputs": [TENSOR], "parameters": {"bias": 1}}),
    ("POST", "/v2/models/vectors/infer", {"inputs": [TENSOR], "outputs": [{"name": "vector"}]}),
]


PATHS = "/v1 /v1/toy /v1/models /v2 /v2/health/live /v2/health/ready /v2/models/vectors"
REQUESTS += [("GET", path, None) for path in PATHS.split()]


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_answers_are_as_the_document_says(server: Server, document: Any, method: str, path: str, body: Any) -> None:
    assert_as_described(server, document, method, path, body)


def test_an_input_that_was_skipped_is_as_the_document_says(server: Server, document: Any) -> None:
    for inputs in ({"text": 3}, [{"text": 3}, "Bern"]):
        reply = server.post("/v1/toy", {"inputs": inputs, "on_error": "skip"})
        assert "error" in str(reply.json)
        assert schema_violations(document, schema_of(document, "POST", "/v1/toy", 200), reply.json) == []


REFUSED: list[tuple[str, Any, int]] = [
    ("/v1/toy", {"inputs": "Anna", "options": {"bais": 1}}, 422),
    ("/v1/toy", {"inputs": "Anna", "options": {"bias": 21}}, 422),
    ("/v1/toy", {"input": "Anna"}, 422),
    ("/v1/toy", {"inputs": {"words": "Anna"}}, 422),
    ("/v1/lm", {"inputs": "a", "options": {"top_p": 0, "seed": 1}}, 422),
    ("/v1/completions", {"model": "lm", "prompt": "a", "max_tokens": 0}, 400),
    ("/v1/embeddings", {"model": "toy", "input": "a"}, 400),
    ("/v2/models/toy/infer", {"inputs": [{**TENSOR, "datatype": "FP32"}]}, 422),
]


@pytest.mark.parametrize(("path", "body", "status"), REFUSED)
def test_server_and_document_refuse_the_same(server: Server, document: Any, path: str, body: Any, status: int) -> None:
    assert_refused_by_both(server, document, path, body, status)


def test_the_example_of_a_bundle_can_be_sent(server: Server, document: Any, tiny: Model) -> None:
    body = document["paths"]["/v1/toy"]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert body == {"inputs": "Anna in\r\nNew York"}
    assert server.post("/v1/toy", body).json == {"answer": tiny.manifest.golden[0].answer}


def test_the_document_says_whether_a_token_is_needed_and_bundles_may_be_loaded(tmp_path: Path) -> None:
    plain, full = document_of([], Settings()), document_of([], Settings(token="secret", repository=tmp_path))
    assert full["security"] == [{"token": []}]
    assert "security" not in plain
    repository = {"index", "models/{name}/load", "models/{name}/unload"}
    assert {*full["paths"]} - {*plain["paths"]} == {f"/v2/repository/{path}" for path in repository}
    assert "/v1/completions" not in plain["paths"]
    validator = pytest.importorskip("openapi_spec_validator").OpenAPIV31SpecValidator
    assert [str(error) for error in validator(full).iter_errors()] == []
