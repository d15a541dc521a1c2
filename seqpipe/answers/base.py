"""What every answer kind has: the protocol, and helpers of several kinds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from seqpipe.errors import DataError
from seqpipe.features.document import Arrays, Doc, Record

Answer = Any  # as each kind's docstring has it; lists of alternatives when more than one is asked for


class Kind(Protocol):
    """One of the closed set of answer kinds."""

    kind: str
    outputs: tuple[str, ...]

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]: ...
    def empty(self, several: bool) -> Answer: ...
    def gold(self, record: Record) -> Any: ...
    def predicted(self, answer: Answer) -> Any: ...
    def manifest(self) -> dict[str, Any]: ...


def float32_number(value: float) -> float:
    """With as many digits as float32 holds."""
    return float(f"{value:.7g}")


def probability(value: Any) -> float:
    if math.isnan(value):
        raise DataError("a score is NaN for this input; leave it out, or train again: the weights overflow")
    return round(min(1.0, max(0.0, float(value))), 6)


def required_field(record: Record, field: str) -> Any:
    if field not in record:
        raise DataError(
            f"{record.get('where', 'record')}: no field {field!r} to compare with; it has: {', '.join(record)}"
        )
    return record[field]
