"""What an answer kind is: the tensors of its decision, its targets, labels, metrics, answers and errors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from tokenizers import Tokenizer

from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Arrays, Doc, Record
from seqpipe.features.vocabulary import Vocabulary

Answer = Any  # as each kind's docstring has it; a list of alternatives when more than one is asked for
Scores = dict[str, Any]
Target = list[Any] | int | float | tuple[float, ...]  # for each token (or each pair of them); for the record; a row
Targets = dict[str, Target]  # by name
MakeTargets = Callable[[Record, Doc], Targets | None]  # None of a record that is to be skipped

WHOLE_TEXT, EACH_WORD, PASSAGE = "text", "words", "passage"  # what a decision is about
LOG_ZERO = -1e8  # a log-probability of this or less stands for what does not exist


@dataclass(frozen=True)
class Array:
    """A tensor that `decide` returns or that `loss` takes: its shape in letters, its dtype, and what its numbers are.

    Args:
        shape: Such as "(B, T)": B texts, T tokens, L labels, V tokens of the vocabulary, K alternatives, N steps.
        dtype: `int64`, `float32` or `bool`.
        values: What its numbers are: `label`, `token`, `flag`, `position`, `probability`, `log-probability`, or "".
        required: Whether every `decide` returns it.
    """

    shape: str
    dtype: str
    values: str = ""
    required: bool = True


@dataclass(frozen=True)
class Metric:
    """How a score is read: whether it is a fraction shown in per cent, and whether more of it is better."""

    percent: bool = True
    more_is_better: bool = True


@dataclass(frozen=True)
class Choice:
    """Outputs that are decided together, for telling a tie from an error (`seqpipe.training.ties`).

    Args:
        outputs: Their names.
        ranked: Whether axis 1 holds alternatives, the best first.
        scored_as: The output under whose name the head's `score` takes an alternative; "": its own.
    """

    outputs: tuple[str, ...]
    ranked: bool = False
    scored_as: str = ""


@dataclass(frozen=True)
class HeadInfo:
    """What an answer kind may know of its head and inputs when it is fitted to the training records.

    Args:
        settings: What the head's `answer_settings` states, completed by the kind's defaults.
        target: The record field of the reference, if the YAML names one.
        self_supervised: Whether the head learns from the text itself.
        same_tokenizer: Whether it writes with the tokenizer of its input.
        copies: Whether it copies words of its input.
        fields: The record fields of the first input's texts.
        rows: What the rows of x are: an axis of `seqpipe.config.attention_maps`.
        numbers: The record field of the first input's rows of numbers; None where it is a text.
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
    old_labels: Sequence[str] = field(default=())


class Counts(Protocol):
    """Counts scores record by record."""

    def add(self, gold: Any, predicted: Any, /) -> None: ...

    def result(self) -> Scores: ...


class UnseenLabelError(DataError):
    """A record has a label that no training record has."""


class AnswerKind(ABC):
    """What a model answers with: that of one head, a `HeadAnswer`, or of several together."""

    kind: ClassVar[str]  # as a bundle's manifest names it
    metrics: Mapping[str, Metric] = {}  # the scores; the first is the headline
    is_generated: ClassVar[bool] = False  # whether it continues its input token by token, and may be streamed
    tags_words: ClassVar[bool] = False  # whether it labels words: an answer to a document is those to its sentences
    figure_style: str | None = None  # how an answer is drawn among the points of its input, if it is
    points: str | None = None  # the record field of these points

    @property
    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """The graph outputs that every decision has."""

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, HeadAnswer]:
        """The kinds of several heads by head; of one head alone this kind, under the name ""."""

    @abstractmethod
    def manifest(self) -> dict[str, Any]:
        """What a bundle or a run states of it; the registry's `answer_from` reads it."""

    @abstractmethod
    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        """The answers that a decision means, one for each text."""

    @abstractmethod
    def empty(self, several: bool) -> Answer:
        """The answer to a text of no tokens."""

    def empty_for(self, options: Arrays) -> Answer:
        """The answer to a text of no tokens under these decode options."""
        return self.empty(len(options.get("n_best", ())) > 1)

    def text_length(self, doc: Doc) -> int:
        """How many tokens are read of a text."""
        return len(doc)

    def refuse_empty(self, docs: Sequence[Doc], records: Sequence[Record], before: int) -> None:
        """DataError for the first text that cannot be answered for want of a token, `before` others behind it."""

    def question(self, record: Record) -> Record:
        """What a model is asked in order to judge it by a record: the record itself, or one with gaps."""
        return record

    @abstractmethod
    def gold(self, record: Record) -> Any:
        """The reference of a record; DataError if it has none."""

    @abstractmethod
    def predicted(self, answer: Answer) -> Any:
        """What of an answer is compared with the reference."""

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
        raise UsageError(f"an answer of kind {self.kind} has no perplexity")

    def word_tags(self, answer: Answer, places: Sequence[tuple[int, int]]) -> list[str]:
        """The tag of each word, by the words' places, of a kind that tags words."""
        raise UsageError(f"an answer of kind {self.kind} has no tag for each word")

    @property
    def is_comparable(self) -> bool:
        """Whether an answer can be right or wrong."""
        return True

    def is_right(self, gold: Any, predicted: Any) -> bool:
        """Whether an answer is right."""
        return bool(gold == predicted)

    def mistakes(self, gold: Any, predicted: Any) -> dict[str, Any]:
        """What a wrong answer lacks and has too much."""
        if isinstance(predicted, list) and isinstance(gold, list):
            missed = [part for part in gold if part not in predicted]
            return {"missed": missed, "wrong": [part for part in predicted if part not in gold]}
        return {"expected": gold, "got": predicted}


