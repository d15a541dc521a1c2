"""Warnings about data whose scores say nothing, in training, after it and by `evaluate`."""

from pathlib import Path
from typing import Any

import pytest
from tiny_pipelines import fail_with, seqpipe, succeed, write_classifier, write_jsonl, write_seq2seq

from seqpipe.answers.base import AnswerKind
from seqpipe.answers.classification import Label, Labels, Score
from seqpipe.answers.registry import MultiHead, task_of
from seqpipe.answers.tagging import Spans, Tags
from seqpipe.answers.task import warnings_about

AB, SPANS = Label(["a", "b"]), Spans(["O", "B-x", "I-x"])


def labelled(*labels: str) -> list[dict[str, Any]]:
    return [{"text": f"a {i}", "label": label} for i, label in enumerate(labels)]


def tagged(*tags: list[str]) -> list[dict[str, Any]]:
    return [{"words": ["a"] * len(tags), "tags": tags} for tags in tags]


@pytest.mark.parametrize(
    ("kind", "records", "expected"),
    [
        (AB, labelled("a", "b", "a"), []),
        (AB, labelled("a", "a"), ["all have the label 'a' (2 records)"]),
        (AB, labelled("a"), ["there is 1 record; the score of one record means nothing"]),
        (
            AB,
            labelled("a", "c", "c", "d"),
            ["3 of 4 records have labels that the model does not know; these count as missed: 'c' (2), 'd'"],
        ),
        (Label(["a", " a", "b"]), labelled("a", " a", "a", "b"), ["the labels 'a' (2), ' a' (1) differ only by white"]),
        (
            Label(["Sport", "sport", "cafe\u0301", "caf\u00e9", "new  York", "NEW york"]),
            labelled("Sport", "sport", "sport", "cafe\u0301", "caf\u00e9", "new  York", "NEW york"),
            [
                "the labels 'sport' (2), 'Sport' (1) differ only by case, and count as different",
                "the labels 'cafe\u0301' (1), 'caf\u00e9' (1) differ only by Unicode form",
                "the labels 'new  York' (1), 'NEW york' (1) differ only by case, Unicode form, white space or decimals",
            ],
        ),
        (
            Labels([*"abcdABCD"]),
            [{"labels": [*"abcdABCD"]}] * 2,
            ["the labels 'A' (2), 'a' (2); 'B' (2), 'b' (2); 'C' (2), 'c' (2); and 1 more differ only by case"],
        ),
        (
            Label(["1", "1.0", "2.0", "10"]),
            labelled("1", "1.0", "1.0", "2.0", "10"),
            ["the labels '1.0' (2), '1' (1) differ only by the decimals of a whole number, and count as different"],
        ),
        (Label(["1.5", "15", "v1", "v1.0"]), labelled("1.5", "15", "v1", "v1.0"), []),
        (Tags(["O", "o"]), tagged(["O", "o"], ["O"]), ["the labels 'O' (2), 'o' (1) differ only by case"]),
        (Label(["a", "b", "none"], out_of_scope="none"), labelled("a", "none"), []),
        (Labels(["a", "b"]), [{"labels": ["a"]}, {"labels": []}], ["all have the label 'a' (2 records)"]),
        (Labels(["a", "b"]), [{"labels": []}] * 2, ["none of 2 records has a label"]),
        (Tags(["A", "B"]), tagged(["A", "A"], ["A"]), ["every word has the tag 'A' (2 records)"]),
        (Tags(["A", "B"]), tagged(["A", "B"], ["A"]), []),
        (SPANS, tagged(["O"], ["O"]), ["none of 2 records has a span"]),
        (SPANS, tagged(["O"], ["B-x"]), []),
        (SPANS, tagged(["B-y"], ["B-x"]), ["1 of 2 records have labels that the model"]),
        (Score(), [{"score": 1.0}] * 2, []),
        (MultiHead({"one": AB, "two": Score()}), labelled("a", "a"), ["one: all have the label 'a'"]),
    ],
)
def test_a_set_that_says_nothing_warns(kind: AnswerKind, records: list[dict[str, Any]], expected: list[str]) -> None:
    for warning, start in zip(warnings_about(task_of(kind), "test", records), expected, strict=True):
        assert warning.startswith(f"test: {start}")


