"""Decisions, made by hand, through each answer kind."""

from typing import Any

import numpy as np
import pytest

from seqpipe.answers.base import AnswerKind
from seqpipe.answers.candidates import Candidate, Vector
from seqpipe.answers.classification import Label, Labels, Score, label_of
from seqpipe.answers.extractive_span import ExtractiveSpan
from seqpipe.answers.pointers import Pointers
from seqpipe.answers.registry import MultiHead, head_answer_from, task_of
from seqpipe.answers.tagging import Spans, Tags
from seqpipe.answers.text import Text
from seqpipe.answers.types import Array, CandidateTexts
from seqpipe.errors import DataError
from seqpipe.features.document import Doc
from seqpipe_plugins.tokenizers.chars import CharsTokenizer

LABELS = ("O", "B-city", "I-city")
DOC = Doc("in New  York .", ["in", "New", "York", "."], [(0, 2), (3, 6), (8, 12), (13, 14)], [4, 5, 6, 7])
SHORT = Doc("Bern", ["Bern"], [(0, 4)], [8])
RECORD = {"text": "in New York", "words": ["in", "New", "York"], "tags": ["O", "B-city", "I-city"]}


def decision(**arrays: Any) -> dict[str, np.ndarray]:
    """The tags of DOC and SHORT, padded, and the probabilities 0.5 to open and 0.25 to close a span."""
    tags = {
        "tags": np.array([[0, 1, 2, 0], [1, 0, 0, 0]]),
        "scores": np.array([[0.9, 0.8, 0.7, 0.6], [0.5, 0, 0, 0]], np.float32),
        "opens": np.full((2, 4), np.log(0.5), np.float32),
        "closes": np.full((2, 4), np.log(0.25), np.float32),
    }
    return tags | {name: np.array(array) for name, array in arrays.items()}


def test_tags_are_answered_word_by_word_without_the_padding() -> None:
    first, second = Tags(LABELS).answers([DOC, SHORT], decision())
    assert [part["entity"] for part in first] == ["O", "B-city", "I-city", "O"]
    assert first[2] == {"entity": "I-city", "score": 0.7, "word": "York", "start": 8, "end": 12}
    assert second == [{"entity": "B-city", "score": 0.5, "word": "Bern", "start": 0, "end": 4}]
    assert Tags(LABELS).empty(False) == []


def test_spans_are_parts_of_the_text_as_written_without_the_padding() -> None:
    first, second = Spans(LABELS).answers([DOC, SHORT], decision())
    assert first == [{"entity_group": "city", "score": 0.125, "word": "New  York", "start": 3, "end": 12}]
    assert second == [{"entity_group": "city", "score": 0.125, "word": "Bern", "start": 0, "end": 4}]
    assert Spans(LABELS).answers([DOC, SHORT], decision(tags=[[0] * 4, [0, 1, 1, 1]])) == [[], []]
    assert Spans(LABELS).empty(False) == []
    path = decision(paths=np.zeros((2, 1, 4), int), path_scores=np.zeros((2, 1)))
    assert Spans(LABELS).answers([DOC, SHORT], path) == [first, second]  # one path is no list of alternatives


def test_a_label_comes_with_its_own_probability_and_a_text_of_no_tokens_has_none() -> None:
    arrays = {"label": np.array([1, 0]), "scores": np.array([[0.2, 0.8], [0.9, 0.1]], np.float32)}
    manifest = {"kind": "label", "labels": ["no", "yes"], "target": "polar"}
    kind = head_answer_from(manifest, None)
    assert kind.answers([DOC, SHORT], arrays) == [{"label": "yes", "score": 0.8}, {"label": "no", "score": 0.9}]
    assert task_of(kind).predicted({"label": "yes", "score": 0.8}) == "yes" == task_of(kind).gold({"polar": "yes"})
    assert kind.manifest() == manifest
    assert kind.empty(False) == {"label": None, "score": 0.0}
    assert kind.empty(True) == [kind.empty(False)]
    assert task_of(kind).predicted(kind.empty(False)) is None


def test_several_labels_come_likeliest_first_and_equally_likely_ones_in_their_order() -> None:
    scores = np.array([[0.6, 0.9, 0.1, 0.6], [0.2, 0.1, 0.3, 0.4]], np.float32)
    kind = head_answer_from({"kind": "labels", "labels": ["d", "c", "b", "a"], "target": None}, None)
    first, second = kind.answers([DOC, SHORT], {"labels": np.array([[1, 1, 0, 1], [0, 0, 0, 0]]), "scores": scores})
    assert first == [{"label": "c", "score": 0.9}, {"label": "d", "score": 0.6}, {"label": "a", "score": 0.6}]
    assert second == kind.empty(False) == kind.empty(True) == []
    several = kind.answers([SHORT], {"labels": np.zeros((1, 4)), "scores": scores[:1], "n_best": np.zeros(3)})
    assert several == [first]
    assert task_of(kind).predicted(first) == ["a", "c", "d"] == task_of(kind).gold({"labels": ["d", "c", "a", "d"]})