class HeadAnswer(AnswerKind):
    """The answer kind of one head; a subclass states what differs. `seqpipe.answers.registry` lists them by name."""

    settings: ClassVar[Mapping[str, Any]] = {}  # what a head's `answer_settings` may state, with defaults
    decided: Mapping[str, Array] = {}  # what `decide` returns
    targets: ClassVar[Mapping[str, Array]] = {}  # what `loss` takes
    choices: tuple[Choice, ...] = ()  # outputs whose decision the head's `score` rates
    subject: ClassVar[str] = WHOLE_TEXT  # what a decision is about; PASSAGE: the second text of a pair
    has_labels: ClassVar[bool] = False  # whether a head is built from `labels`
    may_self_supervise: ClassVar[bool] = False  # whether a self-supervised head may give it
    metric_packages: ClassVar[Mapping[str, str]] = {}  # packages that scores are absent without, and these scores
    needs_tokenizer: ClassVar[bool] = False  # whether it writes text, with a tokenizer of its own
    has_target_text: ClassVar[bool] = False  # whether a record's target is a text
    is_stepwise: ClassVar[bool] = False  # whether it is made step by step: a choice changes all behind it
    counts_tokens: ClassVar[bool] = False  # whether exp of its mean loss is the perplexity of a target token
    is_numeric: bool = False  # whether answers are numbers: an infinite one is none, and metrics differ in rounding
    scored_labels: ClassVar[str] = ""  # the output whose last axis is as long as `labels`
    step_output: ClassVar[str] = ""  # the output (B, K, N) of what is written or pointed at step by step
    copies: Any = None  # the feature by which words of the input are copied, if they are
    self_supervised: bool = False  # whether no record says what is right
    labels: Sequence[str] = ()
    target: str | None = None  # the record field of the reference

    # what a head declares

    @classmethod
    def declared_decided(cls, settings: Mapping[str, Any]) -> Mapping[str, Array]:
        """What `decide` returns under these settings."""
        return cls.decided

    @classmethod
    def declared_targets(cls, settings: Mapping[str, Any]) -> Mapping[str, Array]:
        """What `loss` takes under these settings."""
        return cls.targets

    @classmethod
    def declared_metrics(cls, settings: Mapping[str, Any]) -> Mapping[str, Metric]:
        """The scores under these settings."""
        return cls.metrics

    @classmethod
    def declared_subject(cls, settings: Mapping[str, Any]) -> str:
        """What a decision is about under these settings: WHOLE_TEXT, EACH_WORD or PASSAGE."""
        return cls.subject

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        """ValueError for settings that this kind cannot have."""

    # fitting to training records

    @classmethod
    def refuse_input(cls, head: HeadInfo) -> str:
        """Why the answer cannot be made of this input, and the cure; "" if it can."""
        return ""

    @classmethod
    def label_conflict(cls, old: Mapping[str, Any], settings: Mapping[str, Any], where: str) -> str:
        """Why the labels of an `old` manifest do not fit these settings, and the cure; "" if they do."""
        return ""

    @classmethod
    def collect_labels(cls, head: HeadInfo, records: Sequence[Record]) -> Vocabulary:
        """The labels of the training records, those of an older run first, with how often each occurs."""
        return Vocabulary(())

    def wired_labels(self, labels: Vocabulary) -> Any:
        """What a head is built from as `labels`."""
        return labels

    @classmethod
    def record_labels(cls, record: Record, target: str | None) -> set[str]:
        """The labels of one record as a whole: a sample of the data keeps one record of each."""
        return set()

    @classmethod
    @abstractmethod
    def create(cls, head: HeadInfo, labels: Sequence[str], tokenizer: Tokenizer | None) -> HeadAnswer:
        """The kind as a head that was just fitted gives it."""

    @classmethod
    @abstractmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> HeadAnswer:
        """The kind as a bundle or a run states it; KeyError, TypeError or ValueError for one that does not."""

    @abstractmethod
    def target_maker(self, settings: Mapping[str, Any], misaligned: str) -> MakeTargets:
        """The function that makes what the head learns from a record.

        Args:
            settings: What the head's `answer_settings` states.
            misaligned: What to do with a span that cuts a word or a token: `error`, `widen` or `skip`.
        """

    def unwritable(self, records: Sequence[Record], docs: Sequence[Doc], longest: int | None) -> Iterator[str]:
        """What of the records' targets can never be answered, a line each."""
        yield from ()

    # answers

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(name for name, array in self.decided.items() if array.required)

    @property
    def parts(self) -> Mapping[str, HeadAnswer]:
        return {"": self}

    @property
    def is_comparable(self) -> bool:
        return not self.self_supervised

    def is_right(self, gold: Any, predicted: Any) -> bool:
        """Whether an answer is right; without a reference none is wrong."""
        return self.self_supervised or bool(gold == predicted)

    def is_invalid(self, name: str, array: np.ndarray, docs: Sequence[Doc]) -> np.ndarray:
        """Which numbers of an output make no answer."""
        return ~np.isfinite(array) if self.is_numeric else np.isnan(array)

    def token_ids(self, option: str, value: Any) -> list[int]:
        """The ids of the tokens that a decode option names; UsageError where there are none."""
        raise UsageError(f"{option}: must be a text, a list of tokens, or a list of their ids, not {value!r}")

    def step_ids(self, ids: list[int]) -> list[int]:
        """The ids of the steps up to the end."""
        return ids

    def step_names(self, ids: list[int], doc: Doc) -> list[str]:
        """What was written or pointed at, step by step, as a person reads it."""
        return []

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
        """What all of these records have in common, so that a score of them says little; "" where they differ."""
        return ""


