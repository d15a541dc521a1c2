"""Every answer kind and its task by name, and those of several heads together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from seqpipe.answers.answer_types import JointAnswer
from seqpipe.answers.base import LOG_SCORE, AnswerKind, HeadAnswer
from seqpipe.answers.candidates import CandidateTask, VectorTask
from seqpipe.answers.classification import LabelsTask, LabelTask, ScoreTask
from seqpipe.answers.extractive_span import ExtractiveSpanTask
from seqpipe.answers.fill_mask import FillMaskTask, SpanInfillingTask
from seqpipe.answers.pointers import PointersTask
from seqpipe.answers.schemas import Schema
from seqpipe.answers.structured import StructuredTask
from seqpipe.answers.tagging import SpansTask, TagsTask
from seqpipe.answers.task import HeadTask, Task
from seqpipe.answers.text import GenerationTask, TextTask
from seqpipe.answers.types import Metric
from seqpipe.errors import BundleError, did_you_mean
from seqpipe.features.document import Arrays, Doc, Record


class MultiHead(AnswerKind[JointAnswer]):
    """`{"intent": {"label", "score"}, "slots": [{"entity_group", …}, …]}`: the answer of each head, by its name.

    A head's outputs, targets and decode options are called `<head>.<name>`.
    """

    kind = "joint"

    def __init__(self, parts: Mapping[str, HeadAnswer]):
        self._parts = dict(parts)
        self.drawing = {"as": "heads", "heads": {head: part.drawing for head, part in parts.items()}}
        self.every_token = all(part.every_token for part in parts.values())

    @property
    def parts(self) -> Mapping[str, HeadAnswer]:
        return self._parts

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(f"{head}.{name}" for head, part in self.parts.items() for name in part.outputs)

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[JointAnswer]:
        columns = [part.answers(docs, part_of(decision, head)) for head, part in self.parts.items()]
        return [dict(zip(self.parts, row, strict=True)) for row in zip(*columns, strict=True)]

    @property
    def answer_options(self) -> Mapping[str, Mapping[str, Any]]:
        parts = self.parts.items()
        return {f"{head}.{name}": option for head, part in parts for name, option in part.answer_options.items()}

    def empty(self, several: bool) -> JointAnswer:
        return {head: part.empty(several) for head, part in self.parts.items()}

    def empty_for(self, options: Arrays) -> JointAnswer:
        return {head: part.empty_for(part_of(options, head)) for head, part in self.parts.items()}

    def answer_schema(self) -> Schema:
        return self._object_schema({head: part.answer_schema() for head, part in self.parts.items()})

    def schema(self, options: Mapping[str, Any]) -> Schema:
        return self._object_schema({head: part.schema(part_of(options, head)) for head, part in self.parts.items()})

    def _object_schema(self, schemas: Mapping[str, Schema]) -> Schema:
        return {"type": "object", "properties": schemas, "required": [*schemas], "additionalProperties": False}

    def with_warning(self, answer: JointAnswer, warning: str) -> JointAnswer:
        return {head: part.with_warning(answer[head], warning) for head, part in self.parts.items()}

    def warning(self, answer: JointAnswer) -> str:
        return next(filter(None, (part.warning(answer[head]) for head, part in self.parts.items())), "")

    def lines(self, answer: JointAnswer) -> list[str]:
        return [f"{head}: {line}" for head, part in self.parts.items() for line in part.lines(answer[head])]

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "parts": {head: part.manifest() for head, part in self.parts.items()}}


class MultiHeadTask(Task[JointAnswer]):
    """The tasks of several heads, each under its name."""

    metrics = {"mean": Metric(), "exact": Metric()}

    def __init__(self, kind: MultiHead):
        self.kind: MultiHead = kind
        self._parts = {head: head_task(part) for head, part in kind.parts.items()}

    @property
    def parts(self) -> Mapping[str, HeadTask]:
        return self._parts

    def gold(self, record: Record) -> dict[str, Any]:
        return {head: part.gold(record) for head, part in self.parts.items()}

    def golds(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        columns = [part.golds(records) for part in self.parts.values()]
        return [dict(zip(self.parts, row, strict=True)) for row in zip(*columns, strict=True)]

    def predicted(self, answer: JointAnswer) -> dict[str, Any]:
        return {head: part.predicted(answer[head]) for head, part in self.parts.items()}

    def constant_prediction(self, golds: Sequence[Any]) -> tuple[str, list[Any]] | None:
        answers = {head: part.constant_prediction([gold[head] for gold in golds]) for head, part in self.parts.items()}
        known = {head: answer for head, answer in answers.items() if answer is not None}
        if len(known) < len(answers):
            return None
        rows = zip(*(predictions for _, predictions in known.values()), strict=True)
        listed = ", ".join(f"{head} {answer}" for head, (answer, _) in known.items())
        return listed, [dict(zip(known, row, strict=True)) for row in rows]

    def is_right(self, gold: Mapping[str, Any], predicted: Mapping[str, Any]) -> bool:
        return all(part.is_right(gold[head], predicted[head]) for head, part in self.parts.items())

    def mistakes(self, gold: Any, predicted: Any) -> dict[str, Any]:
        """Return the mistakes of each head that is wrong, by its name."""
        return {
            head: part.mistakes(gold[head], predicted[head])
            for head, part in self.parts.items()
            if not part.is_right(gold[head], predicted[head])
        }


def part_of(named: Mapping[str, Any], head: str) -> dict[str, Any]:
    """Return the entries of one of several heads, without its prefix; for a single head, "", all of them."""
    if not head:
        return dict(named)
    prefix = f"{head}."
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}


def tokenizer_file(head: str) -> str:
    """Return the file of a head's target tokenizer; a single head has the name ""."""
    return f"target_tokenizer.{head}.json" if head else "target_tokenizer.json"


