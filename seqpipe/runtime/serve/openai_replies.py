"""What the endpoints of OpenAI's protocol share: error objects, parameters of a request, token counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from seqpipe.errors import UsageError, did_you_mean
from seqpipe.files import json_bytes
from seqpipe.runtime.model import Model
from seqpipe.runtime.serve.http_errors import HttpError, http_error
from seqpipe.runtime.serve.settings import Settings

_CODES = {404: "model_not_found", 429: "rate_limit_exceeded"}


class InvalidRequestError(UsageError):
    """A parameter that cannot be answered; its name is part of OpenAI's error object."""

    def __init__(self, parameter: str, message: str):
        super().__init__(f"{parameter}: {message}")
        self.parameter = parameter


def error_object(error: Exception) -> tuple[HttpError, dict[str, Any]]:
    """What an error is to HTTP, and OpenAI's error object; what is no valid input has the status 400 there."""
    refused = http_error(error)
    status = 400 if refused.status == 422 else refused.status
    fault = "rate_limit_error" if status == 429 else "invalid_request_error" if status < 500 else "server_error"
    parameter = error.parameter if isinstance(error, InvalidRequestError) else None
    content = {"message": refused.message, "type": fault, "param": parameter, "code": _CODES.get(status)}
    return HttpError(status, refused.message, refused.headers), {"error": content}


def json_response(content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response in JSON; a lone surrogate of a client's text does not end it, as it would Starlette's."""
    return Response(json_bytes(content), status, headers, "application/json")


def error_response(error: Exception) -> Response:
    refused, content = error_object(error)
    return json_response(content, refused.status, refused.headers)


def checked_keys(body: Mapping[str, Any], known: Sequence[str]) -> None:
    """InvalidRequestError for a parameter that is none of these; null is the same as leaving one out."""
    for name, value in body.items():
        if name not in known and value is not None:
            raise InvalidRequestError(
                name, f"is not supported{did_you_mean(name, known)} (there is: {', '.join(known)})"
            )


def texts_of(parameter: str, value: Any, settings: Settings) -> list[str]:
    """The texts of `input` or `prompt`: one, or a list of them.

    Raises:
        InvalidRequestError: for anything else, such as token ids.
        HttpError: 413 for more texts than a request may hold.
    """
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidRequestError(parameter, "must be a text or a list of texts; token ids are not supported")
    if len(texts) > settings.max_items:
        raise HttpError(413, f"{len(texts):,} texts are over the limit of {settings.max_items:,}; send fewer")
    return texts


def flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise InvalidRequestError(name, f"must be true or false, not {value!r}")
    return bool(value)


def whole_number(body: Mapping[str, Any], name: str, default: int) -> int:
    """A whole number from 1."""
    value = default if body.get(name) is None else body[name]
    if type(value) is not int or value < 1:
        raise InvalidRequestError(name, f"must be a whole number from 1, not {value!r}")
    return value


def token_counts(model: Model, texts: Sequence[str]) -> list[int]:
    """How many tokens are read of each text; of texts that the model has answered."""
    predictor = model.predictor
    return [
        predictor.kind.text_length(doc) for doc in predictor.featurizer.docs([model.record(text) for text in texts])
    ]
