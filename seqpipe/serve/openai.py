"""OpenAI's protocol: `/v1/models`, `/v1/embeddings` of bundles with vectors, `/v1/completions` of language models."""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from itertools import accumulate
from typing import Annotated, Any, Literal, cast

import numpy as np
from annotated_types import MaxLen, MinLen
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from seqpipe.answers.answer_types import VectorAnswer
from seqpipe.answers.text import TOKEN_SCORES, GeneratedText, Generation
from seqpipe.errors import DataError
from seqpipe.features.vocabulary import replace_surrogates
from seqpipe.files import json_bytes
from seqpipe.runtime.decode_options import Known, option_schemas
from seqpipe.runtime.opened import OpenedBundle
from seqpipe.serve.http import (
    Body,
    Count,
    HttpError,
    WrongKeyError,
    call_off_loop,
    deadline,
    encode_off_loop,
    http_error,
    is_large,
    json_object,
    parse_body,
    read_json_body,
)
from seqpipe.serve.service import Catalog, Service
from seqpipe.serve.settings import Settings
from seqpipe.types import Means

_CODES = {404: "model_not_found", 429: "rate_limit_exceeded"}
Answer = Callable[[Request], Awaitable[Response]]
MAX_TOKENS = 16  # OpenAI's default
_NEUTRAL: Mapping[str, Any] = {"best_of": 1, "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}}
# Decode options that are set by keys of other names.
_STANDS_FOR = ("max_length", "beams", "n_best", TOKEN_SCORES)
_MAX_SEED = 1 << 31
Texts = Annotated[
    str | Annotated[list[str], MinLen(1)],
    Means("a text or a list of texts; token ids are not supported"),
]
_Text = Annotated[str, MinLen(1)]


class EmbeddingRequest(Body):
    """A request for the vectors of texts."""

    model: str
    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    user: str = ""


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool = False


class CompletionRequest(Body):
    """A request for continuations of prompts."""

    model: str
    prompt: Texts
    max_tokens: Count = MAX_TOKENS
    n: Count = 1
    temperature: Annotated[float, Field(ge=0)] = 1
    top_p: Annotated[float, Field(gt=0, le=1)] = 1
    seed: Annotated[int | None, Field(ge=0)] = None
    stop: Annotated[
        _Text | Annotated[list[_Text], MaxLen(4)] | None, Means("a text or a list of at most 4 texts, none empty")
    ] = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    echo: bool = False
    logprobs: Annotated[int | None, Field(ge=0)] = None
    user: str = ""


def error_object(error: Exception) -> tuple[HttpError, dict[str, Any]]:
    """Return the HTTP error and OpenAI's error object; invalid input has the status 400 there."""
    refused = http_error(error)
    status = 400 if refused.status == 422 else refused.status
    fault = "rate_limit_error" if status == 429 else "invalid_request_error" if status < 500 else "server_error"
    parameter = error.key if isinstance(error, WrongKeyError) else None
    content = {"message": refused.message, "type": fault, "param": parameter, "code": _CODES.get(status)}
    return HttpError(status, refused.message, refused.headers), {"error": content}


def json_response(content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response; unlike Starlette's, it can contain a lone surrogate of a client's text."""
    return Response(json_bytes(content), status, headers, "application/json")


def texts_of(value: Texts, settings: Settings) -> list[str]:
    """Return the texts of `input` or `prompt`; HttpError 413 for more than a request may have."""
    texts = value if isinstance(value, list) else [value]
    if len(texts) > settings.max_items:
        raise HttpError(413, f"{len(texts):,} texts are over the limit of {settings.max_items:,}; send fewer")
    return texts


def count_tokens(model: OpenedBundle, texts: Sequence[str]) -> list[int]:
    """Count the tokens of each text, for texts that the model has answered."""
    predictor = model.predictor
    return [
        predictor.kind.text_length(doc) for doc in predictor.featurizer.docs([model.record(text) for text in texts])
    ]


def routes(catalog: Catalog, settings: Settings) -> list[BaseRoute]:
    """Return the routes of OpenAI's protocol below `/v1`."""

    async def models(request: Request) -> Response:
        return json_response({"object": "list", "data": [_model(service) for service in catalog.services.values()]})

    async def model(request: Request) -> Response:
        return json_response(_model(_service(catalog, request.path_params["name"])))

    async def embeddings(request: Request) -> Response:
        end = deadline(request.scope, settings)
        body = await read_json_body(request.scope, request.receive, settings, json_object)
        service = _service(catalog, body.get("model"))
        if not service.model.predictor.kind.is_embedding:
            raise WrongKeyError("model", f"{service.name!r} returns no vectors; use POST /v1/{service.name}")
        parsed = parse_body(EmbeddingRequest, body)
        texts, encoding = texts_of(parsed.input, settings), parsed.encoding_format
        answers = await service.answer(texts, {}, deadline=end)
        data = await call_off_loop(is_large(answers), _embeddings, answers, encoding)
        tokens = sum(await asyncio.to_thread(count_tokens, service.model, texts))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        content = {"object": "list", "data": data, "model": service.name, "usage": usage}
        return Response(await encode_off_loop(is_large(answers), content), media_type="application/json")

    completions = partial(complete, catalog=catalog, settings=settings)
    return [
        Route("/v1/models", _with_error_objects(models)),
        Route("/v1/models/{name}", _with_error_objects(model)),
        Route("/v1/embeddings", _with_error_objects(embeddings), methods=["POST"]),
        Route("/v1/completions", _with_error_objects(completions), methods=["POST"]),
    ]


def _embeddings(answers: Sequence[Any], encoding: str) -> list[dict[str, Any]]:
    """Return OpenAI's objects of vectors; DataError for a text without an answer or a vector."""
    data = []
    for i, answer in enumerate(answers):
        if isinstance(answer, DataError):
            raise answer
        vector: Any = cast(VectorAnswer, answer)["vector"]
        if vector is None:
            raise DataError(f"record {i + 1}: a text without a token has no vector; omit it")
        if encoding == "base64":
            vector = base64.b64encode(np.array(vector, "<f4").tobytes()).decode()
        data.append({"object": "embedding", "index": i, "embedding": vector})
    return data


def _with_error_objects(answer: Answer) -> Answer:
    """Wrap an endpoint so that its errors are OpenAI's error objects."""

    async def guarded(request: Request) -> Response:
        try:
            return await answer(request)
        except Exception as error:
            refused, content = error_object(error)
            return json_response(content, refused.status, refused.headers)

    return guarded


def _model(service: Service) -> dict[str, Any]:
    return {"id": service.name, "object": "model", "created": 0, "owned_by": "seqpipe"}


def _service(catalog: Catalog, name: Any) -> Service:
    if not isinstance(name, str):
        known = ", ".join(catalog.services)
        raise WrongKeyError("model", f"must be the name of a bundle (there is: {known})")
    return catalog.get(name)


async def complete(request: Request, catalog: Catalog, settings: Settings) -> Response:
    """Return the response to a completion request."""
    end = deadline(request.scope, settings)
    body = await read_json_body(request.scope, request.receive, settings, json_object)
    service = _service(catalog, body.get("model"))
    if not service.model.predictor.kind.is_generated:
        raise WrongKeyError("model", f"{service.name!r} is not a language model; use POST /v1/{service.name}")
    parsed, options = _parse(service, body)
    prompts = texts_of(parsed.prompt, settings)
    base = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time())}
    base["model"] = service.name
    if parsed.stream:
        if parsed.n > 1 or len(prompts) > 1:
            name = "n" if parsed.n > 1 else "prompt"
            raise WrongKeyError(name, "a stream has one continuation of one prompt; omit stream")
        chunks = service.stream(prompts[0], options, deadline=end)
        first = await anext(chunks, None)  # which raises a refusal before the response begins
        events = _events(service, parsed, prompts[0], base, chunks, first)
        return StreamingResponse(events, media_type="text/event-stream")
    answers = await service.answer(prompts, options, deadline=end)
    choices, written = list[dict[str, Any]](), 0
    for prompt, answer in zip(prompts, answers, strict=True):
        if isinstance(answer, DataError):
            raise answer
        alternatives: list[Any] = answer if isinstance(answer, list) else [answer]
        for alternative in alternatives:
            text = alternative["generated_text"]
            content = (prompt if parsed.echo else "") + text.removeprefix(replace_surrogates(prompt))
            choice = {**_part(content, len(choices)), "finish_reason": text.finish_reason}
            if parsed.logprobs is not None:
                choice["logprobs"] = _logprobs(cast(Generation, service.model.predictor.kind), alternative)
            choices.append(choice)
            written += text.tokens
    read = sum(await asyncio.to_thread(count_tokens, service.model, prompts))
    content = {**base, "choices": choices, "usage": _usage(read, written)}
    return Response(await encode_off_loop(is_large(choices), content), media_type="application/json")


