"""Answer kind joint: the answers of several heads, each under its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seqpipe.answers.base import AnswerKind, HeadAnswer
from seqpipe.answers.json_schema import Schema, obj
from seqpipe.answers.types import Answer, Metric
from seqpipe.features.document import Arrays, Doc, Record


class MultiHead(AnswerKind):
    """`{"intent": {"label", "score"}, "slots": [{"entity_group", …}, …]}`: by head, what that head alone would answer.

    A head's outputs, targets and decode options are called `<head>.<name>`.
    """

    kind = "joint"
    metrics = {"mean": Metric(), "exact": Metric()}

    def __init__(self, parts: Mapping[str, HeadAnswer]):
        self._parts = dict(parts)
        self.every_token = all(part.every_token for part in parts.values())

    @property
    def parts(self) -> Mapping[str, HeadAnswer]:
        return self._parts

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(f"{head}.{name}" for head, part in self.parts.items() for name in part.outputs)

    @property
    def drawing(self) -> dict[str, Any]:
        return {"as": "heads", "heads": {head: part.drawing for head, part in self.parts.items()}}

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        columns = [part.answers(docs, part_of(decision, head)) for head, part in self.parts.items()]
        return [dict(zip(self.parts, row, strict=True)) for row in zip(*columns, strict=True)]

    def empty(self, several: bool) -> Answer:
        return {head: part.empty(several) for head, part in self.parts.items()}

    def empty_for(self, options: Arrays) -> Answer:
        return {head: part.empty_for(part_of(options, head)) for head, part in self.parts.items()}

    def answer_schema(self) -> Schema:
        return obj({head: part.answer_schema() for head, part in self.parts.items()})

    def schema(self, options: Mapping[str, Any]) -> Schema:
        return obj({head: part.schema(part_of(options, head)) for head, part in self.parts.items()})

    def with_warning(self, answer: Answer, warning: str) -> Answer:
        return {head: part.with_warning(answer[head], warning) for head, part in self.parts.items()}

    def warning(self, answer: Answer) -> str:
        return next(filter(None, (part.warning(answer[head]) for head, part in self.parts.items())), "")

    def lines(self, answer: Answer) -> list[str]:
        return [f"{head}: {line}" for head, part in self.parts.items() for line in part.lines(answer[head])]

    def gold(self, record: Record) -> dict[str, Any]:
        return {head: part.gold(record) for head, part in self.parts.items()}

    def predicted(self, answer: Answer) -> dict[str, Any]:
        return {head: part.predicted(answer[head]) for head, part in self.parts.items()}

    def is_right(self, gold: Mapping[str, Any], predicted: Mapping[str, Any]) -> bool:
        return all(part.is_right(gold[head], predicted[head]) for head, part in self.parts.items())

    def mistakes(self, gold: Any, predicted: Any) -> dict[str, Any]:
        """Those of each head that is wrong, under its name."""
        return {
            head: part.mistakes(gold[head], predicted[head])
            for head, part in self.parts.items()
            if not part.is_right(gold[head], predicted[head])
        }

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "parts": {head: part.manifest() for head, part in self.parts.items()}}


def part_of(named: Mapping[str, Any], head: str) -> dict[str, Any]:
    """What belongs to one of several heads, without its name in front; of a head alone, "", everything."""
    if not head:
        return dict(named)
    prefix = f"{head}."
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}


def tokenizer_file(head: str) -> str:
    """The file of a head's target tokenizer; a head alone has the name ""."""
    return f"target_tokenizer.{head}.json" if head else "target_tokenizer.json"
