"""OpenAI's `/v1/completions`: continuations of language models, whole or as they are written."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response, StreamingResponse

from seqpipe.errors import DataError
from seqpipe.features.vocabulary import replace_surrogates
from seqpipe.files import json_bytes
from seqpipe.runtime.decode_options import Known, option_schemas
from seqpipe.runtime.serve.openai_replies import (
    InvalidRequestError,
    checked_keys,
    error_object,
    flag,
    json_response,
    texts_of,
    token_counts,
    whole_number,
)
from seqpipe.runtime.serve.service import Service
from seqpipe.runtime.serve.settings import Settings

MAX_TOKENS = 16  # OpenAI's default
_KEYS = ("model", "prompt", "max_tokens", "n", "temperature", "top_p", "seed", "stop", "stream", "echo")
_MORE_KEYS = ("stream_options", "user")
_NEUTRAL: Mapping[str, Any] = {"best_of": 1, "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}}
_STANDS_FOR = ("max_length", "beams", "n_best", "stop")  # decode options that the keys above set
_MOST_STOPS, _MOST_SEED = 4, 1 << 31


@dataclass(frozen=True)
class CompletionRequest:
    """A request for completions.

    Args:
        prompts: Each is continued `count` times.
        count: How many continuations of each prompt there are.
        most: The most tokens of a continuation.
        options: Decode options of the bundle.
        stops: Texts before which a continuation ends.
        echo: Whether the prompt stands before its continuation.
    """

    prompts: Sequence[str]
    count: int
    most: int
    options: Mapping[str, Any]
    stops: tuple[str, ...]
    echo: bool


async def complete(service: Service, body: Mapping[str, Any], settings: Settings, end: float) -> Response:
    """The response to a request with this body."""
    if not service.model.predictor.kind.is_generated:
        cure = f"POST /v1/{service.name} asks for its answers"
        raise InvalidRequestError("model", f"{service.name!r} is no language model; {cure}")
    parsed = _parse(service, body, settings)
    base = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time())}
    base["model"] = service.name
    streams, usage = flag(body, "stream"), _wants_usage(body)
    if streams:
        return await _stream(service, parsed, base, end, usage)
    answers = await service.answer(parsed.prompts, parsed.options, deadline=end)
    prompts, texts = list[str](), list[str]()
    for prompt, answer in zip(parsed.prompts, answers, strict=True):
        if isinstance(answer, DataError):
            raise answer
        for alternative in answer if isinstance(answer, list) else [answer]:
            prompts.append(prompt)
            texts.append(alternative["generated_text"].removeprefix(replace_surrogates(prompt)))
    read, written = await asyncio.to_thread(_counts, service, parsed, prompts, texts)
    choices = [
        _choice(parsed, i, prompt if parsed.echo else "", text, tokens)
        for i, (prompt, text, tokens) in enumerate(zip(prompts, texts, written, strict=True))
    ]
    return json_response({**base, "choices": choices, "usage": _usage(read, sum(written))})


def _parse(service: Service, body: Mapping[str, Any], settings: Settings) -> CompletionRequest:
    options_of_bundle = own_options(service.model.manifest.options)
    checked_keys(body, (*_KEYS, *_MORE_KEYS, *_NEUTRAL, *options_of_bundle))
    for name, value in _NEUTRAL.items():
        if body.get(name) not in (None, value):
            raise InvalidRequestError(name, f"is not supported; leave it out, or give {value}")
    prompts = texts_of("prompt", body.get("prompt"), settings)
    count, most = whole_number(body, "n", 1), whole_number(body, "max_tokens", MAX_TOKENS)
    options = {name: body[name] for name in options_of_bundle if body.get(name) is not None}
    options["max_length"] = most
    if count > 1:
        options |= {"beams": count, "n_best": count}
    return CompletionRequest(
        prompts, count, most, options | _drawing(body), _stops(body.get("stop")), flag(body, "echo")
    )


def own_options(known: Known) -> list[str]:
    """The decode options that OpenAI's parameters do not stand for, which are parameters by their own names."""
    return [name for name in option_schemas(known) if name not in (*_KEYS, *_STANDS_FOR)]


