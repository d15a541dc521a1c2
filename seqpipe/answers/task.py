"""Tasks: what training and evaluation need besides an answer kind, its labels, targets, metrics and references."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic
from unicodedata import normalize

from tokenizers import Tokenizer
from typing_extensions import TypeVar

from seqpipe.answers.base import A, AnswerKind, HeadAnswer
from seqpipe.answers.types import WHOLE_TEXT, Array, Choice, Counts, MakeTargets, Metric, SpanRules, Targets
from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Arrays, Doc, Record, field_names
from seqpipe.features.vocabulary import Vocabulary

K = TypeVar("K", bound=HeadAnswer, default=Any)  # the answer kind of a task
_NO_FIELD = "write it in each record, or name the field of the answer with the head's option `target`"


class Task(ABC, Generic[A]):
    """Training and evaluation of an answer kind: that of one head, a `HeadTask`, or of several together."""

    metrics: Mapping[str, Metric] = {}  # the scores; the first is the headline

    @property
    @abstractmethod
    def kind(self) -> AnswerKind[A]:
        """The answer kind."""

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, HeadTask]:
        """The tasks of several heads by head; of one head alone this task, under the name ""."""

    def question(self, record: Record) -> Record:
        """Return the input by which a model is judged: the record itself, or one with gaps."""
        return record

    @abstractmethod
    def gold(self, record: Record) -> Any:
        """The reference of a record; DataError if it has none."""

    @abstractmethod
    def predicted(self, answer: A) -> Any:
        """Return the part of an answer that is compared with the reference."""

    def perplexity(
        self,
        docs: Iterable[tuple[Doc, bool]],
        run: Callable[[Arrays], Arrays],
        other_features: Callable[[Sequence[Doc]], Arrays],
    ) -> dict[str, float]:
        """Perplexity and the like of texts, of a kind that is generated.

        Args:
            docs: The texts, each with whether it continues in the next one.
            run: Features of a batch to a decision that holds `prompt_scores`.
            other_features: Texts of their own to what the features of a batch hold besides tokens.
        """
        raise UsageError(f"an answer of kind {self.kind.kind} has no perplexity")

    @property
    def is_comparable(self) -> bool:
        """True if an answer can be right or wrong."""
        return True

    def is_right(self, gold: Any, predicted: Any) -> bool:
        """Return True if an answer is right."""
        return bool(gold == predicted)

    def mistakes(self, gold: Any, predicted: Any) -> dict[str, Any]:
        """Return the parts that a wrong answer lacks, and those that are wrong in it."""
        if isinstance(predicted, list) and isinstance(gold, list):
            missed = [part for part in gold if part not in predicted]
            return {"missed": missed, "wrong": [part for part in predicted if part not in gold]}
        return {"expected": gold, "got": predicted}


@dataclass(frozen=True)
class HeadInfo:
    """Facts about a head and its inputs by which its answer kind is fitted to the training records.

    Args:
        settings: What the head's `answer_settings` states, completed by the kind's defaults.
        target: The record field of the reference, if the YAML names one.
        self_supervised: Whether the head learns from the text itself.
        same_tokenizer: Whether it writes with the tokenizer of its input.
        copies: Whether it copies words of its input.
        fields: The record fields of the first input's texts.
        rows: What the rows of x are: an axis of `seqpipe.config.checks`.
        numbers: The record field of the first input's rows of numbers; None where it is a text.
        candidates: The records of `data.candidates`, or those of training where there is no such file.
        old_labels: The labels of the run that the head is initialised from.
    """

    settings: Mapping[str, Any]
    target: str | None = None
    self_supervised: bool = False
    same_tokenizer: bool = False
    copies: bool = False
    fields: tuple[str, ...] = ("text",)
    rows: str = ""
    numbers: str | None = None
    candidates: Sequence[Record] = ()
    old_labels: Sequence[str] = field(default=())


class HeadTask(Task[A], Generic[A, K]):
    """The task of one head; a subclass states what differs. `seqpipe.answers.registry` lists them by their kinds.

    Args:
        kind: The answer kind, with the labels or the tokenizer that were fitted.
    """

    kind_type: type[HeadAnswer]  # of what is answered
    settings: ClassVar[Mapping[str, Any]] = {}  # what a head's `answer_settings` may state, with defaults
    targets: ClassVar[Mapping[str, Array]] = {}  # what `loss` takes
    choices: tuple[Choice, ...] = ()  # outputs whose decision the head's `score` rates
    subject: ClassVar[str] = WHOLE_TEXT  # what a decision is about; PASSAGE: the second text of a pair
    has_labels: ClassVar[bool] = False  # whether a head is built from `labels`
    has_candidates: ClassVar[bool] = False  # whether it chooses from a set of texts
    joins_sources: ClassVar[bool] = False  # whether of several sources the first is answered, others being context
    counts_words: ClassVar[bool] = False  # whether a reference numbers words, so that all must be split as in the data
    may_self_supervise: ClassVar[bool] = False  # whether a self-supervised head may give it
    metric_packages: ClassVar[Mapping[str, str]] = {}  # packages that scores are absent without, and these scores
    has_target_text: ClassVar[bool] = False  # whether a record's target is a text
    is_stepwise: ClassVar[bool] = False  # whether it is made step by step: a choice changes all behind it
    counts_tokens: ClassVar[bool] = False  # whether exp of its mean loss is the perplexity of a target token

    def __init__(self, kind: K):
        self._kind = kind

    @property
    def kind(self) -> K:
        return self._kind

    @property
    def parts(self) -> Mapping[str, HeadTask]:
        return {"": self}

    # what a head declares

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
        """The scores under these settings."""
        return cls.metrics

    @classmethod
    def declared_subject(cls, settings: Mapping[str, Any]) -> str:
        """Return the subject of a decision under these settings: WHOLE_TEXT, EACH_WORD or PASSAGE."""
        return cls.subject

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        """ValueError for settings that this kind cannot have."""

    # fitting to training records

    @classmethod
    def refuse_input(cls, head: HeadInfo) -> str:
        """Return the reason why the answer cannot be made of this input, with the fix; "" if it can."""
        return ""

    @classmethod
    def label_conflict(cls, old: Mapping[str, Any], settings: Mapping[str, Any], where: str) -> str:
        """Return the reason why the labels of an `old` manifest do not fit, with the fix; "" if they do."""
        return ""

    @classmethod
    def collect_labels(cls, head: HeadInfo, records: Sequence[Record]) -> Vocabulary:
        """The labels of the training records, those of an older run first, with how often each occurs."""
        return Vocabulary(())

    def wired_labels(self, labels: Vocabulary) -> Any:
        """Return the constructor argument `labels` of a head."""
        return labels

    @classmethod
    @abstractmethod
    def create(cls, head: HeadInfo, labels: Sequence[str], tokenizer: Tokenizer | None) -> HeadAnswer:
        """The answer kind as a head that was just fitted gives it."""

    @abstractmethod
    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        """The function that makes what the head learns from a record.

        Args:
            settings: What the head's `answer_settings` states.
            rules: What to do with a span that cuts a word or a token.
        """

    def unwritable(self, records: Sequence[Record], docs: Sequence[Doc], longest: int | None) -> Iterator[str]:
        """Yield a line about each sort of targets that can never be answered."""
        yield from ()

    # judging answers

    @property
    def is_comparable(self) -> bool:
        return not self.kind.self_supervised

    def is_right(self, gold: Any, predicted: Any) -> bool:
        """Return True if an answer is right; without a reference none is wrong."""
        return self.kind.self_supervised or bool(gold == predicted)

    @abstractmethod
    def counter(self) -> Counts:
        """A fresh counter of scores."""

    # warnings about data

    def answer_labels(self) -> set[Any]:
        """The labels that an answer may hold; empty where there are none that a reference can be checked for."""
        return set()

    def labels_in(self, gold: Any) -> list[str]:
        """The labels of a reference."""
        return []

    def one_sided(self, labels: Counter[str], records: int) -> str:
        """Return a property of all these records for which a score of them says little; "" if they differ."""
        return ""


def check_settings(task: type[HeadTask], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A head's settings completed by the kind's defaults; ValueError for one that the kind does not know."""
    if unknown := sorted(settings.keys() - task.settings.keys()):
        known = ", ".join(task.settings) or "none"
        raise ValueError(f"the answer kind {task.kind_type.kind!r} has no setting {unknown[0]!r} (there is: {known})")
    completed = {**task.settings, **settings}
    task.check_settings(completed)
    return completed