@pytest.mark.parametrize("value", ["a", None, {"a": 1}, [["a"]], [1.5], [True], [""]])
def test_several_labels_are_a_list_of_labels(value: Any) -> None:
    task = task_of(Labels(("a",)))
    with pytest.raises(DataError, match=r"f:3: field 'labels' is .*; several labels are a list"):
        task.gold({"labels": value, "where": "f:3"})
    assert [task.gold({"labels": labels}) for labels in ([3, "3", "x"], [])] == [["3", "x"], []]


def test_a_score_is_a_number_with_the_digits_of_float32() -> None:
    kind, task = Score(), task_of(Score())
    answers = kind.answers([DOC, SHORT], {"score": np.array([0.1, -123456.78], np.float32)})
    assert answers == [{"score": 0.1}, {"score": -123456.8}]
    assert (task.predicted(answers[0]), task.predicted(kind.empty(False))) == (0.1, None)
    assert [task.gold({"score": value}) for value in (3, 2.5, "-4e3", " 7 ")] == [3.0, 2.5, -4000.0, 7.0]


@pytest.mark.parametrize("value", [None, True, "", "many", "nan", float("nan"), float("inf"), 1e39, 10**400, [1.0]])
def test_a_target_that_is_no_finite_number_is_an_error_with_its_place(value: Any) -> None:
    with pytest.raises(DataError, match=r"f:3: field 'stars' is .*; a finite number is needed"):
        task_of(Score("stars")).gold({"stars": value, "where": "f:3"})


def test_a_vector_is_a_list_of_numbers_and_its_reference_a_label() -> None:
    kind, task = Vector(("a", "b")), task_of(Vector(("a", "b")))
    answers = kind.answers([DOC, SHORT], {"vector": np.array([[0.1, 2.0], [-1e-9, 3e8]], np.float32)})
    assert answers == [{"vector": [0.1, 2.0]}, {"vector": [-1e-9, 3e8]}]
    assert task.predicted(answers[0]) == [0.1, 2.0]
    assert (kind.empty(False), task.predicted(kind.empty(False))) == ({"vector": None}, None)
    assert task.gold({"label": 3}) == "3"


@pytest.mark.parametrize(("value", "label"), [("yes", "yes"), (3, "3"), (0, "0"), ("3", "3")])
def test_a_label_is_a_text_or_a_whole_number(value: Any, label: str) -> None:
    assert label_of({"label": value}, "label") == label


@pytest.mark.parametrize("value", [None, True, 1.5, "", " ", ["yes"]])
def test_nothing_else_is_a_label(value: Any) -> None:
    with pytest.raises(DataError, match=r"x:1: field 'label' is .*; a label is a text or a whole number"):
        label_of({"label": value, "where": "x:1"}, "label")
    with pytest.raises(DataError, match="x:1: no field 'label'"):
        label_of({"lable": "yes", "where": "x:1"}, "label")


@pytest.mark.parametrize(
    ("kind", "decision"),
    [
        (Label(["a", "b"]), {"label": np.array([0]), "scores": np.array([[np.nan, 0.5]])}),
        (Tags(["O"]), {"tags": np.array([[0, 0, 0, 0]]), "scores": np.array([[0.5, np.nan, 0.5, 0.5]])}),
    ],
)
def test_a_score_of_nan_is_an_error_whatever_ran_the_model(kind: AnswerKind, decision: dict[str, np.ndarray]) -> None:
    with pytest.raises(DataError, match=r"a score is NaN for this input; .* train again: the weights overflow"):
        kind.answers([DOC], decision)


def test_a_probability_is_never_above_1() -> None:
    for opens, score in ((1.0, round(np.exp(1) / 4, 6)), (2.0, 1.0)):
        answer, _ = Spans(LABELS).answers([DOC, SHORT], decision(opens=np.full((2, 4), opens)))
        assert answer[0]["score"] == score


def test_the_reference_is_compared_by_code_points_however_it_is_written() -> None:
    words = {"words": RECORD["words"], "tags": RECORD["tags"]}
    spans = {"text": "in New York", "spans": [{"start": 3, "end": 11, "label": "city"}]}
    for record in (RECORD, words, spans):
        assert task_of(Spans(LABELS)).gold(record) == [("city", 3, 11)]
    for record in (RECORD, words):
        assert task_of(Tags(LABELS)).gold(record) == [("O", 0, 2), ("B-city", 3, 6), ("I-city", 7, 11)]