def _drawing(body: Mapping[str, Any]) -> dict[str, Any]:
    """The decode options of sampling, which is OpenAI's default; none at temperature 0, where nothing is drawn."""
    temperature, seed, top_p = (body.get(name) for name in ("temperature", "seed", "top_p"))
    if temperature == 0 and not isinstance(temperature, bool):
        return {}
    options = {"seed": secrets.randbelow(_MOST_SEED) if seed is None else seed}
    if temperature is not None:
        options["temperature"] = temperature
    return options if top_p is None else {**options, "top_p": top_p}


def _stops(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else value if isinstance(value, list) else [value]
    if len(stops) > _MOST_STOPS or not all(isinstance(stop, str) and stop for stop in stops):
        raise InvalidRequestError("stop", f"must be a text or a list of at most {_MOST_STOPS} texts, none empty")
    return tuple(stops)


def _wants_usage(body: Mapping[str, Any]) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not flag(body, "stream"):
        raise InvalidRequestError("stream_options", "is for a stream; give stream: true too")
    if not isinstance(options, dict) or options.keys() - {"include_usage"}:
        raise InvalidRequestError("stream_options", 'must be an object with the key "include_usage" alone')
    return flag(options, "include_usage")


async def _stream(
    service: Service, parsed: CompletionRequest, base: Mapping[str, Any], end: float, usage: bool
) -> Response:
    """The response with server-sent events; what is refused is so before it begins."""
    if parsed.count > 1 or len(parsed.prompts) > 1:
        name = "n" if parsed.count > 1 else "prompt"
        raise InvalidRequestError(name, "a stream is of one continuation of one prompt; leave stream out")
    pieces = service.stream(parsed.prompts[0], parsed.options, deadline=end)
    first = await anext(pieces, None)
    return StreamingResponse(_events(service, parsed, base, pieces, first, usage), media_type="text/event-stream")


async def _events(
    service: Service,
    parsed: CompletionRequest,
    base: Mapping[str, Any],
    pieces: AsyncGenerator[str],
    first: str | None,
    usage: bool,
) -> AsyncIterator[bytes]:
    prompt = parsed.prompts[0]
    text, shown, piece = "", 0, first
    if parsed.echo:
        yield _event({**base, "choices": [_part(prompt)]})
    try:
        async with aclosing(pieces):  # a stop text ends the writing too
            while piece is not None:
                text += piece
                kept, stopped = cut(text, parsed.stops)
                safe = len(kept) if stopped else len(kept) - held_back(kept, parsed.stops)
                if safe > shown:
                    yield _event({**base, "choices": [_part(kept[shown:safe])]})
                    shown = safe
                piece = None if stopped else await anext(pieces, None)
        read, (written,) = await asyncio.to_thread(_counts, service, parsed, [prompt], [text])
    except Exception as error:  # the response has begun: its status cannot tell
        yield _event(error_object(error)[1])
        return
    last = _choice(parsed, 0, "", text, written)
    yield _event({**base, "choices": [{**last, "text": last["text"][shown:]}]})
    if usage:
        yield _event({**base, "choices": [], "usage": _usage(read, written)})
    yield b"data: [DONE]\n\n"


def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text up to the first of the stop texts, and whether there is one."""
    places = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return (text[: min(places)], True) if places else (text, False)


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end may be the beginning of a stop text."""
    lengths = (n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n]))
    return max(lengths, default=0)


def _counts(
    service: Service, parsed: CompletionRequest, prompts: Sequence[str], texts: Sequence[str]
) -> tuple[int, list[int]]:
    """Tokens of all prompts, and of each continuation, which is split again: behind its prompt."""
    before = dict(zip(parsed.prompts, token_counts(service.model, parsed.prompts), strict=True))
    whole = token_counts(service.model, [prompt + text for prompt, text in zip(prompts, texts, strict=True)])
    counts = [max(0, count - before[prompt]) for prompt, count in zip(prompts, whole, strict=True)]
    return sum(before[prompt] for prompt in parsed.prompts), counts


def _usage(read: int, written: int) -> dict[str, int]:
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _choice(parsed: CompletionRequest, index: int, before: str, text: str, tokens: int) -> dict[str, Any]:
    """A continuation, cut at the first stop text, and why it ends."""
    kept, stopped = cut(text, parsed.stops)
    reason = "stop" if stopped or tokens < parsed.most else "length"
    return {**_part(before + kept, index), "finish_reason": reason}


def _part(text: str, index: int = 0) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": None}


def _event(content: Mapping[str, Any]) -> bytes:
    return b"data: " + json_bytes(content) + b"\n\n"