def _parse(service: Service, body: Mapping[str, Any]) -> tuple[CompletionRequest, dict[str, Any]]:
    """Return the request, and its decode options of the bundle."""
    for name, value in _NEUTRAL.items():
        if body.get(name) not in (None, value):
            raise WrongKeyError(name, f"is not supported; omit it, or set it to {value}")
    known = service.model.manifest.options
    own = own_options(known)
    request = parse_body(CompletionRequest, {key: body[key] for key in body if key not in (*own, *_NEUTRAL)})
    for name, value, option in (("n", request.n, "beams"), ("max_tokens", request.max_tokens, "max_length")):
        limit = known[option].get("maximum")
        if limit is not None and value > limit:
            raise WrongKeyError(name, f"{value} is over the limit of {limit}")
    if request.stream_options and not request.stream:
        raise WrongKeyError("stream_options", "needs a stream; add stream: true")
    if request.logprobs is not None:
        reasons = {
            "the likeliest tokens are not known, only those that are written; set it to 0": request.logprobs > 0,
            "a stream and an echo have none; omit stream and echo": request.stream or request.echo,
            "the bundle was exported without them; export it again": TOKEN_SCORES not in known,
        }
        if reason := next((reason for reason, holds in reasons.items() if holds), None):
            raise WrongKeyError("logprobs", reason)
    options = {name: body[name] for name in own if body.get(name) is not None}
    options |= {} if request.logprobs is None else {TOKEN_SCORES: True}
    options |= request.model_dump(include={"temperature", "seed", "top_p", "stop"}, exclude_unset=True)
    options["max_length"] = request.max_tokens
    if request.n > 1:
        options |= {"beams": request.n, "n_best": request.n}
    if options.get("temperature") != 0:  # sampling is OpenAI's default; temperature 0 is greedy search
        options.setdefault("seed", secrets.randbelow(_MAX_SEED))
    return request, options


