"""Answers to a text that is read in pieces: each part of an answer as soon as no later piece can change it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from tokenizers import Tokenizer

from seqpipe.answers import decision_checks
from seqpipe.answers.types import (
    LOG_ZERO,
    TEXT,
    WHOLE_TEXT,
    Answer,
    Array,
    Candidates,
    Choice,
    Counts,
    HeadInfo,
    MakeTargets,
    Masking,
    Metric,
    Part,
    Schema,
    ScoringRow,
    SpanRules,
    Targets,
    array,
    obj,
)
from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Arrays, Doc, Record, field_names
from seqpipe.features.vocabulary import Vocabulary


class PieceReader(ABC):
    """Turns the decisions about the pieces of one text, in order, into parts of its answer.

    Attributes:
        tags: Of a kind that tags words, the tag of each word of the last piece (of spans in the scheme IOB2).
    """

    outputs: ClassVar[tuple[str, ...]] = ()  # of the graph, which it reads besides those of its kind

    def __init__(self) -> None:
        self.tags: list[str] = []

    @abstractmethod
    def read(self, doc: Doc, decision: Arrays, answer: Answer) -> Answer:
        """What is known after one more piece.

        Args:
            doc: The piece, which begins where the one before ended.
            decision: About the piece, one row.
            answer: What the decision would mean if the piece were the whole text.
        """

    @abstractmethod
    def finish(self) -> Answer:
        """What is known in addition once the text has ended."""


class WholeSoFar(PieceReader):
    """The answer to the text so far, of kinds that answer for a text as a whole."""

    def __init__(self, kind: AnswerKind):
        super().__init__()
        self.answer = kind.empty(False)

    def read(self, doc: Doc, decision: Arrays, answer: Answer) -> Answer:
        self.answer = answer
        return answer

    def finish(self) -> Answer:
        return self.answer


class TagPieces(PieceReader):
    """The tag of each word, with its place in the whole text."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 0  # code points of the pieces before

    def read(self, doc: Doc, decision: Arrays, answer: Answer) -> list[dict[str, Any]]:
        shift, self.length = self.length, self.length + len(doc.text)
        self.tags = [word["entity"] for word in answer]
        return [{**word, "start": word["start"] + shift, "end": word["end"] + shift} for word in answer]

    def finish(self) -> list[dict[str, Any]]:
        return []


# What an answer kind is: the tensors of its decision, its targets, labels, metrics, answers and errors.

LOOSE = 0.02  # how far numbers of an answer may differ in int8, of those over 1 as a share
_NO_FIELD = "write it in each record, or name the field of the answer with the head's option `target`"
NO_TEXT_SCORES = (
    "an answer of kind {} gives no probability of a text: take a model whose only head is a causal or a masked "
    "language model"
)
NOTHING = "(nothing)"  # how an answer without content reads
WARNING = "warning"  # the key of an answer that says what a person should know about its input


