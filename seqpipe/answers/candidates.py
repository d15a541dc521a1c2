"""Answer kinds vector and candidate: an embedding of a text, and the nearest of a fixed set of texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from seqpipe.answers.answer_types import CandidateAnswer, CandidateAnswers, NearText, VectorAnswer, VectorAnswers
from seqpipe.answers.base import NOTHING, HeadAnswer, best_of, float32_number, with_score
from seqpipe.answers.classification import count_labels, label_of, label_target
from seqpipe.answers.metrics.numbers import LengthCounter, RankCounter, VectorCounter
from seqpipe.answers.tagging import ordered_labels
from seqpipe.answers.task import HeadInfo, HeadTask, by_record, no_targets
from seqpipe.answers.types import (
    ANSWER_FIELD,
    Array,
    CandidateTexts,
    Choice,
    Counts,
    MakeTargets,
    Metric,
    SpanRules,
    Targets,
    UnseenLabelError,
)
from seqpipe.errors import DataError
from seqpipe.features.document import Arrays, Doc, Record
from seqpipe.features.vocabulary import Vocabulary


class Vector(HeadAnswer[VectorAnswers]):
    """Embedding of a text, close to those of texts with the same label: `{"vector": […]}`, None without a token.

    Records of a self-supervised head have no target: `gold` is None.
    """

    kind = "vector"
    hub_task = "feature-extraction"
    answer_type = VectorAnswer
    nothing = {"vector": None}
    drawing = {"as": "vector"}
    decided = {"vector": Array("(B, D)", "float32")}
    is_numeric, measure = True, "cosine"
    is_embedding = True

    manifest_defaults = {"labels": (), "self_supervised": False}

    def __init__(self, labels: Sequence[str] | None = None, target: str | None = None, self_supervised: bool = False):
        if labels is None and not self_supervised:
            raise ValueError("vectors are trained with labels, or self-supervised")
        self.labels, self.target, self.self_supervised = tuple(labels or ()), target, self_supervised

    def manifest(self) -> dict[str, Any]:
        stated = super().manifest()  # a converted checkpoint states that it has no labels
        return stated if self.self_supervised else {**stated, "labels": list(self.labels)}

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[VectorAnswers]:
        return [{"vector": [float32_number(value) for value in row]} for row in decision["vector"].tolist()]

    def part_lines(self, part: Any) -> list[str]:
        return [NOTHING if part["vector"] is None else f"a vector of {len(part['vector'])} numbers"]


class VectorTask(HeadTask[VectorAnswers, Vector]):
    """Task of vectors that are close to each other for equal labels."""

    kind_type = Vector
    target_field = "label"
    targets = {"label": Array("(B,)", "int64", "label")}
    metrics = {
        "precision_at_1": Metric(),
        "mean_length": Metric(percent=False),
        "unanswered": Metric(percent=False, more_is_better=False),
    }
    has_labels = True
    may_be_right = False
    may_self_supervise = True

    @classmethod
    def collect_labels(cls, head: HeadInfo, records: Sequence[Record]) -> Vocabulary:
        return count_labels(head, (label_of(record, head.target or cls.target_field) for record in records))

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        if self.kind.self_supervised:
            return no_targets
        return label_target(self.kind.labels, self.kind.target or self.target_field)

    def gold(self, record: Record) -> str | None:
        """Return the label of a text; texts with equal labels should be close."""
        return None if self.kind.self_supervised else label_of(record, self.kind.target or self.target_field)

    def predicted(self, answer: VectorAnswers) -> list[float] | None:
        return best_of(answer)["vector"]

    def counter(self) -> Counts:
        return LengthCounter() if self.kind.self_supervised else VectorCounter()


CANDIDATE_VECTORS = "pipeline.heads.0.vectors"  # the initializer with the vectors (N, D) of the candidates
MOST_BYTES = 32 << 20  # of texts, labels and answers: half of the limit of bundle.json, which contains them


def candidates_of(records: Iterable[Record], field: str, target: str | None) -> CandidateTexts:
    """Return the distinct candidates of records; DataError for an invalid record, or if there are none.

    A record has a text in `field`, and optionally a label in `target` (None: `label`) and an `answer`.
    """
    target = target or "label"
    rows: dict[tuple[str, str | None, str | None], None] = {}
    unlabelled: Record | None = None  # the first record without a label
    has_labels, labels = False, dict[str, str]()  # one string for each label
    for record in records:
        text, answer = record.get(field), record.get(ANSWER_FIELD)
        if not isinstance(text, str) or not text.strip():
            raise DataError.at(record, f"field {field!r} is {text!r}; a candidate is a non-empty text")
        label = None
        if record.get(target) is not None:
            has_labels, label = True, label_of(record, target)
            label = labels.setdefault(label, label)
        elif unlabelled is None:
            unlabelled = record
        if has_labels and unlabelled is not None:
            message = f"no field {target!r}, which other candidates have; write it for all, or for none"
            raise DataError.at(unlabelled, message)
        if answer is not None and not isinstance(answer, str):
            raise DataError.at(record, f"field {ANSWER_FIELD!r} is {answer!r}; the answer of a candidate is a text")
        rows[text, label, answer] = None
    if sum(len(part.encode("utf-8", "surrogatepass")) for row in rows for part in row if part) > MOST_BYTES:
        raise DataError(f"the candidates have more than {MOST_BYTES:,} bytes; give fewer, or shorter ones")
    if not rows:
        raise DataError("there is no candidate to choose from; give at least one text")
    texts, text_labels, answers = zip(*rows, strict=True)
    stated = answers if any(answer is not None for answer in answers) else None
    return CandidateTexts(texts, text_labels if has_labels else None, stated)


class Candidate(HeadAnswer[CandidateAnswers]):
    """`{"text", "label", "answer", "score", "nearest": […]}`: the nearest candidate and the k nearest, best first.

    `label` and `answer` are present if the candidates have them; the score is the cosine of the two vectors, with six
    digits. If no candidate counts, and for a text without a token, the text is None and `nearest` is empty.
    """

    kind = "candidate"
    hub_task = "sentence-similarity"
    answer_type = CandidateAnswer
    drawing = {"as": "candidate"}
    decided = {
        "nearest": Array("(B, K)", "int64", "candidate"),
        "scores": Array("(B, K)", "float32"),
        "vector": Array("(B, D)", "float32"),
    }
    is_numeric, measure = True, "cosine"
    candidates: CandidateTexts

    def __init__(self, candidates: CandidateTexts, target: str | None = None):
        self.candidates, self.target = candidates, target
        self.labels = tuple(sorted({*candidates.keys}))
        self.nothing = {**dict.fromkeys(candidates.entry(0, 0.0)), "score": 0.0, "nearest": []}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> Candidate:
        return cls(CandidateTexts.from_manifest(manifest["candidates"]), manifest["target"])

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "target": self.target, "candidates": self.candidates.manifest()}

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[CandidateAnswers]:
        answers: list[CandidateAnswers] = []
        for numbers, scores in zip(decision["nearest"].tolist(), decision["scores"].tolist(), strict=True):
            nearest = [
                self.candidates.entry(number, round(min(1.0, max(-1.0, score)), 6))
                for number, score in zip(numbers, scores, strict=True)
                if number >= 0
            ]
            answers.append({**nearest[0], "nearest": nearest} if nearest else self.empty(False))
        return answers

    @property
    def optional_keys(self) -> Mapping[str, bool]:
        return {"label": self.candidates.labels is not None, ANSWER_FIELD: self.candidates.answers is not None}

    def part_lines(self, part: Any) -> list[str]:
        return [with_score(part.get(ANSWER_FIELD) or part["text"], part)]


class CandidateTask(HeadTask[CandidateAnswers, Candidate]):
    """Task of choosing the candidates with a text's label, or the candidate that is its label."""

    kind_type = Candidate
    target_field = "label"
    targets = {"label": Array("(B,)", "int64", "label")}
    metrics = {"accuracy": Metric(), "mrr": Metric(), "recall_at_k": Metric()}
    choices = (Choice(("nearest",), ranked=True),)
    has_labels = True
    has_candidates = True

    @classmethod
    def create(cls, head: HeadInfo, labels: Sequence[str], tokenizer: Tokenizer | None) -> Candidate:
        return Candidate(candidates_of(head.candidates, head.fields[0], head.target), head.target)

    @classmethod
    def refuse_input(cls, head: HeadInfo) -> str:
        if len(head.fields) > 1:
            return "it compares single texts; make the tokenizer read one field"
        return ""

    @classmethod
    def collect_labels(cls, head: HeadInfo, records: Sequence[Record]) -> Vocabulary:
        """Return the labels of the candidates, or their texts, with the number of candidates for each."""
        return ordered_labels(Counter(candidates_of(head.candidates, head.fields[0], head.target).keys))

    def wired_labels(self, labels: Vocabulary) -> tuple[str, ...]:
        """Return the texts of the candidates."""
        return self.kind.candidates.texts

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        ids, field = {label: i for i, label in enumerate(self.kind.labels)}, self.kind.target or self.target_field

        def targets(record: Record, doc: Doc) -> Targets:
            label = label_of(record, field)
            if label not in ids:
                what = "text" if self.kind.candidates.labels is None else "label"
                fix = "add it to the candidates, or remove the record"
                raise UnseenLabelError.at(record, f"no candidate has the {what} {label!r} of field {field!r}; {fix}")
            return {"label": ids[label]}

        return by_record(targets)

    def gold(self, record: Record) -> str:
        """Return the label of the correct candidates, or the text of the correct one."""
        return label_of(record, self.kind.target or self.target_field)

    def predicted(self, answer: CandidateAnswers) -> list[str]:
        """Return the labels of the nearest candidates, or their texts, best first."""
        nearest: list[NearText] = best_of(answer)["nearest"]
        return [candidate.get("label", candidate["text"]) for candidate in nearest]

    def is_right(self, gold: str, predicted: Sequence[str]) -> bool:
        return [*predicted[:1]] == [gold]

    def counter(self) -> Counts:
        return RankCounter()

    def labels_in(self, gold: Any) -> list[str]:
        return [gold]
