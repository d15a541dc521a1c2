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
from seqpipe.answers.types import Candidates
from seqpipe.errors import BundleError, DataError
from seqpipe.features.document import Doc
from seqpipe_plugins.tokenizers.chars import Chars

LABELS = ("O", "B-city", "I-city")
DOC = Doc("in New  York .", ["in", "New", "York", "."], [(0, 2), (3, 6), (8, 12), (13, 14)], [4, 5, 6, 7])
SHORT = Doc("Bern", ["Bern"], [(0, 4)], [8])


def decision(**arrays: Any) -> dict[str, np.ndarray]:
    """The tags of DOC and SHORT, padded, and the probabilities 0.5 to open and 0.25 to close a span."""
    made = {
        "tags": np.array([[0, 1, 2, 0], [1, 0, 0, 0]]),
        "scores": np.array([[0.9, 0.8, 0.7, 0.6], [0.5, 0, 0, 0]], np.float32),
        "opens": np.full((2, 4), np.log(0.5), np.float32),
        "closes": np.full((2, 4), np.log(0.25), np.float32),
    }
    return made | {name: np.array(array) for name, array in arrays.items()}


def test_tags_are_answered_word_by_word() -> None:
    first, second = Tags(LABELS).answers([DOC, SHORT], decision())
    assert [part["entity"] for part in first] == ["O", "B-city", "I-city", "O"]
    assert first[2] == {"entity": "I-city", "score": 0.7, "word": "York", "start": 8, "end": 12}
    assert second == [{"entity": "B-city", "score": 0.5, "word": "Bern", "start": 0, "end": 4}]


def test_spans_are_stretches_of_the_text_as_written() -> None:
    first, second = Spans(LABELS).answers([DOC, SHORT], decision())
    assert first == [{"entity_group": "city", "score": 0.125, "word": "New  York", "start": 3, "end": 12}]
    assert second == [{"entity_group": "city", "score": 0.125, "word": "Bern", "start": 0, "end": 4}]


def test_a_label_comes_with_its_own_probability() -> None:
    made = {"label": np.array([1, 0]), "scores": np.array([[0.2, 0.8], [0.9, 0.1]], np.float32)}
    kind = head_answer_from({"kind": "label", "labels": ["no", "yes"], "target": "polar"}, None)
    assert kind.answers([DOC, SHORT], made) == [{"label": "yes", "score": 0.8}, {"label": "no", "score": 0.9}]
    assert task_of(kind).predicted({"label": "yes", "score": 0.8}) == "yes" == task_of(kind).gold({"polar": "yes"})
    assert kind.manifest() == {"kind": "label", "labels": ["no", "yes"], "target": "polar"}


def test_a_text_of_no_tokens_has_no_label() -> None:
    kind = Label(("no", "yes"))
    assert kind.empty(False) == {"label": None, "score": 0.0}
    assert kind.empty(True) == [kind.empty(False)]
    assert task_of(kind).predicted(kind.empty(False)) is None


def test_several_labels_come_likeliest_first_and_equally_likely_ones_in_their_order() -> None:
    scores = np.array([[0.6, 0.9, 0.1, 0.6], [0.2, 0.1, 0.3, 0.4]], np.float32)
    kind = head_answer_from({"kind": "labels", "labels": ["d", "c", "b", "a"], "target": None}, None)
    found = kind.answers([DOC, SHORT], {"labels": np.array([[1, 1, 0, 1], [0, 0, 0, 0]]), "scores": scores})
    assert [(one["label"], one["score"]) for one in found[0]] == [("c", 0.9), ("d", 0.6), ("a", 0.6)]
    assert found[1] == kind.empty(False) == []
    assert kind.empty(True) == []
    several = kind.answers([SHORT], {"labels": np.zeros((1, 4)), "scores": scores[:1], "n_best": np.zeros(3)})
    assert several == [[{"label": "c", "score": 0.9}, {"label": "d", "score": 0.6}, {"label": "a", "score": 0.6}]]
    assert task_of(kind).predicted(found[0]) == ["a", "c", "d"] == task_of(kind).gold({"labels": ["d", "c", "a", "d"]})


@pytest.mark.parametrize("given", ["a", None, {"a": 1}, [["a"]], [1.5], [True], [""]])
def test_several_labels_are_a_list_of_labels(given: Any) -> None:
    with pytest.raises(DataError, match=r"f:3: field 'labels' is .*; several labels are a list"):
        task_of(Labels(("a",))).gold({"labels": given, "where": "f:3"})
    assert task_of(Labels(("a",))).gold({"labels": [3, "3", "x"]}) == ["3", "x"]
    assert task_of(Labels(("a",))).gold({"labels": []}) == []


