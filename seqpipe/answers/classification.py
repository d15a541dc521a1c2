"""Answer kinds label, labels and score: one label of a text, several, or a number."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from seqpipe.answers.answer_types import LabelAnswer, LabelAnswers, ScoreAnswer, ScoreAnswers, ScoredLabel
from seqpipe.answers.base import NOTHING, HeadAnswer, best_of, float32_number, probability
from seqpipe.answers.metrics.f1 import LabelCounter, LabelsCounter
from seqpipe.answers.metrics.numbers import NumberCounter, ScoreCounter
from seqpipe.answers.schemas import Schema
from seqpipe.answers.tagging import label_ids, ordered_labels
from seqpipe.answers.task import HeadInfo, HeadTask, by_record, no_targets, required_field
from seqpipe.answers.types import Array, Choice, Counts, MakeTargets, Metric, SpanRules, Targets
from seqpipe.errors import DataError
from seqpipe.features.document import Arrays, Doc, Record
from seqpipe.features.vocabulary import Vocabulary

F1 = ("f1", "precision", "recall")


class Label(HeadAnswer[LabelAnswers]):
    """One label per text: `{"label", "score"}`; score: its probability. One label may mean that no other fits.

    With `n_best` over 1 a list of them: the decided label, then the others by probability.
    """

    kind = "label"
    hub_task = "text-classification"
    answer_type = LabelAnswer
    nothing = {"label": None, "score": 0.0}
    text_key = "label"
    decided = {"label": Array("(B,)", "int64", "label"), "scores": Array("(B, L)", "float32", "probability")}
    manifest_keys, manifest_defaults = ("labels", "target"), {"out_of_scope": None}
    scored_labels, measure = "scores", "log-probability"

    def __init__(self, labels: Sequence[str], target: str | None = None, out_of_scope: str | None = None):
        self.labels, self.target, self.out_of_scope = tuple(labels), target, out_of_scope
        self.drawing = {"as": "label", "labels": [*labels]}

    @property
    def answer_options(self) -> Mapping[str, Mapping[str, Any]]:
        meaning = "Number of labels with their probabilities, the decided one first; all: every label."
        bounds = {"minimum": 1, "maximum": len(self.labels)}
        return {"n_best": {"type": "ranking", "default": 1, **bounds, "description": meaning}}

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[LabelAnswers]:
        n, answers = len(decision.get("n_best", ())), []
        for label, scores in zip(decision["label"].tolist(), decision["scores"], strict=True):
            ids = [label] if n <= 1 else [label, *(i for i in range(len(self.labels)) if i != label)]
            ranked: list[LabelAnswer] = [{"label": self.labels[i], "score": probability(scores[i])} for i in ids]
            # With a threshold the decided label may not be the likeliest; it comes first.
            ranked[1:] = sorted(ranked[1:], key=itemgetter("score"), reverse=True)
            answers.append(ranked[0] if n <= 1 else ranked[:n])
        return answers

    def label_probabilities(self, decision: Arrays) -> np.ndarray:
        in_scope = np.array([label != self.out_of_scope for label in self.labels])
        p = np.where(in_scope, decision["scores"], 0.0)
        return np.asarray(p / p.sum(1, keepdims=True))


class LabelTask(HeadTask[LabelAnswers, Label]):
    """Task of one label per text, out of those of the training records."""

    kind_type = Label
    target_field = "label"
    settings = {"out_of_scope": None}
    targets = {"label": Array("(B,)", "int64", "label")}
    metrics = dict.fromkeys(("accuracy", "macro_f1", "in_scope_accuracy", "out_of_scope_recall", *F1), Metric())
    choices = (Choice(("label",)),)
    has_labels = self_trains = True

    @classmethod
    def collect_labels(cls, head: HeadInfo, records: Sequence[Record]) -> Vocabulary:
        """Return the labels; the out-of-scope label is an answer even if no training text has it."""
        outside = head.settings["out_of_scope"]
        labels = (label_of(record, head.target or cls.target_field) for record in records)
        return count_labels(head, labels, () if outside is None else (outside,))

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        return label_target(self.kind.labels, self.kind.target or self.target_field)

    def pseudo_label(self, doc: Doc, decision: Arrays, row: int) -> tuple[Record, float]:
        label = int(decision["label"][row])
        return {self.kind.target or self.target_field: self.kind.labels[label]}, float(decision["scores"][row, label])

    def gold(self, record: Record) -> str:
        return label_of(record, self.kind.target or self.target_field)

    def predicted(self, answer: LabelAnswers) -> str | None:
        return best_of(answer)["label"]

    def counter(self) -> Counts:
        return LabelCounter(self.kind.out_of_scope)

    def labels_in(self, gold: Any) -> list[str]:
        return [gold]

    def constant_prediction(self, golds: Sequence[Any]) -> tuple[str, list[Any]] | None:
        return _most_frequent(golds)

    def one_sided(self, labels: Counter[str], records: int) -> str:
        return _single_label(labels, records)


class Labels(HeadAnswer[list[ScoredLabel]]):
    """Any number of labels per text, the likeliest first: `[{"label", "score"}, …]`; score: its probability.

    With `n_best` over 1 that many labels by their probability, whether the text has them or not.
    """

    kind = "labels"
    hub_task = "text-classification"
    answer_type = list[ScoredLabel]
    text_key = "label"
    decided = {"labels": Array("(B, L)", "int64", "flag"), "scores": Array("(B, L)", "float32", "probability")}
    manifest_keys = ("labels", "target")
    scored_labels, measure = "scores", "log-probability"
    answer_options = Label.answer_options

    def __init__(self, labels: Sequence[str], target: str | None = None):
        self.labels, self.target = tuple(labels), target
        self.drawing = {"as": "labels", "several": "labels", "labels": [*labels]}

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[list[ScoredLabel]]:
        n, answers = len(decision.get("n_best", ())), []
        for scores, chosen in zip(decision["scores"], decision["labels"], strict=True):
            ids = np.flatnonzero(chosen).tolist() if n <= 1 else range(len(self.labels))
            labels: list[ScoredLabel] = [{"label": self.labels[i], "score": probability(scores[i])} for i in ids]
            # Sorted by the rounded scores, so that labels of equal scores keep their order.
            labels.sort(key=itemgetter("score"), reverse=True)
            answers.append(labels if n <= 1 else labels[:n])
        return answers

    def label_probabilities(self, decision: Arrays) -> np.ndarray:
        return np.stack([decision["scores"], 1 - decision["scores"]], 1)

    def schema(self, options: Mapping[str, Any]) -> Schema:
        return self.answer_schema()

    def empty(self, several: bool) -> list[ScoredLabel]:
        """Return no label."""
        return []


class LabelsTask(HeadTask[list[ScoredLabel], Labels]):
    """Task of any number of labels per text, out of those of the training records."""

    kind_type = Labels
    target_field = "labels"
    targets = {"label": Array("(B, L)", "float32", "flag")}
    metrics = dict.fromkeys(("micro_f1", "macro_f1", "exact_match", *F1), Metric())
    choices = (Choice(("labels",)),)
    has_labels = self_trains = True

    @classmethod
    def collect_labels(cls, head: HeadInfo, records: Sequence[Record]) -> Vocabulary:
        field = head.target or cls.target_field
        return count_labels(head, (label for record in records for label in label_set_of(record, field)))

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        ids, field = {label: i for i, label in enumerate(self.kind.labels)}, self.kind.target or self.target_field

        def targets(record: Record, doc: Doc) -> Targets:
            chosen = {*label_ids(ids, sorted(label_set_of(record, field)))}
            return {"label": tuple(float(i in chosen) for i in range(len(ids)))}

        return by_record(targets)

    def pseudo_label(self, doc: Doc, decision: Arrays, row: int) -> tuple[Record, float]:
        chosen, p = decision["labels"][row] > 0, decision["scores"][row]
        labels = [self.kind.labels[i] for i in np.flatnonzero(chosen).tolist()]
        return {self.kind.target or self.target_field: labels}, float(np.where(chosen, p, 1 - p).min())

    def gold(self, record: Record) -> list[str]:
        return sorted(label_set_of(record, self.kind.target or self.target_field))

    def predicted(self, answer: list[ScoredLabel]) -> list[str]:
        return sorted(label["label"] for label in answer)

    def counter(self) -> Counts:
        return LabelsCounter()

    def labels_in(self, gold: Any) -> list[str]:
        return list(gold)

    def constant_prediction(self, golds: Sequence[Any]) -> tuple[str, list[Any]] | None:
        return _most_frequent(golds)

    def one_sided(self, labels: Counter[str], records: int) -> str:
        return _single_label(labels, records)


def _most_frequent(golds: Sequence[Any]) -> tuple[str, list[Any]] | None:
    """Return the most frequent reference as a constant prediction."""
    if not golds:
        return None
    ((text, _),) = Counter(map(repr, golds)).most_common(1)
    answer = next(gold for gold in golds if repr(gold) == text)
    return f"always {text}", [answer] * len(golds)


def count_labels(head: HeadInfo, labels_of_records: Iterable[str], always: Sequence[str] = ()) -> Vocabulary:
    """Count the labels of texts; those of an older run come first, in its order."""
    counts = Counter(labels_of_records)
    counts.update(dict.fromkeys(always, 0))
    if not counts:
        field = head.target or "labels"
        fix = "write labels, or name another field with the head's option `target`"
        raise DataError(f"no training record has a label: the field {field!r} is empty in each; {fix}")
    return ordered_labels(counts, head.old_labels)


def label_target(labels: Sequence[str], field: str) -> MakeTargets:
    """Return the function that maps records to the ids of their labels."""
    ids = {label: i for i, label in enumerate(labels)}
    return by_record(lambda record, doc: {"label": label_ids(ids, [label_of(record, field)])[0]})


def label_of(record: Record, field: str) -> str:
    """Return the label of a record, a text or a whole number, as text; DataError if there is none."""
    label = required_field(record, field)
    if not _is_label(label):
        raise DataError.at(record, f"field {field!r} is {label!r}; a label is a text or a whole number")
    return str(label)


def label_set_of(record: Record, field: str) -> set[str]:
    """Return the labels of a record, a list of texts or whole numbers; DataError if it is not such a list."""
    labels = required_field(record, field)
    if not isinstance(labels, list) or not all(map(_is_label, labels)):
        message = f"field {field!r} is {labels!r}; several labels are a list of texts or whole numbers"
        raise DataError.at(record, f'{message}, such as ["a", "b"] or []')
    return set(map(str, labels))


def _is_label(value: Any) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool) and bool(str(value).strip())


def _single_label(labels: Counter[str], records: int) -> str:
    if not labels:
        return f"none of {records:,} records has a label"
    return f"all have the label {next(iter(labels))!r} ({records:,} records)" if len(labels) == 1 else ""


# Answer kind score: a number for each text.

_LARGEST = float(np.finfo(np.float32).max)


class Score(HeadAnswer[ScoreAnswers]):
    """A number for each text: `{"score"}`, None for a text without tokens.

    Records of a self-supervised head have no target: `gold` is None, and the metric is the mean.
    """

    kind = "score"
    hub_task = "text-classification"
    answer_type = ScoreAnswer
    nothing = {"score": None}
    drawing = {"as": "number"}
    decided = {"score": Array("(B,)", "float32")}
    is_numeric, measure = True, "number"
    manifest_defaults = {"self_supervised": False}

    def __init__(self, target: str | None = None, self_supervised: bool = False):
        self.target, self.self_supervised = target, self_supervised

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[ScoreAnswers]:
        return [{"score": float32_number(value)} for value in decision["score"].tolist()]

    def part_scores(self, docs: Sequence[Doc], decision: Arrays, answer: Any, whole: Arrays) -> np.ndarray:
        return np.asarray(decision["score"][:, None])

    def part_lines(self, part: Any) -> list[str]:
        return [NOTHING if part["score"] is None else f"{part['score']:.4f}"]


class ScoreTask(HeadTask[ScoreAnswers, Score]):
    """Task of a number per text, which a self-supervised head computes without a reference."""

    kind_type = Score
    target_field = "score"
    targets = {"score": Array("(B,)", "float32")}
    metrics = {
        **dict.fromkeys(("r2", "pearson", "mean_score"), Metric(percent=False)),
        **dict.fromkeys(("mae", "rmse", "unanswered"), Metric(percent=False, more_is_better=False)),
    }
    may_self_supervise = True

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        if self.kind.self_supervised:
            return no_targets
        return by_record(lambda record, doc: {"score": number_of(record, self.kind.target or self.target_field)})

    def gold(self, record: Record) -> float | None:
        return None if self.kind.self_supervised else number_of(record, self.kind.target or self.target_field)

    def predicted(self, answer: ScoreAnswers) -> float | None:
        return best_of(answer)["score"]

    def counter(self) -> Counts:
        return NumberCounter() if self.kind.self_supervised else ScoreCounter()

    def constant_prediction(self, golds: Sequence[Any]) -> tuple[str, list[Any]] | None:
        if self.kind.self_supervised or not golds:
            return None
        mean = sum(golds) / len(golds)
        return f"always their mean {mean:.4g}", [mean] * len(golds)


def number_of(record: Record, field: str) -> float:
    """Return the number of a record; DataError if there is none, or if it is outside float32."""
    value = number = required_field(record, field)
    if isinstance(value, str):  # columns of a table are texts
        with contextlib.suppress(ValueError):
            number = float(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not abs(number) <= _LARGEST:
        raise DataError.at(record, f"field {field!r} is {value!r}; a finite number is needed")
    return float(number)
