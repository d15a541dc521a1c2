"""Tasks: the parts of an answer kind for training and evaluation: labels, targets, metrics and references."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic
from unicodedata import normalize

from tokenizers import Tokenizer
from typing_extensions import TypeVar

from seqpipe.answers.base import A, AnswerKind, HeadAnswer
from seqpipe.answers.types import WHOLE_TEXT, Array, Choice, Counts, MakeTargets, Metric, SpanRules, Targets
from seqpipe.errors import DataError, attempts
from seqpipe.features.document import Arrays, Doc, Record, field_names
from seqpipe.features.vocabulary import Vocabulary

K = TypeVar("K", bound=HeadAnswer, default=Any)  # the answer kind of a task
_NO_FIELD = "write it in each record, or name the field of the answer with the head's option `target`"


class Task(ABC, Generic[A]):
    """Training and evaluation of an answer kind: that of one head, a `HeadTask`, or the joint one of several."""

    kind: AnswerKind[A]
    metrics: Mapping[str, Metric] = {}  # the scores; the first is the headline

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, HeadTask]:
        """Tasks by head; for a single head this task, under the name ""."""

    def question(self, record: Record) -> Record:
        """Return the input for the evaluation of a model: the record itself, or one with gaps."""
        return record

    @abstractmethod
    def gold(self, record: Record) -> Any:
        """Return the reference of a record; DataError if it has none."""

    def golds(self, records: Sequence[Record]) -> list[Any]:
        """Return the reference of each record of a chunk."""
        return [self.gold(record) for record in records]

    @abstractmethod
    def predicted(self, answer: A) -> Any:
        """Return the part of an answer that is compared with the reference."""

    @property
    def is_comparable(self) -> bool:
        """Return whether an answer can be right or wrong."""
        return True

    def is_right(self, gold: Any, predicted: Any) -> bool:
        """Return True if an answer is right."""
        return bool(gold == predicted)

    def constant_prediction(self, golds: Sequence[Any]) -> tuple[str, list[Any]] | None:
        """Return the most frequent answer, or the mean, and the predictions that give it for each of these references.

        None for answers that have no such baseline, such as texts.
        """
        return None

    def mistakes(self, gold: Any, predicted: Any) -> dict[str, Any]:
        """Return the missing and the wrong parts of a wrong answer."""
        if isinstance(predicted, list) and isinstance(gold, list):
            missed = [part for part in gold if part not in predicted]
            return {"missed": missed, "wrong": [part for part in predicted if part not in gold]}
        return {"expected": gold, "got": predicted}


@dataclass(frozen=True)
class HeadInfo:
    """Facts about a head and its inputs for fitting its answer kind to the training records."""

    settings: Mapping[str, Any]  # the head's `answer_settings`, with the kind's defaults
    target: str | None = None  # record field of the reference, if the YAML names one
    self_supervised: bool = False  # the head learns from the text itself
    same_tokenizer: bool = False  # it generates text with the tokenizer of its input
    copies: bool = False  # it copies words of its input
    fields: tuple[str, ...] = ("text",)  # record fields of the first input's texts
    rows: str = ""  # axis of the rows of x, as in `seqpipe.config.checks`
    numbers: str | None = None  # record field of the first input's rows of numbers; None if it is a text
    candidates: Sequence[Record] = ()  # records of `data.candidates`, by default those of training
    old_labels: Sequence[str] = ()  # labels of the run that the head is initialised from


class HeadTask(Task[A], Generic[A, K]):
    """Base of the tasks of one head. `seqpipe.answers.registry` lists them by kind.

    Args:
        kind: The answer kind, with the fitted labels or tokenizer.
    """

    kind_type: type[HeadAnswer]  # class of the answer kind
    target_field: ClassVar[str] = ""  # record field of the reference if the YAML names none; "": there is none
    settings: ClassVar[Mapping[str, Any]] = {}  # possible `answer_settings` of a head, with defaults
    targets: ClassVar[Mapping[str, Array]] = {}  # inputs of `loss`
    choices: tuple[Choice, ...] = ()  # outputs whose decision the head's `score` rates
    subject: ClassVar[str] = WHOLE_TEXT  # the subject of a decision; PASSAGE: the second text of a pair
    has_labels: ClassVar[bool] = False  # whether a head is built from `labels`
    has_candidates: ClassVar[bool] = False  # whether it chooses from a set of texts
    joins_sources: ClassVar[bool] = False  # whether others of several sources are context of the first
    counts_words: ClassVar[bool] = False  # whether a reference has word numbers, so words must be those of the data
    may_self_supervise: ClassVar[bool] = False  # whether a self-supervised head may have it
    metric_packages: ClassVar[Mapping[str, str]] = {}  # packages, each with the scores that need it
    has_target_text: ClassVar[bool] = False  # whether a record's target is a text
    is_stepwise: ClassVar[bool] = False  # whether it is decided step by step: a choice affects all later ones
    may_be_right: ClassVar[bool] = True  # whether an answer can be right or wrong, if there is a reference
    counts_tokens: ClassVar[bool] = False  # whether exp of its mean loss is the perplexity per target token

    self_trains: ClassVar[bool] = False  # whether a decision may become a reference: it has `pseudo_label`

    def __init__(self, kind: K):
        self.kind: K = kind

    @property
    def parts(self) -> Mapping[str, HeadTask]:
        return {"": self}

    # declarations of a head

    @classmethod
    def declared_decided(cls, settings: Mapping[str, Any]) -> Mapping[str, Array]:
        """Return the outputs of `decide` under these settings."""
        return cls.kind_type.decided

    @classmethod
    def declared_targets(cls, settings: Mapping[str, Any]) -> Mapping[str, Array]:
        """Return the targets of `loss` under these settings."""
        return cls.targets

    @classmethod
    def declared_metrics(cls, settings: Mapping[str, Any]) -> Mapping[str, Metric]:
        """Return the scores under these settings."""
        return cls.metrics

    @classmethod
    def declared_subject(cls, settings: Mapping[str, Any]) -> str:
        """Return the subject of a decision under these settings: WHOLE_TEXT, EACH_WORD or PASSAGE."""
        return cls.subject

    @classmethod
    def reference_fields(cls, settings: Mapping[str, Any], target: str | None) -> tuple[str, ...]:
        """Return the record fields of the reference; `target` is the field that the YAML names, if any."""
        field = target or cls.target_field
        return (field,) if field else ()

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        """Raise ValueError for settings that this kind cannot have."""

    # fitting to training records

    @classmethod
    def refuse_input(cls, head: HeadInfo) -> str:
        """Return the reason why the kind cannot answer this input, with the fix; "" if it can."""
        return ""

    @classmethod
    def label_conflict(cls, old: Mapping[str, Any], settings: Mapping[str, Any], where: str) -> str:
        """Return the reason why the labels of an `old` manifest do not match, with the fix; "" if they do."""
        return ""

    @classmethod
    def collect_labels(cls, head: HeadInfo, records: Sequence[Record]) -> Vocabulary:
        """Return the labels of the training records with their counts, those of an older run first."""
        return Vocabulary(())

    def wired_labels(self, labels: Vocabulary) -> Any:
        """Return the constructor argument `labels` of a head."""
        return labels

    @classmethod
    def create(cls, head: HeadInfo, labels: Sequence[str], tokenizer: Tokenizer | None) -> HeadAnswer:
        """Return the answer kind of a newly fitted head, from the values that its manifest will have."""
        stated = {**head.settings, "labels": labels, "target": head.target, "self_supervised": head.self_supervised}
        stated |= {"fields": head.fields, "field": head.fields[0], "points": head.numbers, "axis": head.rows}
        copies = {"copies": {"same": head.same_tokenizer}} if head.copies else {}
        return cls.kind_type.from_manifest({**stated, **copies}, tokenizer)

    @abstractmethod
    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        """Return the function that computes the targets of a chunk of records, as `by_record` does.

        Args:
            settings: The head's `answer_settings`.
            rules: Treatment of spans that cut a word or a token.
        """

    def target_census(self, longest: float | None, decodes: bool) -> Any:
        """Return a `TargetCensus` for targets that are texts, else None."""

    def pseudo_label(self, doc: Doc, decision: Arrays, row: int) -> tuple[Record, float]:
        """Return the fields of a record whose reference is a row of a decision, and the confidence in it.

        The confidence is the probability of the least certain label. Only for a kind that `self_trains`.
        """
        raise NotImplementedError

    # evaluation of answers

    @property
    def is_comparable(self) -> bool:
        return self.may_be_right and not self.kind.self_supervised

    def is_right(self, gold: Any, predicted: Any) -> bool:
        """Return whether an answer is right; without a reference no answer is wrong."""
        return self.kind.self_supervised or bool(gold == predicted)

    @abstractmethod
    def counter(self) -> Counts:
        """Return a new counter of scores."""

    # warnings about data

    def answer_labels(self) -> set[Any]:
        """Return the possible labels of an answer; empty if references cannot be checked for unknown labels."""
        return {*self.kind.labels} if self.is_comparable else set()

    def labels_in(self, gold: Any) -> list[str]:
        """Return the labels of a reference."""
        return []

    def one_sided(self, labels: Counter[str], records: int) -> str:
        """Return the common property of all these records that makes their score meaningless; "" if they differ."""
        return ""


def check_settings(task: type[HeadTask], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a head's settings with the kind's defaults; ValueError for an unknown setting."""
    if unknown := sorted(settings.keys() - task.settings.keys()):
        known = ", ".join(task.settings) or "none"
        raise ValueError(f"the answer kind {task.kind_type.kind!r} has no setting {unknown[0]!r} (there is: {known})")
    completed = {**task.settings, **settings}
    task.check_settings(completed)
    return completed