def test_alternatives_come_best_first_and_impossible_ones_not_at_all() -> None:
    more = decision(
        paths=[[[0, 1, 2, 0], [0, 0, 1, 0], [0, 0, 0, 0]]] * 2,
        path_scores=[np.log([0.5, 0.25, 0.125]), [np.log(0.5), -1e9, -1e9]],
    )
    first, second = Spans(LABELS).answers([DOC, SHORT], more)
    assert [part["score"] for part in first] == [0.5, 0.25, 0.125]
    assert first[1]["spans"] == [{"entity_group": "city", "word": "York", "start": 8, "end": 12}]
    assert first[2]["spans"] == []
    assert [part["log_score"] for part in first] == pytest.approx(np.log([0.5, 0.25, 0.125]).tolist())
    assert second == [{"spans": [], "score": 0.5, "log_score": pytest.approx(np.log(0.5))}]
    tagged, _ = Tags(LABELS).answers([DOC, SHORT], more)
    assert [word["entity"] for word in tagged[1]["tags"]] == ["O", "O", "B-city", "O"]


def test_a_perfect_answer_equals_the_reference() -> None:
    doc = Doc("in New York", ["in", "New", "York"], [(0, 2), (3, 6), (7, 11)], [4, 5, 6])
    for kind in (Tags(LABELS), Spans(LABELS)):
        (answer, _) = kind.answers([doc, SHORT], decision())
        assert task_of(kind).predicted(answer) == task_of(kind).gold(RECORD)


@pytest.mark.parametrize(
    ("kind", "record", "field"),
    [
        (Tags(LABELS), {"text": "a", "words": ["a"], "where": "x:3"}, "tags"),
        (Tags(LABELS, "pos"), {**RECORD, "where": "x:3"}, "pos"),
        (Spans(LABELS), {"text": "a", "where": "x:3"}, "spans"),
    ],
)
def test_a_record_without_reference_is_named(kind: AnswerKind, record: dict[str, Any], field: str) -> None:
    with pytest.raises(DataError, match=f"x:3: no field '{field}' to compare with; it has: text"):
        task_of(kind).gold(record)


WRITER = CharsTokenizer().train(["ab c"])
END = WRITER.token_to_id("[EOS]")


def spelled(*texts: str) -> np.ndarray:
    rows = [[*WRITER.encode(text, add_special_tokens=False).ids, END] for text in texts]
    longest = max(map(len, rows))
    return np.array([[[*row, *[0] * (longest - len(row))] for row in rows]])  # (1, n, N)


def test_text_is_read_up_to_its_end_token_or_whole() -> None:
    tokens = np.concatenate([spelled("ab ca"), spelled("bb ca")])
    tokens[0, 0, 2] = END  # "ab", then tokens that are never read
    answers = Text(WRITER).answers([SHORT, SHORT], {"tokens": tokens, "scores": np.log([[0.5], [0.25]])})
    assert [(answer["generated_text"], answer["score"]) for answer in answers] == [("ab", 0.5), ("bb ca", 0.25)]
    assert Text(WRITER).decode(WRITER.encode("a b").ids, SHORT) == "a b"


def test_several_texts_come_best_first_without_impossible_ones() -> None:
    arrays = {"tokens": spelled("a", "b", "c"), "scores": np.array([[np.log(0.5), np.log(0.25), -np.inf]])}
    (answer,) = Text(WRITER).answers([SHORT], arrays)
    assert [(part["generated_text"], part["score"]) for part in answer] == [("a", 0.5), ("b", 0.25)]
    task = task_of(Text(WRITER))
    assert (task.predicted(answer), task.predicted(Text(WRITER).empty(False))) == ("a", "")


def test_texts_whose_probability_rounds_to_zero_are_told_apart_by_its_logarithm() -> None:
    log_p = np.array([[-300.12345, -300.12348]], np.float32)
    assert log_p[0, 0] > log_p[0, 1]
    kind, arrays = Text(WRITER), {"tokens": spelled("a", "b"), "scores": log_p}
    ((first, second),) = kind.answers([SHORT], arrays)
    assert first["score"] == second["score"] == 0.0
    assert [np.float32(part["log_score"]) for part in (first, second)] == log_p[0].tolist()
    assert kind.lines([first, second]) == ["a (log -300.12344)", "b (log -300.12347)"]
    before = head_answer_from({"kind": "text", "target": None}, WRITER)  # of a bundle before version 5
    assert before.answers([SHORT], arrays) == [
        [{"generated_text": "a", "score": 0}, {"generated_text": "b", "score": 0}]
    ]
    assert (before.empty(False), "log_score" in before.manifest()) == ({"generated_text": "", "score": 1.0}, False)