def required_field(record: Record, name: str) -> Any:
    """The value of a record's field; DataError if the record lacks it."""
    if name not in record:
        raise DataError.at(record, f"no field {name!r} to compare with; it has: {field_names(record)}; {_NO_FIELD}")
    return record[name]


def present(record: Record, name: str) -> Any:
    """The value of a record's field; DataError if it is missing or null."""
    if record.get(name) is None:
        raise DataError.at(record, f"no field {name!r}; the record has: {field_names(record)}; {_NO_FIELD}")
    return record[name]


def no_targets(record: Record, doc: Doc) -> Targets:
    """The targets of a self-supervised head, which makes them itself."""
    return {}


# Warnings about records with references: data of which a score says nothing.

SHOWN = 5  # labels that a warning lists


def warnings_about(task: Task, name: str, records: Iterable[Record], trains: bool = False) -> Iterator[str]:
    """The warnings about a set of records, that a model is trained on or scored on, a line each."""
    census = Census(task)
    for _ in census.watch(records):
        pass
    yield from census.warnings(name, trains)


class Census:
    """Counts of the labels of references, taken while records pass by."""

    def __init__(self, task: Task):
        compared = {
            head: part for head, part in task.parts.items() if not (part.kind.self_supervised or part.kind.is_generated)
        }
        self._heads = {head: part for head, part in compared.items() if part.answer_labels()}
        self._counted = bool(compared)
        self._labels: dict[str, Counter[str]] = {head: Counter() for head in self._heads}
        self._places: dict[str, dict[str, str]] = {head: {} for head in self._heads}  # of each label, the first
        self._unknown: dict[str, Counter[str]] = {head: Counter() for head in self._heads}
        self._missed: Counter[str] = Counter()  # records with a label that the model does not know, by head
        self._records = 0

    def watch(self, records: Iterable[Record]) -> Iterator[Record]:
        """The same records, each counted."""
        known = {head: part.answer_labels() for head, part in self._heads.items()}
        for record in records:
            self._records += 1
            for head, part in self._heads.items():
                labels = part.labels_in(part.gold(record))
                self._labels[head].update(labels)
                for label in labels:
                    self._places[head].setdefault(label, record.get("where", ""))
                unknown = [label for label in labels if label not in known[head]]
                self._unknown[head].update(unknown)
                self._missed[head] += bool(unknown)
            yield record

    def warnings(self, name: str, trains: bool = False) -> Iterator[str]:
        """Yield a line about each answer that these records cannot teach or judge, and about unknown labels."""
        if self._counted and self._records == 1:
            little = "nothing can be learned from one" if trains else "a score of one record says nothing"
            yield f"{name}: there is 1 record; {little}, give more"
        one_sided = "no other answer can be learned" if trains else "a score of them says nothing about other answers"
        for head, part in self._heads.items():
            where, labels = f"{name}: {head}: " if head else f"{name}: ", self._labels[head]
            if self._records > 1 and (message := part.one_sided(labels, self._records)):
                yield f"{where}{message}; {one_sided}, give records of each"
            groups: dict[str, Counter[str]] = defaultdict(Counter)
            for label, count in labels.items():
                groups[folded_label(label)][label] = count
            alike: dict[str, list[str]] = defaultdict(list)
            for group in groups.values():
                if len(group) > 1:
                    cause = next(cause for cause, fold in _FOLDS.items() if len(set(map(fold, group))) == 1)
                    alike[cause].append(_listed(group, self._places[head]))
            for cause, examples in alike.items():
                message = f"differ by {cause} alone, and count as different; correct the data"
                yield f"{where}the labels {listed(examples)} {message}"
            if unknown := self._unknown[head]:
                message = (
                    f"{self._missed[head]:,} of {self._records:,} records hold labels that the model does not know"
                )
                yield f"{where}{message}, and that count as missed: {_listed(unknown)}"


def listed(examples: Sequence[str]) -> str:
    """Return the first examples of a fault, and the number of the others."""
    rest = f"; and {len(examples) - 3:,} more" if len(examples) > 3 else ""
    return "; ".join(examples[:3]) + rest


def folded_label(label: str) -> str:
    """Return a label without differences of case, Unicode form and white space."""
    return " ".join(normalize("NFKC", normalize("NFKC", label).casefold()).split())


_FOLDS: Mapping[str, Callable[[str], str]] = {
    "white space": lambda label: " ".join(label.split()),
    "Unicode form": partial(normalize, "NFKC"),
    "case": str.casefold,
    "case, Unicode form and white space": folded_label,
}


def _listed(labels: Counter[str], places: Mapping[str, str] | None = None) -> str:
    rest = len(labels) - SHOWN
    where = {label: f", {place}" for label, place in (places or {}).items() if place}
    shown = ", ".join(f"{label!r} ({count:,}{where.get(label, '')})" for label, count in labels.most_common(SHOWN))
    return shown + (f" and {rest:,} more" if rest > 0 else "")