def test_a_score_is_a_number_with_the_digits_of_float32() -> None:
    kind = Score()
    found = kind.answers([DOC, SHORT], {"score": np.array([0.1, -123456.78], np.float32)})
    assert found == [{"score": 0.1}, {"score": -123456.8}]
    assert task_of(kind).predicted(found[0]) == 0.1
    assert task_of(kind).predicted(kind.empty(False)) is None
    assert [task_of(kind).gold({"score": given}) for given in (3, 2.5, "-4e3", " 7 ")] == [3.0, 2.5, -4000.0, 7.0]


@pytest.mark.parametrize("given", [None, True, "", "many", "nan", float("nan"), float("inf"), 1e39, 10**400, [1.0]])
def test_a_target_that_is_no_finite_number_is_told_with_its_place(given: Any) -> None:
    with pytest.raises(DataError, match=r"f:3: field 'stars' is .*; a finite number is needed"):
        task_of(Score("stars")).gold({"stars": given, "where": "f:3"})


def test_a_vector_is_a_list_of_numbers_and_its_reference_a_label() -> None:
    kind = Vector(("a", "b"))
    found = kind.answers([DOC, SHORT], {"vector": np.array([[0.1, 2.0], [-1e-9, 3e8]], np.float32)})
    assert found == [{"vector": [0.1, 2.0]}, {"vector": [-1e-9, 3e8]}]
    assert task_of(kind).predicted(found[0]) == [0.1, 2.0]
    assert (kind.empty(False), task_of(kind).predicted(kind.empty(False))) == ({"vector": None}, None)
    assert task_of(kind).gold({"label": 3}) == "3"


@pytest.mark.parametrize(("given", "label"), [("yes", "yes"), (3, "3"), (0, "0"), ("3", "3")])
def test_a_label_is_a_text_or_a_whole_number(given: Any, label: str) -> None:
    assert label_of({"label": given}, "label") == label


@pytest.mark.parametrize("given", [None, True, 1.5, "", " ", ["yes"]])
def test_nothing_else_is_a_label(given: Any) -> None:
    with pytest.raises(DataError, match=r"x:1: field 'label' is .*; a label is a text or a whole number"):
        label_of({"label": given, "where": "x:1"}, "label")
    with pytest.raises(DataError, match="x:1: no field 'label'"):
        label_of({"lable": "yes", "where": "x:1"}, "label")


def test_what_stands_in_the_padding_is_no_answer() -> None:
    tags = [[0, 0, 0, 0], [0, 1, 1, 1]]
    assert Spans(LABELS).answers([DOC, SHORT], decision(tags=tags)) == [[], []]
    assert len(Tags(LABELS).answers([DOC, SHORT], decision(tags=tags))[1]) == 1


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


def test_a_probability_never_leaves_0_to_1() -> None:
    (answer, _) = Spans(LABELS).answers([DOC, SHORT], decision(opens=np.full((2, 4), 1.0)))
    assert answer[0]["score"] == round(np.exp(1) / 4, 6)
    (answer, _) = Spans(LABELS).answers([DOC, SHORT], decision(opens=np.full((2, 4), 2.0)))
    assert answer[0]["score"] == 1.0


def test_the_reference_of_a_record_without_a_text_stands_in_its_words() -> None:
    record = {"words": ["in", "New", "York"], "tags": ["O", "B-city", "I-city"]}
    assert task_of(Spans(LABELS)).gold(record) == [("city", 3, 11)]
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
    assert second == [{"spans": [], "score": 0.5}]
    tagged, _ = Tags(LABELS).answers([DOC, SHORT], more)
    assert [word["entity"] for word in tagged[1]["tags"]] == ["O", "O", "B-city", "O"]


def test_one_path_is_no_list_of_alternatives() -> None:
    one = decision(paths=np.zeros((2, 1, 4), int), path_scores=np.zeros((2, 1)))
    assert Spans(LABELS).answers([DOC, SHORT], one) == Spans(LABELS).answers([DOC, SHORT], decision())


RECORD = {"text": "in New York", "words": ["in", "New", "York"], "tags": ["O", "B-city", "I-city"]}


def test_the_reference_is_compared_by_code_points_whichever_way_it_is_written() -> None:
    spans = {"text": "in New York", "spans": [{"start": 3, "end": 11, "label": "city"}]}
    assert task_of(Spans(LABELS)).gold(RECORD) == task_of(Spans(LABELS)).gold(spans) == [("city", 3, 11)]
    assert task_of(Tags(LABELS)).gold(RECORD) == [("O", 0, 2), ("B-city", 3, 6), ("I-city", 7, 11)]


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
def test_a_record_without_reference_is_an_error_that_says_where(
    kind: AnswerKind, record: dict[str, Any], field: str
) -> None:
    with pytest.raises(DataError, match=f"x:3: no field '{field}' to compare with; it has: text"):
        task_of(kind).gold(record)


WRITER = Chars().train(["ab c"])
END = WRITER.token_to_id("[EOS]")


