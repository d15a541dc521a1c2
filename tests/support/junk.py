"""Requests with junk in the place of each of their values."""

from __future__ import annotations

import copy
import http.client
import json
from collections.abc import Iterator
from typing import Any

from serving import Server, ask

JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**70,
    1.5,
    1e400,
    "",
    "x",
    "\ud800",
    [],
    [[]],
    {},
    {"a": 1},
    [None],
    [1, "a"],
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to each value within a value."""
    if path:
        yield path
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield from places(value[key], (*path, key))


def with_faults(body: dict[str, Any]) -> Iterator[bytes]:
    """The body with junk in the place of each of its values, and without each."""
    for *path, last in places(body):
        for junk in JUNK:
            changed = copy.deepcopy(body)
            inner: Any = changed
            for key in path:
                inner = inner[key]
            inner[last] = junk
            yield json.dumps(changed).encode()
        del inner[last]
        yield json.dumps(changed).encode()
    yield from (json.dumps(junk).encode() for junk in JUNK)
    yield json.dumps(body).encode()[:-3]


def refusals(server: Server, path: str, body: dict[str, Any]) -> list[int]:
    """The statuses of all these requests; each that is none of success comes with the reason."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        replies = [ask(connection, "POST", path, changed) for changed in with_faults(body)]
    finally:
        connection.close()
    assert all(reply.json["error"] for reply in replies if reply.status != 200)
    return [reply.status for reply in replies]
