"""seqpipe's own protocol: the answers of `predict`, and what is refused."""

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Reply, Server, at_once, events

from seqpipe import Model, load

TEXTS = [
    "Anna meets Ben in New York .",
    "",
    "Bern",
    "Anna calls 你好",
    "Ben",
    "in " * 90 + "New York",
    "\ud800 Ben",
    " ",
]
LONG = "Anna " * 1001


@pytest.fixture(scope="module")
def server(slow_bundle: Path, writer_bundle: Path) -> Iterator[Server]:
    with Server(slow_bundle, f"writer={writer_bundle}", "--max-items", "9", "--max-body", "100000") as running:
        yield running


@pytest.fixture(scope="module")
def model(slow_bundle: Path) -> Model:
    return load(slow_bundle, "cpu", threads=1)


@pytest.fixture(scope="module")
def writer(writer_bundle: Path) -> Model:
    return load(writer_bundle, "cpu", threads=1)


def test_concurrent_requests_of_all_forms_have_the_answers_of_the_model(server: Server, model: Model) -> None:
    dice, bodies, expected = random.Random(1), [], []
    for _ in range(150):
        options = dice.choice([{}, {}, {"bias": 0.25}, {"bias": -1}])
        documents = dice.random() < 0.2
        records = [] if documents else [{"words": ["New", "York"]}]
        inputs: Any = dice.choice(TEXTS)
        if dice.random() < 0.3:
            inputs = [dice.choice([*TEXTS, {"text": "Ben in Bern"}, *records]) for _ in range(4)]
        bodies.append({"inputs": inputs, "options": options, "documents": documents})
        answers = model(inputs, documents=documents, **options)
        expected.append({"answers": answers} if isinstance(inputs, list) else {"answer": answers})
    replies = at_once([lambda body=body: server.post("/v1/slow", body) for body in bodies])
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
    ({}, 422, "the key 'inputs' is missing"),
    ({"input": "Anna"}, 422, "no key 'input'; did you mean 'inputs'? (there is: inputs, options, "),
    ({"inputs": "Anna", "documents": 1}, 422, "documents: must be true or false, not 1"),
    ({"inputs": "Anna", "explain": True, "documents": True}, 422, "documents, explain and stream: choose one"),
    ({"inputs": ["Anna"], "explain": True}, 422, "inputs: explain and stream need one input, not a list"),
    ({"inputs": "Anna", "options": [1]}, 422, "options: must be an object"),
    ({"inputs": "Anna", "on_error": "go"}, 422, "on_error: must be one of stop, skip, not 'go'"),
    ({"inputs": "Anna", "on_error": []}, 422, "on_error: must be one of stop, skip, not []"),
    ({"inputs": "Anna", "options": {"bais": 1}}, 422, "no decode option 'bais'; did you mean 'bias'?"),
    ({"inputs": "Anna", "options": {"bias": "1"}}, 422, "bias: must be float, not '1'"),
    ({"inputs": "Anna", "options": {"bias": [[1]]}}, 422, "bias: must be float, not [[1]]"),
    ({"inputs": "Anna", "options": {"bias": 21}}, 422, "bias: 21 is not between -20 and 20"),
    ({"inputs": "Anna", "stream": True}, 422, "streaming needs a language-model bundle"),
    ({"inputs": 5}, 422, "record 1: must be an object with `text` or `words`, not int"),
    ({"inputs": None}, 422, "record 1: must be an object"),
    ({"inputs": ["Anna", {"txt": "Ben"}]}, 422, "record 2: no field 'text'; the record has"),
    ({"inputs": [{"text": ["Ben"]}]}, 422, "record 1: field 'text' must be a text, not list"),
    ({"inputs": [{"words": [["Ben"]]}]}, 422, "record 1: 'words' must be a list of strings"),
    ({"inputs": ["Ben", LONG]}, 422, "record 2: 1,001 tokens exceed the limit of 1,000; split the text, or ask for"),
    ({"inputs": ["Ben"] * 10}, 413, "10 inputs are over the limit of 9; send fewer"),
    ({"inputs": "Ben" * 40_000}, 413, "the body is over 100,000 bytes; send fewer inputs"),
]


@pytest.mark.parametrize(
    ("body", "status", "told"), WRONG, ids=[f"{status}-{i}" for i, (_, status, _) in enumerate(WRONG)]
)
def test_what_is_wrong_is_told_with_its_cure(server: Server, body: Any, status: int, told: str) -> None:
    reply = server.post("/v1/slow", body)
    assert (reply.status, [*reply.json]) == (status, ["error", "request_id"])
    assert reply.json["error"].startswith(told)


def test_an_input_without_an_answer_may_be_skipped(server: Server, model: Model) -> None:
    reply = server.post("/v1/slow", {"inputs": ["Anna", LONG, 5, "Bern"], "on_error": "skip"}).json
    anna, long, five, bern = reply["answers"]
    assert [anna, bern] == model(["Anna", "Bern"])
    assert long["error"].startswith("record 2: 1,001 tokens exceed")
    assert five["error"].startswith("record 3: must be an object")