def check_settings(kind: type[HeadAnswer], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A head's settings completed by the kind's defaults; ValueError for one that the kind does not know."""
    if unknown := sorted(settings.keys() - kind.settings.keys()):
        known = ", ".join(kind.settings) or "none"
        raise ValueError(f"the answer kind {kind.kind!r} has no setting {unknown[0]!r} (there is: {known})")
    completed = {**kind.settings, **settings}
    kind.check_settings(completed)
    return completed


def without_missing(answers: Iterable[Any], log_p: Iterable[float]) -> list[Any]:
    """The answers whose log-probability says that they exist."""
    return [answer for answer, p in zip(answers, log_p, strict=True) if p > LOG_ZERO]


def float32_number(value: float) -> float:
    """A number with as many digits as float32 holds."""
    return float(f"{value:.7g}")


def probability(value: Any) -> float:
    """A probability as answers state it: six digits, from 0 to 1; DataError for NaN."""
    if math.isnan(value):
        raise DataError("a score is NaN for this input; leave it out, or train again: the weights overflow")
    return round(min(1.0, max(0.0, float(value))), 6)


def best_of(answer: Answer) -> Any:
    """The first of several answers, or the only one."""
    return answer[0] if isinstance(answer, list) else answer


def required_field(record: Record, name: str) -> Any:
    """The value of a record's field; DataError if the record lacks it."""
    if name not in record:
        raise DataError.at(record, f"no field {name!r} to compare with; it has: {', '.join(record)}")
    return record[name]


def present(record: Record, name: str) -> Any:
    """The value of a record's field; DataError if it is missing or null."""
    if record.get(name) is None:
        raise DataError.at(record, f"no field {name!r}; the record has: {', '.join(record)}")
    return record[name]
