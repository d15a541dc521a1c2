"""OpenAI's protocol, spoken by OpenAI's own client and by hand."""

import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from serving import Server

from seqpipe import Model
from seqpipe.answers.text import cut, held_back
from seqpipe.errors import UsageError
from seqpipe.serve.http import HttpError
from seqpipe.serve.openai import error_object

pytest_plugins = ["protocol_server"]

openai = pytest.importorskip("openai")
TEXTS = ["Anna in Bern", "Bern", "nobody calls Anna ."]
PROMPT = "a "


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def continuation(answer: dict[str, Any], prompt: str = PROMPT) -> str:
    text: str = answer["generated_text"]
    assert text.startswith(prompt)
    return text[len(prompt) :]


def test_every_bundle_is_a_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["toy", "vectors", "slow", "lm"]
    assert client.models.retrieve("lm").id == "lm"
    with pytest.raises(openai.NotFoundError, match=r"no bundle 'vector'; did you mean 'vectors'\?"):
        client.models.retrieve("vector")


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_embeddings_are_the_vectors_of_the_model(client: openai.OpenAI, vectors: Model, encoding: Any) -> None:
    form = {"encoding_format": encoding} if encoding else {}
    response = client.embeddings.create(model="vectors", input=TEXTS, **form)
    expected = [answer["vector"] for answer in vectors(TEXTS)]
    assert [data.index for data in response.data] == [0, 1, 2]
    numbers = [data.embedding for data in response.data]
    if encoding == "base64":
        numbers = [np.frombuffer(b64decode(str(text)), "<f4").tolist() for text in numbers]
    assert numbers == expected
    assert (response.usage.prompt_tokens, response.usage.total_tokens) == (8, 8)
    assert client.embeddings.create(model="vectors", input="Bern").data[0].embedding == [-0.25, 2.0]


def test_too_many_texts_are_refused_with_status_413(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError, match="10 texts are over the limit of 9") as error:
        client.embeddings.create(model="vectors", input=["Bern"] * 10)
    assert error.value.status_code == 413


def embed(client: openai.OpenAI, **changes: Any) -> Any:
    return client.embeddings.create(**{"model": "vectors", "input": "Bern", **changes})


def complete(client: openai.OpenAI, **changes: Any) -> Any:
    return client.completions.create(**{"model": "lm", "prompt": PROMPT, "temperature": 0, **changes})


def test_a_completion_is_what_the_model_writes(client: openai.OpenAI, lm: Model) -> None:
    expected = continuation(lm(PROMPT, max_length=16))
    assert len(expected) > 5
    response = complete(client)
    (choice,) = response.choices
    assert (choice.text, choice.index) == (expected, 0)
    assert response.model == "lm"
    assert complete(client, echo=True).choices[0].text == PROMPT + expected
    several = complete(client, prompt=[PROMPT, "a sad "], max_tokens=4)
    texts = [continuation(lm(prompt, max_length=4), prompt) for prompt in (PROMPT, "a sad ")]
    assert [choice.text for choice in several.choices] == texts


def test_a_continuation_says_why_it_ends_and_tokens_are_counted(client: openai.OpenAI) -> None:
    response = complete(client, max_tokens=3)
    assert response.choices[0].finish_reason == "length"
    assert (response.usage.prompt_tokens, response.usage.completion_tokens, response.usage.total_tokens) == (3, 3, 6)
    response = complete(client, max_tokens=40)
    assert response.choices[0].finish_reason == "stop"
    assert response.usage.completion_tokens == len(response.choices[0].text) < 40


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_ends_before_a_stop_text_of_several_tokens(client: openai.OpenAI, lm: Model, stream: bool) -> None:
    whole = continuation(lm(PROMPT, max_length=16))
    stop = whole[2:5]
    response = complete(client, stop=["not there", stop], stream=stream)
    choices = [chunk.choices[0] for chunk in response] if stream else response.choices
    assert "".join(choice.text for choice in choices) == whole[: whole.find(stop)]
    assert choices[-1].finish_reason == "stop"