class AnswerKind(ABC):
    """What a model answers with: that of one head, a `HeadAnswer`, or of several together."""

    kind: ClassVar[str]  # as a bundle's manifest names it
    metrics: Mapping[str, Metric] = {}  # the scores; the first is the headline
    is_generated: ClassVar[bool] = False  # whether it continues its input token by token, and may be streamed
    every_token: bool = False  # whether all tokens of its input are read; else those of white space alone are left out
    is_embedding: ClassVar[bool] = False  # whether it answers with a vector, under the key `vector`
    joins_sources: ClassVar[bool] = (
        False  # whether of several sources the first is answered, and the others are context
    )
    tags_words: ClassVar[bool] = False  # whether it labels words: an answer to a document is those to its sentences
    scoring_options: ClassVar[Mapping[str, Any] | None] = None  # of a run that gives the log-probability of a text
    figure_style: str | None = None  # how an answer is drawn among the points of its input, if it is
    points: str | None = None  # the record field of these points

    @property
    @abstractmethod
    def drawing(self) -> dict[str, Any]:
        """How the page of `seqpipe serve` draws an answer: the drawing's name, `as`, and what that needs to know.

        `several` is the key under which an alternative of several holds what is otherwise the whole answer, where it
        does; `labels` what labels are told apart by color.
        """

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

    def piece_reader(self) -> PieceReader:
        """A reader of decisions about the pieces of one text."""
        return WholeSoFar(self)

    @abstractmethod
    def empty(self, several: bool) -> Answer:
        """The answer to a text of no tokens."""

    def empty_for(self, options: Arrays) -> Answer:
        """The answer to a text of no tokens under these decode options."""
        return self.empty(len(options.get("n_best", ())) > 1)

    @abstractmethod
    def answer_schema(self) -> Schema:
        """The JSON Schema of an answer where no alternatives are asked for."""

    @abstractmethod
    def schema(self, options: Mapping[str, Any]) -> Schema:
        """The JSON Schema of every answer of a bundle with these decode options, alternatives too."""

    def text_length(self, doc: Doc) -> int:
        """How many tokens are read of a text."""
        return len(doc.ids)

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

    def scoring_rows(self, doc: Doc, part: Part | None, masking: Masking) -> list[ScoringRow]:
        """The rows to run for the log-probability of a text, or of a part of it; their log-probabilities add up.

        Args:
            doc: The text; of a pair the second, given the first.
            part: Start and end in `doc.text` of the part.
            masking: What a masked language model masks of the tokens around the one that it predicts.
        """
        raise UsageError(NO_TEXT_SCORES.format(self.kind))

    def scoring_inputs(self, rows: Sequence[ScoringRow]) -> Arrays:
        """What a batch of these rows is run with, besides other features and `scoring_options`."""
        raise UsageError(NO_TEXT_SCORES.format(self.kind))

    def row_scores(self, rows: Sequence[ScoringRow], decision: Arrays) -> list[float]:
        """The log-probability of each row, by the decision of its batch."""
        raise UsageError(NO_TEXT_SCORES.format(self.kind))

    def word_tags(self, answer: Answer, places: Sequence[tuple[int, int]]) -> list[str]:
        """The tag of each word, by the words' places, of a kind that tags words."""
        raise UsageError(f"an answer of kind {self.kind} has no tag for each word")

    @abstractmethod
    def lines(self, answer: Answer) -> list[str]:
        """An answer as a person reads it, a line each part; "(nothing)" where there is none."""

    @abstractmethod
    def with_warning(self, answer: Answer, warning: str) -> Answer:
        """The answer to an input longer than any in training, with a warning if this kind gives one."""

    @abstractmethod
    def warning(self, answer: Answer) -> str:
        """The warning that an answer holds; "" if none."""

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
    has_candidates: ClassVar[bool] = False  # whether it chooses from a set of texts
    counts_words: ClassVar[bool] = False  # whether a reference numbers words, so that all must be split as in the data
    may_self_supervise: ClassVar[bool] = False  # whether a self-supervised head may give it
    metric_packages: ClassVar[Mapping[str, str]] = {}  # packages that scores are absent without, and these scores
    needs_tokenizer: ClassVar[bool] = False  # whether it writes text, with a tokenizer of its own
    has_target_text: ClassVar[bool] = False  # whether a record's target is a text
    is_stepwise: ClassVar[bool] = False  # whether it is made step by step: a choice changes all behind it
    counts_tokens: ClassVar[bool] = False  # whether exp of its mean loss is the perplexity of a target token
    is_numeric: bool = False  # whether answers are numbers: an infinite one is none, and metrics differ in rounding
    scored_labels: ClassVar[str] = ""  # the output whose last axis is as long as `labels`
    step_output: ClassVar[str] = ""  # the output (B, K, N) of what is written or pointed at step by step
    warns_of_length: ClassVar[bool] = False  # whether it tends to be wrong for inputs longer than any in training
    copies: Any = None  # the feature by which words of the input are copied, if they are
    self_supervised: bool = False  # whether no record says what is right
    labels: Sequence[str] = ()
    candidates: Candidates | None = None  # the texts that it chooses from
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
        """The labels of one record as a whole."""
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
    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        """The function that makes what the head learns from a record.

        Args:
            settings: What the head's `answer_settings` states.
            rules: What to do with a span that cuts a word or a token.
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

    @abstractmethod
    def part_schema(self) -> Schema:
        """The JSON Schema of an answer without a warning."""

    def alternative_schema(self) -> Schema:
        """The JSON Schema of one of several answers, without a warning."""
        return self.part_schema()

    def answer_schema(self) -> Schema:
        return self._may_warn(self.part_schema())

    def schema(self, options: Mapping[str, Any]) -> Schema:
        if "n_best" not in options:
            return self.answer_schema()
        return {"anyOf": [self.answer_schema(), array(self._may_warn(self.alternative_schema()))]}

    def _may_warn(self, schema: Schema) -> Schema:
        if not self.warns_of_length:
            return schema
        return obj({**schema["properties"], WARNING: TEXT}, optional=[WARNING])

    def lines(self, answer: Answer) -> list[str]:
        parts = answer if isinstance(answer, list) else [answer]
        return [line for part in parts for line in self.part_lines(part)] or [NOTHING]

    @abstractmethod
    def part_lines(self, part: Any) -> list[str]:
        """One alternative, or one part of a list that is an answer, as a person reads it."""

    def is_right(self, gold: Any, predicted: Any) -> bool:
        """Whether an answer is right; without a reference none is wrong."""
        return self.self_supervised or bool(gold == predicted)

    def with_warning(self, answer: Answer, warning: str) -> Answer:
        if not self.warns_of_length:
            return answer
        if isinstance(answer, list):
            return [{**alternative, WARNING: warning} for alternative in answer]
        return {**answer, WARNING: warning}

    def warning(self, answer: Answer) -> str:
        return str(best_of(answer).get(WARNING, "")) if self.warns_of_length else ""

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

    # what `seqpipe.testing` and `check` ask

    @classmethod
    def example_fields(cls, settings: Mapping[str, Any], record: Record, number: int) -> Record:
        """Fields that a toy record needs so that a head with these settings can learn from it."""
        return {}

    @classmethod
    def example_words(cls, settings: Mapping[str, Any], words: Sequence[str], number: int) -> Sequence[str]:
        """The words of a toy text that is to be answered."""
        return words

    def counts(self, mask: np.ndarray) -> dict[str, int]:
        """How many ids there are of each sort that an `Array` may hold, for texts with this mask (B, T)."""
        return {"label": len(self.labels), "flag": 2}

    def decision_fault(self, decision: Arrays, features: Arrays, settings: Mapping[str, Any]) -> str:
        """What is wrong with a decision; "" if nothing is."""
        mask = features["mask"]
        sizes = {"B": len(mask), "T": mask.shape[1], "L": len(self.labels)}
        return decision_checks.array_fault(self.decided, decision, sizes) or decision_checks.value_fault(
            self.decided, decision, mask, self.counts(mask)
        )

    def equal_decisions(self, expected: Arrays, got: Arrays, masks: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """Whether two decisions agree in each thing decided; of numbers, whether they are as near as int8 allows."""
        outputs = [name for choice in self.choices[:1] for name in choice.outputs]
        yield from decision_checks.equal_decisions(self.decided, outputs, (expected, got), masks)
        for name in self.decided if self.is_numeric else ():
            if name in expected and expected[name].dtype.kind == "f" and not self.decided[name].values:
                allowed = LOOSE * np.maximum(1, np.abs(expected[name]))
                yield (np.abs(expected[name] - got[name]) <= allowed).ravel()

    def other_target(self, name: str, targets: Arrays, mask: np.ndarray) -> np.ndarray:
        """Other valid values of a target, which the loss has to notice."""
        return decision_checks.changed_values(self.targets[name], targets[name], mask, self.counts(mask))

    def other_decision(self, decision: Arrays, mask: np.ndarray) -> Arrays:
        """Another decision, which `score` has to notice."""
        changed = {
            name: decision_checks.changed_values(self.decided[name], decision[name], mask, self.counts(mask))
            for choice in self.choices[:1]
            for name in choice.outputs
        }
        return {**decision, **changed}

    def rated_decisions(self, decision: Arrays, mask: np.ndarray) -> list[tuple[Arrays, np.ndarray]]:
        """Decisions whose log-probability (B,) the decision itself states, with it; none where it states none."""
        if self.decided.get("scores", Array("", "")).values == "log-probability":
            return [(decision, decision["scores"][:, 0])]
        return []

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


def with_score(text: Any, part: Mapping[str, Any]) -> str:
    """A part of an answer as a person reads it, with its score if it has one."""
    score = f" ({part['score']:.4f})" if isinstance(part.get("score"), float) else ""
    return f"{NOTHING if text in ('', None) else text}{score}"


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
