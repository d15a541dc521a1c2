"""OpenAI's protocol: `/v1/models`, `/v1/embeddings` of bundles with vectors, `/v1/completions` of language models."""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from seqpipe.answers.answer_types import VectorAnswer
from seqpipe.answers.text import GeneratedText
from seqpipe.errors import MAX_NAME, DataError, UsageError, did_you_mean
from seqpipe.features.vocabulary import replace_surrogates
from seqpipe.files import json_bytes
from seqpipe.runtime.decode_options import Known, option_schemas
from seqpipe.runtime.model import Model
from seqpipe.serve.http import HttpError, call_off_loop, deadline, encode_off_loop, http_error, is_large, read_json
from seqpipe.serve.service import Catalog, Service
from seqpipe.serve.settings import Settings

_CODES = {404: "model_not_found", 429: "rate_limit_exceeded"}
Answer = Callable[[Request], Awaitable[Response]]
_EMBEDDING_KEYS = ("model", "input", "encoding_format", "user")
_FORMATS = ("float", "base64")
MAX_TOKENS = 16  # OpenAI's default
_KEYS = ("model", "prompt", "max_tokens", "n", "temperature", "top_p", "seed", "stop", "stream", "echo")
_MORE_KEYS = ("stream_options", "user")
_NEUTRAL: Mapping[str, Any] = {"best_of": 1, "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}}
_STANDS_FOR = ("max_length", "beams", "n_best", "stop")  # decode options that are set by the keys above
_MOST_STOPS, _MOST_SEED = 4, 1 << 31


class InvalidRequestError(UsageError):
    """An invalid parameter; its name is part of OpenAI's error object."""

    def __init__(self, parameter: str, message: str):
        super().__init__(f"{parameter[:MAX_NAME]}: {message}")
        self.parameter = parameter[:MAX_NAME]


def error_object(error: Exception) -> tuple[HttpError, dict[str, Any]]:
    """Return the HTTP error and OpenAI's error object; invalid input has the status 400 there."""
    refused = http_error(error)
    status = 400 if refused.status == 422 else refused.status
    fault = "rate_limit_error" if status == 429 else "invalid_request_error" if status < 500 else "server_error"
    parameter = error.parameter if isinstance(error, InvalidRequestError) else None
    content = {"message": refused.message, "type": fault, "param": parameter, "code": _CODES.get(status)}
    return HttpError(status, refused.message, refused.headers), {"error": content}


def json_response(content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response; unlike Starlette's, it can contain a lone surrogate of a client's text."""
    return Response(json_bytes(content), status, headers, "application/json")


def check_keys(body: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise InvalidRequestError for an unknown parameter; null is the same as omitting one."""
    for name, value in body.items():
        if name not in known and value is not None:
            raise InvalidRequestError(
                name, f"is not supported{did_you_mean(name, known)} (there is: {', '.join(known)})"
            )


def texts_of(parameter: str, value: Any, settings: Settings) -> list[str]:
    """Return the texts of `input` or `prompt`, which is a text or a list of texts.

    Raises:
        InvalidRequestError: for anything else, such as token ids.
        HttpError: 413 for more texts than a request may have.
    """
    texts = value if isinstance(value, list) else [value]
    if len(texts) > settings.max_items:
        raise HttpError(413, f"{len(texts):,} texts are over the limit of {settings.max_items:,}; send fewer")
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidRequestError(parameter, "must be a text or a list of texts; token ids are not supported")
    return texts


def flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise InvalidRequestError(name, f"must be true or false, not {value!r}")
    return bool(value)


def whole_number(body: Mapping[str, Any], name: str, default: int) -> int:
    """Return the value if it is a positive integer; InvalidRequestError if not."""
    value = default if body.get(name) is None else body[name]
    if type(value) is not int or value < 1:
        raise InvalidRequestError(name, f"must be a whole number from 1, not {value!r}")
    return value


def token_counts(model: Model, texts: Sequence[str]) -> list[int]:
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
        body = await read_json(request.scope, request.receive, settings, dict)
        service = _service(catalog, body.get("model"))
        if not service.model.predictor.kind.is_embedding:
            raise InvalidRequestError("model", f"{service.name!r} returns no vectors; use POST /v1/{service.name}")
        check_keys(body, _EMBEDDING_KEYS)
        texts = texts_of("input", body.get("input"), settings)
        encoding = body.get("encoding_format") or "float"
        if encoding not in _FORMATS:
            raise InvalidRequestError("encoding_format", f"must be one of {', '.join(_FORMATS)}, not {encoding!r}")
        answers = await service.answer(texts, {}, deadline=end)
        data = await call_off_loop(is_large(answers), _embeddings, answers, encoding)
        tokens = sum(await asyncio.to_thread(token_counts, service.model, texts))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        content = {"object": "list", "data": data, "model": service.name, "usage": usage}
        return Response(await encode_off_loop(is_large(answers), content), media_type="application/json")

    async def completions(request: Request) -> Response:
        end = deadline(request.scope, settings)
        body = await read_json(request.scope, request.receive, settings, dict)
        return await complete(_service(catalog, body.get("model")), body, settings, end)

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
        raise InvalidRequestError("model", f"must be the name of a bundle (there is: {known})")
    return catalog.get(name)


@dataclass(frozen=True)
class CompletionRequest:
    """A request for completions."""

    prompts: Sequence[str]
    count: int  # of continuations of each prompt
    options: Mapping[str, Any]  # decode options of the bundle
    echo: bool  # whether the prompt is returned before its continuation


async def complete(service: Service, body: Mapping[str, Any], settings: Settings, end: float) -> Response:
    """Return the response to a completion request."""
    if not service.model.predictor.kind.is_generated:
        raise InvalidRequestError("model", f"{service.name!r} is not a language model; use POST /v1/{service.name}")
    parsed = _parse(service, body, settings)
    base = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time())}
    base["model"] = service.name
    streams, usage = flag(body, "stream"), _wants_usage(body)
    if streams:
        return await _stream(service, parsed, base, end, usage)
    answers = await service.answer(parsed.prompts, parsed.options, deadline=end)
    choices, written = list[dict[str, Any]](), 0
    for prompt, answer in zip(parsed.prompts, answers, strict=True):
        if isinstance(answer, DataError):
            raise answer
        alternatives: list[Any] = answer if isinstance(answer, list) else [answer]
        for alternative in alternatives:
            text = alternative["generated_text"]
            content = (prompt if parsed.echo else "") + text.removeprefix(replace_surrogates(prompt))
            choices.append({**_part(content, len(choices)), "finish_reason": text.finish_reason})
            written += text.tokens
    read = sum(await asyncio.to_thread(token_counts, service.model, parsed.prompts))
    content = {**base, "choices": choices, "usage": _usage(read, written)}
    return Response(await encode_off_loop(is_large(choices), content), media_type="application/json")