def test_sampling_is_that_of_the_model_with_the_same_seed(client: openai.OpenAI, lm: Model) -> None:
    options = {"seed": 7, "temperature": 1.5, "top_p": 0.9}
    expected = continuation(lm(PROMPT, max_length=16, **options))
    assert complete(client, **options).choices[0].text == expected
    several = complete(client, n=3, **options).choices
    expected_several = lm(PROMPT, max_length=16, beams=3, n_best=3, **options)
    assert [choice.text for choice in several] == [continuation(answer) for answer in expected_several]
    assert [choice.index for choice in several] == [0, 1, 2]
    texts = {client.completions.create(model="lm", prompt=PROMPT).choices[0].text for _ in range(8)}
    assert len(texts) > 1  # without a temperature it is 1, and without a seed any


def test_the_log_probabilities_of_tokens_are_those_of_the_model_and_their_texts_make_the_continuation(
    client: openai.OpenAI, lm: Model
) -> None:
    assert complete(client).choices[0].logprobs is None
    sampled = {"seed": 7, "temperature": 1.5, "n": 2}
    for options, limit in (({}, 16), ({"stop": ["d"]}, 16), ({}, 40), (sampled, 9)):
        named = {"beams": 2, "n_best": 2, **options} if "n" in options else options
        expected = lm(PROMPT, max_length=limit, token_scores=True, **{k: v for k, v in named.items() if k != "n"})
        choices = complete(client, logprobs=0, max_tokens=limit, **options).choices
        for choice, answer in zip(choices, expected if isinstance(expected, list) else [expected], strict=True):
            scored = choice.logprobs
            count = len(scored.tokens)
            assert scored.token_logprobs == [token["log_score"] for token in answer["tokens"]][:count]
            assert "".join(scored.tokens)[: len(choice.text)] == choice.text
            assert scored.text_offset == [*range(count)]  # a token is a character
            assert scored.top_logprobs is None


def test_options_beyond_openais_are_taken_and_neutral_values_change_nothing(client: openai.OpenAI, lm: Model) -> None:
    response = complete(client, extra_body={"repetition_penalty": 5.0})
    assert response.choices[0].text == continuation(lm(PROMPT, max_length=16, repetition_penalty=5.0))
    neutral = {"best_of": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "user": "me"}
    assert complete(client, **neutral).choices[0].text == complete(client).choices[0].text


@pytest.mark.parametrize("drawn", [{}, {"seed": 3, "temperature": 1.0}])
def test_a_stream_is_the_whole_text_in_pieces(client: openai.OpenAI, lm: Model, drawn: dict[str, Any]) -> None:
    options = {"stream": True, "max_tokens": 20, "stream_options": {"include_usage": True}, "echo": True, **drawn}
    *chunks, last = complete(client, **options)
    assert len(chunks) > 3
    assert "".join(chunk.choices[0].text for chunk in chunks) == lm(PROMPT, max_length=20, **drawn)["generated_text"]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    assert (last.choices, last.usage.prompt_tokens) == ([], 3)