def required_field(record: Record, name: str) -> Any:
    """Return the value of a record's field; DataError if the record lacks it."""
    if name not in record:
        raise DataError.at(record, f"no field {name!r} to compare with; it has: {field_names(record)}; {_NO_FIELD}")
    return record[name]


def present(record: Record, name: str) -> Any:
    """Return the value of a record's field; DataError if it is missing or null."""
    if record.get(name) is None:
        raise DataError.at(record, f"no field {name!r}; the record has: {field_names(record)}; {_NO_FIELD}")
    return record[name]


def by_record(targets: Callable[[Record, Doc], Targets | None]) -> MakeTargets:
    """Return the function that computes the targets of a chunk of records one by one."""
    return lambda records, docs: attempts(targets, records, docs)


def no_targets(records: Sequence[Record], docs: Sequence[Doc]) -> list[Targets]:
    """Return no targets of each record, for a self-supervised head."""
    return [{} for _ in records]


# Warnings about records with references, such as data whose score means nothing.

MAX_LABELS = 5  # labels that a warning lists
MIN_RARE_LABEL_RECORDS = 10  # among fewer records, many labels occur once


def warnings_about(task: Task, name: str, records: Iterable[Record], trains: bool = False) -> Iterator[str]:
    """Yield the warnings about a set of records for training or scoring, one line each."""
    census = Census(task)
    for _ in census.watch(records):
        pass
    yield from census.warnings(name, trains)


