"""No request to a protocol is an internal error, whatever stands in the place of each of its values."""

from typing import Any

import pytest
from serving import Server, malformed_statuses

pytest_plugins = ["protocol_server"]

TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["Bern"], "parameters": {}}
INFER = {"id": "7", "inputs": [TENSOR], "outputs": [{"name": "answer_json", "parameters": {"binary_data": True}}],
         "parameters": {"bias": 1.0, "documents": False, "timeout": 10**7, "binary_data_output": True}}  # fmt: skip
EMBED = {"model": "vectors", "input": ["Anna"], "encoding_format": "float", "user": "me"}
COMPLETE = {
    "model": "lm", "prompt": ["a"], "max_tokens": 3, "n": 1, "temperature": 0.5, "top_p": 0.5, "seed": 3, "stop": ["x"],
    "echo": True, "logit_bias": {}, "repetition_penalty": 1.5, "forbidden": ["a"],
}  # fmt: skip
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


OPTIONS = {
    "beams": 1, "n_best": 1, "max_length": 3, "length_penalty": 0.0, "min_length": 0, "early_stopping": False,
    "seed": 3, "forbidden": ["a"], "allowed": None, "temperature": 1.0, "top_k": 5, "top_p": 0.5, "stop": ["x"],
    "repetition_penalty": 1.0, "score_prompt": False, "keep_cache": True, "token_scores": True,
}  # fmt: skip
REQUESTS = [  # with the least number of answers
    ("/v2/models/toy/infer", INFER, 20),
    ("/v1/embeddings", EMBED, 5),
    ("/v1/completions", COMPLETE, 21),
    ("/v1/completions", COMPLETE | STREAM, 21),
    ("/v1/lm", {"inputs": "a good", "options": OPTIONS}, 40),
    ("/v1/lm", {"inputs": "a good", "options": {"allowed": ["a"], "seed": 3}}, 10),
]


@pytest.mark.parametrize(("path", "body", "answered"), REQUESTS)
def test_junk_is_no_internal_error(server: Server, path: str, body: dict[str, Any], answered: int) -> None:
    assert OPTIONS.keys() == server.get("/v1/lm").json["options"].keys()
    statuses = malformed_statuses(server, path, body)
    assert {*statuses} <= {200, 400, 404, 413, 400 if "model" in body else 422}
    assert statuses.count(200) >= answered
