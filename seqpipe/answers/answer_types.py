"""The answers of every kind as typed dicts, from which their JSON Schemas are derived."""

from __future__ import annotations

from typing import Annotated, NotRequired, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict  # pydantic supports that of `typing` only from Python 3.12 on

Probability = Annotated[float, Field(ge=0, le=1)]
Cosine = Annotated[float, Field(ge=-1, le=1)]
LogProbability = Annotated[float, Field(le=0)]
Position = Annotated[int, Field(ge=0)]
LABEL_FORMAT = "label"  # of texts that are the model's labels, which the JSON Schema lists
LabelName = Annotated[str, Field(json_schema_extra={"format": LABEL_FORMAT})]


class LabelAnswer(TypedDict):
    label: LabelName | None
    score: Probability


class ScoredLabel(TypedDict):
    label: LabelName
    score: Probability


class ScoreAnswer(TypedDict):
    score: float | None


class VectorAnswer(TypedDict):
    vector: list[float] | None


class NearText(TypedDict):
    """A candidate, with its label and its `answer` if the candidates have them."""

    text: str
    label: NotRequired[str]
    answer: NotRequired[str | None]
    score: Cosine


class CandidateAnswer(TypedDict):
    text: str | None
    label: NotRequired[str | None]
    answer: NotRequired[str | None]
    score: Cosine
    nearest: list[NearText]


class Ranked(TypedDict):
    """One of several answers, ordered by the natural logarithm of their probability, which a score rounds to 0."""

    score: Probability
    log_score: NotRequired[LogProbability]


class TaggedWord(TypedDict):
    entity: LabelName
    word: str
    start: Position
    end: Position


class ScoredWord(TaggedWord):
    score: Probability


class TagSequence(Ranked):
    """One of several sequences of tags."""

    tags: list[TaggedWord]


class LabelledSpan(TypedDict):
    entity_group: LabelName
    word: str
    start: Position
    end: Position


class ScoredSpan(LabelledSpan):
    score: Probability


class SpanSequence(Ranked):
    """One of several sets of spans."""

    spans: list[LabelledSpan]


class PassageAnswer(Ranked):
    answer: str
    start: Position
    end: Position


class PointersAnswer(Ranked):
    """Positions among rows of numbers; `warning` if the input is longer than any in training."""

    pointers: list[Position]
    warning: NotRequired[str]


class WordPointersAnswer(PointersAnswer):
    words: list[str]


class ScoredToken(TypedDict):
    """A token as in the vocabulary, or as in the source if it is copied, and its log-probability."""

    token: str
    log_score: LogProbability


class WrittenText(Ranked):
    """A text; with the decode option `token_scores` also its tokens, including the end."""

    generated_text: str
    tokens: NotRequired[list[ScoredToken]]


class TextAnswer(WrittenText):
    """A text; `warning` if the input is longer than any in training."""

    warning: NotRequired[str]


class FilledText(WrittenText):
    words: list[str]


# A structured answer has the keys that its head describes, so its type has only the values;
# `seqpipe.answers.structured` builds a typed dict from the description.


class TextSpan(TypedDict):
    text: str
    start: Position
    end: Position


FieldValue: TypeAlias = str | int | float | TextSpan | None
StructuredAnswer: TypeAlias = dict[str, FieldValue | list[dict[str, FieldValue]]]

# One answer, or several with `n_best`.
LabelAnswers: TypeAlias = LabelAnswer | list[LabelAnswer]
ScoreAnswers: TypeAlias = ScoreAnswer | list[ScoreAnswer]
VectorAnswers: TypeAlias = VectorAnswer | list[VectorAnswer]
CandidateAnswers: TypeAlias = CandidateAnswer | list[CandidateAnswer]
PassageAnswers: TypeAlias = PassageAnswer | list[PassageAnswer]
PointersAnswers: TypeAlias = PointersAnswer | list[PointersAnswer]
TextAnswers: TypeAlias = WrittenText | list[WrittenText]
FilledTexts: TypeAlias = FilledText | list[FilledText]
StructuredAnswers: TypeAlias = StructuredAnswer | list[StructuredAnswer]

OfTexts: TypeAlias = LabelAnswers | list[ScoredLabel] | ScoreAnswers | VectorAnswers | CandidateAnswers
OfWords: TypeAlias = list[ScoredWord] | list[TagSequence] | list[ScoredSpan] | list[SpanSequence] | PointersAnswers
AnswerOfHead: TypeAlias = OfTexts | OfWords | PassageAnswers | TextAnswers | FilledTexts | StructuredAnswers
JointAnswer: TypeAlias = dict[str, AnswerOfHead]  # of several heads, by head
Answer: TypeAlias = AnswerOfHead | JointAnswer
