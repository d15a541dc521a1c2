"""The outputs of a bundle in the Open Inference Protocol v2: its answers as JSON, and what is plain of them, typed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seqpipe.answers.answer_types import Answer
from seqpipe.answers.base import AnswerKind, best_of
from seqpipe.answers.schemas import Schema
from seqpipe.files import json_bytes
from seqpipe.runtime.serve.tensors import BYTES, FP32, INT64, Tensor

JSON = "answer_json"  # the output that holds whole answers
_DATATYPES = {"string": BYTES, "number": FP32, "integer": INT64}


@dataclass(frozen=True)
class Output:
    """An output: what stands in every answer at this path.

    Args:
        name: The path joined by dots; of several heads each begins with its head's name.
        datatype: BYTES, FP32 or INT64.
        path: Keys of an answer; none: the whole answer, as JSON.
        is_vector: Whether there are several numbers.
    """

    name: str
    datatype: str
    path: tuple[str, ...] = ()
    is_vector: bool = False

    def metadata(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": [-1, -1] if self.is_vector else [-1]}

    def tensor(self, answers: Sequence[Answer], shape: tuple[int, ...]) -> Tensor:
        """The output of these answers; of several alternatives that of the best.

        A text that is missing is empty, a number that is missing is None.

        Args:
            answers: To all inputs.
            shape: Of the inputs.
        """
        if not self.path:
            return Tensor(self.name, BYTES, shape, [json_bytes(answer).decode() for answer in answers])
        values = [self._value(answer) for answer in answers]
        if self.is_vector:
            width = max((len(vector) for vector in values if vector is not None), default=0)
            rows = [[None] * width if vector is None else vector for vector in values]
            return Tensor(self.name, self.datatype, (len(rows), width), [number for row in rows for number in row])
        if self.datatype == BYTES:
            values = ["" if value is None else value for value in values]
        return Tensor(self.name, self.datatype, shape, values)

    def _value(self, answer: Answer) -> Any:
        value: Any = answer
        for key in self.path:
            value = best_of(value)[key]
        return value


def outputs_of(kind: AnswerKind) -> Mapping[str, Output]:
    """The outputs of a bundle by name, that of whole answers first."""
    typed = _typed(kind.answer_schema(), ())
    return {output.name: output for output in (Output(JSON, BYTES), *typed)}


def _typed(schema: Schema, path: tuple[str, ...]) -> Iterator[Output]:
    """What every answer of this schema has, and a tensor holds: texts, numbers, vectors."""
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    (kind, *_), may_be_null = types, "null" in types
    if kind == "object" and not may_be_null:
        for name in schema["required"]:
            yield from _typed(schema["properties"][name], (*path, name))
    elif kind == "array" and path and schema["items"].get("type") == "number":
        yield Output(".".join(path), FP32, path, is_vector=True)
    elif kind in _DATATYPES and not (may_be_null and kind == "integer"):  # no integer says that it is missing
        yield Output(".".join(path), _DATATYPES[kind], path)