def test_a_bad_input_fails_its_own_request_alone(server: Server, model: Model) -> None:
    bodies = [LONG if i % 3 == 0 else "Anna in Bern" for i in range(60)]
    replies = at_once([lambda text=text: server.post("/v1/slow", {"inputs": text}) for text in bodies])
    assert [reply.status for reply in replies] == [422 if i % 3 == 0 else 200 for i in range(60)]
    assert all(reply.json == {"answer": model("Anna in Bern")} for reply in replies if reply.status == 200)
    assert all(reply.json["error"].startswith("record 1: 1,001 tokens") for reply in replies if reply.status == 422)


@pytest.mark.parametrize(("path", "status"), [("/v1/slwo", 404), ("/v1/a/b", 404), ("/nope", 404), ("/v1", 405)])
def test_what_is_not_there_is_told(server: Server, path: str, status: int) -> None:
    reply = server.post(path, {"inputs": "Anna"})
    assert (reply.status, [*reply.json]) == (status, ["error", "request_id"])
    if path == "/v1/slwo":
        assert reply.json["error"].startswith("no bundle 'slwo'; did you mean 'slow'?")


def test_an_explanation_is_that_of_the_model(server: Server, model: Model) -> None:
    explanation = model.explain("Anna in Bern", bias=0.5)
    reply = server.post("/v1/slow", {"inputs": "Anna in Bern", "explain": True, "options": {"bias": 0.5}})
    assert reply.json == {"answer": explanation.answer, "explanation": explanation.data()}
    refused = server.post("/v1/writer", {"inputs": "a", "explain": True})
    assert (refused.status, refused.json["error"][:28]) == (422, "this bundle has no attention")


def test_a_description_says_what_a_client_may_send(server: Server, model: Model) -> None:
    slow, writer = server.get("/v1").json["bundles"]
    assert server.get("/v1/slow").json == slow
    assert server.get("/v1/solw").status == 404
    assert slow["options"] == {"bias": {"type": "float", "default": 0.0, "minimum": -20, "maximum": 20}}
    assert slow["labels"] == ["O", "B-person", "B-city", "I-city"]
    assert slow["examples"] == [{"text": "Anna in\r\nNew York"}]
    assert (slow["name"], slow["answer"], slow["fields"], slow["sha256"]) == ("slow", "spans", ["text"], model.sha256)
    assert [slow[key] for key in ("explains", "streams", "documents")] == [True, False, True]
    assert [writer[key] for key in ("explains", "streams", "documents")] == [False, True, False]
    assert (writer["pipeline"], writer["options"]["seed"]["minimum"]) == ("lm", 0)
    assert "uniform" not in writer["options"]


@pytest.mark.parametrize("options", [{}, {"max_length": 30, "seed": 4, "temperature": 2.0}])
def test_a_stream_is_the_answer_in_pieces(server: Server, writer: Model, options: dict[str, Any]) -> None:
    def stream() -> Reply:
        return server.post("/v1/writer", {"inputs": "a good", "stream": True, "options": options})

    whole = writer("a good", **options)["generated_text"]
    for reply in at_once([stream] * 5):
        *pieces, last = events(reply.body)
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert len(pieces) > 1
        assert "a good" + "".join(data["text"] for _, data in pieces) == whole
        assert last == ("message", {"answer": {"generated_text": whole}})


def test_an_error_before_the_first_piece_is_a_status(server: Server) -> None:
    for body, told in [
        ({"options": {"beams": 2}}, "stream: only a single"),
        ({"options": {"beasm": 2}}, "no decode option"),
    ]:
        reply = server.post("/v1/writer", {"inputs": "a good", "stream": True, **body})
        assert (reply.status, reply.json["error"][: len(told)]) == (422, told)


@pytest.mark.parametrize(
    "value", [5, None, True, {"a": 1}, [1], [[1]], ["a", 2], "a", 1e999, -1, 10**30, "\ud800", [None]]
)
def test_no_option_makes_an_internal_error(server: Server, value: Any) -> None:
    for name in server.get("/v1/writer").json["options"]:
        body = {"inputs": "a good", "options": {name: value, "seed" if name != "seed" else "max_length": 3}}
        assert server.post("/v1/writer", body).status in (200, 400, 422), body


def test_a_stream_is_finished_before_the_server_ends(writer_bundle: Path, writer: Model) -> None:
    options = {"max_length": 100, "min_length": 99}
    body = json.dumps({"inputs": "a good", "stream": True, "options": options}).encode()
    with Server(f"w={writer_bundle}") as ending, ending.connection() as client:
        client.sendall(b"POST /v1/w HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        got = client.recv(65536)
        ending.process.send_signal(signal.SIGTERM)
        while part := client.recv(65536):
            got += part
        assert ending.end() == 0
    whole = json.dumps({"answer": {"generated_text": writer("a good", **options)["generated_text"]}})
    assert f"data: {whole}" in got.decode()
    assert got.endswith(b"\r\n0\r\n\r\n")
