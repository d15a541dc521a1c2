"""Data of which a score says nothing is told with numbers, in training, after it and by `evaluate`."""

from pathlib import Path
from typing import Any

import pytest
from factory import seqpipe, write_jsonl, writing

from seqpipe.answers.base import AnswerKind
from seqpipe.answers.classification import Label, Labels, Score
from seqpipe.answers.registry import MultiHead, task_of
from seqpipe.answers.tagging import Spans, Tags
from seqpipe.answers.task import warnings_about

YAML = """
name: little
data: {reader: jsonl, train: train.jsonl, dev: dev.jsonl, test: test.jsonl}
tokenizer: words
embedding: {use: lookup, dim: 4}
encoder: {use: lstm, hidden: 4}
head: {use: label}
train: {epochs: 1, threads: 1}
"""


def labelled(*labels: str) -> list[dict[str, Any]]:
    return [{"text": f"a {i}", "label": label} for i, label in enumerate(labels)]


def tagged(*tags: list[str]) -> list[dict[str, Any]]:
    return [{"words": ["a"] * len(some), "tags": some} for some in tags]


@pytest.mark.parametrize(
    ("kind", "records", "expected"),
    [
        (Label(["a", "b"]), labelled("a", "b", "a"), []),
        (Label(["a", "b"]), labelled("a", "a"), ["test: all have the label 'a' (2 records)"]),
        (Label(["a", "b"]), labelled("a"), ["test: there is 1 record; the score of one record means nothing"]),
        (
            Label(["a", "b"]),
            labelled("a", "c", "c", "d"),
            ["test: 3 of 4 records have labels that the model does not know; these count as missed: 'c' (2), 'd'"],
        ),
        (
            Label(["a", " a", "b"]),
            labelled("a", " a", "a", "b"),
            ["test: the labels 'a' (2), ' a' (1) differ only by white space"],
        ),
        (
            Label(["Sport", "sport", "cafe\u0301", "caf\u00e9", "new  York", "NEW york"]),
            labelled("Sport", "sport", "sport", "cafe\u0301", "caf\u00e9", "new  York", "NEW york"),
            [
                "test: the labels 'sport' (2), 'Sport' (1) differ only by case, and count as different",
                "test: the labels 'cafe\u0301' (1), 'caf\u00e9' (1) differ only by Unicode form",
                "test: the labels 'new  York' (1), 'NEW york' (1) differ only by case, Unicode form and white space",
            ],
        ),
        (
            Labels([*"abcdABCD"]),
            [{"labels": [*"abcdABCD"]}] * 2,
            ["test: the labels 'A' (2), 'a' (2); 'B' (2), 'b' (2); 'C' (2), 'c' (2); and 1 more differ only by case"],
        ),
        (Tags(["O", "o"]), tagged(["O", "o"], ["O"]), ["test: the labels 'O' (2), 'o' (1) differ only by case"]),
        (Label(["a", "b", "none"], out_of_scope="none"), labelled("a", "none"), []),
        (Labels(["a", "b"]), [{"labels": ["a"]}, {"labels": []}], ["test: all have the label 'a' (2 records)"]),
        (Labels(["a", "b"]), [{"labels": []}] * 2, ["test: none of 2 records has a label"]),
        (Tags(["A", "B"]), tagged(["A", "A"], ["A"]), ["test: every word has the tag 'A' (2 records)"]),
        (Tags(["A", "B"]), tagged(["A", "B"], ["A"]), []),
        (Spans(["O", "B-x", "I-x"]), tagged(["O"], ["O"]), ["test: none of 2 records has a span"]),
        (Spans(["O", "B-x", "I-x"]), tagged(["O"], ["B-x"]), []),
        (Spans(["O", "B-x", "I-x"]), tagged(["B-y"], ["B-x"]), ["test: 1 of 2 records have labels that the model"]),
        (Score(), [{"score": 1.0}] * 2, []),
        (
            MultiHead({"one": Label(["a", "b"]), "two": Score()}),
            labelled("a", "a"),
            ["test: one: all have the label 'a'"],
        ),
    ],
)
def test_a_set_that_says_nothing_is_told(kind: AnswerKind, records: list[dict[str, Any]], expected: list[str]) -> None:
    for told, begin in zip(warnings_about(task_of(kind), "test", records), expected, strict=True):
        assert told.startswith(begin)