def test_a_request_by_hand_gets_errors_in_openais_form_and_a_stream_that_ends_with_done(server: Server) -> None:
    reply = server.post("/v1/completions", b"{")
    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")
    assert reply.json["error"]["message"].startswith("the body is not JSON")
    body = {"model": "lm", "prompt": PROMPT, "stream": True, "temperature": 0, "max_tokens": 2}
    reply = server.post("/v1/completions", body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = reply.body.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert json.loads(events[0].removeprefix("data: "))["object"] == "text_completion"


REFUSED_EMBEDDINGS = [
    ({"model": "toy"}, "model: 'toy' returns no vectors; use POST /v1/toy", "model"),
    ({"model": "lm"}, "model: 'lm' returns no vectors", "model"),
    ({"input": [1, 2]}, "input: should be a text or a list of texts; token ids are not supported", "input"),
    ({"input": []}, "input: should be a text or a list of texts", "input"),
    ({"input": ["Bern", ""]}, "record 2: a text without a token has no vector; omit it", None),
    ({"dimensions": 1}, "dimensions: is not supported", "dimensions"),
    ({"encoding_format": "int8"}, "encoding_format: should be 'float' or 'base64', not 'int8'", "encoding_format"),
    ({"extra_body": {"inptu": "a"}}, "inptu: is not supported; did you mean 'input'?", "inptu"),
]
REFUSED_COMPLETIONS = [
    ({"model": "toy"}, "model: 'toy' is not a language model; use POST /v1/toy", "model"),
    ({"model": 3}, "model: must be the name of a bundle (there is: toy, vectors, slow, lm)", "model"),
    ({"prompt": [1, 2]}, "prompt: should be a text or a list of texts; token ids are not supported", "prompt"),
    ({"max_tokens": 0}, "max_tokens: should be a whole number from 1, not 0", "max_tokens"),
    ({"n": 1.5}, "n: should be a whole number from 1, not 1.5", "n"),
    ({"logprobs": 3}, "logprobs: the likeliest tokens are not known, only those that are written; set it", "logprobs"),
    ({"logprobs": -1}, "logprobs: should be a whole number from 0 or null, not -1", "logprobs"),
    ({"logprobs": 0, "echo": True}, "logprobs: a stream and an echo have none; omit stream and echo", "logprobs"),
    ({"logprobs": 0, "stream": True}, "logprobs: a stream and an echo have none", "logprobs"),
    ({"extra_body": {"token_scores": True}}, "token_scores: is not supported", "token_scores"),
    ({"suffix": "x"}, "suffix: is not supported", "suffix"),
    ({"best_of": 2}, "best_of: is not supported; omit it, or set it to 1", "best_of"),
    ({"presence_penalty": 1.0}, "presence_penalty: is not supported; omit it, or set it to 0", "presence_penalty"),
    ({"logit_bias": {"5": 1}}, "logit_bias: is not supported", "logit_bias"),
    ({"stop": [""]}, "stop: should be a text or a list of at most 4 texts", "stop"),
    ({"temperature": -1.0}, "temperature: should be a number from 0, not -1.0", "temperature"),
    ({"temperature": 1, "top_p": 1.5}, "top_p: should be a number above 0 and up to 1, not 1.5", "top_p"),
    ({"temperature": 1, "seed": -1}, "seed: should be a whole number from 0 or null, not -1", "seed"),
    ({"stream": True, "n": 2}, "n: a stream has one continuation of one prompt", "n"),
    ({"stream": True, "prompt": ["a", "b"]}, "prompt: a stream has one continuation", "prompt"),
    ({"stream": True, "extra_body": {"top_k": 0}}, "top_k: 0 is not between 1 and 100000", None),
    ({"stream_options": {"include_usage": True}}, "stream_options: needs a stream", "stream_options"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x: is not supported; omit it", "stream_options.x"),
    ({"extra_body": {"max_length": 3}}, "max_length: is not supported", "max_length"),
    ({"extra_body": {"echo": "yes"}}, "echo: should be true or false, not 'yes'", "echo"),
]
REFUSED = [(embed, *row) for row in REFUSED_EMBEDDINGS] + [(complete, *row) for row in REFUSED_COMPLETIONS]


@pytest.mark.parametrize(("create", "changes", "message", "parameter"), REFUSED)
def test_a_wrong_request_is_refused_by_name(
    client: openai.OpenAI, create: Any, changes: dict[str, Any], message: str, parameter: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        create(client, **changes)
    assert message in str(error.value)
    assert (error.value.param, error.value.type) == (parameter, "invalid_request_error")


STOPPED: list[tuple[str, tuple[str, ...], tuple[str, bool], int]] = [
    ("abc", (), ("abc", False), 0),
    ("abc", ("cd",), ("abc", False), 1),
    ("abcd", ("cd", "b"), ("a", True), 0),
    ("aab", ("abab", "bb"), ("aab", False), 2),
    ("", ("x",), ("", False), 0),
]


@pytest.mark.parametrize(("text", "stops", "kept", "held"), STOPPED)
def test_a_text_that_may_be_the_beginning_of_a_stop_text_is_held_back(
    text: str, stops: tuple[str, ...], kept: tuple[str, bool], held: int
) -> None:
    assert cut(text, stops) == kept
    if not kept[1]:
        assert held_back(text, stops) == held


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (UsageError("n: too many"), 400, "invalid_request_error"),
        (HttpError(404, "no bundle"), 404, "invalid_request_error"),
        (HttpError(429, "too many requests"), 429, "rate_limit_error"),
        (RuntimeError("out of memory"), 500, "server_error"),
        (HttpError(504, "no answer in time"), 504, "server_error"),
    ],
)
def test_the_type_of_an_error_says_whose_fault_it_is(error: Exception, status: int, kind: str) -> None:
    refused, content = error_object(error)
    assert (refused.status, content["error"]["type"]) == (status, kind)
