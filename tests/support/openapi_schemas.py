"""Checks of requests and responses against the OpenAPI document of a server."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator
from serving import Server


def faults(document: dict[str, Any], schema: dict[str, Any], value: Any) -> list[str]:
    """What of a value its schema does not allow, in a document."""
    whole = {**schema, "components": document["components"]}
    return [error.message for error in Draft202012Validator(whole).iter_errors(value)]


def schema_of(document: dict[str, Any], method: str, path: str, status: int | None) -> dict[str, Any]:
    """That of a response, or with no status of the request."""
    operation = document["paths"][path][method.lower()]
    part = operation["requestBody"] if status is None else operation["responses"][str(status)]
    schema: dict[str, Any] = part["content"]["application/json"]["schema"]
    return schema


def assert_as_described(server: Server, document: dict[str, Any], method: str, path: str, body: Any) -> None:
    """Sends a request that the document allows; what is answered has to be what it says."""
    if body is not None:
        assert faults(document, schema_of(document, method, path, None), body) == []
    reply = server.request(method, path, body)
    assert reply.status == 200, reply.body
    assert faults(document, schema_of(document, method, path, 200), reply.json) == []
    assert faults(document, schema_of(document, method, path, 200), {"other": 1}) != []


def assert_refused_by_both(server: Server, document: dict[str, Any], path: str, body: Any, status: int) -> None:
    """Sends a request that the document does not allow; the response has to be the error that it says."""
    assert faults(document, schema_of(document, "POST", path, None), body) != []
    reply = server.post(path, body)
    assert reply.status == status
    assert faults(document, schema_of(document, "POST", path, status), reply.json) == []
