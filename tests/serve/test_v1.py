"""seqpipe's own protocol: the answers of `predict`, and what is refused."""

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from serving import Server, call_in_threads, server_sent_events

from seqpipe import Model

pytest_plugins = ["protocol_server"]

TEXTS = ["Anna meets Ben in New York .", "Bern", "Anna calls 你好", "Ben", "in " * 90 + "Bern", "\ud800 Ben", "", " "]
LONG = "Anna " * 1001


def test_concurrent_requests_of_all_forms_have_the_answers_of_the_model(server: Server, slow: Model) -> None:
    dice, bodies, expected = random.Random(1), [], []
    for _ in range(150):
        options = dice.choice([{}, {}, {"bias": 0.25}, {"bias": -1}])
        documents = dice.random() < 0.2
        records = [] if documents else [{"words": ["New", "York"]}]
        inputs: Any = dice.choice(TEXTS)
        if dice.random() < 0.3:
            inputs = [dice.choice([*TEXTS, {"text": "Ben in Bern"}, *records]) for _ in range(4)]
        bodies.append({"inputs": inputs, "options": options, "documents": documents})
        answers = slow(inputs, documents=documents, **options)
        expected.append({"answers": answers} if isinstance(inputs, list) else {"answer": answers})
    replies = call_in_threads([lambda body=body: server.post("/v1/slow", body) for body in bodies])
    assert [reply.json for reply in replies] == expected
    assert {(reply.status, reply.headers["content-type"]) for reply in replies} == {(200, "application/json")}


WRONG: list[tuple[Any, int, str]] = [
    (b'{"inputs', 400, "the body is not JSON: "),
    (b"", 400, "the body is not JSON: "),
    (b"\xff", 400, "the body is not JSON: "),
    (b'{"inputs": NaN}', 400, "the body is not JSON: NaN is not JSON"),
    (b"[" * 60_000, 400, "the body is not JSON: "),
    (b'{"inputs": "Anna", "inputs": "Bern"}', 400, "the body is not JSON: the key 'inputs' is given twice; keep one"),
    (b'{"inputs": [{"text": "a", "text": "b"}]}', 400, "the body is not JSON: the key 'text' is given twice; keep one"),
    (["Anna"], 422, "the body must be a JSON object, not list"),
    ({}, 422, "inputs: is missing: a text, a record, or a list of them"),
    ({"input": "Anna"}, 422, "input: is not supported; did you mean 'inputs'? (there is: inputs, options, "),
    ({"inputs": "Anna", "documents": 1}, 422, "documents: should be true or false, not 1"),
    ({"inputs": "Anna", "explain": True, "documents": True}, 422, "documents, explain and stream: choose one"),
    ({"inputs": ["Anna"], "explain": True}, 422, "inputs: explain and stream need one input, not a list"),
    ({"inputs": "Anna", "options": [1]}, 422, "options: should be a mapping, each value anything, not [1]"),
    ({"inputs": "Anna", "on_error": "go"}, 422, "on_error: should be 'stop' or 'skip', not 'go'"),
    ({"inputs": "Anna", "on_error": []}, 422, "on_error: should be 'stop' or 'skip', not []"),
    ({"inputs": "Anna", "options": {"bais": 1}}, 422, "no decode option 'bais'; did you mean 'bias'?"),
    ({"inputs": "Anna", "options": {"bias": [[1]]}}, 422, "bias: must be float, not [[1]]"),
    ({"inputs": "Anna", "stream": True}, 422, "streaming needs a language-model bundle"),
    ({"inputs": 5}, 422, "record 1: must be an object with `text` or `words`, not int"),
    ({"inputs": None}, 422, "record 1: must be an object"),
    ({"inputs": ["Anna", {"txt": "Ben"}]}, 422, "record 2: no field 'text'; the record has"),
    ({"inputs": [{"text": ["Ben"]}]}, 422, "record 1: field 'text' must be a text, not list"),
    ({"inputs": [{"words": [["Ben"]]}]}, 422, "record 1: 'words' must be a list of strings"),
    ({"inputs": ["Ben", LONG]}, 422, "record 2: 1,001 tokens exceed the limit of 1,000; split the text; it is one"),
    ({"inputs": ["Ben"] * 10}, 413, "10 inputs are over the limit of 9; send fewer"),
    ({"inputs": "Ben" * 40_000}, 413, "the body is over 100,000 bytes; send fewer inputs"),
]


@pytest.mark.parametrize(("body", "status", "message"), WRONG)
def test_a_wrong_request_gets_the_reason_and_a_fix(server: Server, body: Any, status: int, message: str) -> None:
    reply = server.post("/v1/slow", body)
    assert (reply.status, [*reply.json]) == (status, ["error", "request_id"])
    assert reply.json["error"].startswith(message)


