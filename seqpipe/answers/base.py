"""Answer kinds: conversion of a graph's decisions to answers in deployment."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar, Generic, Protocol, Self

import numpy as np
from tokenizers import Tokenizer
from typing_extensions import TypeVar  # with a default, which `typing` supports from Python 3.13 on

from seqpipe.answers.schemas import Schema, schema_of
from seqpipe.answers.types import LOG_ZERO, Array, CandidateTexts, Masking, Part, ScoringRow
from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Arrays, Doc
from seqpipe.types import TextWriter

P = TypeVar("P")
A = TypeVar("A", default=Any)  # the answers of a kind; Any if the class of the kind is unknown

LOOSE = 0.02  # allowed difference of numbers in int8, relative for those over 1
NOTHING = "(nothing)"  # an answer without content as text
WARNING = "warning"  # the key of a warning about the input in an answer
LOG_SCORE = "log_score"  # the key of an alternative's log-probability in its answer and, if it has it, in the manifest


class TextScorer(Protocol):
    """Answer kind of a language model, which gives the log-probability of a text."""

    scoring_options: ClassVar[Mapping[str, Any]]  # options of a run

    def scoring_rows(self, doc: Doc, part: Part | None, masking: Masking) -> list[ScoringRow]:
        """Return the rows whose log-probabilities sum to that of a text, or of a part of it.

        Args:
            doc: The text; for a pair the second text, conditioned on the first.
            part: Start and end of the part in `doc.text`.
            masking: The tokens that a masked language model masks around the one that it predicts.
        """

    def scoring_inputs(self, rows: Sequence[ScoringRow]) -> Arrays:
        """Return the inputs of a batch of these rows, without other features and `scoring_options`."""

    def row_scores(self, rows: Sequence[ScoringRow], decision: Arrays) -> list[float]:
        """Return the log-probability of each row from the decision of its batch."""


class ChunkReader(Generic[A]):
    """Converts the decisions about the chunks of one text, in order, to parts of its answer.

    By default these are the answers to the text so far, for kinds that answer a text as a whole.

    Attributes:
        answer: The answer to the text so far.
        tags: For kinds that tag words, the tag of each word of the last chunk (for spans in the scheme IOB2).
    """

    outputs: ClassVar[tuple[str, ...]] = ()  # of the graph, in addition to those of the kind

    def __init__(self, empty: A):
        self.tags: list[str] = []
        self.answer = empty

    def read(self, doc: Doc, decision: Arrays, answer: A) -> A:
        """Return the parts of the answer that are known after one more chunk.

        Args:
            doc: The chunk, which begins where the previous one ended.
            decision: The decision about the chunk, one row.
            answer: The answer if the chunk were the whole text.
        """
        self.answer = answer
        return answer

    def finish(self) -> A:
        """Return the remaining parts at the end of the text."""
        return self.answer


class AnswerKind(ABC, Generic[A]):
    """Answer kind of a model: that of one head, a `HeadAnswer`, or the joint one of several.

    A deployment needs nothing else; training and evaluation also need a `seqpipe.answers.task.Task`.

    Attributes:
        drawing: The drawing of an answer on the page of `seqpipe serve`: its name under the key `as`, and its settings:
            `labels` to distinguish by color; `several`, the key in an alternative of the value that is otherwise the
            whole answer; `list`, the key of the labels in an answer that is not a list of them. The page shows answers
            of unknown drawings as JSON.
    """

    kind: ClassVar[str]  # as a bundle's manifest names it
    drawing: Mapping[str, Any]
    is_generated: ClassVar[bool] = False  # whether it continues its input token by token, and may be streamed
    every_token: bool = False  # whether all tokens of the input are read, or those of white space are left out
    reads_blanks: bool = False  # whether a text of white space is read, as by a converted checkpoint
    of_whole_text: ClassVar[bool] = True  # whether such a checkpoint also answers a text without tokens
    is_embedding: ClassVar[bool] = False  # whether it answers with a vector, under the key `vector`
    tags_words: ClassVar[bool] = False  # whether it labels words: the answer to a document joins those to its sentences
    figure_style: str | None = None  # drawing of positions among rows of numbers in `seqpipe explain`, if any
    figure_key: ClassVar[str] = ""  # the key of these positions in an answer

    @property
    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """Graph outputs of every decision."""

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, HeadAnswer]:
        """Answer kinds by the name of the head; for a single head this kind, under the name ""."""

    @abstractmethod
    def manifest(self) -> dict[str, Any]:
        """Return the entry of a bundle's or a run's manifest, which the registry's `answer_from` reads."""

    @abstractmethod
    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[A]:
        """Convert a decision to answers, one for each text."""

    @property
    def answer_options(self) -> Mapping[str, Mapping[str, Any]]:
        """Decode options that `answers` reads beside the decision; the graph does not have them."""
        return {}

    def chunk_reader(self) -> ChunkReader[A]:
        """Return a reader of decisions about the chunks of one text."""
        return ChunkReader(self.empty(False))

    @abstractmethod
    def empty(self, several: bool) -> A:
        """Return the answer to a text without tokens."""

    def empty_for(self, options: Arrays) -> A:
        """Return the answer to a text without tokens with these decode options."""
        return self.empty(len(options.get("n_best", ())) > 1)

    @abstractmethod
    def answer_schema(self) -> Schema:
        """Return the JSON Schema of an answer without alternatives."""

    @abstractmethod
    def schema(self, options: Mapping[str, Any]) -> Schema:
        """Return the JSON Schema of the answers of a bundle with these decode options, including alternatives."""

    def text_length(self, doc: Doc) -> int:
        """Return the number of input tokens of a text; 0 if it is answered without the graph."""
        return len(doc.ids) or int(self.reads_blanks and self.of_whole_text)

    @property
    def scorer(self) -> TextScorer | None:
        """This kind, if it is that of a language model."""
        return None

    def word_tags(self, answer: A, places: Sequence[tuple[int, int]]) -> list[str]:
        """Return the tag of each word, for kinds that tag words."""
        raise UsageError(f"answers of kind {self.kind} have no tag for each word")

    @abstractmethod
    def lines(self, answer: A) -> list[str]:
        """Return an answer as lines of text, one for each part; "(nothing)" if it is empty."""

    @abstractmethod
    def with_warning(self, answer: A, warning: str) -> A:
        """Add the warning about an input longer than any in training, if this kind has it."""

    @abstractmethod
    def warning(self, answer: A) -> str:
        """Return the warning in an answer; "" if there is none."""