def _logprobs(kind: Generation, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return OpenAI's log-probabilities of the tokens of an answer, without its end: their texts, which make its text.

    A character of several tokens is in the text of none of them.
    """
    scored, pieces = answer["tokens"][: answer["generated_text"].tokens], kind.written_bytes.pieces
    texts = [pieces[kind.token_ids("logprobs", [token["token"]])[0]] for token in scored]
    ends = [len(before.decode(errors="ignore")) for before in accumulate(texts, initial=b"")]
    return {
        "tokens": [text.decode(errors="replace") for text in texts],
        "token_logprobs": [token["log_score"] for token in scored],
        "top_logprobs": None,
        "text_offset": ends[:-1],
    }


def own_options(known: Known) -> list[str]:
    """Return the decode options without an equivalent in OpenAI's protocol; they keep their own names."""
    return [name for name in option_schemas(known) if name not in (*CompletionRequest.model_fields, *_STANDS_FOR)]


async def _events(
    service: Service,
    request: CompletionRequest,
    prompt: str,
    base: Mapping[str, Any],
    chunks: AsyncGenerator[GeneratedText],
    first: GeneratedText | None,
) -> AsyncIterator[bytes]:
    chunk = last = first
    if request.echo:
        yield _event({**base, "choices": [_part(prompt)]})
    try:
        async with aclosing(chunks):
            while chunk is not None:
                if chunk:
                    yield _event({**base, "choices": [_part(chunk)]})
                last, chunk = chunk, await anext(chunks, None)
        read = sum(await asyncio.to_thread(count_tokens, service.model, [prompt]))
    except Exception as error:  # the response has begun, so its status cannot change
        yield _event(error_object(error)[1])
        return
    end = GeneratedText("", 0, "length") if last is None else last
    yield _event({**base, "choices": [{**_part(""), "finish_reason": end.finish_reason}]})
    if request.stream_options and request.stream_options.include_usage:
        yield _event({**base, "choices": [], "usage": _usage(read, end.tokens)})
    yield b"data: [DONE]\n\n"


def _usage(read: int, written: int) -> dict[str, int]:
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _part(text: str, index: int = 0) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": None}


def _event(content: Mapping[str, Any]) -> bytes:
    return b"data: " + json_bytes(content) + b"\n\n"
