"""Change a global setting for a block. A leaf, so that tracing does not import the graph, which imports it."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def temporarily(get: Callable[[], T], put: Callable[[T], object], value: T) -> Iterator[None]:
    """Give a global setting another value in the block; `get` returns it, and `put` changes it."""
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)
