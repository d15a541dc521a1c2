"""`check` judges the data by all records: what comes late in a file counts as much as what comes first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from factory import QUIET, labelling, moods, write_jsonl, writing

from seqpipe.config.loader import Config, load
from seqpipe.config.yaml import dump
from seqpipe.errors import DataError
from seqpipe.pipeline import check
from seqpipe.pipeline.check import build_trial, check_export
from seqpipe.training.data_faults import data_faults

EARLY, LATE = 600, 30  # records


def tagged(folder: Path, late: dict[str, Any], **early: Any) -> Config:
    """A tagger whose training records are alike but for the last ones."""
    path = writing(folder, {"tokenizer": "words", "head": {"use": "crf", "scheme": "IOB2"}})
    write_jsonl(folder / "train.jsonl", [{"text": "it rains", "spans": [], **early}] * EARLY + [late] * LATE)
    write_jsonl(folder / "dev.jsonl", [late])
    write_jsonl(folder / "test.jsonl", [late, late])
    return load(path)


def test_spans_that_begin_late_are_learned(tmp_path: Path) -> None:
    trial = build_trial(tagged(tmp_path, {"text": "Ada left", "spans": [[0, 3, "PER"]]}))
    assert trial.pipeline.artifacts.tasks[0].labels == ("O", "B-PER", "I-PER")
    assert trial.size == f"{EARLY + LATE} records"
    assert [message for message in trial.data.warnings if message.startswith("train")] == []


def test_a_late_span_that_cuts_a_word_is_an_error_and_is_counted_where_it_is_widened(tmp_path: Path) -> None:
    config = tagged(tmp_path, {"text": "Adas left", "spans": [[0, 3, "PER"]]})
    with pytest.raises(DataError, match=rf"train\.jsonl:{EARLY + 1}: span 'Ada' \(PER\) cuts a word"):
        build_trial(config)
    widened = build_trial(load(config.file, ["data.misaligned=widen"]))
    assert any(warning.startswith(f"{LATE} of {LATE} spans begin or end within") for warning in widened.data.warnings)


def test_a_late_label_is_known_and_a_one_sided_beginning_is_no_warning(tmp_path: Path) -> None:
    path = labelling(tmp_path, {"head": {"use": "label"}})
    records = [{"text": "a sad day", "label": "bad"}] * EARLY + moods(LATE, 1)
    write_jsonl(tmp_path / "train.jsonl", records)
    trial = build_trial(load(path))
    assert trial.pipeline.artifacts.tasks[0].labels == ("bad", "fine", "good")
    assert trial.data.warnings == []


def test_the_words_of_all_records_count_for_the_coverage_of_word_vectors(tmp_path: Path) -> None:
    vectors = tmp_path / "words.vec"
    vectors.write_text("late 1 0\nwords 0 1\n")
    path = labelling(tmp_path, {"head": {"use": "label"}, "embedding": {"use": "vectors", "path": "words.vec"}})
    late = [{"text": "late words", "label": "good"}] * LATE
    write_jsonl(tmp_path / "train.jsonl", [{"text": "an early day", "label": "bad"}] * EARLY + late)
    assert build_trial(load(path)).messages[0].startswith("embedding: 2 of 5 words (40.0%) have a vector in words.vec")


def test_a_token_is_counted_in_all_records(tmp_path: Path) -> None:
    path = labelling(tmp_path, {"head": {"use": "label"}, "tokenizer": {"use": "words", "min_count": 500}})
    write_jsonl(tmp_path / "train.jsonl", [{"text": f"day {n}", "label": "ab"[n % 2]} for n in range(EARLY)])
    assert "day" in build_trial(load(path)).pipeline.artifacts.vocabulary


def test_late_texts_that_cannot_be_written_are_counted(tmp_path: Path) -> None:
    path = writing(tmp_path, {"data": {"reader": "jsonl", "train": "train.jsonl"}})
    late = {"text": "abc", "reversed": "a b  c"}
    write_jsonl(tmp_path / "train.jsonl", [{"text": "ab", "reversed": "ba"}] * 1500 + [late] * LATE)
    config = load(path, ["head.target_tokenizer={use: words}"])
    (message,) = build_trial(config).messages
    assert message.startswith(f"warning: head: {LATE} of {1500 + LATE:,} texts (")


def corpus(folder: Path, lines: list[str], **head: Any) -> Config:
    """A language model of a text with these lines."""
    (folder / "train.txt").write_text("".join(f"{line}\n" for line in lines))
    content = {
        "name": "lm",
        "data": {"reader": {"use": "text", "unit": "line"}, "train": "train.txt"},
        "tokenizer": {"use": "words", "min_count": 3},
        "embedding": {"use": "lookup", "dim": 4},
        "encoder": {"use": "lstm", "hidden": 4, "direction": "forward"},
        "head": {"use": "lm", "context": 8, **head},
        "train": {"epochs": 1, "threads": 1},
    }
    (folder / "lm.yaml").write_text(dump(content))
    return load(folder / "lm.yaml")


def test_the_first_records_of_a_corpus_are_enough_where_nothing_is_wrong_with_them(tmp_path: Path) -> None:
    trial = build_trial(corpus(tmp_path, ["a line of text"] * EARLY))
    assert trial.size == "the first 200 records"
    assert trial.messages == []


@pytest.mark.parametrize("context", [8, 900])
def test_a_corpus_is_refused_only_by_all_of_it(tmp_path: Path, context: int) -> None:
    """No word occurs three times in the first records, or they are too few for a window."""
    lines = [f"word{n} now" if context == 900 else f"word{n}" for n in range(EARLY)]
    trial = build_trial(corpus(tmp_path, [*lines, "now now now"], context=context))
    assert trial.size == "all records"
    with pytest.raises(DataError):
        build_trial(corpus(tmp_path, lines[:100], context=context))


def test_the_records_of_dev_and_test_are_read_to_their_end(tmp_path: Path) -> None:
    late = {"text": "Ada left", "spans": [[0, 3, "PER"]]}
    config = tagged(tmp_path, late)
    write_jsonl(tmp_path / "test.jsonl", [late] * EARLY + [{"text": "Oslo", "spans": [[0, 4, "LOC"]]}])
    with pytest.raises(DataError, match=rf"the test set has 1 label .*'LOC' \(.*test\.jsonl:{EARLY + 1}\)"):
        check_export(config, QUIET)
    write_jsonl(tmp_path / "test.jsonl", [late])
    write_jsonl(tmp_path / "dev.jsonl", [late] * EARLY + [{"text": "Adas", "spans": [[0, 3, "PER"]]}])
    with pytest.raises(DataError, match=rf"dev\.jsonl:{EARLY + 1}: span 'Ada' \(PER\) cuts a word"):
        check_export(config, QUIET)


def trained_on(folder: Path, records: list[dict[str, Any]], *overrides: str, **changes: Any) -> Config:
    path = writing(folder, {"tokenizer": "words", **changes})
    write_jsonl(folder / "train.jsonl", records)
    write_jsonl(folder / "dev.jsonl", records)
    return load(path, overrides)


@pytest.mark.parametrize(
    ("head", "record", "advice"),
    [
        ({"use": "crf"}, {"text": "a b", "spans": []}, "the field 'spans' is empty in every record"),
        ({"use": "crf"}, {"words": ["a"], "tags": ["O"]}, "the tags with the reader's option `tags`"),
        ({"use": "crf"}, {"text": "a", "label": "x"}, "has: text, label; write it in each record, or name the field"),
        ({"use": "crf"}, {"text": "a  b", "spans": [[1, 2, "X"]]}, "covers no word or token"),
        ({"use": "label", "multi": True}, {"text": "a", "labels": []}, "the field 'labels' is empty in each; write"),
    ],
)
def test_the_advice_is_about_the_records_there_are(
    tmp_path: Path, head: dict[str, Any], record: dict[str, Any], advice: str
) -> None:
    with pytest.raises(DataError) as caught:
        build_trial(trained_on(tmp_path, [record] * 3, head=head))
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("option", "target", "advice"),
    [
        ("lowercase", "Ab Cd", "delete lowercase from the target tokenizer"),
        ("fold_digits", "ab 12", "delete fold_digits from the target tokenizer"),
        ("fold_digits", "ab  12", "{use: bpe, byte_level: true}, which is lossless"),
    ],
)
def test_the_advice_about_texts_that_change_names_the_option_that_changes_them(
    tmp_path: Path, option: str, target: str, advice: str
) -> None:
    writer = f"head.target_tokenizer={{use: words, detokenize: true, {option}: true}}"
    (message,) = build_trial(trained_on(tmp_path, [{"text": "a", "reversed": target}] * 3, writer)).messages
    assert advice in message


def test_a_warning_about_train_speaks_of_learning_and_one_about_dev_of_its_score(tmp_path: Path) -> None:
    config = trained_on(tmp_path, [{"text": "a", "label": "x"}] * 3, head={"use": "label"})
    train, dev = build_trial(config).data.warnings
    assert train == "train: all have the label 'x' (3 records); no other answer can be learned; add records of each"
    assert dev.startswith("dev: all have the label 'x' (3 records); their score says nothing about other answers")


def test_a_dev_set_of_unknown_labels_is_told_with_the_labels(tmp_path: Path) -> None:
    config = trained_on(tmp_path, moods(9, 1), head={"use": "label"})
    for name in ("dev", "test"):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"text": "a", "label": "new"}])
    with pytest.raises(DataError, match=r"the dev set has 1 label .*'new' \(.*dev\.jsonl:1\)"):
        check_export(config, QUIET)


# Data of more records than a trial is built from. The number is 20,000; here it is 60.


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "WHOLE", 60)
    monkeypatch.setattr(check, "SAMPLE", 20)


@pytest.mark.usefixtures("few")
def test_large_data_are_examined_to_their_end_with_the_warnings_of_small_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = [{"text": "Adas left it", "spans": [[0, 3, "PER"]]}, {"text": "", "spans": []}]
    records = [{"text": f"it rains {n}", "spans": [[3, 8, "PER"]]} for n in range(EARLY)] + late * LATE
    config = tagged(tmp_path, late[0])
    write_jsonl(tmp_path / "train.jsonl", records)
    with pytest.raises(DataError, match=rf"train\.jsonl:{EARLY + 1}: span 'Ada' \(PER\) cuts a word"):
        build_trial(config)
    widened = load(config.file, ["data.misaligned=widen"])
    sample = build_trial(widened)
    assert sample.size == f"the first 20 of {EARLY + 2 * LATE} records"
    assert len(sample.records) == 20
    monkeypatch.setattr(check, "WHOLE", 10**6)
    whole = build_trial(widened)
    data, faults = whole.data, data_faults(widened, whole.pipeline.artifacts, whole.records, whole.data.dev)
    assert {*sample.data.warnings} == {*data.warnings, *faults}
    assert len(sample.data.warnings) >= 4


@pytest.mark.usefixtures("few")
def test_late_labels_of_large_data_are_known_and_those_of_dev_alone_are_not(tmp_path: Path) -> None:
    path = labelling(tmp_path, {"head": {"use": "label"}})
    records = [{"text": f"a sad day {n}", "label": "bad"} for n in range(EARLY)] + moods(LATE, 1)
    write_jsonl(tmp_path / "train.jsonl", records)
    trial = build_trial(load(path))
    assert trial.pipeline.artifacts.tasks[0].labels == ("bad", "fine", "good")
    assert trial.size == f"the first 20 of {EARLY + LATE} records and 2 with further labels"
    write_jsonl(tmp_path / "dev.jsonl", [{"text": "a", "label": "good"}] * 70 + [{"text": "a", "label": "new"}])
    with pytest.raises(DataError, match=r"the dev set has 1 label .*'new' \(.*dev\.jsonl:71\)"):
        check_export(load(path), QUIET)


@pytest.mark.usefixtures("few")
def test_a_late_long_text_of_large_data_is_the_one_whose_memory_is_measured(tmp_path: Path) -> None:
    path = labelling(tmp_path, {"head": {"use": "label"}})
    records = [*moods(EARLY, 1), {"text": "day " * 50, "label": "bad"}, *moods(LATE, 2)]
    write_jsonl(tmp_path / "train.jsonl", records)
    data = build_trial(load(path)).data
    assert data.batches.data[-1].where == f"record {EARLY + 1} ({tmp_path / 'train.jsonl'}:{EARLY + 1})"
    with pytest.raises(DataError, match=rf"record {EARLY + 1} .*: 50 tokens exceed train\.max_tokens: 40"):
        build_trial(load(path, ["train.max_tokens=40"]))
