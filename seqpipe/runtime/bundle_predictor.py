"""A predictor that believes nothing a bundle's graph gives: not its numbers, not its labels, not its shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np

from seqpipe.answers.base import AnswerKind, HeadAnswer, PieceReader
from seqpipe.answers.types import Answer
from seqpipe.errors import BundleError, DataError
from seqpipe.features.document import Arrays, Doc
from seqpipe.features.encoding import is_library_error
from seqpipe.runtime.predictor import Predictor

Result = TypeVar("Result")


class BundlePredictor(Predictor):
    """Refuses a decision that holds NaN where an answer would, or of which no answers can be made."""

    @cached_property
    def _numbers(self) -> list[tuple[str, str, HeadAnswer]]:
        return number_outputs(self.kind)

    def read(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        refuse_nan(self._numbers, docs, decision)
        return self._guarded(lambda: super(BundlePredictor, self).read(docs, decision))

    def read_piece(self, reader: PieceReader, doc: Doc, decision: Arrays) -> Answer:
        return self._guarded(lambda: super(BundlePredictor, self).read_piece(reader, doc, decision))

    def _guarded(self, read: Callable[[], Result]) -> Result:
        """What `read` returns; BundleError if the decision means no answer."""
        try:
            return read()
        except BaseException as error:
            if not is_library_error(error):
                raise
            reason = f"{type(error).__name__}: {error}"
            raise BundleError(
                f"the graph's outputs are no answer of the kind {self.kind.kind!r} ({reason}): model.onnx and "
                "bundle.json do not belong together; export the bundle again"
            ) from error


def refuse_nan(numbers: Sequence[tuple[str, str, HeadAnswer]], docs: Sequence[Doc], decision: Arrays) -> None:
    """DataError if an answer to one of these texts would hold a number that is none."""
    for output, name, part in numbers:
        array = decision.get(output)
        if array is None or array.dtype.kind != "f":
            continue
        if np.isfinite(array).all():
            continue
        invalid = part.is_invalid(name, array, docs)
        if invalid.any():
            what = "NaN" if np.isnan(array[invalid]).any() else "infinite"
            message = f"the model's {output!r} is {what} for this input"
            raise DataError(f"{message}; leave it out, or train again: the weights overflow")


def number_outputs(kind: AnswerKind) -> list[tuple[str, str, HeadAnswer]]:
    """The graph's outputs that may be numbers of an answer: each with the name that its own head's kind has for it."""
    return [
        (f"{head}.{name}" if head else name, name, part) for head, part in kind.parts.items() for name in part.decided
    ]
