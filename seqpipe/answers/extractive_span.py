"""Answer kind span: the span of the second text of a pair that answers the first (extractive question answering)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seqpipe.answers.answer_types import PassageAnswer, PassageAnswers
from seqpipe.answers.base import HeadAnswer, best_of
from seqpipe.answers.metrics.squad import ReadingCounter, gold_answers, locate_answer, match
from seqpipe.answers.task import HeadTask, by_record
from seqpipe.answers.types import PASSAGE, Array, Choice, Counts, MakeTargets, Metric, SpanRules, Targets
from seqpipe.errors import DataError
from seqpipe.features.document import Arrays, Doc, Record


class ExtractiveSpan(HeadAnswer[PassageAnswers]):
    """A span of the second text: `{"answer", "score", "start", "end"}`, `answer == second[start:end]`.

    No answer is an empty one, from 0 to 0. With `n_best` over 1 a list of them, best first. The score is a probability.
    """

    kind = "span"
    hub_task = "question-answering"
    of_whole_text, log_score = False, True
    answer_type = PassageAnswer
    nothing = {"answer": "", "score": 1.0, "start": 0, "end": 0}  # neither text has a token
    text_key = "answer"
    drawing = {"as": "passage"}
    decided = {
        "starts": Array("(B, K)", "int64"),
        "ends": Array("(B, K)", "int64"),
        "scores": Array("(B, K)", "float32", "log-probability"),
    }

    def __init__(self, target: str | None = None):
        self.target = target

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[PassageAnswers]:
        return self.ranked(docs, decision, ("starts", "ends"), _answer)


class ExtractiveSpanTask(HeadTask[PassageAnswers, ExtractiveSpan]):
    """Task of the span of the second text that a record marks as the answer."""

    kind_type = ExtractiveSpan
    target_field = "answers"
    settings = {"no_answer": False}
    targets = {"start": Array("(B,)", "int64", "position"), "end": Array("(B,)", "int64", "position")}
    metrics = dict.fromkeys(("f1", "exact_match", "has_answer_f1", "no_answer_accuracy"), Metric())
    choices = (Choice(("starts", "ends"), ranked=True),)
    subject = PASSAGE

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        field = self.kind.target or self.target_field

        def targets(record: Record, doc: Doc) -> Targets | None:
            gold = gold_answers(record, field)
            if not gold and not settings["no_answer"]:
                fix = "set the head's option no_answer: true, or remove the record"
                raise DataError.at(record, f"the question has no answer; {fix}")
            at, passage = second_text(doc)
            places = [locate_answer(answer, passage, record.get("where", "record")) for answer in gold]
            begin, spans = doc.second or 0, list[Targets]()
            for start, end in ((start + at, end + at) for start, end in places):
                problem = f"answer {doc.text[start:end][:40]!r} cuts a token"
                if inside := rules.align(doc.offsets[begin:], (start, end), doc, record, problem):
                    spans.append({"start": inside[0] + begin, "end": inside[1] + begin})
            if not gold:
                return {"start": -1, "end": -1}
            return next(iter(spans), None)

        return by_record(targets)

    def gold(self, record: Record) -> list[str]:
        """Return the texts of the answers, none if the question has none."""
        return [text for text, _ in gold_answers(record, self.kind.target or self.target_field)]

    def predicted(self, answer: PassageAnswers) -> str:
        return best_of(answer)["answer"]

    def counter(self) -> Counts:
        return ReadingCounter()

    def is_right(self, gold: Any, predicted: Any) -> bool:
        return match(gold, predicted)[0] == 1


def second_text(doc: Doc) -> tuple[int, str]:
    """Return the start of the second text of a pair in the joined text, and that text; for a pair with tokens."""
    at = doc.offsets[(doc.second or 1) - 1][1]
    return at, doc.text[at:]


def _answer(doc: Doc, first: int, last: int, score: float) -> PassageAnswer:
    if first < 0:
        return {"answer": "", "score": score, "start": 0, "end": 0}
    at, text = second_text(doc)
    start, end = doc.offsets[first][0] - at, doc.offsets[last][1] - at
    answer = text[start:end].rstrip()  # the last piece may be the white space before a word
    return {"answer": answer, "score": score, "start": start, "end": start + len(answer)}
