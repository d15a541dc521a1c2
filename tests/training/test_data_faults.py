"""Data that misleads is found: texts of dev and test in train, contradicting records, empty targets."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_pipelines import succeed, write_jsonl, write_yaml

from seqpipe.config.loader import load_config
from seqpipe.training import data_faults as module
from seqpipe.training.data_faults import data_faults
from seqpipe.training.data_forms import data_form
from seqpipe.training.fit import fit_artifacts

SAME = "have a text that train has too: "
ALIKE = "have a text that differs from one of train only by case, Unicode form, spaces or punctuation: "
SEQ2SEQ = {"use": "seq2seq", "hidden": 8, "target": "reply", "target_tokenizer": "same"}


def pipeline(folder: Path, head: Any, reader: Any = "jsonl", tokenizer: Any = "words", **files: Any) -> Path:
    """Write files, of records or as texts, and the YAML of a pipeline that reads them."""
    paths = {name: f"{name}.{reader if isinstance(reader, str) else reader['use']}" for name in files}
    for name, content in files.items():
        if isinstance(content, str):
            (folder / paths[name]).write_text(content)
        else:
            write_jsonl(folder / paths[name], content)
    stages = {"tokenizer": tokenizer, "encoder": {"use": "lstm", "hidden": 4, "direction": "forward"}, "head": head}
    content = {"data": {"reader": reader, **paths}, "embedding": {"use": "lookup", "dim": 4}, **stages}
    return write_yaml(folder, "faulty", **content, train={"epochs": 1, "threads": 1})


def faults(folder: Path, *args: Any, **files: Any) -> list[str]:
    """The faults of these files, without the folder in the places."""
    config = load_config(pipeline(folder, *args, **files))
    form = data_form(config)
    train = form.read(config.data.train)
    dev = form.read(config.data.dev) if config.data.dev else []
    messages = data_faults(config, fit_artifacts(config, train), train, dev)
    return [line.replace(f"{folder}/", "") for line in messages]


def test_texts_of_train_in_dev_and_test_are_counted_and_shown(tmp_path: Path) -> None:
    train = "text,label\nred wine,drink\ngreen tea,drink\nrye bread,food\nno milk,food\nan old cheese,food\n"
    dev = "text,label\nred wine,drink\ngreen tea,drink\nrye bread,food\nno milk,food\nnew,food\n"
    test = "text,label\n\uff32ed  WINE!,drink\nrye-bread,food\nan old cheese,food\nolder cheese,food\n"
    same, alike, of_test = faults(tmp_path, "label", "csv", train=train, dev=dev, test=test)[:3]
    places = "; ".join(f"dev.csv:{line} is train.csv:{line}" for line in (2, 3, 4))
    fix = "; a score of them says nothing about new texts; remove them from train or "
    assert same == f"dev: 4 of 5 records {SAME}{places}; and 1 more{fix}dev"
    assert alike == f"test: 1 of 4 records {SAME}test.csv:4 is train.csv:6{fix}test"
    assert of_test == f"test: 2 of 4 records {ALIKE}test.csv:2 is train.csv:2; test.csv:3 is train.csv:4{fix}test"


def test_the_shares_of_one_file_are_compared_as_the_parts_that_they_are(tmp_path: Path) -> None:
    records = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(40)]
    config = load_config(pipeline(tmp_path, "label", train=records), ["data.dev=0.2", "data.test=0.2"])
    form = data_form(config)
    assert config.data.dev
    train, dev = form.read(config.data.train), form.read(config.data.dev)
    assert len(train) == 24
    assert [*data_faults(config, fit_artifacts(config, train), train, dev)] == []


@pytest.mark.parametrize(
    ("first", "second"), [("1/12", "11/2"), (":)", ":("), ("कि", "का"), ("?", "!"), ("a", "ä"), ("C++", "C"), (" ", "")]
)
def test_texts_that_differ_by_more_are_new(tmp_path: Path, first: str, second: str) -> None:
    train = [{"text": first, "label": "x"}, {"text": "something else", "label": "y"}]
    assert faults(tmp_path, "label", train=train, dev=[{"text": second, "label": "x"}]) == []


def test_one_text_with_two_labels_is_a_contradiction_within_a_file_and_across_files(tmp_path: Path) -> None:
    train = "tea\tdrink\ntea\tfood\nrice\tfood\ntea\tfood\nTea\tfood\n"
    reader = {"use": "tsv", "columns": ["text", "label"]}
    dev, message = faults(tmp_path, "label", reader, train=train, dev="rice\tdrink\n")
    places = "train.tsv:1 and train.tsv:2; train.tsv:3 and dev.tsv:1; correct the data"
    assert message == f"2 texts have different labels, 3 of their records differ from the first: {places}"
    assert dev.startswith(f"dev: 1 of 1 records {SAME}")


TEA = {"text": "green tea"}
WORDS = {"words": ["green", "tea"]}


@pytest.mark.parametrize(
    ("head", "first", "second", "labels"),
    [
        ("label", {**TEA, "label": "a"}, {**TEA, "label": "b"}, "labels"),
        ({"use": "label", "multi": True}, {**TEA, "labels": ["a", "b"]}, {**TEA, "labels": ["a"]}, "labels"),
        ("score", {**TEA, "score": -1.0}, {**TEA, "score": -2.0}, "answers"),
        ("crf", {**TEA, "spans": [[0, 5, "x"]]}, {**TEA, "spans": [[6, 9, "x"]]}, "labels"),
        ("crf", {**TEA, "spans": [[0, 5, "x"]]}, {**TEA, "spans": []}, "labels"),
        ({"use": "tags", "scheme": "none"}, {**WORDS, "tags": ["A", "B"]}, {**WORDS, "tags": ["A", "A"]}, "labels"),
    ],
)
def test_each_kind_of_answer_can_contradict(tmp_path: Path, head: Any, first: Any, second: Any, labels: str) -> None:
    reader = {"use": "jsonl", "scheme": "none"} if "tags" in first else "jsonl"
    other = {"words": ["green tea"], "tags": ["B"]} if "tags" in first else {**first, "text": "red tea"}
    (message,) = faults(tmp_path, head, reader, train=[first, second, second, other])
    records = "2 of their records differ from the first: train.jsonl:1 and"
    assert message.startswith(f"1 text has different {labels}, {records}")
    assert faults(tmp_path, head, reader, train=[first, first]) == []


@pytest.mark.parametrize(
    ("head", "first", "second"),
    [
        ({"use": "label", "multi": True}, {**TEA, "labels": ["a", "b"]}, {**TEA, "labels": ["b", "a"]}),
        ("crf", {**TEA, "spans": [[0, 5, "x"], [6, 9, "y"]]}, {**TEA, "spans": [[6, 9, "y"], [0, 5, "x"]]}),
        (SEQ2SEQ, {**TEA, "reply": "hot"}, {**TEA, "reply": "cold"}),
        (SEQ2SEQ, {**TEA, "reply": ["hot", "cold"]}, {**TEA, "reply": "warm"}),
    ],
)
def test_another_order_and_references_do_not_contradict(tmp_path: Path, head: Any, first: Any, second: Any) -> None:
    assert faults(tmp_path, head, train=[first, second]) == []


def test_sentences_of_conll_are_compared_by_their_words(tmp_path: Path) -> None:
    train = "in\tO\nOslo\tB-city\n\nin\tO\nOslo\tO\n\nRome\tB-city\n"
    alike, labels = faults(tmp_path, "crf", "conll", train=train, dev="in\tO\noslo\tB-city\n")
    assert alike.startswith(f"dev: 1 of 1 records {ALIKE}dev.conll:1 is train.conll:1")
    assert labels.startswith("1 text has different labels, 1 of their records differ from the first: train.conll:1 and")


def test_both_texts_of_a_pair_are_one_input(tmp_path: Path) -> None:
    reader, tokenizer = {"use": "jsonl", "text": None}, {"use": "words", "field": ["a", "b"]}
    train = [{"a": "tea", "b": "rice", "label": "x"}, {"a": "tea", "b": "bread", "label": "y"}]
    train += [{"a": "rice", "b": "tea", "label": "y"}]
    dev = [{"a": "bread", "b": "tea", "label": "y"}, {"a": "tea", "b": "bread", "label": "x"}]
    same, labels = faults(tmp_path, "label", reader, tokenizer, train=train, dev=dev)
    assert same.startswith(f"dev: 1 of 2 records {SAME}dev.jsonl:2 is train.jsonl:2")
    assert "train.jsonl:2 and dev.jsonl:2; correct" in labels


def test_a_question_is_compared_with_its_passage(tmp_path: Path) -> None:
    def record(question: str, *answers: str) -> dict[str, Any]:
        passage = "Ada met Bob in Rome"
        gold = [{"text": answer, "start": passage.index(answer)} for answer in answers]
        return {"question": question, "context": passage, "answers": gold}

    train, dev = [record("who", "Ada"), record("who", "Bob"), record("where", "Rome")], [record("when")]
    reader, tokenizer = {"use": "jsonl", "text": None}, {"use": "words", "field": ["question", "context"]}
    (message,) = faults(tmp_path, "answer-span", reader, tokenizer, train=train, dev=[*dev, train[2]])
    assert message.startswith(f"dev: 1 of 2 records {SAME}dev.jsonl:2 is train.jsonl:3")


def test_empty_targets_are_counted(tmp_path: Path) -> None:
    train = [{"text": f"tea {i}", "reply": " " if i % 2 else "hot"} for i in range(8)]
    dev = [{"text": "a", "reply": ""}, {"text": "b", "reply": ["", "x"]}]
    assert faults(tmp_path, SEQ2SEQ, train=train, dev=dev) == [
        "train: 4 of 8 records have an empty target: train.jsonl:2; train.jsonl:4; train.jsonl:6; and 1 more; "
        "write their targets, or remove them",
        "dev: 1 of 2 records have an empty target: dev.jsonl:1; write their targets, or remove them",
    ]


@pytest.mark.parametrize("head", [{"use": "lm", "packed": False}, "mlm"])
def test_texts_that_a_model_learns_from_themselves_may_repeat(tmp_path: Path, head: Any) -> None:
    assert faults(tmp_path, head, train=[TEA, TEA], dev=[TEA, TEA]) == []


def test_each_of_several_heads_is_named(tmp_path: Path) -> None:
    heads = [{"name": "kind", "use": "label"}, {"name": "mood", "use": "label", "target": "mood"}]
    train = [{**TEA, "label": "a", "mood": "x"}, {**TEA, "label": "a", "mood": "y"}]
    (message,) = faults(tmp_path, heads, train=train)
    assert message.startswith("mood: 1 text has different labels")


def topics(count: int, known: int) -> list[dict[str, str]]:
    """Records whose topic tells the label in this number of them, and a mood that tells nothing."""
    rows = [(i, "food" if i % 2 else "drink") for i in range(count)]
    wrong = {"food": "d", "drink": "f"}
    return [
        {
            "text": f"text {i}",
            "label": label,
            "topic": label[0] if i < known else wrong[label],
            "mood": "xy"[i // 2 % 2],
        }
        for i, label in rows
    ]


def column(folder: Path, field: str, records: list[dict[str, str]]) -> list[str]:
    config = load_config(pipeline(folder, "label", train=records), [f"embedding.column={field}"])
    form = data_form(config)
    train = form.read(config.data.train)
    return [*data_faults(config, fit_artifacts(config, train), train, [])]


def test_a_field_that_tells_the_label_of_nearly_all_records_is_named(tmp_path: Path) -> None:
    message = "the input field 'topic' tells the label of 99 of 100 records"
    (line,) = column(tmp_path, "topic", topics(100, 99))
    assert line.startswith(message)
    assert column(tmp_path, "topic", topics(100, 98)) == []
    assert column(tmp_path, "mood", topics(100, 100)) == []
    # Values of few records tell any label, and a label of nearly all records is told by any field.
    assert column(tmp_path, "mood", [{**row, "mood": row["text"]} for row in topics(100, 100)]) == []
    rare = [{**row, "label": "food" if i else "drink"} for i, row in enumerate(topics(200, 200))]
    assert column(tmp_path, "topic", rare) == []


def test_both_texts_of_a_pair_may_tell_the_label(tmp_path: Path) -> None:
    tokenizer = {"use": "words", "field": ["text", "topic"]}
    (line,) = faults(tmp_path, "label", tokenizer=tokenizer, train=topics(60, 60))
    assert "the input field 'topic' tells the label of 60 of 60 records" in line


@pytest.mark.parametrize("field", ["split", "fold"])
def test_a_column_that_divides_a_file_elsewhere_is_named_as_unused(tmp_path: Path, field: str) -> None:
    records = [{**row, field: ("train", "train", "test")[i % 3]} for i, row in enumerate(topics(30, 30))]
    (line,) = faults(tmp_path, "label", train=records)
    listed = "records of all its values are trained on: 'train' (20), 'test' (10)"
    assert line.startswith(f"train: nothing reads the field '{field}', so {listed}")
    assert faults(tmp_path, "label", train=[{**row, field: "train"} for row in records]) == []
    assert faults(tmp_path, "label", train=[{**row, field: row["text"]} for row in records]) == []
    path = pipeline(tmp_path, "label", train=records)
    grouped = load_config(path, [f"data.group={field}", "data.dev=0.3"])
    form = data_form(grouped)
    train = form.read(grouped.data.train)
    assert not any(field in line for line in data_faults(grouped, fit_artifacts(grouped, train), train, []))


def test_of_a_large_file_the_first_records_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COMPARED_RECORDS", 3)
    train = [{"text": f"tea {i}", "label": "ab"[i % 2]} for i in range(5)]
    (message,) = faults(tmp_path, "label", train=train, dev=[train[0], train[4]])
    assert message.startswith(f"dev: 1 of 2 records {SAME}dev.jsonl:1 is train.jsonl:1;")
    assert message.endswith(" (in the first 3 records of each file)")


def test_check_and_run_warn_and_go_on(tmp_path: Path) -> None:
    train = [{"text": f"tea {i}", "label": "ab"[i % 2]} for i in range(6)]
    yaml = pipeline(tmp_path, "label", train=[*train, {**train[0], "label": "b"}], dev=train, test=train)
    done = succeed("check", yaml.name, "--json", folder=tmp_path)
    begins = (f"dev: 6 of 6 records {SAME}", f"test: 6 of 6 records {SAME}", "1 text has different labels")
    warnings = json.loads(done.out)["warnings"]
    for begin in begins:
        assert sum(warning.startswith(begin) for warning in warnings) == 1
    done = succeed("run", yaml.name, folder=tmp_path)
    for begin in begins:
        assert done.err.count(f"  warning: {begin}") == 1, done.err
