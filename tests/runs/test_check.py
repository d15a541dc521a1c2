"""`check` builds a pipeline from all records, exports it in seconds, and says what would go wrong in a run."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from tiny_pipelines import (
    QUIET,
    SMALL_TAGGER,
    labelled_texts,
    load_tagger,
    succeed,
    toy_encoders,
    write_classifier,
    write_jsonl,
    write_language_model,
    write_seq2seq,
)
from torch import Tensor, nn

from seqpipe.config.loader import Config, load_config
from seqpipe.console import Console
from seqpipe.errors import ConfigError, DataError, ExportError, ParityError, PluginError, TrainingError, UsageError
from seqpipe.runs import check
from seqpipe.runs.check import build_trial, check_export
from seqpipe.training.data_faults import data_faults

EARLY, LATE = 600, 30  # records
LABEL = {"head": {"use": "label"}}


# The data


def tagged(folder: Path, late: dict[str, Any]) -> Config:
    """A tagger whose training records are alike but for the last ones."""
    path = write_seq2seq(folder, {"tokenizer": "words", "head": {"use": "crf", "scheme": "IOB2"}})
    write_jsonl(folder / "train.jsonl", [{"text": "it rains", "spans": []}] * EARLY + [late] * LATE)
    write_jsonl(folder / "dev.jsonl", [late])
    write_jsonl(folder / "test.jsonl", [late, late])
    return load_config(path)


def trained_on(folder: Path, records: list[dict[str, Any]], *overrides: str, **changes: Any) -> Config:
    path = write_seq2seq(folder, {"tokenizer": "words", **changes})
    write_jsonl(folder / "train.jsonl", records)
    write_jsonl(folder / "dev.jsonl", records)
    return load_config(path, overrides)


def test_spans_that_begin_late_are_learned(tmp_path: Path) -> None:
    trial = build_trial(tagged(tmp_path, {"text": "Ada left", "spans": [[0, 3, "PER"]]}))
    assert trial.network.artifacts.tasks[0].labels == ("O", "B-PER", "I-PER")
    assert trial.size == f"{EARLY + LATE} records"
    assert [message for message in trial.data.warnings if message.startswith("train")] == []


def test_a_late_span_that_cuts_a_word_is_an_error_and_is_counted_where_it_is_widened(tmp_path: Path) -> None:
    config = tagged(tmp_path, {"text": "Adas left", "spans": [[0, 3, "PER"]]})
    with pytest.raises(DataError, match=rf"train\.jsonl:{EARLY + 1}: span 'Ada' \(PER\) cuts a word"):
        build_trial(config)
    widened = build_trial(load_config(config.file, ["data.misaligned=widen"]))
    assert any(warning.startswith(f"{LATE} of {LATE} spans begin or end within") for warning in widened.data.warnings)


def corpus(folder: Path, lines: list[str], **head: Any) -> Config:
    """A language model of a text with these lines."""
    data = {"reader": {"use": "text", "unit": "line"}, "train": "text.txt"}
    stages = {"tokenizer": {"use": "words", "min_count": 3}, "head": {"use": "lm", "context": 8, **head}}
    return load_config(write_language_model(folder, "".join(f"{line}\n" for line in lines), data=data, **stages))


def test_the_first_records_of_a_corpus_are_enough_where_nothing_is_wrong_with_them(tmp_path: Path) -> None:
    trial = build_trial(corpus(tmp_path, ["a line of text"] * EARLY))
    assert (trial.size, trial.messages) == ("the first 200 records", [])


@pytest.mark.parametrize("context", [8, 900])
def test_a_corpus_is_refused_only_by_all_of_it(tmp_path: Path, context: int) -> None:
    """No word occurs three times in the first records, or they are too few for a window."""
    lines = [f"word{n} now" if context == 900 else f"word{n}" for n in range(EARLY)]
    assert build_trial(corpus(tmp_path, [*lines, "now now now"], context=context)).size == "all records"
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


@pytest.mark.parametrize(
    ("head", "record", "advice"),
    [
        ({"use": "crf"}, {"text": "a b", "spans": []}, "the field 'spans' is empty in every record"),
        ({"use": "crf"}, {"words": ["a"], "tags": ["O"]}, "the tags with the reader's option `tags`"),
        ({"use": "crf"}, {"text": "a", "label": "x"}, "has: text, label; write it in each record, or name the field"),
        ({"use": "crf"}, {"text": "a  b", "spans": [[1, 2, "X"]]}, "covers no word or token"),
        ({"use": "label", "multi": True}, {"text": "a", "labels": []}, "the field 'labels' is empty in each; write"),
        ({"target": "gone"}, {"text": "a"}, "train.jsonl:1: no field 'gone'"),
    ],
)
def test_the_advice_is_about_the_records_there_are(tmp_path: Path, head: Any, record: Any, advice: str) -> None:
    head = {"use": "seq2seq", "target_tokenizer": "same"} | head if "target" in head else head
    config = trained_on(tmp_path, [record] * 3, head=head)
    with pytest.raises(DataError, match=re.escape(advice)):
        build_trial(config)


@pytest.mark.parametrize(
    ("option", "target", "advice"),
    [
        ("lowercase", "Ab Cd", "delete lowercase from the target tokenizer"),
        ("fold_digits", "ab 12", "delete fold_digits from the target tokenizer"),
        ("fold_digits", "ab  12", "{use: bpe, byte_level: true}, which is lossless"),
    ],
)
def test_the_advice_names_the_option_that_changes_a_text(tmp_path: Path, option: str, target: str, advice: str) -> None:
    writer = f"head.target_tokenizer={{use: words, detokenize: true, {option}: true}}"
    config = trained_on(tmp_path, [{"text": "a", "reversed": target}] * 3, writer)
    (message,) = build_trial(config).messages
    assert advice in message
    assert message in succeed("check", config.file, writer).err


def test_a_warning_about_train_is_about_learning_and_one_about_dev_about_its_score(tmp_path: Path) -> None:
    config = trained_on(tmp_path, [{"text": "a", "label": "x"}] * 3, **LABEL)
    train, dev = build_trial(config).data.warnings
    assert train == "train: all have the label 'x' (3 records); no other answer can be learned; add records of each"
    assert dev.startswith("dev: all have the label 'x' (3 records); their score says nothing about other answers")


# Data of more records than a trial is built from. The number is 20,000; here it is 60.


@pytest.fixture
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MAX_RECORDS", 60)
    monkeypatch.setattr(check, "SAMPLE_RECORDS", 20)


@pytest.mark.usefixtures("small_sample")
def test_large_data_are_examined_to_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = [{"text": "Adas left it", "spans": [[0, 3, "PER"]]}, {"text": "", "spans": []}]
    records = [{"text": f"it rains {n}", "spans": [[3, 8, "PER"]]} for n in range(EARLY)] + late * LATE
    config = tagged(tmp_path, late[0])
    write_jsonl(tmp_path / "train.jsonl", records)
    with pytest.raises(DataError, match=rf"train\.jsonl:{EARLY + 1}: span 'Ada' \(PER\) cuts a word"):
        build_trial(config)
    widened = load_config(config.file, ["data.misaligned=widen"])
    sample = build_trial(widened)
    assert sample.size == f"the first 20 of {EARLY + 2 * LATE} records"
    assert len(sample.records) == 20
    monkeypatch.setattr(check, "MAX_RECORDS", 10**6)
    whole = build_trial(widened)
    data, faults = whole.data, data_faults(widened, whole.network.artifacts, whole.records, whole.data.dev)
    assert {*sample.data.warnings} == {*data.warnings, *faults}
    assert len(sample.data.warnings) >= 4


def test_late_labels_are_known_and_those_of_dev_alone_are_not(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = write_classifier(tmp_path, LABEL)
    records = [{"text": f"a sad day {n}", "label": "bad"} for n in range(EARLY)] + labelled_texts(LATE, 1)
    write_jsonl(tmp_path / "train.jsonl", records)
    small = build_trial(load_config(path))
    request.getfixturevalue("small_sample")
    trial = build_trial(load_config(path))
    labels = [built.network.artifacts.tasks[0].labels for built in (small, trial)]
    assert labels == [("bad", "fine", "good")] * 2
    assert small.data.warnings == []  # though the beginning is one-sided
    assert trial.size == f"the first 20 of {EARLY + LATE} records and 2 with further labels"
    weighted = build_trial(load_config(path, ["head.class_weights={fine: 2.0}"]))  # which the first 20 lack
    assert weighted.network.head.weights.tolist() == [1, 2, 1]
    with pytest.raises(ConfigError, match=r"the training data has no label 'fin'; .*did you mean 'fine'"):
        build_trial(load_config(path, ["head.class_weights={fin: 2.0}"]))
    write_jsonl(tmp_path / "dev.jsonl", [{"text": "a", "label": "good"}] * 70 + [{"text": "a", "label": "new"}])
    with pytest.raises(DataError, match=r"the dev set has 1 label .*'new' \(.*dev\.jsonl:71\)"):
        check_export(load_config(path), QUIET)


@pytest.mark.usefixtures("small_sample")
def test_a_late_long_text_of_large_data_is_the_one_whose_memory_is_measured(tmp_path: Path) -> None:
    path = write_classifier(tmp_path, LABEL)
    records = [*labelled_texts(EARLY, 1), {"text": "day " * 50, "label": "bad"}, *labelled_texts(LATE, 2)]
    write_jsonl(tmp_path / "train.jsonl", records)
    data = build_trial(load_config(path)).data
    assert data.batches.data[-1].where == f"record {EARLY + 1} ({tmp_path / 'train.jsonl'}:{EARLY + 1})"
    with pytest.raises(DataError, match=rf"record {EARLY + 1} .*: 50 tokens exceed train\.max_tokens: 40"):
        build_trial(load_config(path, ["train.max_tokens=40"]))


# The export


def test_a_sound_pipeline_is_built_exported_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_tagger(tmp_path, *SMALL_TAGGER, "encoder=sound", **toy_encoders())
    files = os.listdir(tmp_path)
    result = check_export(config, Console())
    assert os.listdir(tmp_path) == files
    assert (result.decisions, result.ties) == (12, 0)
    assert result.worst_score < 1e-5
    printed = capsys.readouterr().err
    assert "weights on 36 records, loss " in printed
    assert "bytes, inputs ids, mask" in printed
    assert "answers the same in PyTorch and onnxruntime: 12 decisions" in printed


class Broken(nn.Module):
    """An encoder with a fault."""

    def __init__(self, dim: int, *, fault: str = "nan"):
        super().__init__()
        self.dim, self.fault = dim, fault

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.fault == "raises":
            raise KeyError("missing")
        return x * float("nan")


FORWARD = "encoder: encoder 'broken' of toys: `forward`"


@pytest.mark.parametrize(
    ("encoder", "error", "message"),
    [
        ("unrolled", ExportError, "the pipeline does not export"),
        ("rough", ParityError, r"(scores|opens|closes) differs by \d"),
        ("fails", ParityError, "onnxruntime fails at shape"),
        ("{use: broken, fault: raises}", PluginError, f"{FORWARD} raised KeyError: 'missing'"),
        ("{use: broken, fault: nan}", TrainingError, "the loss of the first batch is nan"),
    ],
)
def test_a_component_with_a_planted_fault_is_found(tmp_path: Path, encoder: str, error: Any, message: str) -> None:
    toys = toy_encoders() | {"broken": ("encoder", Broken)}
    with pytest.raises(error, match=message):
        check_export(load_tagger(tmp_path, *SMALL_TAGGER, f"encoder={encoder}", **toys), QUIET)


def test_an_unknown_metric_is_reported_with_the_scores_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no dev score 'blue'; did you mean 'bleu'\? \(there is: .*perplexity"):
        check_export(load_config(write_seq2seq(tmp_path), ["train.metric=blue"]), QUIET)
    file = write_classifier(tmp_path, {"head": {"use": "label", "target": "label", "calibrate": True}})
    for metric in ("accuracy", "-loss"):
        assert check_export(load_config(file, [f"train.metric={metric}"]), QUIET).decisions