def _parse(service: Service, body: Mapping[str, Any], settings: Settings) -> CompletionRequest:
    options_of_bundle = own_options(service.model.manifest.options)
    check_keys(body, (*_KEYS, *_MORE_KEYS, *_NEUTRAL, *options_of_bundle))
    for name, value in _NEUTRAL.items():
        if body.get(name) not in (None, value):
            raise InvalidRequestError(name, f"is not supported; omit it, or set it to {value}")
    prompts = texts_of("prompt", body.get("prompt"), settings)
    count, most = whole_number(body, "n", 1), whole_number(body, "max_tokens", MAX_TOKENS)
    for name, value, option in (("n", count, "beams"), ("max_tokens", most, "max_length")):
        limit = service.model.manifest.options[option].get("maximum")
        if limit is not None and value > limit:
            raise InvalidRequestError(name, f"{value} is over the limit of {limit}")
    options = {name: body[name] for name in options_of_bundle if body.get(name) is not None}
    options["max_length"] = most
    if count > 1:
        options |= {"beams": count, "n_best": count}
    stop = body.get("stop")
    stops = [] if stop is None else stop if isinstance(stop, list) else [stop]
    if len(stops) > _MOST_STOPS or not all(isinstance(text, str) and text for text in stops):
        raise InvalidRequestError("stop", f"must be a text or a list of at most {_MOST_STOPS} texts, none empty")
    if stops:
        options["stop"] = stops
    options |= {name: body[name] for name in ("temperature", "seed", "top_p") if body.get(name) is not None}
    if options.get("temperature") != 0:  # sampling is OpenAI's default; temperature 0 is greedy search
        options.setdefault("seed", secrets.randbelow(_MOST_SEED))
    return CompletionRequest(prompts, count, options, flag(body, "echo"))


def own_options(known: Known) -> list[str]:
    """Return the decode options without an equivalent in OpenAI's protocol; they keep their own names."""
    return [name for name in option_schemas(known) if name not in (*_KEYS, *_STANDS_FOR)]


def _wants_usage(body: Mapping[str, Any]) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not flag(body, "stream"):
        raise InvalidRequestError("stream_options", "needs a stream; add stream: true")
    if not isinstance(options, dict) or options.keys() - {"include_usage"}:
        raise InvalidRequestError("stream_options", 'must be an object with only the key "include_usage"')
    return flag(options, "include_usage")


async def _stream(
    service: Service, parsed: CompletionRequest, base: Mapping[str, Any], end: float, usage: bool
) -> Response:
    """Return the response with server-sent events; a refusal is raised before the first event."""
    if parsed.count > 1 or len(parsed.prompts) > 1:
        name = "n" if parsed.count > 1 else "prompt"
        raise InvalidRequestError(name, "a stream has one continuation of one prompt; omit stream")
    chunks = service.stream(parsed.prompts[0], parsed.options, deadline=end)
    first = await anext(chunks, None)
    return StreamingResponse(_events(service, parsed, base, chunks, first, usage), media_type="text/event-stream")


async def _events(
    service: Service,
    parsed: CompletionRequest,
    base: Mapping[str, Any],
    chunks: AsyncGenerator[GeneratedText],
    first: GeneratedText | None,
    usage: bool,
) -> AsyncIterator[bytes]:
    prompt = parsed.prompts[0]
    chunk = last = first
    if parsed.echo:
        yield _event({**base, "choices": [_part(prompt)]})
    try:
        async with aclosing(chunks):
            while chunk is not None:
                if chunk:
                    yield _event({**base, "choices": [_part(chunk)]})
                last, chunk = chunk, await anext(chunks, None)
        read = sum(await asyncio.to_thread(token_counts, service.model, [prompt]))
    except Exception as error:  # the response has begun, so its status cannot change
        yield _event(error_object(error)[1])
        return
    end = GeneratedText("", 0, "length") if last is None else last
    yield _event({**base, "choices": [{**_part(""), "finish_reason": end.finish_reason}]})
    if usage:
        yield _event({**base, "choices": [], "usage": _usage(read, end.tokens)})
    yield b"data: [DONE]\n\n"


def _usage(read: int, written: int) -> dict[str, int]:
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _part(text: str, index: int = 0) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": None}


def _event(content: Mapping[str, Any]) -> bytes:
    return b"data: " + json_bytes(content) + b"\n\n"