def spelled(*texts: str) -> np.ndarray:
    rows = [[*WRITER.encode(text, add_special_tokens=False).ids, END] for text in texts]
    longest = max(map(len, rows))
    return np.array([[[*row, *[0] * (longest - len(row))] for row in rows]])  # (1, n, N)


def test_text_is_read_up_to_its_end_token() -> None:
    tokens = np.concatenate([spelled("ab ca"), spelled("bb ca")])
    tokens[0, 0, 2] = END  # "ab", then what nobody should see
    answers = Text(WRITER).answers([SHORT, SHORT], {"tokens": tokens, "scores": np.log([[0.5], [0.25]])})
    assert answers == [{"generated_text": "ab", "score": 0.5}, {"generated_text": "bb ca", "score": 0.25}]


def test_text_without_an_end_token_is_read_whole() -> None:
    assert Text(WRITER).decode(WRITER.encode("a b").ids, SHORT) == "a b"


def test_several_texts_come_best_first_without_impossible_ones() -> None:
    found = {"tokens": spelled("a", "b", "c"), "scores": np.array([[np.log(0.5), np.log(0.25), -np.inf]])}
    (answer,) = Text(WRITER).answers([SHORT], found)
    assert answer == [{"generated_text": "a", "score": 0.5}, {"generated_text": "b", "score": 0.25}]
    assert task_of(Text(WRITER)).predicted(answer) == "a"


def test_the_reference_of_text_is_a_field_of_the_record() -> None:
    assert (
        task_of(Text(WRITER)).gold({"target": "ab"}) == task_of(Text(WRITER, "answer")).gold({"answer": "ab"}) == "ab"
    )
    with pytest.raises(DataError, match="no field 'answer'"):
        task_of(Text(WRITER, "answer")).gold({"target": "ab"})


@pytest.mark.parametrize(
    "kind",
    [
        *(Tags(LABELS), Spans(LABELS, "ner", "BIOES"), Text(WRITER, "reversed"), Label(("a", "b"), "mood")),
        *(Labels(("a", "b"), "moods"), Score("stars"), Vector(("a", "b"))),
    ],
)
def test_an_answer_kind_is_built_again_from_its_manifest(kind: AnswerKind) -> None:
    again = head_answer_from(kind.manifest(), WRITER)
    assert (type(again), again.manifest()) == (type(kind), kind.manifest())


@pytest.mark.parametrize("manifest", [{}, {"kind": "boxes"}, {"kind": 3}, {"kind": "joint"}])
def test_an_unknown_answer_kind_asks_for_an_update(manifest: dict[str, Any]) -> None:
    with pytest.raises(BundleError, match="update seqpipe"):
        head_answer_from(manifest, None)


def test_an_empty_text_has_an_empty_answer() -> None:
    assert Tags(LABELS).empty(False) == Spans(LABELS).empty(False) == []
    assert task_of(Text(WRITER)).predicted(Text(WRITER).empty(False)) == ""


@pytest.mark.parametrize(
    ("kind", "answer", "lines"),
    [
        (Label("a"), {"label": "good", "score": 0.5}, ["good (0.5000)"]),
        (Label("a"), {"label": None, "score": 0.0}, ["(nothing) (0.0000)"]),
        (Labels("a"), [{"label": "a", "score": 0.9}, {"label": "b", "score": 0.6}], ["a (0.9000)", "b (0.6000)"]),
        (
            Spans(LABELS),
            [{"entity_group": "city", "score": 1.0, "word": "Bern", "start": 0, "end": 4}],
            ["Bern: city (1.0000)"],
        ),
        (
            Tags(LABELS),
            [{"entity": "NOUN", "score": 1.0, "word": "Bern", "start": 0, "end": 4}],
            ["Bern: NOUN (1.0000)"],
        ),
        (Tags(LABELS), [], ["(nothing)"]),
        (Score(), {"score": 3.25}, ["3.2500"]),
        (Score(), {"score": None}, ["(nothing)"]),
        (Vector("a"), {"vector": [0.0, 1.0]}, ["a vector of 2 numbers"]),
        (Vector("a"), {"vector": None}, ["(nothing)"]),
        (Candidate(Candidates(("a",))), {"text": "a", "score": 0.5, "nearest": []}, ["a (0.5000)"]),
        (
            Candidate(Candidates(("a",), None, ("yes",))),
            {"text": "a", "answer": "yes", "score": 0.5, "nearest": []},
            ["yes (0.5000)"],
        ),
        (Text(WRITER), {"generated_text": "hello", "score": 0.5}, ["hello (0.5000)"]),
        (Text(WRITER), [{"generated_text": "", "score": 0.5}], ["(nothing) (0.5000)"]),
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
def test_every_kind_of_answer_has_lines_that_a_person_reads(kind: AnswerKind, answer: Any, lines: list[str]) -> None:
    assert kind.lines(answer) == lines