def test_an_answer_has_its_tokens_with_their_log_probabilities_if_the_graph_returns_them() -> None:
    tokens = spelled("ab", "b")
    arrays = {"tokens": tokens, "scores": np.array([[-3.0, -5.5]], np.float32)}
    assert "tokens" not in Text(WRITER).answers([SHORT], arrays | {"token_log_p": np.zeros((1, 2, 0))})[0][0]
    log_p = np.array([[[-0.5, -1.0, -1.5], [-4.0, -1.5, 0.0]]], np.float32)
    ((first, second),) = Text(WRITER).answers([SHORT], arrays | {"token_log_p": log_p})
    assert [(token["token"], token["log_score"]) for token in first["tokens"]] == [
        ("a", -0.5),
        ("b", -1),
        ("[EOS]", -1.5),
    ]
    assert [(token["token"], token["log_score"]) for token in second["tokens"]] == [("b", -4.0), ("[EOS]", -1.5)]


def test_the_reference_of_text_is_a_field_of_the_record() -> None:
    assert task_of(Text(WRITER)).gold({"target": "ab"}) == "ab"
    assert task_of(Text(WRITER, "answer")).gold({"answer": "ab"}) == "ab"
    with pytest.raises(DataError, match="no field 'answer'"):
        task_of(Text(WRITER, "answer")).gold({"target": "ab"})


HELLO = {"generated_text": "hello", "score": 0.5, "log_score": -0.5}
BERN = {"score": 1.0, "word": "Bern", "start": 0, "end": 4}
YES = Candidate(CandidateTexts(("a",), None, ("yes",)))


@pytest.mark.parametrize(
    ("kind", "answer", "lines"),
    [
        (Label("a"), {"label": "good", "score": 0.5}, ["good (0.5000)"]),
        (Label("a"), {"label": None, "score": 0.0}, ["(nothing) (0.0000)"]),
        (Labels("a"), [{"label": "a", "score": 0.9}, {"label": "b", "score": 0.6}], ["a (0.9000)", "b (0.6000)"]),
        (Spans(LABELS), [{"entity_group": "city", **BERN}], ["Bern: city (1.0000)"]),
        (Tags(LABELS), [{"entity": "NOUN", **BERN}], ["Bern: NOUN (1.0000)"]),
        (Tags(LABELS), [], ["(nothing)"]),
        (Score(), {"score": 3.25}, ["3.2500"]),
        (Score(), {"score": None}, ["(nothing)"]),
        (Vector("a"), {"vector": [0.0, 1.0]}, ["a vector of 2 numbers"]),
        (Vector("a"), {"vector": None}, ["(nothing)"]),
        (Candidate(CandidateTexts(("a",))), {"text": "a", "score": 0.5, "nearest": []}, ["a (0.5000)"]),
        (YES, {"text": "a", "answer": "yes", "score": 0.5, "nearest": []}, ["yes (0.5000)"]),
        (Text(WRITER), {"generated_text": "hello", "score": 0.5}, ["hello (0.5000)"]),
        (Text(WRITER), [{"generated_text": "", "score": 0.5}], ["(nothing) (0.5000)"]),
        (Text(WRITER), [{**HELLO, "score": 0.5}, {**HELLO, "score": 0.25}], ["hello (0.5000)", "hello (0.2500)"]),
        (Text(WRITER), [{**HELLO, "score": 0.50001}, HELLO], ["hello (log -0.5)", "hello (log -0.5)"]),
        (ExtractiveSpan(), {"answer": "Rome", "score": 0.5, "start": 0, "end": 4}, ["Rome (0.5000)"]),
        (Pointers(), {"pointers": [1, 0], "words": ["b", "a"], "score": 0.5}, ["b a (0.5000)"]),
        (Pointers(points="points"), {"pointers": [1, 0], "score": 0.5}, ["1 0 (0.5000)"]),
        (
            MultiHead({"intent": Label("a"), "slots": Spans(LABELS)}),
            {"intent": {"label": "play", "score": 0.5}, "slots": []},
            ["intent: play (0.5000)", "slots: (nothing)"],
        ),
    ],
)
def test_every_kind_of_answer_has_lines_for_people(kind: AnswerKind, answer: Any, lines: list[str]) -> None:
    assert kind.lines(answer) == lines


@pytest.mark.parametrize(("shape", "axes"), [("(B,)", ("B",)), ("(B, T, L)", ("B", "T", "L")), ("()", ())])
def test_the_axes_of_an_array_are_those_of_its_shape(shape: str, axes: tuple[str, ...]) -> None:
    assert Array(shape, "float32").axes == axes
