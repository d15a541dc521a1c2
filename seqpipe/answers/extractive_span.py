"""Answer kind span: the stretch of the second text of a pair that answers the first (extractive question answering)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from seqpipe.answers.base import HeadAnswer, best_of, probability, with_score, without_missing
from seqpipe.answers.metrics.squad import ReadingCounter, gold_answers, locate_answer, match
from seqpipe.answers.types import (
    LOG_ZERO,
    PASSAGE,
    POSITION,
    PROBABILITY,
    TEXT,
    Array,
    Choice,
    Counts,
    HeadInfo,
    MakeTargets,
    Metric,
    Schema,
    SpanRules,
    Targets,
    obj,
)
from seqpipe.errors import DataError
from seqpipe.features.document import Arrays, Doc, Record


class ExtractiveSpan(HeadAnswer):
    """A stretch of the second text: `{"answer", "score", "start", "end"}`, `answer == second[start:end]`.

    No answer is an empty one, from 0 to 0. With `n_best` over 1 a list of them, best first. The score is a probability.
    """

    kind = "span"
    settings = {"no_answer": False}
    decided = {
        "starts": Array("(B, K)", "int64"),
        "ends": Array("(B, K)", "int64"),
        "scores": Array("(B, K)", "float32", "log-probability"),
    }
    targets = {"start": Array("(B,)", "int64"), "end": Array("(B,)", "int64")}
    metrics = dict.fromkeys(("f1", "exact_match", "has_answer_f1", "no_answer_accuracy"), Metric())
    choices = (Choice(("starts", "ends"), ranked=True),)
    subject = PASSAGE

    def __init__(self, target: str | None = None):
        self.target = target

    @property
    def drawing(self) -> dict[str, Any]:
        return {"as": "passage"}

    @classmethod
    def create(cls, head: HeadInfo, labels: Sequence[str], tokenizer: Tokenizer | None) -> ExtractiveSpan:
        return cls(head.target)

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> ExtractiveSpan:
        return cls(manifest["target"])

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "target": self.target}

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        field = self.target or "answers"

        def targets(record: Record, doc: Doc) -> Targets | None:
            gold = gold_answers(record, field)
            if not gold and not settings["no_answer"]:
                cure = "set the head's option no_answer: true, or leave the record out"
                raise DataError.at(record, f"the question has no answer; {cure}")
            at, passage = second_text(doc)
            places = [locate_answer(answer, passage, record.get("where", "record")) for answer in gold]
            spans = [_token_span(doc, at, place, record, rules) for place in places]
            first, last = next((span for span in spans if span is not None), (-1, -1))
            return None if gold and first < 0 else {"start": first, "end": last}

        return targets

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Any]:
        answers = []
        columns = (decision[name].tolist() for name in self.decided)
        for doc, starts, ends, log_p in zip(docs, *columns, strict=True):
            spans = without_missing(zip(starts, ends, log_p, strict=True), log_p)
            alternatives = [_answer(doc, *span) for span in spans]
            answers.append(alternatives if len(starts) > 1 else alternatives[0])
        return answers

    @classmethod
    def example_fields(cls, settings: Mapping[str, Any], record: Record, number: int) -> Record:
        if not settings["no_answer"] or number % 3 != 1:
            return {}
        return {"answers": {"text": [], "answer_start": []}}

    def decision_fault(self, decision: Arrays, features: Arrays, settings: Mapping[str, Any]) -> str:
        if fault := super().decision_fault(decision, features, settings):
            return fault
        segments = features["segments"]
        starts, ends, exists = decision["starts"], decision["ends"], decision["scores"] > LOG_ZERO
        if not exists[:, 0].all():
            return f"the first answer has a score of {LOG_ZERO:g} or less: every text has one, if only none"
        none = (starts == -1) & (ends == -1)
        of_passage = [
            (np.take_along_axis(segments, at.clip(0, segments.shape[1] - 1), 1) == 2) & (at >= 0)
            for at in (starts, ends)
        ]
        if not (none | ~exists | (of_passage[0] & of_passage[1] & (starts <= ends))).all():
            return "an answer is not from a token of the second text to one that is not before it"
        if not settings["no_answer"] and (exists & none).any(0)[1:].any():
            return "none is answered beside others, and there is no option no_answer: true"
        return ""

    def other_target(self, name: str, targets: Arrays, mask: np.ndarray) -> np.ndarray:
        return targets["end" if name == "start" else "start"]  # shorter answers, where there were longer

    def other_decision(self, decision: Arrays, mask: np.ndarray) -> Arrays:
        """The last token, and of those that are so already none."""
        last = mask.sum(1, keepdims=True) - 1
        at = np.where(decision["starts"] == last, -1, last)
        return {**decision, "starts": at, "ends": at}

    def part_schema(self) -> Schema:
        return obj({"answer": TEXT, "score": PROBABILITY, "start": POSITION, "end": POSITION})

    def part_lines(self, part: Any) -> list[str]:
        return [with_score(part["answer"], part)]

    def empty(self, several: bool) -> Any:
        """No answer, for certain: neither text has a token."""
        answer = {"answer": "", "score": 1.0, "start": 0, "end": 0}
        return [answer] if several else answer

    def gold(self, record: Record) -> list[str]:
        """The texts of the answers, none if the question has none."""
        return [text for text, _ in gold_answers(record, self.target or "answers")]

    def predicted(self, answer: Any) -> str:
        return str(best_of(answer)["answer"])

    def counter(self) -> Counts:
        return ReadingCounter()

    def is_right(self, gold: Any, predicted: Any) -> bool:
        return match(gold, predicted)[0] == 1


def second_text(doc: Doc) -> tuple[int, str]:
    """Where the second text of a pair begins in the joined text, and that text; of a pair with tokens."""
    at = doc.offsets[(doc.second or 1) - 1][1]
    return at, doc.text[at:]


def _answer(doc: Doc, first: int, last: int, log_p: float) -> Mapping[str, Any]:
    score = probability(np.exp(np.float32(log_p)))
    if first < 0:
        return {"answer": "", "score": score, "start": 0, "end": 0}
    at, text = second_text(doc)
    start, end = doc.offsets[first][0] - at, doc.offsets[last][1] - at
    answer = text[start:end].rstrip()  # the last piece may be the white space before a word
    return {"answer": answer, "score": score, "start": start, "end": start + len(answer)}


def _token_span(doc: Doc, at: int, place: tuple[int, int], record: Record, rules: SpanRules) -> tuple[int, int] | None:
    """First and last token of a stretch of the second text; one that cuts a token is an error, widened, or skipped."""
    (start, end), first = (place[0] + at, place[1] + at), doc.second or 0
    problem = f"answer {doc.text[start:end][:40]!r} cuts a token"
    inside = rules.align(doc.offsets[first:], (start, end), doc, record, problem)
    return None if inside is None else (inside[0] + first, inside[1] + first)
