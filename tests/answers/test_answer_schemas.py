"""The JSON Schemas of answers: each kind's allows what it answers, and nothing that differs from it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from seqpipe.answers.base import AnswerKind
from seqpipe.answers.candidates import Candidate, Vector
from seqpipe.answers.classification import Label, Labels, Score
from seqpipe.answers.extractive_span import ExtractiveSpan
from seqpipe.answers.fill_mask import FillMask, SpanInfilling
from seqpipe.answers.pointers import Pointers
from seqpipe.answers.registry import ANSWER_KINDS, MultiHead
from seqpipe.answers.structured import Field, Structured
from seqpipe.answers.tagging import Spans, Tags
from seqpipe.answers.text import Generation, Text
from seqpipe.answers.types import CandidateTexts
from seqpipe.features.document import Doc
from seqpipe_plugins.tokenizers.chars import CharsTokenizer

TAGS = ("O", "B-city", "I-city", "B-person")
CITY = {"entity_group": "city", "score": 0.5, "word": "Bern", "start": 0, "end": 4}
TAG = {"entity": "B-city", "score": 0.5, "word": "Bern", "start": 0, "end": 4}
WRITTEN = {"generated_text": "ab", "score": 0.5, "log_score": -0.7}
WRITER = CharsTokenizer().train(["ab[MASK]"])
WRITER.add_special_tokens(["[MASK]"])
FIELDS = [
    ("head", "word", "position"),
    ("tag", "word", "label", ("N", "V")),
    ("mood", "text", "label", ("good", "bad")),
    ("length", "text", "number"),
    ("name", "text", "span"),
    ("next", "pair", "label", ("none", "next")),
]
SHAPE = Structured(tuple(Field(name, per, type_, name, *labels) for name, per, type_, *labels in FIELDS))
SHAPED = {
    "words": [{"word": "Bern", "start": 0, "end": 4, "head": None, "tag": "N", "tag_score": 0.5}],
    "mood": "good",
    "mood_score": 0.5,
    "length": 1.5,
    "name": {"text": "Bern", "start": 0, "end": 4},
    "next": [{"from": 0, "to": 0, "label": "next", "score": 0.25}],
}
RANKED = {"score": 0.5, "log_score": -0.7}
NEAR = {"text": "a", "score": 0.5}
KINDS: list[tuple[AnswerKind, Any, Any]] = [  # a kind, an answer, and one of several
    (Label(("a", "b")), {"label": "a", "score": 0.5}, None),
    (Labels(("a", "b")), [{"label": "a", "score": 0.5}], None),
    (Score(), {"score": -3.25}, None),
    (Vector(("a",)), {"vector": [0.0, -1.5]}, None),
    (Candidate(CandidateTexts(("a", "b"))), {**NEAR, "nearest": [NEAR, {"text": "b", "score": -0.25}]}, None),
    (
        Candidate(CandidateTexts(("a", "b"), ("x", "y"), ("yes", "no"))),
        {"text": "b", "label": "y", "answer": "no", "score": 0.5, "nearest": [{**NEAR, "label": "x", "answer": "yes"}]},
        None,
    ),
    (Tags(TAGS), [TAG], {"tags": [{key: TAG[key] for key in TAG if key != "score"}], **RANKED}),
    (Spans(TAGS), [CITY], {"spans": [{key: CITY[key] for key in CITY if key != "score"}], **RANKED}),
    *((kind, answer, answer) for kind, answer in (
        (ExtractiveSpan(), {"answer": "Bern", **RANKED, "start": 0, "end": 4}),
        (Pointers(), {"pointers": [1, 0], "words": ["b", "a"], **RANKED}),
        (Pointers(points="points"), {"pointers": [1, 0], **RANKED}),
        (Text(WRITER), WRITTEN),
        (Text(WRITER), {**WRITTEN, "tokens": [{"token": "ab", "log_score": -0.5}]}),
        (Text(WRITER), {**WRITTEN, "warning": "longer than any input in training"}),
        (Generation(WRITER, True, 16), WRITTEN),
        (SpanInfilling(WRITER, share=0.1, length=3.0, field="text"), WRITTEN),
        (FillMask(WRITER, token="[MASK]", share=0.1, fields=("text",)), {**WRITTEN, "words": ["ab"]}),
    )),
    (SHAPE, SHAPED, None),
]  # fmt: skip
EVERY = pytest.mark.parametrize(
    ("kind", "answer", "alternative"), KINDS, ids=[f"{kind.kind}-{i}" for i, (kind, *_) in enumerate(KINDS)]
)


def fits(schema: dict[str, Any], answer: Any) -> bool:
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema).is_valid(answer)


def test_every_answer_kind_is_in_the_table() -> None:
    assert {kind.kind for kind, *_ in KINDS} == {*ANSWER_KINDS}


@EVERY
def test_a_schema_allows_the_answers_of_its_kind(kind: AnswerKind, answer: Any, alternative: Any) -> None:
    for options, empty in (({}, kind.empty(False)), ({"n_best": {}}, kind.empty(True))):
        assert fits(kind.schema(options), answer)
        assert fits(kind.schema(options), empty)
    if alternative is not None:
        assert fits(kind.schema({"n_best": {}}), [alternative, alternative])
        assert not fits(kind.schema({}), [alternative])


def changed(answer: Any) -> Iterator[Any]:
    """The answer with one fault: a key less, a key more, or a value of another type, at any depth."""
    if isinstance(answer, list):
        for i, part in enumerate(answer):
            yield from ([*answer[:i], other, *answer[i + 1 :]] for other in changed(part))
    elif isinstance(answer, dict):
        yield {**answer, "more": 1}
        for key, value in answer.items():
            if not key.endswith(("tag_score", "mood_score", "warning", "tokens")) and not (
                key == "score" and "from" in answer
            ):
                yield {other: answer[other] for other in answer if other != key}
            yield from ({**answer, key: other} for other in changed(value))
    elif isinstance(answer, str):
        yield 3
    else:
        yield "x"


@EVERY
def test_the_schema_of_a_kind_allows_no_answer_with_a_fault(kind: AnswerKind, answer: Any, alternative: Any) -> None:
    faulty = [*changed(answer)]
    assert len(faulty) >= 3
    assert [other for other in faulty if fits(kind.schema({}), other)] == []
    assert [other for other in changed([alternative]) if fits(kind.schema({"n_best": {}}), other)] == []


@pytest.mark.parametrize(
    ("kind", "answer", "is_valid"),
    [
        (Label(("a", "b")), {"label": "c", "score": 0.5}, False),
        (Labels(("a", "b")), [{"label": "c", "score": 0.5}], False),
        (Tags(TAGS), [{**TAG, "entity": "city"}], False),
        (Spans(TAGS), [{**CITY, "entity_group": "person"}], True),
        (Spans(TAGS), [{**CITY, "entity_group": "B-city"}], False),
        (SHAPE, {**SHAPED, "mood": "N"}, False),
    ],
)
def test_labels_are_those_of_the_kind(kind: AnswerKind, answer: Any, is_valid: bool) -> None:
    assert fits(kind.schema({}), answer) == is_valid


@pytest.mark.parametrize("tags", [("O", "B", "I"), ("O", "B-x", "I-x"), ("O", "B-x-y", "I-x-y", "E-x-y", "S-x-y")])
def test_labels_of_spans_are_those_that_answers_have(tags: tuple[str, ...]) -> None:
    odds = np.zeros((1, 1), np.float32)
    decision = {"tags": np.array([[1]]), "opens": odds, "closes": odds}
    (answer,) = Spans(tags).answers([Doc("Bern", ["Bern"], [(0, 4)], [4])], decision)
    assert fits(Spans(tags).schema({}), answer)
    assert len(answer) == 1


def test_each_of_several_heads_has_its_own_schema_and_alternatives() -> None:
    kind = MultiHead({"intent": Label(("a",)), "slots": Spans(TAGS)})
    answer = {"intent": {"label": "a", "score": 1.0}, "slots": [CITY]}
    several = {**answer, "slots": [{"spans": [], **RANKED}]}
    assert fits(kind.schema({}), answer)
    assert [fits(kind.schema({f"{name}.n_best": {}}), several) for name in answer] == [False, True]
    assert not fits(kind.schema({}), {"intent": answer["intent"]})