@pytest.mark.parametrize(
    ("kind", "records", "trains", "has_warning"),
    [
        *((Label([*"abc"]), labelled(*"aaabbbaaac"), trains, trains) for trains in (True, False)),  # else it is scored
        (Label([*"abc"]), labelled(*"aaabbbaac"), True, False),  # few records
        (Label([*"abc"]), labelled(*"aaabbbaacc"), True, False),
        (Labels([*"abc"]), [*[{"labels": ["a", "b"]}] * 9, {"labels": ["c"]}], True, False),
        (Tags([*"ABC"]), tagged(*[["A", "B"]] * 9, ["C"]), True, False),
    ],
)
def test_a_label_of_one_training_record_has_a_warning(
    kind: AnswerKind, records: list[dict[str, Any]], trains: bool, has_warning: bool
) -> None:
    records = [{**record, "where": f"a.csv:{number}"} for number, record in enumerate(records, 1)]
    warning = "train: labels that occur once: 'c' (a.csv:10); a model cannot learn a label from one record"
    warnings = [line.startswith(warning) for line in warnings_about(task_of(kind), "train", records, trains)]
    assert warnings == [True] * has_warning


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose data has a label with a blank, a text without tokens, and too few records."""
    folder = tmp_path_factory.mktemp("moods")
    write_classifier(folder, {"head": "label", "train": {"epochs": 1, "threads": 1}})
    write_jsonl(folder / "train.jsonl", [*labelled("lead", " lead", "b", "b"), {"text": "  ", "label": "b"}])
    write_jsonl(folder / "dev.jsonl", labelled("b"))
    write_jsonl(folder / "test.jsonl", labelled("b", "b", "b"))
    return folder


def test_check_run_and_evaluate_warn_of_their_data_with_numbers(folder: Path) -> None:
    blanks = "train: the labels 'lead' (1, train.jsonl:1), ' lead' (1, train.jsonl:2) differ only by white space"
    warnings = ["1 of 5 records have no tokens, and are left out of training; the first: ", blanks]
    scored = "test: all have the label 'b' (3 records); their score says nothing about other answers"
    for command, messages in (
        ("check", ["1 of 5 records have no tokens", blanks]),
        ("run", [*warnings, "dev: there is 1 record", scored]),
    ):
        result = succeed(command, "moods.yaml", folder=folder)
        assert {message: result.err.count(f"warning: {message}") for message in messages} == dict.fromkeys(messages, 1)
    write_jsonl(folder / "other.jsonl", labelled("b", "x", "lead"))
    for target in ("runs/moods", "runs/moods/bundle"):
        result = seqpipe("evaluate", target, "--data", "other.jsonl", folder=folder)
        message = "warning: other.jsonl: 1 of 3 records have labels that the model does not know"
        assert (result.err.count(message), "'x' (1)" in result.err) == (1, True), result.err


def test_check_and_run_count_the_spans_that_they_drop(tmp_path: Path) -> None:
    write_seq2seq(tmp_path, {"tokenizer": "words", "head": {"use": "crf", "scheme": "IOB2"}})
    for name in ("train", "dev", "test"):
        spans = [[0, 3, "PER"], [0, 7, "LOC"]]
        write_jsonl(tmp_path / f"{name}.jsonl", [{"text": f"Ada cat {n}", "spans": spans} for n in range(3)])
    fail_with(3, "train.jsonl:1: the spans 0-3 PER and 0-7 LOC overlap;", "check", "backward.yaml", folder=tmp_path)
    for command in ("check", "run"):
        result = succeed(command, "backward.yaml", "data.overlaps=longest", "train.epochs=1", folder=tmp_path)
        message = "warning: 3 of 6 spans overlap others, and are dropped (data.overlaps: longest)"
        assert result.err.count(message) == 1, result.err
    for target in ("runs/backward", "runs/backward/bundle"):
        succeed("evaluate", target, "--data", "test.jsonl", folder=tmp_path)
