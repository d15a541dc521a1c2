"""Errors of the `tokenizers` library become errors of the data; what ends the process goes through."""

from collections.abc import Callable
from typing import Any

import pytest

from seqpipe.commands.app import TerminatedError
from seqpipe.errors import DataError
from seqpipe.features.encoding import encode, encode_batch, is_panic
from seqpipe.training.fit import refuse_panicking_text

ENDS = [TerminatedError(143), KeyboardInterrupt(), SystemExit(1), GeneratorExit(), MemoryError()]


class Raising:
    """A tokenizer, and a component that trains one, that raises at texts that hold the letter x."""

    def __init__(self, error: BaseException):
        self.error, self.trained = error, 0

    def encode(self, text: Any, **_: Any) -> str:
        if "x" in text:
            raise self.error
        return str(text)

    def encode_batch(self, texts: list[Any], **_: Any) -> list[str]:
        return [self.encode(text) for text in texts]

    def train(self, texts: Any) -> None:
        self.trained += 1
        self.encode_batch([*texts])


class PanicException(BaseException):
    """The exception of Rust code that panics."""


CALLS: list[Callable[[Any], object]] = [
    lambda tokenizer: encode(tokenizer, "ax"),
    lambda tokenizer: encode_batch(tokenizer, ["a", "ax"], str),
    lambda tokenizer: refuse_panicking_text(tokenizer, [({}, "a"), ({}, "ax")]),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_exceptions_that_end_the_process_go_through(error: BaseException, call: Callable[[Any], object]) -> None:
    if not isinstance(error, Exception) or call is not CALLS[2]:  # one text may be too few to learn from: no error
        with pytest.raises(type(error)):
            call(Raising(error))


@pytest.mark.parametrize("call", CALLS)
def test_a_panic_names_the_text(call: Callable[[Any], object]) -> None:
    assert is_panic(PanicException())
    with pytest.raises(DataError, match="the tokenizer cannot split 'ax': at last; shorten"):
        call(Raising(PanicException("at last")))


def test_the_text_that_the_library_panics_at_is_found_by_halving() -> None:
    component = Raising(PanicException("at last"))
    texts: list[Any] = [({"where": f"file:{i}"}, "x" if i == 700 else "a") for i in range(1000)]
    with pytest.raises(DataError, match=r"^file:700: the tokenizer cannot split 'x'"):
        refuse_panicking_text(component, texts)
    assert component.trained < 15