class Census:
    """Counts of the labels of references, collected while records are iterated."""

    def __init__(self, task: Task):
        parts = task.parts.items()
        compared = {head: part for head, part in parts if not (part.kind.self_supervised or part.kind.is_generated)}
        self._heads = {head: part for head, part in compared.items() if part.answer_labels()}
        self._counted = bool(compared)
        self._labels: dict[str, Counter[str]] = {head: Counter() for head in self._heads}
        self._places: dict[str, dict[str, str]] = {head: {} for head in self._heads}  # of each label, the first
        self._missed: Counter[str] = Counter()  # records with a label that the model does not know, by head
        self._records = 0

    def watch(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yield the same records, and count them."""
        known = {head: part.answer_labels() for head, part in self._heads.items()}
        for record in records:
            self._records += 1
            for head, part in self._heads.items():
                labels = part.labels_in(part.gold(record))
                self._labels[head].update(labels)
                for label in labels:
                    self._places[head].setdefault(label, record.get("where", ""))
                self._missed[head] += not known[head].issuperset(labels)
            yield record

    def warnings(self, name: str, trains: bool = False) -> Iterator[str]:
        """Yield a line about each answer that these records cannot train or evaluate, and about unknown labels."""
        if self._counted and self._records == 1:
            little = "one record is too few to train on" if trains else "the score of one record means nothing"
            yield f"{name}: there is 1 record; {little}; add more"
        one_sided = "no other answer can be learned" if trains else "their score says nothing about other answers"
        for head, part in self._heads.items():
            where, labels = f"{name}: {head}: " if head else f"{name}: ", self._labels[head]
            if self._records > 1 and (message := part.one_sided(labels, self._records)):
                yield f"{where}{message}; {one_sided}; add records of each"
            if trains and part.kind.kind == "label" and (message := rare_labels(labels, self._places[head])):
                yield f"{where}{message}"
            groups: dict[str, Counter[str]] = defaultdict(Counter)
            for label, count in labels.items():
                groups[folded_label(label)][label] = count
            alike: dict[str, list[str]] = defaultdict(list)
            for group in groups.values():
                if len(group) > 1:
                    cause = next(cause for cause, fold in _FOLDS.items() if len(set(map(fold, group))) == 1)
                    alike[cause].append(_list_labels(group, self._places[head]))
            for cause, examples in alike.items():
                message = f"differ only by {cause}, and count as different; correct the data"
                yield f"{where}the labels {list_examples(examples)} {message}"
            known = part.answer_labels()
            unknown = Counter({label: count for label, count in labels.items() if label not in known})
            if unknown:
                share = f"{self._missed[head]:,} of {self._records:,} records"
                problem = "have labels that the model does not know; these count as missed"
                yield f"{where}{share} {problem}: {_list_labels(unknown)}"


def rare_labels(labels: Counter[str], places: Mapping[str, str]) -> str:
    """Return a warning about the labels that occur once, with their places; "" without such, or with few records."""
    once = [f"{label!r} ({places.get(label) or 'once'})" for label, number in labels.items() if number == 1]
    fix = "a model cannot learn a label from one record; correct it, or add others"
    is_many = labels.total() >= MIN_RARE_LABEL_RECORDS
    return f"labels that occur once: {list_examples(once)}; {fix}" if once and is_many else ""


def list_examples(examples: Sequence[str]) -> str:
    """Return the first examples of a fault, and the number of the others."""
    more = f"; and {len(examples) - 3:,} more" if len(examples) > 3 else ""
    return "; ".join(examples[:3]) + more


def folded_label(label: str) -> str:
    """Return a label without differences of case, Unicode form, white space and the decimals of a whole number."""
    return _whole_number(" ".join(normalize("NFKC", normalize("NFKC", label).casefold()).split()))


_whole_number = partial(re.compile(r"^([+-]?\d+)\.0+$").sub, r"\1")  # 1.0 as 1


_FOLDS: Mapping[str, Callable[[str], str]] = {
    "white space": lambda label: " ".join(label.split()),
    "Unicode form": partial(normalize, "NFKC"),
    "case": str.casefold,
    "the decimals of a whole number": _whole_number,
    "case, Unicode form, white space or decimals": folded_label,
}


def _list_labels(labels: Counter[str], places: Mapping[str, str] | None = None) -> str:
    unlisted = len(labels) - MAX_LABELS
    where = {label: f", {place}" for label, place in (places or {}).items() if place}
    shown = ", ".join(f"{label!r} ({count:,}{where.get(label, '')})" for label, count in labels.most_common(MAX_LABELS))
    return shown + (f" and {unlisted:,} more" if unlisted > 0 else "")
