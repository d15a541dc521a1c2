"""Structured answers: what each sort of field learns, answers and is compared by, and what is refused."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from factory import QUIET, plugins, write_jsonl
from torch import Tensor, nn

from seqpipe import load as open_bundle
from seqpipe.answers.registry import head_answer_from
from seqpipe.answers.structured import Structured, StructuredTask, fields_from
from seqpipe.answers.task import HeadInfo, check_settings
from seqpipe.answers.types import EACH_WORD, WHOLE_TEXT, SpanRules, UnseenLabelError
from seqpipe.config.loader import load
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError, DataError
from seqpipe.features.document import Doc
from seqpipe.pipeline.full_run import run_all
from seqpipe.runtime.evaluate import evaluate
from seqpipe.runtime.predictor import number_outputs, refuse_nan
from seqpipe.training.datasets import collate, examples, read
from seqpipe.training.fit import fit_artifacts

FIELDS: dict[str, dict[str, str]] = {
    "mood": {"per": "text", "type": "label"},
    "root": {"per": "text", "type": "position"},
    "stars": {"per": "text", "type": "number", "target": "rating"},
    "topic": {"per": "text", "type": "span"},
    "pos": {"per": "word", "type": "label"},
    "head": {"per": "word", "type": "position", "target": "heads"},
    "tone": {"per": "word", "type": "number"},
    "chunk": {"per": "word", "type": "span"},
    "relation": {"per": "pair", "type": "label", "outside": "none"},
    "distance": {"per": "pair", "type": "number"},
}
RECORD: dict[str, Any] = {
    "where": "f:3",
    "text": "Ann met  Bo",
    "words": ["Ann", "met", "Bo"],
    "mood": "good",
    "root": 1,
    "rating": 2.5,
    "topic": {"start": 4, "end": 11},
    "pos": ["N", "V", "N"],
    "heads": [1, None, 1],
    "tone": [0.5, -1, 2],
    "chunk": [{"start": 0, "end": 3}, None, {"start": 4, "end": 11}],
    "relation": [{"from": 0, "to": 2, "label": "knows"}, {"from": 2, "to": 2, "label": "none"}],
    "distance": [{"from": 0, "to": 1, "value": 1.5}],
}
DOC = Doc("Ann met  Bo", ["Ann", "met", "Bo"], [(0, 3), (4, 7), (9, 11)], [4, 5, 6])
ONE = Doc("Ann", ["Ann"], [(0, 3)], [4])
PLACES = [(0, 3), (4, 7), (9, 11)]


def head_info(fields: Mapping[str, Any] = FIELDS, **changes: Any) -> HeadInfo:
    return replace(HeadInfo(check_settings(StructuredTask, {"fields": fields})), **changes)


def structured(fields: Mapping[str, Any] = FIELDS, *records: Mapping[str, Any]) -> Structured:
    """The kind as it is fitted to the record, and one of another mood."""
    info = head_info(fields)
    labels = StructuredTask.collect_labels(info, [*(records or (RECORD, {**RECORD, "mood": "bad"}))])
    return StructuredTask.create(info, labels, None)


def only(*names: str) -> dict[str, dict[str, str]]:
    return {name: FIELDS[name] for name in names}


def decision() -> dict[str, np.ndarray]:
    """Of DOC what RECORD says; of ONE something else, and numbers in the padding that mean nothing."""
    return {
        "mood": np.array([1, 0]),
        "mood_scores": np.array([0.75, 0.5], np.float32),
        "root": np.array([1, -1]),
        "stars": np.array([2.5, -0.1], np.float32),
        "topic": np.array([[1, 2], [-1, -1]]),
        "pos": np.array([[0, 1, 0], [1, 9, 9]]),
        "pos_scores": np.array([[0.5, 0.25, 1.0], [0.125, 7, 7]], np.float32),
        "head": np.array([[1, -1, 1], [0, 9, 9]]),
        "tone": np.array([[0.5, -1, 2], [0.25, np.nan, np.nan]], np.float32),
        "chunk": np.array([[[0, 0], [-1, -1], [1, 2]], [[0, 0], [9, 9], [9, 9]]]),
        "relation": np.array([[[0, 0, 1], [0, 0, 0], [0, 0, 0]], [[1, 9, 9]] * 3]),
        "relation_scores": np.full((2, 3, 3), 0.5, np.float32),
        "distance": np.array([[[0, 1.5, 0], [0, 0, 0], [0, 0, 0]], [[0, 9, 9]] * 3], np.float32),
    }


# What a head declares


def test_the_arrays_of_every_sort_of_field() -> None:
    settings = check_settings(StructuredTask, {"fields": FIELDS})
    shapes = {name: (array.shape, array.dtype) for name, array in StructuredTask.declared_targets(settings).items()}
    assert shapes == {
        "mood": ("(B,)", "int64"),
        "root": ("(B,)", "int64"),
        "stars": ("(B,)", "float32"),
        "topic": ("(B, 2)", "int64"),
        "pos": ("(B, T)", "int64"),
        "head": ("(B, T)", "int64"),
        "tone": ("(B, T)", "float32"),
        "chunk": ("(B, T, 2)", "int64"),
        "relation": ("(B, T, T)", "int64"),
        "distance": ("(B, T, T)", "float32"),
    }
    decided = StructuredTask.declared_decided(settings)
    assert {name for name, array in decided.items() if array.required} == {*FIELDS}
    assert {name for name, array in decided.items() if not array.required} == {f"{name}_scores" for name in FIELDS}
    assert structured().outputs == tuple(FIELDS)
    (choice,) = StructuredTask(structured()).choices
    assert {*choice.outputs} == {name for name, field in FIELDS.items() if field["type"] != "number"}


def test_it_is_about_words_unless_every_field_is_a_label_or_a_number_of_the_text() -> None:
    for name in FIELDS:
        expected = WHOLE_TEXT if name in ("mood", "stars") else EACH_WORD
        assert StructuredTask.declared_subject({"fields": only(name)}) == expected
    assert StructuredTask.declared_subject({"fields": only("mood", "pos")}) == EACH_WORD


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "a structured answer has at least one"),
        ([], "a structured answer has at least one"),
        (["mood"], "a structured answer has at least one"),
        ({"mood": "label"}, r"fields\.mood: 'label' is not a field; write per and type"),
        ({"mood": {"per": "text", "type": "label", "of": "x"}}, r"fields\.mood: .* is not a field; write per and type"),
        ({"mood": {"per": "text"}}, r"fields\.mood: 'text' and '': per is one of text, word, pair, and type one of"),
        ({"mood": {"per": "token", "type": "label"}}, r"fields\.mood: 'token' and 'label'"),
        ({"mood": {"per": "text", "type": ["label"]}}, r"fields\.mood: 'text' and \['label'\]"),
        ({"a b": {"per": "text", "type": "label"}}, "'a b' is not a valid name; use"),
        ({"": {"per": "text", "type": "label"}}, "'' is not a text"),
        ({3: {"per": "text", "type": "label"}}, "3 is not a text"),
        ({"mood": {"per": "text", "type": "label", "target": None}}, "None is not a text"),
        ({"words": {"per": "text", "type": "label"}}, "'words' is not a valid name; use"),
        ({"start": {"per": "word", "type": "label"}}, "'start' is not a valid name; use"),
        ({"ids": {"per": "word", "type": "label"}}, "'ids' is not a valid name; use"),
        ({"mood_scores": {"per": "text", "type": "label"}}, "'mood_scores' is not a valid name; use"),
        ({"mood_score": {"per": "text", "type": "label"}}, "'mood_score' is not a valid name; use"),
        ({"word_mask": {"per": "word", "type": "label"}}, "'word_mask' is not a valid name; use"),
        ({"relation": {"per": "pair", "type": "label"}}, r"fields\.relation: labels of pairs need `outside`"),
        ({"relation": {"per": "pair", "type": "position"}}, "a pair of words has a label or a number"),
        ({"relation": {"per": "pair", "type": "span"}}, "a pair of words has a label or a number"),
    ],
)
def test_a_description_that_is_none_is_refused(fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_settings(StructuredTask, {"fields": fields})


def test_a_target_beside_those_of_the_fields_is_refused() -> None:
    assert StructuredTask.refuse_input(head_info()) == ""
    message = StructuredTask.refuse_input(head_info(only("mood", "head"), target="tags"))
    assert message == "its fields name their targets (mood, heads); delete `target`"


# Labels


def test_labels_are_those_of_each_field_with_their_counts_and_the_outside_one_first() -> None:
    info = head_info(only("mood", "pos", "relation"))
    labels = StructuredTask.collect_labels(info, [RECORD, {**RECORD, "mood": 7}])
    assert labels == ("mood/7", "mood/good", "pos/N", "pos/V", "relation/none", "relation/knows")
    assert labels.counts == [1, 1, 4, 2, 2, 2]
    kind = StructuredTask.create(info, labels, None)
    wired = StructuredTask(kind).wired_labels(labels)
    assert {name: (*of_field,) for name, of_field in wired.items()} == {
        "mood": ("7", "good"),
        "pos": ("N", "V"),
        "relation": ("none", "knows"),
    }
    assert wired["pos"].counts == [4, 2]
    task = StructuredTask(kind)
    assert task.answer_labels() == {*labels}
    assert sorted(task.labels_in(task.gold(RECORD))) == [
        "mood/good",
        "pos/N",
        "pos/N",
        "pos/V",
        "relation/knows",
    ]


def test_labels_of_an_older_run_keep_their_places() -> None:
    old = ("pos/X", "pos/N", "relation/none", "relation/likes")
    labels = StructuredTask.collect_labels(head_info(only("pos", "relation"), old_labels=old), [RECORD])
    assert labels == (*old, "pos/V", "relation/knows")
    kind = StructuredTask.create(head_info(only("pos", "relation")), labels, None)
    assert [field.labels for field in kind.fields] == [("X", "N", "V"), ("none", "likes", "knows")]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (only("pos", "relation"), ""),
        (only("pos"), ""),
        (
            {"pos": {"per": "text", "type": "label"}},
            "the field 'pos' of the run has per: word and type: label; use the same",
        ),
        (
            {"relation": {**FIELDS["relation"], "outside": "no"}},
            "'none' is `outside` in the field 'relation' of the run",
        ),
    ],
)
def test_fields_of_an_older_run_with_another_meaning_are_refused(fields: dict[str, Any], message: str) -> None:
    old = structured(only("pos", "relation")).manifest()
    assert StructuredTask.label_conflict(old, {"fields": fields}, "the run").startswith(message)
    assert bool(StructuredTask.label_conflict(old, {"fields": fields}, "the run")) == bool(message)


def test_a_field_without_any_label_in_training_is_refused() -> None:
    with pytest.raises(DataError, match="no training record has a label in the field 'pos'"):
        StructuredTask.collect_labels(head_info(only("pos")), [{"words": [], "pos": []}])


# Targets


def test_what_is_learned_of_a_record() -> None:
    targets = StructuredTask(structured()).target_maker({}, SpanRules("error"))(RECORD, DOC)
    assert targets == {
        "mood": 1,
        "root": 1,
        "stars": 2.5,
        "topic": [1, 2],
        "pos": [0, 1, 0],
        "head": [1, -1, 1],
        "tone": [0.5, -1.0, 2.0],
        "chunk": [[0, 0], [-1, -1], [1, 2]],
        "relation": [[0, 0, 1], [0, 0, 0], [0, 0, 0]],
        "distance": [[0.0, 1.5, 0.0], [0.0] * 3, [0.0] * 3],
    }
    assert all(type(number) is float for row in targets["distance"] for number in row)  # so that no batch is of int64


@pytest.mark.parametrize("none", [None, -1])
def test_no_position_and_no_span_are_minus_one(none: Any) -> None:
    kind = structured(only("root", "topic"))
    record = {**RECORD, "root": none, "topic": none}
    assert StructuredTask(kind).target_maker({}, SpanRules("error"))(record, DOC) == {"root": -1, "topic": [-1, -1]}
    assert StructuredTask(kind).gold(record) == {"root": None, "topic": None}


@pytest.mark.parametrize("name", ["topic", "chunk"])
def test_a_span_that_cuts_a_word_is_an_error_or_widened_or_its_record_skipped(name: str) -> None:
    kind, span = structured(only(name)), {"start": 4, "end": 10}
    record = {**RECORD, name: span if name == "topic" else [None, None, span]}
    with pytest.raises(DataError, match=r"f:3: span 'met  B' cuts a word of \['met', 'Bo'\]; set data.misaligned"):
        StructuredTask(kind).target_maker({}, SpanRules("error"))(record, DOC)
    widened = StructuredTask(kind).target_maker({}, SpanRules("widen"))(record, DOC)
    assert widened == {name: [1, 2] if name == "topic" else [[-1, -1], [-1, -1], [1, 2]]}
    assert StructuredTask(kind).target_maker({}, SpanRules("skip"))(record, DOC) is None
    between = {**RECORD, name: {"start": 7, "end": 8} if name == "topic" else [{"start": 7, "end": 8}] * 3}
    assert StructuredTask(kind).target_maker({}, SpanRules("widen"))(between, DOC) is None


def test_a_label_that_training_never_saw_is_told_as_such() -> None:
    for changes in ({"mood": "odd"}, {"pos": ["N", "N", "?"]}, {"relation": [{"from": 0, "to": 0, "label": "odd"}]}):
        with pytest.raises(UnseenLabelError, match=r"no training record has the label '(odd|\?)'"):
            StructuredTask(structured()).target_maker({}, SpanRules("error"))({**RECORD, **changes}, DOC)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("mood", None, "no field 'mood'"),
        ("mood", True, r"field 'mood': True is not a label \(text or whole number\)"),
        ("mood", " ", "field 'mood': ' ' is not a label"),
        ("mood", ["good"], r"field 'mood': \['good'\] is not a label"),
        ("root", 3, "field 'root': 3 is not a position of 3 words, which count from 0"),
        ("root", -2, "field 'root': -2 is not a position"),
        ("root", 1.0, "field 'root': 1.0 is not a position"),
        ("root", True, "field 'root': True is not a position"),
        ("rating", "many", "field 'rating' is 'many'; a finite number is needed"),
        ("rating", float("nan"), "field 'rating' is nan; a finite number is needed"),
        ("topic", [0, 3], r"field 'topic': \[0, 3\] is not a span, such as"),
        ("topic", {"start": 0}, "field 'topic': .* is not a span, such as"),
        ("topic", {"start": "0", "end": 3}, "field 'topic': .* is not a span, such as"),
        ("topic", {"start": 3, "end": 3}, "field 'topic': .* is not a span, such as"),
        ("topic", {"start": -1, "end": 3}, "field 'topic': .* is not a span, such as"),
        ("pos", None, "no field 'pos'"),
        ("pos", "NVN", "field 'pos' must be a list with the values of words, not str"),
        ("pos", 3, "field 'pos' must be a list with the values of words, not int"),
        ("pos", ["N", "V"], "field 'pos' has 2 values for 3 words; give one for each"),
        ("pos", ["N", "V", None], "field 'pos': None is not a label"),
        ("heads", [0, 1, 9], "field 'heads': 9 is not a position of 3 words"),
        ("tone", [0, 1, None], "field 'tone' is None; a finite number is needed"),
        ("relation", {"from": 0}, "field 'relation' must be a list with the values of pairs, not dict"),
        ("relation", 3, "field 'relation' must be a list with the values of pairs, not int"),
        ("relation", ["knows"], "field 'relation': 'knows' is not a pair; write"),
        ("relation", [{"from": 0, "to": 1}], "field 'relation': .* is not a pair; write"),
        ("relation", [{"from": 0, "to": 3, "label": "a"}], r"field 'relation': \(0, 3\) are not positions of 3 words"),
        ("relation", [{"from": -1, "to": 0, "label": "a"}], r"field 'relation': \(-1, 0\) are not positions"),
        ("relation", [{"from": True, "to": 0, "label": "a"}], r"field 'relation': \(True, 0\) are not positions"),
        ("relation", [{"from": 0, "to": 1, "label": "knows"}] * 2, r"has the pair \(0, 1\) twice; delete one"),
        ("distance", [{"from": 0, "to": 1, "value": "far"}], "field 'distance' is 'far'; a finite number is needed"),
    ],
)
def test_a_record_with_a_value_that_is_none_is_told_with_its_place(name: str, value: Any, message: str) -> None:
    kind, record = structured(), {**RECORD, name: value}
    for act in (
        lambda: StructuredTask(kind).target_maker({}, SpanRules("error"))(record, DOC),
        lambda: StructuredTask(kind).gold(record),
    ):
        with pytest.raises(DataError, match=f"^f:3: .*{message}"):
            act()


@pytest.mark.parametrize("name", ["mood", "pos", "relation"])
@pytest.mark.parametrize("value", [None, 3.5, [3.5], {"a": 1}])
def test_labels_that_are_none_are_told_when_they_are_collected(name: str, value: Any) -> None:
    with pytest.raises(DataError, match=f"^f:3: .*field '{name}'"):
        StructuredTask.collect_labels(head_info(only(name)), [{**RECORD, name: value}])


def test_a_record_that_lacks_a_field_is_told_with_those_it_has() -> None:
    for name, field in FIELDS.items():
        record = {key: value for key, value in RECORD.items() if key != field.get("target", name)}
        with pytest.raises(DataError, match=rf"^f:3: no field '{field.get('target', name)}'.*: text, words"):
            StructuredTask(structured()).gold(record)


# Answers


def test_an_answer_says_what_was_decided_of_text_words_and_pairs() -> None:
    first, second = structured().answers([DOC, ONE], decision())
    assert first == {
        "words": [
            {
                "word": "Ann",
                "start": 0,
                "end": 3,
                "pos": "N",
                "pos_score": 0.5,
                "head": 1,
                "tone": 0.5,
                "chunk": {"text": "Ann", "start": 0, "end": 3},
            },
            {
                "word": "met",
                "start": 4,
                "end": 7,
                "pos": "V",
                "pos_score": 0.25,
                "head": None,
                "tone": -1.0,
                "chunk": None,
            },
            {
                "word": "Bo",
                "start": 9,
                "end": 11,
                "pos": "N",
                "pos_score": 1.0,
                "head": 1,
                "tone": 2.0,
                "chunk": {"text": "met  Bo", "start": 4, "end": 11},
            },
        ],
        "mood": "good",
        "mood_score": 0.75,
        "root": 1,
        "stars": 2.5,
        "topic": {"text": "met  Bo", "start": 4, "end": 11},
        "relation": [{"from": 0, "to": 2, "label": "knows", "score": 0.5}],
        "distance": [{"from": 0, "to": 1, "value": 1.5}],
    }
    assert (second["mood"], second["root"], second["stars"], second["topic"]) == ("bad", None, -0.1, None)
    assert [word["word"] for word in second["words"]] == ["Ann"]
    assert second["relation"] == [{"from": 0, "to": 0, "label": "knows", "score": 0.5}]
    assert second["distance"] == []
    json.dumps([first, second], allow_nan=False)


def test_fields_of_the_text_alone_have_no_words() -> None:
    (answer,) = structured(only("mood", "stars")).answers([ONE], {"mood": np.array([0]), "stars": np.array([1.0])})
    assert answer == {"mood": "bad", "stars": 1.0}


def test_an_answer_that_is_right_equals_the_reference_however_the_words_are_given() -> None:
    kind = structured()
    answer, other = kind.answers([DOC, ONE], decision())
    gold = StructuredTask(kind).gold(RECORD)
    assert StructuredTask(kind).predicted(answer) == gold
    assert gold["head"] == {PLACES[0]: PLACES[1], PLACES[1]: None, PLACES[2]: PLACES[1]}
    assert gold["topic"] == (4, 11)
    assert gold["relation"] == {(PLACES[0], PLACES[2]): "knows"}
    assert StructuredTask(kind).is_right(gold, StructuredTask(kind).predicted(answer))
    assert not StructuredTask(kind).is_right(gold, StructuredTask(kind).predicted(other))
    assert StructuredTask(kind).mistakes(gold, StructuredTask(kind).predicted(answer)) == {}


def test_a_pair_that_is_given_as_outside_is_none_in_the_reference() -> None:
    zero, none = {"from": 1, "to": 2, "value": 0}, {"from": 1, "to": 2, "label": "none"}
    record = {**RECORD, "distance": [*RECORD["distance"], zero], "relation": [*RECORD["relation"], none]}
    task = StructuredTask(structured())
    assert task.gold(record)["distance"] == {(PLACES[0], PLACES[1]): 1.5}
    assert task.gold(record) == task.gold(RECORD)
    assert task.gold({**record, "distance": [{**zero, "value": 0.0}]})["distance"] == {}


def test_the_reference_needs_words_only_where_they_are_counted() -> None:
    record = {key: value for key, value in RECORD.items() if key != "words"}
    task = StructuredTask(structured(only("mood", "stars", "topic")))
    assert task.gold(record) == {
        "mood": "good",
        "stars": 2.5,
        "topic": (4, 11),
    }
    for name in ("root", "pos", "relation"):
        with pytest.raises(DataError, match="f:3: no field 'words' to compare with"):
            StructuredTask(structured(only(name))).gold(record)


def test_what_is_wrong_is_listed_by_field() -> None:
    kind = structured(only("mood", "head", "relation"))
    wrong = decision() | {"mood": np.array([0, 0]), "head": np.array([[1, 0, 1], [0, 0, 0]])}
    wrong["relation"] = np.array([[[0, 1, 0], [0, 0, 0], [0, 0, 0]], [[0] * 3] * 3])
    gold, predicted = (
        StructuredTask(kind).gold(RECORD),
        StructuredTask(kind).predicted(kind.answers([DOC, ONE], wrong)[0]),
    )
    assert StructuredTask(kind).mistakes(gold, predicted) == {
        "mood": {"expected": "good", "got": "bad"},
        "head": {"missed": [[(4, 7), None]], "wrong": [[(4, 7), (0, 3)]]},
        "relation": {"missed": [[((0, 3), (9, 11)), "knows"]], "wrong": [[((0, 3), (4, 7)), "knows"]]},
    }


def test_an_answer_as_a_person_reads_it() -> None:
    kind = structured(only("mood", "topic", "pos", "head", "relation"))
    assert kind.lines(kind.answers([DOC, ONE], decision())[0]) == [
        "Ann: pos N, pos_score 0.5000, head 1",
        "met: pos V, pos_score 0.2500, head -",
        "Bo: pos N, pos_score 1.0000, head 1",
        "mood: good",
        "topic: met  Bo",
        "relation: Ann → Bo: knows",
    ]


def test_the_empty_text_has_no_word_no_label_no_number_and_is_wrong_where_there_is_one() -> None:
    kind = structured()
    empty = kind.empty(False)
    nothing = {"mood": None, "root": None, "stars": None, "topic": None}
    assert empty == {"words": [], **nothing, "relation": [], "distance": []}
    assert kind.empty(True) == [empty]
    assert structured(only("mood")).empty(False) == {"mood": None}
    none = {"pos": {}, "head": {}, "tone": {}, "chunk": {}, "relation": {}, "distance": {}}
    assert StructuredTask(kind).predicted(empty) == {**nothing, **none}
    counter = StructuredTask(kind).counter()
    counter.add(StructuredTask(kind).gold(RECORD), StructuredTask(kind).predicted(empty))
    scores = counter.result()
    assert {score for name, score in scores.items() if name.endswith(("accuracy", "f1", "match"))} == {0}
    assert kind.lines(empty)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("mood", [2, 0]), ("mood", [-1, 0]), ("root", [3, 0]), ("root", [-2, 0])),
        *(("topic", [[0, 3], [0, 0]]), ("topic", [[2, 1], [0, 0]]), ("topic", [[0, -1], [0, 0]])),
        *(("pos", [[0, 2, 0], [0, 0, 0]]), ("head", [[0, 3, 0], [0, 0, 0]]), ("relation", [[[0, 2, 0]] * 3] * 2)),
        ("chunk", [[[0, 9], [0, 0], [0, 0]], [[0, 0]] * 3]),
    ],
)
def test_a_number_of_the_graph_that_means_nothing_is_an_error(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        structured().answers([DOC, ONE], decision() | {name: np.array(value)})


@pytest.mark.parametrize("name", ["stars", "tone", "distance", "mood_scores", "pos_scores", "relation_scores"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_number_that_is_none_names_its_output_unless_it_is_padding(name: str, number: float) -> None:
    kind = structured()
    outputs = number_outputs(kind)
    refuse_nan(outputs, [DOC, ONE], decision())  # there is NaN in the padding of tone
    arrays = decision()
    arrays[name][(1, *[-1] * (arrays[name].ndim - 1))] = number
    if arrays[name].ndim > 1:
        refuse_nan(outputs, [DOC, ONE], arrays)
    arrays[name][(1, *[0] * (arrays[name].ndim - 1))] = number
    with pytest.raises(DataError, match=f"'{name}' is {'NaN' if np.isnan(number) else 'infinite'} for this input"):
        refuse_nan(outputs, [DOC, ONE], arrays)


# Scores


def test_scores_by_hand() -> None:
    counter = StructuredTask(structured()).counter()
    gold, places = StructuredTask(structured()).gold(RECORD), PLACES
    wrong = {
        "mood": "bad",
        "root": places[0],
        "stars": 3.5,
        "topic": None,
        "pos": {places[0]: "N", places[1]: "N", (9, 10): "N"},  # the last word was split otherwise
        "head": {places[0]: None, places[1]: None, places[2]: places[1]},
        "tone": {places[0]: 1.5, places[1]: -1.0},
        "chunk": {places[0]: (0, 3), places[1]: (4, 7), places[2]: (4, 11)},
        "relation": {(places[0], places[2]): "likes", (places[2], places[0]): "knows", (places[0], places[1]): "a"},
        "distance": {(places[0], places[1]): 2.0, (places[1], places[0]): 1.0},
    }
    for predicted in (gold, wrong):
        counter.add(gold, predicted)
    scores = counter.result()
    assert [*scores] == [*StructuredTask(structured()).metrics]
    accuracies = {"mood": 1 / 2, "root": 1 / 2, "topic": 1 / 2, "pos": 4 / 6, "head": 5 / 6, "chunk": 5 / 6}
    for name, accuracy in accuracies.items():
        assert scores[f"{name}_accuracy"] == pytest.approx(accuracy), name
    assert scores["relation_precision"] == 1 / 4
    assert scores["relation_recall"] == 1 / 2
    assert scores["relation_f1"] == pytest.approx(2 / 6)
    assert (scores["stars_mae"], scores["stars_rmse"]) == (0.5, pytest.approx(0.5**0.5))
    assert scores["tone_mae"] == pytest.approx(1 / 5)  # of five numbers, one is one too much
    right, given = [1.5, 1.5, 0.0], [1.5, 2.0, 1.0]
    assert scores["distance_mae"] == pytest.approx(1.5 / 3)
    assert scores["distance_pearson"] == pytest.approx(np.corrcoef(right, given)[0, 1])
    assert scores["exact_match"] == 1 / 2


def test_of_errors_less_is_better_and_the_first_field_has_the_headline() -> None:
    metrics = StructuredTask(structured(only("stars", "pos"))).metrics
    assert next(iter(metrics)) == "stars_pearson"
    assert [name for name, metric in metrics.items() if not metric.more_is_better] == ["stars_mae", "stars_rmse"]
    assert [name for name, metric in metrics.items() if metric.percent] == ["pos_accuracy", "exact_match"]
    assert not any(StructuredTask(structured()).counter().result().values())


# Manifests


def test_a_manifest_states_every_field_and_is_data() -> None:
    kind = structured()
    manifest = json.loads(json.dumps(kind.manifest()))
    again = head_answer_from(manifest, None)
    assert isinstance(again, Structured)
    assert again.fields == kind.fields
    assert manifest["fields"][0] == {
        "name": "mood",
        "per": "text",
        "type": "label",
        "target": "mood",
        "labels": ["bad", "good"],
    }
    assert manifest["fields"][5] == {"name": "head", "per": "word", "type": "position", "target": "heads"}
    for docs in ([DOC, ONE], []):
        some = {name: array[: len(docs)] for name, array in decision().items()}
        assert again.answers(docs, some) == kind.answers(docs, some)


GOOD = {"name": "mood", "per": "text", "type": "label", "target": "mood", "labels": ["a", "b"]}


@pytest.mark.parametrize(
    "fields",
    [
        *(None, 3, [], {}, "mood", [3], ["mood"], [{}], [[]], {"mood": GOOD}),
        *([{**GOOD, "labels": []}], [{**GOOD, "labels": "ab c"}], [{**GOOD, "labels": [1, 2]}]),
        *([{**GOOD, "labels": None}], [{**GOOD, "labels": ["a", "a"]}], [{**GOOD, "labels": 3}]),
        *([{**GOOD, "name": 3}], [{**GOOD, "name": "a b"}], [{**GOOD, "name": "words"}], [{**GOOD, "name": []}]),
        *([{**GOOD, "per": "line"}], [{**GOOD, "per": None}], [{**GOOD, "type": "text"}], [{**GOOD, "type": {}}]),
        *([{**GOOD, "target": None}], [{**GOOD, "target": 3}], [GOOD, GOOD], [{**GOOD, "type": "number"}]),
        *([{**GOOD, "per": "pair", "type": "span", "labels": []}], [{**GOOD, "per": "pair", "labels": []}]),
    ],
)
def test_a_hostile_manifest_is_no_kind(fields: Any) -> None:
    head_answer_from({"kind": "structured", "fields": [GOOD]}, None)
    with pytest.raises((KeyError, TypeError, ValueError)):
        head_answer_from({"kind": "structured", "fields": fields}, None)


def test_fields_are_what_their_description_says() -> None:
    (field,) = fields_from({"head": {"per": "word", "type": "position"}})
    assert (field.target, field.labels) == ("head", ())


# From data to a bundle


class Parser(nn.Module):
    """A label of the text, a label and the head of each word, and relations between words, each by a linear layer."""

    answer = "structured"
    answer_settings: ClassVar = {"fields": only("mood", "pos", "head", "relation")}

    def __init__(self, dim: int, labels: Mapping[str, Any]):
        super().__init__()
        self.mood, self.pos = nn.Linear(dim, len(labels["mood"])), nn.Linear(dim, len(labels["pos"]))
        self.start, self.end = nn.Linear(dim, 8), nn.Linear(dim, 8)
        self.pair = nn.Linear(16, len(labels["relation"]))

    def log_p(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        x = torch.where(mask[..., None], x, 0.0)
        one, other = self.start(x), self.end(x)  # (B, T, 8)
        both = torch.cat([one[:, :, None] + 0 * other[:, None], other[:, None] + 0 * one[:, :, None]], 3)
        pairs = self.pair(both.tanh())  # (B, T, T, L)
        heads = (one @ other.transpose(1, 2)).masked_fill(~mask[:, None], -1e4)  # (B, T, T)
        scores = {"mood": self.mood(x.sum(1) / mask.sum(1, keepdim=True)), "pos": self.pos(x)}
        return {name: z.log_softmax(-1) for name, z in {**scores, "head": heads, "relation": pairs}.items()}

    def loss(self, x: Tensor, mask: Tensor, mood: Tensor, pos: Tensor, head: Tensor, relation: Tensor) -> Tensor:
        log_p, real = self.log_p(x, mask), mask[:, :, None] & mask[:, None]
        pairs = -log_p["relation"].gather(3, relation[..., None])[..., 0][real].mean()
        words = [
            -log_p[name].gather(2, gold.clamp(min=0)[..., None])[..., 0]
            for name, gold in (("pos", pos), ("head", head))
        ]
        return (
            nn.functional.nll_loss(log_p["mood"], mood)
            + words[0][mask].mean()
            + words[1][mask & (head >= 0)].mean()
            + pairs
        )

    def decide(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        log_p = self.log_p(x, mask)
        pos, p = log_p["pos"].argmax(2), log_p["pos"].exp()
        return {
            "mood": log_p["mood"].argmax(1),
            "pos": pos,
            "pos_scores": p.gather(2, pos[..., None])[..., 0],
            "head": torch.where(mask, log_p["head"].argmax(2), -1),
            "relation": log_p["relation"].argmax(3),
        }


def parser(folder: Path, *overrides: str) -> Any:
    records = [
        {
            "text": f"{who} {verb} Bo",
            "words": [who, verb, "Bo"],
            "mood": "good" if verb == "met" else "bad",
            "pos": ["N", "V", "N"],
            "heads": [1, 0, 1],
            "relation": [{"from": 0, "to": 2, "label": "knows"}] if verb == "met" else [],
        }
        for who in ("Ann", "Cho", "Dee")
        for verb in ("met", "left")
    ]
    for name in ("train", "dev", "test"):
        write_jsonl(folder / f"{name}.jsonl", [*records, records[0]] * (8 if name == "train" else 1))
    content = {
        "name": "parsed",
        "data": {"reader": "jsonl", "train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl"},
        "tokenizer": "words",
        "embedding": {"use": "lookup", "dim": 8},
        "encoder": {"use": "lstm", "hidden": 8},
        "head": "parser",
        "train": {
            "epochs": 40,
            "batch_size": 8,
            "threads": 1,
            "optimizer": {"use": "adamw", "lr": 0.02},
            "metric": "exact_match",
        },
    }
    (folder / "parsed.yaml").write_text(dump(content))
    return load(folder / "parsed.yaml", overrides, plugins(parser=("head", Parser)))


def test_a_head_that_describes_its_answer_learns_it_and_the_bundle_needs_no_code_of_it(tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = parser(tmp_path)
    with contextlib.chdir(tmp_path):
        scores = (run_all(config, QUIET, "cpu").scores or {})["test"]
    assert next(iter(scores)) == "mood_accuracy"
    assert scores["exact_match"] == 1.0
    assert scores["relation_f1"] == 1.0
    model = open_bundle(tmp_path / "runs/parsed/bundle", "cpu")
    assert model.verify() == []
    assert model.manifest.outputs == ("mood", "pos", "head", "relation")
    answer = model("Cho met Bo")
    assert (answer["mood"], [word["head"] for word in answer["words"]]) == ("good", [1, 0, 1])
    assert answer["relation"] == [{"from": 0, "to": 2, "label": "knows"}]
    assert 0.5 < answer["words"][0]["pos_score"] <= 1
    assert model(["Cho left Bo", ""])[1] == {"words": [], "mood": None, "relation": []}
    assert model("Cho left Bo")["relation"] == []
    found = evaluate(model.predictor, read(config.data.reader, config.data.tests["test"]))[""]
    assert found == pytest.approx(scores)


def test_batches_hold_padded_words_and_pairs(tmp_path: Path) -> None:
    config = parser(tmp_path)
    records = read(config.data.reader, config.data.train)[:2]
    records[1] = {
        **records[1],
        "text": "Ann left",
        "words": ["Ann", "left"],
        "pos": ["N", "V"],
        "heads": [1, None],
        "relation": [],
    }
    batch = collate(*(lambda learned: (learned, examples(config, learned, records)))(fit_artifacts(config, records)))
    assert batch["mood"].tolist() == [1, 0]
    assert batch["pos"].tolist() == [[0, 1, 0], [0, 1, 0]]
    assert batch["head"].tolist() == [[1, 0, 1], [1, -1, 0]]
    assert batch["relation"].tolist() == [[[0, 0, 1], [0, 0, 0], [0, 0, 0]], [[0] * 3] * 3]
    assert {array.dtype for name, array in batch.items() if name in ("mood", "pos", "head", "relation")} == {
        torch.int64
    }


def test_a_target_and_a_pair_of_texts_are_refused(tmp_path: Path) -> None:
    config = parser(tmp_path, "head.target=mood")
    with pytest.raises(ConfigError, match="its fields name their targets"):
        fit_artifacts(config, read(config.data.reader, config.data.train))
    config = parser(tmp_path, "tokenizer={use: words, field: [text, mood]}")
    with pytest.raises(ConfigError, match="a pair of texts has no words to tag"):
        fit_artifacts(config, read(config.data.reader, config.data.train))
