"""Several heads' answer kinds in, one answer with a part for each out: what a list of heads answers with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from seqpipe.answers.base import Answer, Kind
from seqpipe.answers.registry import kind_from
from seqpipe.features.document import Arrays, Doc, Record


class Joint:
    """`{"intent": {"label", "score"}, "slots": [{"entity_group", …}, …]}`: by head, what that head alone would answer.

    A head's outputs, targets and decode options are called `<head>.<name>`.
    """

    kind = "joint"

    def __init__(self, parts: Mapping[str, Kind]):
        self.parts = dict(parts)
        self.outputs = tuple(f"{head}.{name}" for head, part in self.parts.items() for name in part.outputs)

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        columns = [part.answers(docs, part_of(decision, head)) for head, part in self.parts.items()]
        return [dict(zip(self.parts, row, strict=True)) for row in zip(*columns, strict=True)]

    def empty(self, several: bool) -> Answer:
        return {head: part.empty(several) for head, part in self.parts.items()}

    def gold(self, record: Record) -> dict[str, Any]:
        return {head: part.gold(record) for head, part in self.parts.items()}

    def predicted(self, answer: Answer) -> dict[str, Any]:
        return {head: part.predicted(answer[head]) for head, part in self.parts.items()}

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "parts": {head: part.manifest() for head, part in self.parts.items()}}


def part_of(named: Mapping[str, Any], head: str) -> dict[str, Any]:
    """What belongs to one of several heads, without its name in front."""
    return {name.removeprefix(f"{head}."): one for name, one in named.items() if name.startswith(f"{head}.")}


def empty_answer(kind: Kind, feeds: Arrays) -> Answer:
    """The answer to a text of no tokens under these decode options."""
    if isinstance(kind, Joint):
        return {head: empty_answer(part, part_of(feeds, head)) for head, part in kind.parts.items()}
    return kind.empty(len(feeds.get("n_best", ())) > 1)


def answer_from(manifest: Mapping[str, Any], tokenizers: Mapping[str, Tokenizer]) -> Kind:
    """The answer kind, joint or not, that a bundle or a run describes; tokenizers of heads that write text, by head."""
    if manifest.get("kind") != Joint.kind:
        return kind_from(manifest, tokenizers.get(""))
    return Joint({head: kind_from(made, tokenizers.get(head)) for head, made in manifest["parts"].items()})


def tokenizer_file(head: str) -> str:
    """The file of a head's target tokenizer; a head alone has the name ""."""
    return f"target_tokenizer.{head}.json" if head else "target_tokenizer.json"