class HeadAnswer(AnswerKind[A]):
    """Base of the answer kinds of one head. `seqpipe.answers.registry` lists them by name."""

    answer_type: Any  # of an answer without alternatives: a typed dict, or a list of them
    alternative_type: Any = None  # of one of several answers, if it differs
    nothing: Any = None  # the answer to a text without tokens
    text_key: ClassVar[str] = ""  # the key of an alternative, or of an item of a list answer, that is shown as text
    decided: Mapping[str, Array] = {}  # the outputs of `decide`
    manifest_keys: ClassVar[tuple[str, ...]] = ("target",)  # arguments of the constructor in each manifest
    manifest_defaults: ClassVar[Mapping[str, Any]] = {}  # others, which are left out if they have these values
    needs_tokenizer: ClassVar[bool] = False  # whether it generates text, with its own tokenizer
    is_numeric: bool = False  # whether answers are numbers: an infinite one is invalid, and metrics differ in rounding
    hub_task: ClassVar[str] = "other"  # the `pipeline_tag` of the model hub
    scored_labels: ClassVar[str] = ""  # the output whose last axis is as long as `labels`
    warns_of_length: ClassVar[bool] = False  # whether it tends to be wrong for inputs longer than any in training
    copies: Any = None  # the feature by which words of the input are copied, if any
    self_supervised: bool = False  # whether records have no reference
    keeps_places: ClassVar[bool] = False  # whether it counts words: occlusion then replaces them, not deletes them
    measure: ClassVar[str] = "probability"  # of `part_scores`
    labels: Sequence[str] = ()
    candidates: CandidateTexts | None = None  # the texts to choose from
    target: str | None = None  # the record field of the reference
    log_score: bool = False  # whether alternatives have LOG_SCORE, as in bundles since version 5 of the format

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> Self:
        """Build the kind from a manifest of a bundle or run; KeyError, TypeError or ValueError if it is not valid."""
        stated = {name: manifest[name] for name in cls.manifest_keys}
        stated |= {name: manifest[name] for name in cls.manifest_defaults if name in manifest}
        constructor: Any = cls
        kind: Self = constructor(tokenizer, **stated) if cls.needs_tokenizer else constructor(**stated)
        return kind

    def manifest(self) -> dict[str, Any]:
        others = [name for name, default in self.manifest_defaults.items() if getattr(self, name) != default]
        stated = {name: getattr(self, name) for name in ("kind", "target", *self.manifest_keys, *others)}
        stated |= {LOG_SCORE: True} if self.log_score else {}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in stated.items()}

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(name for name, array in self.decided.items() if array.required)

    @property
    def parts(self) -> Mapping[str, HeadAnswer]:
        return {"": self}

    @property
    def label_names(self) -> Sequence[str]:
        """Labels that an answer may give to a text, a word or a span."""
        return self.labels

    @property
    def optional_keys(self) -> Mapping[str, bool]:
        """Optional keys of the answer type, each with whether this model's answers have it."""
        return {LOG_SCORE: self.log_score}

    def answer_schema(self) -> Schema:
        return schema_of(self.answer_type, self.label_names, self.optional_keys)

    def schema(self, options: Mapping[str, Any]) -> Schema:
        if "n_best" not in options:
            return self.answer_schema()
        alternative = schema_of(self.alternative_type or self.answer_type, self.label_names, self.optional_keys)
        return {"anyOf": [self.answer_schema(), {"type": "array", "items": alternative}]}

    def lines(self, answer: A) -> list[str]:
        parts: list[Any] = answer if isinstance(answer, list) else [answer]
        if parts and all(LOG_SCORE in part for part in parts):
            shown = {f"{part['score']:.4f}" for part in parts}
            if len(shown) < len(parts) or "0.0000" in shown:  # these digits do not order the alternatives
                parts = [{**part, "score": None} for part in parts]
        return [line for part in parts for line in self.part_lines(part)] or [NOTHING]

    def part_lines(self, part: Any) -> list[str]:
        """Return one alternative, or one item of a list answer, as lines of text."""
        return [with_score(part[self.text_key], part)]

    def empty(self, several: bool) -> Any:
        nothing = deepcopy(self.nothing) | self.log_scored(0.0) if self.log_score else deepcopy(self.nothing)
        return [nothing] if several else nothing

    def log_scored(self, log_p: Any) -> dict[str, Any]:
        """Return the key of an alternative's log-probability, with the fewest digits that tell it from others."""
        return {LOG_SCORE: min(0.0, max(LOG_ZERO, float(str(log_p))))} if self.log_score else {}

    def ranked(self, docs: Sequence[Doc], decision: Arrays, outputs: Sequence[str], answer: Callable[..., Any]) -> Any:
        """Return the answer to each text, or the list of its alternatives, best first, without missing ones.

        Args:
            docs: The texts.
            decision: The decision, with the log-probability (B, K) of each alternative as `scores`.
            outputs: The outputs (B, K, …) from which an alternative is made.
            answer: Function from a text, the value of each output, and the probability to an alternative.
        """
        answers, columns = [], [decision[name].tolist() for name in outputs]
        for doc, log_p, *rows in zip(docs, decision["scores"], *columns, strict=True):
            alternatives = [
                {**answer(doc, *values, probability(np.exp(p))), **self.log_scored(p)}
                for p, *values in zip(log_p, *rows, strict=True)
                if p > LOG_ZERO or len(log_p) == 1
            ]
            answers.append(alternatives if len(log_p) > 1 else alternatives[0])
        return answers

    def with_warning(self, answer: Any, warning: str) -> Any:
        if not self.warns_of_length:
            return answer
        if isinstance(answer, list):
            return [{**alternative, WARNING: warning} for alternative in answer]
        return {**answer, WARNING: warning}

    def warning(self, answer: Any) -> str:
        return str(best_of(answer).get(WARNING, "")) if self.warns_of_length else ""

    def is_invalid(self, name: str, array: np.ndarray, docs: Sequence[Doc]) -> np.ndarray:
        """Return the mask of invalid numbers of an output."""
        return ~np.isfinite(array) if self.is_numeric else np.isnan(array)

    @property
    def writer(self) -> TextWriter | None:
        """The writer of generated text, which reads decode options with texts; None for other kinds."""
        return None

    def part_scores(self, docs: Sequence[Doc], decision: Arrays, answer: Any, whole: Arrays) -> np.ndarray:
        """Return the score of each part of an answer, (B, parts), in the `decision` about variants of its text, `docs`.

        The items of a list are its parts. `whole` is the decision about the text itself, one row.
        """
        if self.scored_labels:
            ids = [self.labels.index(part["label"]) for part in (answer if isinstance(answer, list) else [answer])]
            return np.log(np.maximum(decision[self.scored_labels][:, ids], 1e-12))
        if "vector" in decision:
            vectors, vector = decision["vector"], whole["vector"]
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True) * np.linalg.norm(vector)
            return np.asarray(vectors @ vector.T / np.maximum(lengths, 1e-12))
        variants = [{**best_of(variant), WARNING: ""} for variant in list[Any](self.answers(docs, decision))]
        scores = [{key: variant[key] for key in ("score", LOG_SCORE) if key in variant} for variant in variants]
        same = [variant == {**answer, WARNING: "", **score} for variant, score in zip(variants, scores, strict=True)]
        p = np.array([variant["score"] for variant in variants])
        # Another answer is likelier than this one, so its probability is an upper bound.
        return np.where(same, p, np.minimum(p, 1 - p))[:, None]

    def label_probabilities(self, decision: Arrays) -> np.ndarray:
        """Return the probabilities of the labels, (B, L), or of having each and not, (B, 2, L), from a decision."""
        return np.asarray(decision[self.scored_labels])

    def step_names(self, decision: Arrays, doc: Doc) -> list[str]:
        """Return the generated tokens or the selected positions of a decision about one text, step by step."""
        return []


def float32_number(value: float) -> float:
    """Round a number to the digits of a float32."""
    return float(f"{value:.7g}")


def probability(value: Any) -> float:
    """Round a probability for an answer: six digits, from 0 to 1; DataError for NaN."""
    if math.isnan(value):
        raise DataError("a score is NaN for this input; leave it out, or train again: the weights overflow")
    return round(min(1.0, max(0.0, float(value))), 6)


def best_of(answer: P | list[P]) -> P:
    """Return the first of several answers, or the only one."""
    return answer[0] if isinstance(answer, list) else answer


def with_score(text: Any, part: Mapping[str, Any]) -> str:
    """Return a part of an answer as text, with its score, or without that its log-probability, if it has one."""
    score = f" (log {part[LOG_SCORE]})" if LOG_SCORE in part else ""
    if isinstance(part.get("score"), float):
        score = f" ({part['score']:.4f})"
    return f"{NOTHING if text in ('', None) else text}{score}"