# Every answer kind and its task by name, as in a head's `answer` and a bundle's manifest.

TASKS: Mapping[str, type[HeadTask]] = {
    task.kind_type.kind: task
    for task in (
        *(TagsTask, SpansTask, LabelTask, LabelsTask, ScoreTask, VectorTask, CandidateTask, ExtractiveSpanTask),
        *(PointersTask, StructuredTask, TextTask, GenerationTask, FillMaskTask, SpanInfillingTask),
    )
}
ANSWER_KINDS: Mapping[str, type[HeadAnswer]] = {name: task.kind_type for name, task in TASKS.items()}


def head_task(kind: HeadAnswer) -> HeadTask:
    """Return the task of a head with this answer kind."""
    return TASKS[kind.kind](kind)


def task_of(kind: AnswerKind) -> Task:
    """Return the task of a model with this answer kind."""
    return head_task(kind.parts[""]) if "" in kind.parts else MultiHeadTask(MultiHead(kind.parts))


def head_answer_from(manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> HeadAnswer:
    """Return the answer kind of one head from a bundle or a run; BundleError if it is unknown.

    Raises:
        KeyError, TypeError, ValueError: The kind is known, but its description is not valid.
    """
    name = manifest.get("kind")
    if not isinstance(name, str) or name not in ANSWER_KINDS:
        hint = did_you_mean(str(name), ANSWER_KINDS)
        raise BundleError(f"unknown answer kind {name!r}{hint}; update seqpipe")
    if ANSWER_KINDS[name].needs_tokenizer and tokenizer is None:
        raise BundleError(f"answer kind {name!r} lacks its target tokenizer; export it again")
    kind = ANSWER_KINDS[name].from_manifest(manifest, tokenizer)
    if kind.log_score and manifest.get(LOG_SCORE) is not True:  # a bundle before version 5
        kind.log_score = False
    if manifest.get("every_token") and not kind.needs_tokenizer:  # a kind that writes text reads this itself
        kind.every_token = kind.reads_blanks = True
    return kind


def join_kinds(parts: Mapping[str, HeadAnswer]) -> AnswerKind:
    """Return the answer kind of a single head, whose name is "", or the joint one of several heads."""
    return parts[""] if "" in parts else MultiHead(parts)


def answer_from(manifest: Mapping[str, Any], tokenizers: Mapping[str, Tokenizer]) -> AnswerKind:
    """Return the answer kind of a bundle, of one head or several; `tokenizers`: the target tokenizers by head."""
    stated = manifest["parts"] if manifest.get("kind") == MultiHead.kind else {"": manifest}
    return join_kinds({head: head_answer_from(part, tokenizers.get(head)) for head, part in stated.items()})


def task_metrics(task: Task) -> dict[str, Metric]:
    """Return the metrics of a task and of each of its heads, by name."""
    return {**task.metrics, **{name: metric for part in task.parts.values() for name, metric in part.metrics.items()}}