def test_each_input_may_have_its_own_options(server: Server, lm: Model, slow: Model) -> None:
    rows = [{"text": "Anna calls. Ben in Bern.", "bias": bias} for bias in (0.5, -1, "x")]
    shared = {"documents": True, "option_fields": ["bias"], "on_error": "skip"}
    expected = [slow(rows[0]["text"], documents=True, bias=bias) for bias in (0.5, -1)]
    for answers in (server.post("/v1/slow", {"inputs": rows, **shared}).json["answers"], slow(rows, **shared)):
        assert answers[:2] == expected
        assert answers[2]["error"].endswith("bias: must be float, not 'x'")
    inputs = [{"text": "a good", "size": n} for n in (3, 7, None, "x", 3)] + ["a sad"]
    body = {"inputs": inputs, "option_fields": {"max_length": "size"}, "on_error": "skip", "options": {"max_length": 5}}
    answers = server.post("/v1/lm", body).json["answers"]
    expected = [lm(text, max_length=n) for text, n in [("a good", n) for n in (3, 7, 5, 3)] + [("a sad", 5)]]
    assert answers.pop(3) == {"error": "max_length: must be int, not 'x'"}
    assert answers == expected
    for wrong in ({"option_fields": 3}, {"option_fields": ["max_length"], "inputs": "a", "stream": True}):
        assert server.post("/v1/lm", {**body, **wrong}).json["error"].startswith("option_fields: ")
    for options in ({"max_length": {}}, {"max_length": {"field": 3}}, {"seed": {"field": []}}, {"stop": {"field": {}}}):
        assert server.post("/v1/lm", {"inputs": "a", "options": options}).status == 422
    error = server.post("/v1/lm", {"inputs": {"text": "a good", "max_length": 3}}).json["error"]
    assert error.startswith("record 1: 'max_length' is a decode option and no field of this bundle; ")


def test_an_input_without_an_answer_may_be_skipped(server: Server, slow: Model) -> None:
    reply = server.post("/v1/slow", {"inputs": ["Anna", LONG, 5, "Bern"], "on_error": "skip"}).json
    anna, long, five, bern = reply["answers"]
    assert [anna, bern] == slow(["Anna", "Bern"])
    assert long["error"].startswith("record 2: 1,001 tokens exceed")
    assert five["error"].startswith("record 3: must be an object")


@pytest.mark.parametrize("path", ["/v1/a/b", "/nope", "/v1", "/v1/slwo"])
def test_an_unknown_path_gets_an_error(server: Server, path: str) -> None:
    unknown = "no bundle 'slwo'; did you mean 'slow'?; GET /v1 lists all bundles"
    errors = {"/v1": (405, "Method Not Allowed"), "/v1/slwo": (404, unknown)}
    reply = server.post(path, {"inputs": "Anna"})
    assert (reply.status, reply.json["error"]) == errors.get(path, (404, "Not Found"))
    assert reply.json["request_id"] == reply.headers["x-request-id"]


def test_an_explanation_is_that_of_the_model(server: Server, slow: Model) -> None:
    explanation = slow.explain("Anna in Bern", bias=0.5)
    reply = server.post("/v1/slow", {"inputs": "Anna in Bern", "explain": True, "options": {"bias": 0.5}})
    assert reply.json == {"answer": explanation.answer, "explanation": explanation.data()}
    refused = server.post("/v1/lm", {"inputs": "a", "explain": True})
    assert (refused.status, refused.json["error"][:28]) == (422, "this bundle has no attention")


def test_a_description_says_what_a_client_may_send(server: Server, slow: Model) -> None:
    bundles = {bundle["name"]: bundle for bundle in server.get("/v1").json["bundles"]}
    described, lm = bundles["slow"], bundles["lm"]
    assert server.get("/v1/slow").json == described
    assert server.get("/v1/solw").status == 404
    assert described["options"] == {"bias": {"type": "float", "default": 0.0, "minimum": -20, "maximum": 20}}
    assert described["labels"] == ["O", "B-person", "B-city", "I-city"]
    assert described["examples"] == [{"text": "Anna in\r\nNew York"}]
    assert [described[key] for key in ("answer", "fields", "sha256")] == ["spans", ["text"], slow.sha256]
    assert [described[key] for key in ("explains", "streams", "documents")] == [True, False, True]
    assert [lm[key] for key in ("explains", "streams", "documents")] == [False, True, False]
    assert (lm["pipeline"], lm["options"]["seed"]["minimum"], "uniform" in lm["options"]) == ("lm", 0, False)


@pytest.mark.parametrize("options", [{}, {"max_length": 30, "seed": 4, "temperature": 2.0}])
def test_a_stream_is_the_answer_in_pieces(server: Server, lm: Model, options: dict[str, Any]) -> None:
    body = {"inputs": "a good", "stream": True, "options": options}
    whole = lm("a good", **options)["generated_text"]
    for reply in call_in_threads([lambda: server.post("/v1/lm", body)] * 5):
        *pieces, last = server_sent_events(reply.body)
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert len(pieces) > 1
        assert "a good" + "".join(data["text"] for _, data in pieces) == whole
        assert last == ("message", {"answer": {"generated_text": whole}})


def test_an_error_before_the_first_piece_is_a_status(server: Server) -> None:
    for options, message in (({"beams": 2}, "stream: only a single"), ({"beasm": 2}, "no decode option")):
        reply = server.post("/v1/lm", {"inputs": "a good", "stream": True, "options": options})
        assert (reply.status, reply.json["error"][: len(message)]) == (422, message)


def test_a_stream_is_finished_before_the_server_ends(letters_bundle: Path, lm: Model) -> None:
    options = {"max_length": 100, "min_length": 99}
    body = json.dumps({"inputs": "a good", "stream": True, "options": options}).encode()
    with Server(f"w={letters_bundle}") as ending, ending.connection() as client:
        client.sendall(b"POST /v1/w HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        received = client.recv(65536)
        ending.process.send_signal(signal.SIGTERM)
        while part := client.recv(65536):
            received += part
        assert ending.end() == 0
    whole = json.dumps({"answer": {"generated_text": lm("a good", **options)["generated_text"]}})
    assert f"data: {whole}" in received.decode()
    assert received.endswith(b"\r\n0\r\n\r\n")
