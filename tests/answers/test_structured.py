"""Structured answers: what each sort of field learns, answers and is compared by, and what is refused."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gallery import Shape, gallery
from tiny_pipelines import plugins

from seqpipe import load as open_bundle
from seqpipe.answers.registry import head_answer_from
from seqpipe.answers.structured import Structured, StructuredTask, fields_from
from seqpipe.answers.task import HeadInfo, check_settings
from seqpipe.answers.types import EACH_WORD, WHOLE_TEXT, SpanRules, UnseenLabelError
from seqpipe.config.loader import load_config
from seqpipe.errors import ConfigError, DataError
from seqpipe.features.document import Doc
from seqpipe.runtime.predictor import number_outputs, refuse_nan
from seqpipe.training.datasets import collate, examples, load_records
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


def structured(fields: Mapping[str, Any] = FIELDS) -> Structured:
    """The kind that is fitted to the record, and one of another mood."""
    info = head_info(fields)
    labels = StructuredTask.collect_labels(info, [RECORD, {**RECORD, "mood": "bad"}])
    return StructuredTask.create(info, labels, None)


def task(*names: str) -> StructuredTask:
    return StructuredTask(structured(only(*names) if names else FIELDS))


def targets(of: StructuredTask, record: Mapping[str, Any], misaligned: Any = "error") -> Any:
    (row,) = of.target_maker({}, SpanRules(misaligned))([record], [DOC])
    if isinstance(row, DataError):
        raise row
    return row


def only(*names: str) -> dict[str, dict[str, str]]:
    return {name: FIELDS[name] for name in names}


def decision() -> dict[str, np.ndarray]:
    """The values of RECORD for DOC; other values for ONE, and meaningless numbers in the padding."""
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
    of_text = ["(B,) int64", "(B,) int64", "(B,) float32", "(B, 2) int64"]
    of_words = ["(B, T) int64", "(B, T) int64", "(B, T) float32", "(B, T, 2) int64"]
    expected = dict(zip(FIELDS, [*of_text, *of_words, "(B, T, T) int64", "(B, T, T) float32"], strict=True))
    declared = StructuredTask.declared_targets(settings)
    assert {name: f"{array.shape} {array.dtype}" for name, array in declared.items()} == expected
    decided = StructuredTask.declared_decided(settings)
    assert {name for name, array in decided.items() if array.required} == {*FIELDS}
    assert {name for name, array in decided.items() if not array.required} == {f"{name}_scores" for name in FIELDS}
    assert structured().outputs == tuple(FIELDS)
    (choice,) = task().choices
    assert {*choice.outputs} == {name for name, field in FIELDS.items() if field["type"] != "number"}
    (field,) = fields_from({"head": {"per": "word", "type": "position"}})
    assert (field.target, field.labels) == ("head", ())


def test_it_is_about_words_unless_every_field_is_a_label_or_a_number_of_the_text() -> None:
    for names in (*((name,) for name in FIELDS), ("mood", "pos")):
        expected = WHOLE_TEXT if names in (("mood",), ("stars",)) else EACH_WORD
        assert StructuredTask.declared_subject({"fields": only(*names)}) == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *((fields, "a structured answer has at least one") for fields in ({}, [], ["mood"])),
        ({"mood": "label"}, r"fields\.mood: 'label' is not a field; write per and type"),
        ({"mood": {"per": "text", "type": "label", "of": "x"}}, r"fields\.mood: .* is not a field; write per and type"),
        ({"mood": {"per": "text"}}, r"fields\.mood: 'text' and '': per is one of text, word, pair, and type one of"),
        ({"mood": {"per": "token", "type": "label"}}, r"fields\.mood: 'token' and 'label'"),
        ({"mood": {"per": "text", "type": ["label"]}}, r"fields\.mood: 'text' and \['label'\]"),
        ({"": {"per": "text", "type": "label"}}, "'' is not a text"),
        ({3: {"per": "text", "type": "label"}}, "3 is not a text"),
        ({"mood": {"per": "text", "type": "label", "target": None}}, "None is not a text"),
        *(
            ({name: {"per": "text", "type": "label"}}, f"{name!r} is not a valid name; use")
            for name in ("a b", "words", "start", "ids", "mood_scores", "mood_score", "word_mask")
        ),
        ({"relation": {"per": "pair", "type": "label"}}, r"fields\.relation: labels of pairs need `outside`"),
        ({"relation": {"per": "pair", "type": "position"}}, "a pair of words has a label or a number"),
        ({"relation": {"per": "pair", "type": "span"}}, "a pair of words has a label or a number"),
    ],
)
def test_invalid_fields_are_refused(fields: Any, message: str) -> None:
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
    fitted = StructuredTask(StructuredTask.create(info, labels, None))
    wired = fitted.wired_labels(labels)
    expected = {"mood": ("7", "good"), "pos": ("N", "V"), "relation": ("none", "knows")}
    assert {name: (*of_field,) for name, of_field in wired.items()} == expected
    assert wired["pos"].counts == [4, 2]
    assert fitted.answer_labels() == {*labels}
    of_record = ["mood/good", "pos/N", "pos/N", "pos/V", "relation/knows"]
    assert sorted(fitted.labels_in(fitted.gold(RECORD))) == of_record


def test_labels_of_an_older_run_keep_their_places() -> None:
    old, info = ("pos/X", "pos/N", "relation/none", "relation/likes"), head_info(only("pos", "relation"))
    labels = StructuredTask.collect_labels(replace(info, old_labels=old), [RECORD])
    assert labels == (*old, "pos/V", "relation/knows")
    kind = StructuredTask.create(info, labels, None)
    assert [field.labels for field in kind.fields] == [("X", "N", "V"), ("none", "likes", "knows")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, ""),
        ({"pos": {"per": "text", "type": "label"}}, "the field 'pos' of the run has per: word and type: label; use"),
        ({"relation": {**FIELDS["relation"], "outside": "no"}}, "'none' is `outside` in the field 'relation' of the"),
    ],
)
def test_fields_of_an_older_run_with_another_meaning_are_refused(changes: dict[str, Any], message: str) -> None:
    old = structured(only("pos", "relation")).manifest()
    for fields in (only("pos") | changes, only("pos", "relation") | changes):
        refused = StructuredTask.label_conflict(old, {"fields": fields}, "the run")
        assert refused.startswith(message)
        assert bool(refused) == bool(message)


def test_a_field_without_any_label_in_training_is_refused() -> None:
    with pytest.raises(DataError, match="no training record has a label in the field 'pos'"):
        StructuredTask.collect_labels(head_info(only("pos")), [{"words": [], "pos": []}])


# Targets


def test_targets_of_a_record() -> None:
    of_text = {"mood": 1, "root": 1, "stars": 2.5, "topic": [1, 2]}
    of_words = {"pos": [0, 1, 0], "head": [1, -1, 1], "tone": [0.5, -1.0, 2.0], "chunk": [[0, 0], [-1, -1], [1, 2]]}
    relation, distance = [[0, 0, 1], [0, 0, 0], [0, 0, 0]], [[0.0, 1.5, 0.0], [0.0] * 3, [0.0] * 3]
    values = targets(task(), RECORD)
    assert values == {**of_text, **of_words, "relation": relation, "distance": distance}
    numbers = [number for row in values["distance"] for number in row]
    assert all(type(number) is float for number in numbers)  # so that no batch is of int64


@pytest.mark.parametrize("none", [None, -1])
def test_no_position_and_no_span_are_minus_one(none: Any) -> None:
    record = {**RECORD, "root": none, "topic": none}
    assert targets(task("root", "topic"), record) == {"root": -1, "topic": [-1, -1]}
    assert task("root", "topic").gold(record) == {"root": None, "topic": None}


@pytest.mark.parametrize("name", ["topic", "chunk"])
def test_a_span_that_cuts_a_word_is_an_error_or_widened_or_its_record_skipped(name: str) -> None:
    span, between = {"start": 4, "end": 10}, {"start": 7, "end": 8}
    record = {**RECORD, name: span if name == "topic" else [None, None, span]}
    with pytest.raises(DataError, match=r"f:3: span 'met  B' cuts a word of \['met', 'Bo'\]; set data.misaligned"):
        targets(task(name), record)
    assert targets(task(name), record, "widen") == {name: [1, 2] if name == "topic" else [[-1, -1], [-1, -1], [1, 2]]}
    assert targets(task(name), record, "skip") is None
    assert targets(task(name), {**RECORD, name: between if name == "topic" else [between] * 3}, "widen") is None


def test_a_label_that_training_never_saw_is_an_error_of_its_own() -> None:
    for changes in ({"mood": "odd"}, {"pos": ["N", "N", "?"]}, {"relation": [{"from": 0, "to": 0, "label": "odd"}]}):
        with pytest.raises(UnseenLabelError, match=r"no training record has the label '(odd|\?)'"):
            targets(task(), {**RECORD, **changes})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("mood", None, "no field 'mood'"),
        ("mood", True, r"field 'mood': True is not a label \(text or whole number\)"),
        ("mood", " ", "field 'mood': ' ' is not a label"),
        ("mood", ["good"], r"field 'mood': \['good'\] is not a label"),
        ("root", 3, "field 'root': 3 is not a position of 3 words, which count from 0"),
        *(("root", value, f"field 'root': {value} is not a position") for value in (-2, 1.0, True)),
        ("rating", "many", "field 'rating' is 'many'; a finite number is needed"),
        ("rating", float("nan"), "field 'rating' is nan; a finite number is needed"),
        ("topic", [0, 3], r"field 'topic': \[0, 3\] is not a span, such as"),
        ("topic", {"start": 0}, "field 'topic': .* is not a span, such as"),
        *(("topic", {"start": a, "end": 3}, "field 'topic': .* is not a span, such as") for a in ("0", 3, -1)),
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
        *(
            ("relation", [{"from": a, "to": b, "label": "a"}], rf"field 'relation': \({a}, {b}\) are not positions of")
            for a, b in ((0, 3), (-1, 0), (True, 0))
        ),
        ("relation", [{"from": 0, "to": 1, "label": "knows"}] * 2, r"has the pair \(0, 1\) twice; delete one"),
        ("distance", [{"from": 0, "to": 1, "value": "far"}], "field 'distance' is 'far'; a finite number is needed"),
    ],
)
def test_an_invalid_value_is_an_error_with_its_place(name: str, value: Any, message: str) -> None:
    record = {**RECORD, name: value}
    with pytest.raises(DataError, match=f"^f:3: .*{message}"):
        targets(task(), record)
    with pytest.raises(DataError, match=f"^f:3: .*{message}"):
        task().gold(record)


@pytest.mark.parametrize("name", ["mood", "pos", "relation"])
@pytest.mark.parametrize("value", [None, 3.5, [3.5], {"a": 1}])
def test_invalid_labels_are_an_error_when_they_are_collected(name: str, value: Any) -> None:
    with pytest.raises(DataError, match=f"^f:3: .*field '{name}'"):
        StructuredTask.collect_labels(head_info(only(name)), [{**RECORD, name: value}])


def test_a_record_without_a_field_is_an_error_with_those_it_has() -> None:
    for name, field in FIELDS.items():
        key = field.get("target", name)
        with pytest.raises(DataError, match=rf"^f:3: no field '{key}'.*: text, words"):
            task().gold({other: value for other, value in RECORD.items() if other != key})


# Answers


def test_an_answer_has_the_values_of_text_words_and_pairs() -> None:
    first, second = structured().answers([DOC, ONE], decision())
    met_bo = {"text": "met  Bo", "start": 4, "end": 11}
    keys = ("word", "start", "end", "pos", "pos_score", "head", "tone", "chunk")
    words = [
        ("Ann", 0, 3, "N", 0.5, 1, 0.5, {"text": "Ann", "start": 0, "end": 3}),
        ("met", 4, 7, "V", 0.25, None, -1.0, None),
        ("Bo", 9, 11, "N", 1.0, 1, 2.0, met_bo),
    ]
    of_text = {"mood": "good", "mood_score": 0.75, "root": 1, "stars": 2.5, "topic": met_bo}
    relation = {"from": 0, "to": 2, "label": "knows", "score": 0.5}
    of_pairs = {"relation": [relation], "distance": [{"from": 0, "to": 1, "value": 1.5}]}
    assert first == {"words": [dict(zip(keys, word, strict=True)) for word in words], **of_text, **of_pairs}
    assert (second["mood"], second["root"], second["stars"], second["topic"]) == ("bad", None, -0.1, None)
    assert [word["word"] for word in second["words"]] == ["Ann"]
    assert (second["relation"], second["distance"]) == ([{**relation, "to": 0}], [])
    json.dumps([first, second], allow_nan=False)


def test_fields_of_the_text_alone_have_no_words() -> None:
    (answer,) = structured(only("mood", "stars")).answers([ONE], {"mood": np.array([0]), "stars": np.array([1.0])})
    assert answer == {"mood": "bad", "stars": 1.0}


def test_a_right_answer_equals_the_reference() -> None:
    right, wrong = (task().predicted(answer) for answer in structured().answers([DOC, ONE], decision()))
    gold = task().gold(RECORD)
    assert right == gold
    assert gold["head"] == {PLACES[0]: PLACES[1], PLACES[1]: None, PLACES[2]: PLACES[1]}
    assert (gold["topic"], gold["relation"]) == ((4, 11), {(PLACES[0], PLACES[2]): "knows"})
    assert (task().is_right(gold, right), task().is_right(gold, wrong)) == (True, False)
    assert task().mistakes(gold, right) == {}


def test_a_pair_of_the_outside_label_is_none_in_the_reference() -> None:
    zero, none = {"from": 1, "to": 2, "value": 0}, {"from": 1, "to": 2, "label": "none"}
    record = {**RECORD, "distance": [*RECORD["distance"], zero], "relation": [*RECORD["relation"], none]}
    assert task().gold(record)["distance"] == {(PLACES[0], PLACES[1]): 1.5}
    assert task().gold(record) == task().gold(RECORD)
    assert task().gold({**record, "distance": [{**zero, "value": 0.0}]})["distance"] == {}


def test_the_reference_needs_words_only_where_they_are_counted() -> None:
    record = {key: value for key, value in RECORD.items() if key != "words"}
    assert task("mood", "stars", "topic").gold(record) == {"mood": "good", "stars": 2.5, "topic": (4, 11)}
    for name in ("root", "pos", "relation"):
        with pytest.raises(DataError, match="f:3: no field 'words' to compare with"):
            task(name).gold(record)


def test_mistakes_are_listed_by_field() -> None:
    compared, near, far = task("mood", "head", "relation"), ((0, 3), (4, 7)), ((0, 3), (9, 11))
    wrong = decision() | {"mood": np.array([0, 0]), "head": np.array([[1, 0, 1], [0, 0, 0]])}
    wrong["relation"] = np.array([[[0, 1, 0], [0, 0, 0], [0, 0, 0]], [[0] * 3] * 3])
    predicted = compared.predicted(compared.kind.answers([DOC, ONE], wrong)[0])
    assert compared.mistakes(compared.gold(RECORD), predicted) == {
        "mood": {"expected": "good", "got": "bad"},
        "head": {"missed": [[(4, 7), None]], "wrong": [[(4, 7), (0, 3)]]},
        "relation": {"missed": [[far, "knows"]], "wrong": [[near, "knows"]]},
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
    empty = structured().empty(False)
    nothing = {"mood": None, "root": None, "stars": None, "topic": None}
    assert empty == {"words": [], **nothing, "relation": [], "distance": []}
    assert structured().empty(True) == [empty]
    assert structured(only("mood")).empty(False) == {"mood": None}
    predicted = task().predicted(empty)
    assert predicted == {**nothing, "pos": {}, "head": {}, "tone": {}, "chunk": {}, "relation": {}, "distance": {}}
    counter = task().counter()
    counter.add(task().gold(RECORD), predicted)
    scores = counter.result().items()
    assert {score for name, score in scores if name.endswith(("accuracy", "f1", "match"))} == {0}
    assert structured().lines(empty)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("mood", [2, 0]), ("mood", [-1, 0]), ("root", [3, 0]), ("root", [-2, 0])),
        *(("topic", [[0, 3], [0, 0]]), ("topic", [[2, 1], [0, 0]]), ("topic", [[0, -1], [0, 0]])),
        *(("pos", [[0, 2, 0], [0, 0, 0]]), ("head", [[0, 3, 0], [0, 0, 0]]), ("relation", [[[0, 2, 0]] * 3] * 2)),
        ("chunk", [[[0, 9], [0, 0], [0, 0]], [[0, 0]] * 3]),
    ],
)
def test_a_number_of_the_graph_without_meaning_is_an_error(name: str, value: Any) -> None:
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
    counter = task().counter()
    gold, places = task().gold(RECORD), PLACES
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
    assert [*scores] == [*task().metrics]
    assert not any(task().counter().result().values())
    accuracies = {"mood": 1 / 2, "root": 1 / 2, "topic": 1 / 2, "pos": 4 / 6, "head": 5 / 6, "chunk": 5 / 6}
    for name, accuracy in accuracies.items():
        assert scores[f"{name}_accuracy"] == pytest.approx(accuracy), name
    assert scores["relation_precision"] == 1 / 4
    assert scores["relation_recall"] == 1 / 2
    assert scores["relation_f1"] == pytest.approx(2 / 6)
    assert (scores["stars_mae"], scores["stars_rmse"]) == (0.5, pytest.approx(0.5**0.5))
    assert scores["tone_mae"] == pytest.approx(1 / 5)  # of five numbers, one is one too much
    assert scores["distance_mae"] == pytest.approx(1.5 / 3)
    assert scores["distance_pearson"] == pytest.approx(np.corrcoef([1.5, 1.5, 0.0], [1.5, 2.0, 1.0])[0, 1])
    assert scores["exact_match"] == 1 / 2
    metrics = task("stars", "pos").metrics
    assert next(iter(metrics)) == "stars_pearson"  # the first field has the headline
    assert [name for name, metric in metrics.items() if not metric.more_is_better] == ["stars_mae", "stars_rmse"]
    assert [name for name, metric in metrics.items() if metric.percent] == ["pos_accuracy", "exact_match"]


# Manifests


def test_a_manifest_states_every_field_and_is_data() -> None:
    kind = structured()
    manifest = json.loads(json.dumps(kind.manifest()))
    again = head_answer_from(manifest, None)
    assert isinstance(again, Structured)
    assert again.fields == kind.fields
    assert manifest["fields"][0] == {**GOOD, "labels": ["bad", "good"]}
    assert manifest["fields"][5] == {"name": "head", "per": "word", "type": "position", "target": "heads"}


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
def test_a_hostile_manifest_is_refused(fields: Any) -> None:
    head_answer_from({"kind": "structured", "fields": [GOOD]}, None)
    with pytest.raises((KeyError, TypeError, ValueError)):
        head_answer_from({"kind": "structured", "fields": fields}, None)


# From data to a bundle


def test_a_head_with_a_field_of_each_sort_is_trained_and_its_bundle_needs_no_code_of_it() -> None:
    example = gallery("structured")
    model, scores = open_bundle(example.bundle, "cpu"), example.scores
    assert model.manifest.outputs == ("tag", "head", "size", "mood", "length", "name", "next", "weight")
    assert next(iter(scores)) == "tag_accuracy"
    assert min(scores[name] for name in ("tag_accuracy", "head_accuracy", "length_pearson", "next_f1")) > 0.9
    answer, empty = model(["Dee Dee Fox left", ""])
    assert [word["head"] for word in answer["words"]] == [None, 0, 1, 2]
    assert 0.5 < answer["words"][0]["tag_score"] <= 1
    assert empty["words"] == empty["next"] == []
    assert empty["mood"] is None


def test_batches_hold_padded_words_and_pairs() -> None:
    others = {"size": [1, 2, 3], "length": 1, "name": None, "weight": []}
    values = {"words": ["Ann", "met", "Bo"], "tags": ["N", "V", "N"], "head": [1, None, 1]}
    first = {**others, **values, "mood": "good", "next": [{"from": 0, "to": 2, "label": "next"}]}
    short = {name: value[:2] for name, value in values.items()}
    records = [first, {**others, **short, "size": [1, 2], "mood": "bad", "next": []}]
    config = load_config(gallery("structured").yaml, (), plugins(shape=("head", Shape)))
    artifacts = fit_artifacts(config, records)
    batch = collate(artifacts, examples(config, artifacts, records))
    assert batch["mood"].tolist() == [1, 0]
    assert batch["tag"].tolist() == [[0, 1, 0], [0, 1, 0]]
    assert batch["head"].tolist() == [[1, -1, 1], [1, -1, 0]]
    assert batch["next"].tolist() == [[[0, 0, 1], [0, 0, 0], [0, 0, 0]], [[0] * 3] * 3]
    assert {batch[name].dtype for name in ("mood", "tag", "head", "next")} == {torch.int64}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("head.target=mood", "its fields name their targets"),
        ("tokenizer={use: words, field: [text, where]}", "a pair of texts has no words to tag"),
    ],
)
def test_a_target_and_a_pair_of_texts_are_refused(override: str, message: str) -> None:
    config = load_config(gallery("structured").yaml, (override,), plugins(shape=("head", Shape)))
    with pytest.raises(ConfigError, match=message):
        fit_artifacts(config, load_records(config.data.reader, config.data.train))