@pytest.mark.parametrize(
    ("kind", "records", "trains", "is_told"),
    [
        (Label(["a", "b", "c"]), labelled(*"aaabbbaaac"), True, True),
        (Label(["a", "b", "c"]), labelled(*"aaabbbaaac"), False, False),  # a set that is scored
        (Label(["a", "b", "c"]), labelled(*"aaabbbaac"), True, False),  # few records
        (Label(["a", "b", "c"]), labelled(*"aaabbbaacc"), True, False),
        (Labels([*"abc"]), [*[{"labels": ["a", "b"]}] * 9, {"labels": ["c"]}], True, False),
        (Tags([*"ABC"]), tagged(*[["A", "B"]] * 9, ["C"]), True, False),
    ],
)
def test_a_label_of_one_training_record_is_told(
    kind: AnswerKind, records: list[dict[str, Any]], trains: bool, is_told: bool
) -> None:
    records = [{**record, "where": f"a.csv:{number}"} for number, record in enumerate(records, 1)]
    warning = "train: labels that occur once: 'c' (a.csv:10); a model cannot learn a label from one record"
    told = [line.startswith(warning) for line in warnings_about(task_of(kind), "train", records, trains)]
    assert told == [True] * is_told


@pytest.fixture(scope="module")
def little(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("little")
    (folder / "little.yaml").write_text(YAML)
    write_jsonl(folder / "train.jsonl", [*labelled("lead", " lead", "b", "b"), {"text": "  ", "label": "b"}])
    write_jsonl(folder / "dev.jsonl", labelled("b"))
    write_jsonl(folder / "test.jsonl", labelled("b", "b", "b"))
    return folder


def lead(folder: Path) -> str:
    place = folder / "train.jsonl"
    return f"train: the labels 'lead' (1, {place}:1), ' lead' (1, {place}:2) differ only by white space"


def test_a_run_warns_of_its_data_with_numbers(little: Path) -> None:
    done = seqpipe("run", "little.yaml", folder=little)
    assert done.code == 0, done.err
    for told in (
        "warning: 1 of 5 records have no tokens, and are left out of training; the first: ",
        f"warning: {lead(little)}",
        "warning: dev: there is 1 record",
        "warning: test: all have the label 'b' (3 records); their score says nothing about other answers",
    ):
        assert done.err.count(told) == 1, done.err


def test_evaluate_warns_of_labels_that_the_model_does_not_know(little: Path) -> None:
    seqpipe("run", "little.yaml", folder=little)
    write_jsonl(little / "other.jsonl", labelled("b", "x", "lead"))
    for target in ("runs/little", "runs/little/bundle"):
        done = seqpipe("evaluate", target, "--data", "other.jsonl", folder=little)
        told = "warning: other.jsonl: 1 of 3 records have labels that the model does not know"
        assert done.err.count(told) == 1, done.err
        assert "'x' (1)" in done.err


def test_check_warns_of_its_records(little: Path) -> None:
    done = seqpipe("check", "little.yaml", folder=little)
    assert "warning: 1 of 5 records have no tokens" in done.err
    assert f"warning: {lead(little)}" in done.err


def test_check_and_run_count_the_spans_that_they_widen(tmp_path: Path) -> None:
    yaml = writing(tmp_path, {"tokenizer": "words", "head": {"use": "crf", "scheme": "IOB2"}})
    records = [{"text": f"Adas cat {n}", "spans": [[0, 3, "PER"], [5, 8, "LOC"]]} for n in range(3)]
    for name in ("train", "dev", "test"):
        write_jsonl(tmp_path / f"{name}.jsonl", records)
    message = "warning: 3 of 6 spans begin or end within a word or token, and are widened (data.misaligned: widen)"
    for command in (["check", yaml.name], ["run", yaml.name, "train.epochs=1"]):
        done = seqpipe(*command, "data.misaligned=widen", folder=tmp_path)
        assert done.code == 0, done.err
        assert done.err.count(message) == 1, done.err


def test_check_run_and_evaluate_resolve_spans_that_overlap(tmp_path: Path) -> None:
    yaml = writing(tmp_path, {"tokenizer": "words", "head": {"use": "crf", "scheme": "IOB2"}})
    records = [{"text": f"Ada cat {n}", "spans": [[0, 3, "PER"], [0, 7, "LOC"]]} for n in range(3)]
    for name in ("train", "dev", "test"):
        write_jsonl(tmp_path / f"{name}.jsonl", records)
    refused = seqpipe("check", yaml.name, folder=tmp_path)
    assert refused.code == 3
    assert "train.jsonl:1: the spans 0-3 PER and 0-7 LOC overlap;" in refused.err
    message = "warning: 3 of 6 spans overlap others, and are dropped (data.overlaps: longest)"
    for command in (["check", yaml.name], ["run", yaml.name, "train.epochs=1"]):
        done = seqpipe(*command, "data.overlaps=longest", folder=tmp_path)
        assert done.code == 0, done.err
        assert done.err.count(message) == 1, done.err
    (folder,) = (tmp_path / "runs").iterdir()
    for target in (folder, folder / "bundle"):
        done = seqpipe("evaluate", str(target), "--data", "test.jsonl", folder=tmp_path)
        assert done.code == 0, done.err
