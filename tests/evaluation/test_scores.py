"""Scores of the toy bundle on files whose right answers are known, over the code that PyTorch uses too."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from conftest import Build
from gallery import gallery, numbered, several_labels, tagged
from seqeval.metrics import f1_score, precision_score, recall_score
from tiny_pipelines import QUIET, build_parts, labelled_texts, reversals, succeed, tagged_sentences, write_jsonl

from seqpipe import Model
from seqpipe import load as open_bundle
from seqpipe.answers.metrics.f1 import SPLIT_TAG
from seqpipe.batch.job import Shard
from seqpipe.config.loader import load_config
from seqpipe.console import Console
from seqpipe.errors import DataError, UsageError
from seqpipe.evaluation.scores import (
    deciding,
    goodness,
    headline,
    headlines,
    is_perfect,
    perturb_record,
    read_pairs,
    score_records,
    swap_words,
)
from seqpipe.plugin import Metric
from seqpipe.runs import scoring
from seqpipe.runs.scoring import Opened, answer_shard, open_target, score_perturbed, score_shards, score_target

GOLD = [
    (["Anna", "calls", "Ben"], ["B-person", "O", "B-person"], "call"),
    (["in", "New", "York"], ["O", "B-city", "I-city"], "go"),
    (["Bern", "calls", "Zoe"], ["B-person", "O", "B-person"], "call"),  # the toy says that Bern is a city
    (["Anna", "meets", "bern"], ["B-person", "O", "B-city"], "go"),  # and does not know bern
]
ANSWERS = [
    ["B-person", "O", "B-person"],
    ["O", "B-city", "I-city"],
    ["B-city", "O", "B-person"],
    ["B-person", "O", "O"],
]
RECORDS: list[dict[str, Any]] = [
    {"text": " ".join(words), "words": words, "tags": tags, "intent": intent, "where": f"x:{i}"}
    for i, (words, tags, intent) in enumerate(GOLD, 1)
]
CONLL = "".join(
    f"# intent = {intent}\n" + "".join(f"{word} {tag}\n" for word, tag in zip(words, tags, strict=True)) + "\n"
    for words, tags, intent in GOLD
)


def test_span_scores_are_seqevals_of_a_list_and_an_iterator(tiny: Model) -> None:
    scores = score_records(tiny.predictor, RECORDS)[""]
    gold = [tags for _, tags, _ in GOLD]
    assert scores["f1"] == pytest.approx(f1_score(gold, ANSWERS))
    assert scores["precision"] == pytest.approx(precision_score(gold, ANSWERS))
    assert scores["recall"] == pytest.approx(recall_score(gold, ANSWERS))
    assert headline(scores) == ("f1", scores["f1"])
    assert score_records(tiny.predictor, iter(RECORDS)) == {"": scores}


def test_scores_may_be_split_by_a_field(tiny: Model) -> None:
    scores = score_records(tiny.predictor, RECORDS, by="intent")
    assert list(scores) == ["", "intent=call", "intent=go"]
    assert (scores["intent=call"]["correct"], scores["intent=go"]["correct"], scores[""]["correct"]) == (3, 2, 5)
    with pytest.raises(DataError, match=r"x:1: no field 'intend' to split by; the record has: text, words"):
        score_records(tiny.predictor, RECORDS, by="intend")
    with pytest.raises(DataError, match="x:9: no field 'spans' to compare with; it has: text; write it"):
        score_records(tiny.predictor, [{"text": "Anna", "where": "x:9"}])


def test_errors_are_listed_with_their_confidence(tiny: Model, tmp_path: Path) -> None:
    score_records(tiny.predictor, RECORDS, errors=tmp_path / "errors.jsonl")
    third, fourth = map(json.loads, (tmp_path / "errors.jsonl").read_text().splitlines())
    assert list(third)[:3] == ["confidence", "where", "answer"]
    assert third.pop("confidence") == max(span["score"] for span in third.pop("answer") if span["word"] == "Bern")
    assert third == {**RECORDS[2], "missed": [["person", 0, 4]], "wrong": [["city", 0, 4]]}
    assert fourth["confidence"] == 0.0  # nothing in the answer is wrong
    assert (fourth["missed"], fourth["wrong"]) == ([["city", 11, 15]], [])


def test_from_the_text_alone_the_model_splits_for_itself(tiny: Model) -> None:
    glued = [{"text": "Anna-Lena", "words": ["Anna-Lena"], "tags": ["B-person"]}]
    assert score_records(tiny.predictor, glued)[""]["correct"] == 1  # unknown, with a capital
    assert score_records(tiny.predictor, glued, raw=True)[""]["correct"] == 0  # Anna, -, Lena
    assert score_records(tiny.predictor, RECORDS, raw=True) == score_records(tiny.predictor, RECORDS)


def test_tags_are_counted_word_by_word_and_a_word_that_the_model_splits_otherwise_has_none(tiny_tagger: Model) -> None:
    scores = score_records(tiny_tagger.predictor, RECORDS)[""]
    assert headline(scores) == ("accuracy", 10 / 12)
    city = scores["labels"]["B-city"]
    assert (city["f1"], city["gold"], city["predicted"], city["correct"]) == (0.5, 2, 2, 1)
    json.dumps(scores)
    glued = [{"text": "Anna-Lena calls", "words": ["Anna-Lena", "calls"], "tags": ["B-person", "O"]}]
    scores = score_records(tiny_tagger.predictor, glued, raw=True)[""]
    assert (scores["accuracy"], scores["labels"][SPLIT_TAG]["predicted"]) == (0.5, 1)


ALL_PLACES = "\n".join(
    "".join(f"{word}\t{tag.replace('PER', 'LOC')}\n" for word, tag in zip(*sentence, strict=True))
    for sentence in tagged_sentences(16, 3)
)
WRONG_TARGETS: dict[str, Any] = {
    "spans": ALL_PLACES,
    "tags": ALL_PLACES,
    "multi-head": [{**record, "tags": ["B-LOC"] * len(record["tags"])} for record in tagged(16, 3)],
    "label": [{**record, "label": "bad"} for record in labelled_texts(12, 3)],
    "labels": [{**record, "labels": ["bad"]} for record in several_labels(12, 3)],
    "text": [{**record, "reversed": record["text"]} for record in reversals(8, 3)],
}


@pytest.mark.parametrize("kind", WRONG_TARGETS)
def test_a_file_of_errors_is_sorted_by_confidence_and_is_data_again(kind: str, tmp_path: Path) -> None:
    example = gallery(kind)
    if isinstance(records := WRONG_TARGETS[kind], str):
        (tmp_path / "data").write_text(records)
    else:
        write_jsonl(tmp_path / "data", records)

    def errors(data: str, name: str) -> list[dict[str, Any]]:
        scored = ("evaluate", example.run, "--device", "cpu", "--json", "-q", "--data", data, "--errors", name)
        succeed(*scored, folder=tmp_path)
        return [*map(json.loads, (tmp_path / name).read_text(encoding="utf-8").splitlines())]

    wrong, again = errors("data", "wrong.jsonl"), errors("wrong.jsonl", "again")
    assert len(wrong) > 2
    confidences = [line["confidence"] for line in wrong]
    assert confidences == sorted(confidences, reverse=True)
    places = [(f"wrong.jsonl:{i}", line.pop("where")) for i, line in enumerate(wrong, 1)]
    assert [(line.pop("where"), line.pop("source_where")) for line in again] == places
    assert again == wrong
    sets = [f"data.{part}={tmp_path / 'wrong.jsonl'}" for part in ("train", "dev", "test")]
    _, batches = build_parts(load_config(example.yaml, ["data.reader={use: jsonl, text: null}", *sets]))
    assert len(batches.data) == len(wrong)


# A bundle on disk, its data named or found beside it


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "test.conll").write_text(CONLL, encoding="utf-8")
    return tmp_path / "test.conll"


def open_data(target: Path, data: Path | None = None) -> Opened:
    return open_target(target, "cpu", data, QUIET)


def test_a_bundle_is_scored_on_a_file_and_raw_scores_stand_beside_the_others(
    tiny: Model, tiny_bundle: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = score_target(open_data(tiny_bundle, data), Console())
    assert result == {"test.conll": score_records(tiny.predictor, RECORDS)[""]}
    err = capsys.readouterr().err
    assert "person" in err
    assert f"{100 * result['test.conll']['f1']:.2f}" in err
    errors = tmp_path / "errors.jsonl"
    result = score_target(open_data(tiny_bundle, data), QUIET, raw=True, by="intent", errors=errors)
    assert list(result) == ["test.conll", "test.conll (raw)"]
    assert list(result["test.conll"]) == ["", "intent=call", "intent=go"]
    assert len(errors.read_text().splitlines()) == 2


def test_shards_of_a_bundle_have_the_scores_of_one_run(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, answers = tmp_path / "many.conll", tmp_path / "answers"
    data.write_text(CONLL * 513, encoding="utf-8")  # blocks of 1024, 1024 and 4 records
    whole = score_target(open_data(tiny_bundle, data), Console(), raw=True, by="intent")
    printed = capsys.readouterr().err
    for number in (4, 2, 1, 3):
        with pytest.raises(DataError, match=r"has no shards|lacks . of 4 shards"):
            score_shards(tiny_bundle, answers, QUIET)
        answer_shard(tiny_bundle, open_data(tiny_bundle, data), QUIET, Shard(number, 4), answers, raw=True)
    assert score_shards(tiny_bundle, answers, Console(), by="intent") == whole
    assert capsys.readouterr().err == printed
    assert (answers / "shard-00004.jsonl").read_bytes() == b""
    counts = [len((answers / f"shard-{number:05d}.jsonl").read_text().splitlines()) for number in (1, 2, 3)]
    assert counts == [2 * 1024, 2 * 1024, 2 * 4]
    for number in (1, 4):
        description = json.loads((answers / f"shard-{number:05d}.json").read_text())
        assert [*description["records"].values()] == [2 * 1024 + 4] * 2  # of the data, and as raw text


def test_shards_that_do_not_belong_together_are_refused(
    tiny_bundle: Path, build: Build, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, far = tmp_path / "answers", tmp_path / "far"
    answer_shard(tiny_bundle, open_data(tiny_bundle, data), QUIET, Shard(1, 2), answers)
    data.write_text(CONLL.replace("Anna", "Anne", 1))
    changed = (
        r"test\.conll: has changed between shards: .* in .*shard-00001\.json; restore it, or write all shards again"
    )
    for number in (1, 2):
        with pytest.raises(DataError, match=changed):
            answer_shard(tiny_bundle, open_data(tiny_bundle, data), QUIET, Shard(number, 2), answers)
    answer_shard(tiny_bundle, open_data(tiny_bundle, data), QUIET, Shard(2, 2), far)
    for file in [*far.iterdir()]:
        file.rename(answers / file.name)
    with pytest.raises(DataError, match=changed):
        score_shards(tiny_bundle, answers, QUIET)
    (answers / "shard-00001.json").unlink()
    answer_shard(tiny_bundle, open_data(tiny_bundle, data), QUIET, Shard(1, 2), answers)
    (answers / "shard-00001.jsonl").write_bytes(b"")
    with pytest.raises(DataError, match=r"shard-00001\.jsonl: damaged"):
        score_shards(tiny_bundle, answers, QUIET)
    with pytest.raises(DataError, match="'bundle' differs"):
        score_shards(build(tmp_path / "tagger", kind="tags"), answers, QUIET)
    with pytest.raises(UsageError, match=r"shards are answered by a bundle; name one, such as .*/bundle$"):
        answer_shard(tmp_path, open_data(tiny_bundle, data), QUIET, Shard(1, 2), answers)
    for content in ('{"shard', "[]", '{"shard": 1}'):
        (answers / "shard-00001.json").write_text(content, encoding="utf-8")
        with pytest.raises(DataError, match=r"shard-00001\.json: damaged: .*; remove it, and write the shard again"):
            score_shards(tiny_bundle, answers, QUIET)
    monkeypatch.setattr(scoring, "answered", lambda *_, **__: [][: data.write_text(CONLL)])
    with pytest.raises(DataError, match="changed while it was answered; write the shard again"):
        answer_shard(tiny_bundle, open_data(tiny_bundle, data), QUIET, Shard(1, 2), far)


@pytest.mark.usefixtures("data")
def test_the_test_sets_of_the_run_around_a_bundle_are_found(build: Build, tmp_path: Path) -> None:
    bundle = build(tmp_path / "bundle")
    with pytest.raises(UsageError, match=r"is not in a run, .*name a file with --data"):
        score_target(open_data(bundle), QUIET)
    (tmp_path / "pipeline.yaml").write_text("data:\n  reader: conll\n")
    with pytest.raises(UsageError, match="has no test set; name a file with --data"):
        score_target(open_data(bundle), QUIET)
    tests_of = {"test": "test.conll", "a": "{a: test.conll}", "a b": "{a: test.conll, b: test.conll}"}
    for names, tests in tests_of.items():
        (tmp_path / "pipeline.yaml").write_text(f"data:\n  reader: conll\n  test: {tests}\n")
        result = score_target(open_data(bundle), QUIET)
        assert list(result) == names.split()
        assert len({json.dumps(scores) for scores in result.values()}) == 1
    with pytest.raises(UsageError, match=r"test\.conll: is an input, which would be lost"):
        score_target(open_data(bundle, tmp_path / "test.conll"), QUIET, errors=tmp_path / "test.conll")
    with pytest.raises(UsageError, match="--errors needs one data file"):
        score_target(open_data(bundle), QUIET, errors=tmp_path / "e")
    whole = score_target(open_data(bundle), QUIET)["a"]
    (tmp_path / "test.conll").write_text((tmp_path / "test.conll").read_text() + "\nZoe calls\n")
    with pytest.raises(DataError, match="bad_rows: skip"):
        score_target(open_data(bundle), QUIET)
    (tmp_path / "pipeline.yaml").write_text("data: {reader: conll, test: test.conll, bad_rows: skip}\n")
    assert score_target(open_data(bundle), QUIET)["test"] == whole


SCORES = {"mean": 0.5, "rated": {"mae": 0.25, "pearson": -0.5, "labels": {"a": {"f1": 1.0}}}, "own": {"distance": 3.0}}


DECIDING = [
    (None, "mean", 0.5, 0.5),
    ("rated.pearson", "rated.pearson", -0.5, -0.5),
    ("rated.mae", "rated.mae", 0.25, -0.25),
    ("-rated.mae", "rated.mae", 0.25, -0.25),
    ("-own.distance", "own.distance", 3.0, -3.0),
]


@pytest.mark.parametrize(("metric", "name", "value", "good"), DECIDING)
def test_the_deciding_score_is_told_as_it_is_and_more_of_its_goodness_is_better(
    metric: str | None, name: str, value: float, good: float
) -> None:
    assert deciding(SCORES, metric) == (name, value)
    assert goodness(SCORES, metric, {"mae": Metric(percent=False, more_is_better=False)}) == good


@pytest.mark.parametrize(
    ("metric", "value", "perfect"),
    [("f1", 1.0, True), ("f1", 0.99, False), ("gain", 1.5, False), ("mae", 0.0, True), ("mae", 1.0, False),
     ("-gain", 0.0, True), ("-gain", 1.0, False)],
)  # fmt: skip
def test_a_fraction_of_1_and_an_error_of_0_are_perfect_and_no_other_number(
    metric: str, value: float, perfect: bool
) -> None:
    metrics = {"f1": Metric(), "gain": Metric(percent=False), "mae": Metric(percent=False, more_is_better=False)}
    assert is_perfect({metric.removeprefix("-"): value}, metric, metrics) == perfect


def test_headlines_lead_with_the_score_that_chose_the_weights_where_it_is_there() -> None:
    assert list(headlines(SCORES)) == ["mean", "rated.mae", "own.distance"]
    assert next(iter(headlines(SCORES, "rated.pearson").items())) == ("rated.pearson", -0.5)
    assert list(headlines(SCORES, "own.distance")) == ["own.distance", "mean", "rated.mae"]
    assert list(headlines(SCORES, "perplexity")) == ["mean", "rated.mae", "own.distance"]
    assert math.isnan(headlines({"f1": 0.5, "spearman": None}, "spearman")["spearman"])


@pytest.mark.parametrize("metric", ["rated.pearsn", "rated", "labels", "-nothing"])
def test_a_deciding_score_that_is_not_there_is_told_with_those_that_are(metric: str) -> None:
    with pytest.raises(UsageError, match=r"train.metric: there is no dev score .*there is: mean, rated.mae, rated.pea"):
        deciding(SCORES, metric)


# Robustness and fairness


def test_perturbations_are_scored_as_texts_and_show_what_breaks(tiny: Model) -> None:
    none, case, width, emoji, blanks = tiny.robustness(RECORDS, ["case", "width", "emoji", "blanks"])
    assert [none[key] for key in ("perturbation", "metric", "drop", "changed", "broken")] == ["none", "f1", 0, 0, 0]
    lower = [record | {"words": record["text"].lower().split(), "text": record["text"].lower()} for record in RECORDS]
    assert case["score"] == score_records(tiny.predictor, lower)[""]["f1"]
    assert case["drop"] == pytest.approx(none["score"] - case["score"])
    assert (case["changed"], case["broken"]) == (4, 2)  # of the two records that are right without
    missed = [("person", 0, 4), ("person", 11, 14)]
    assert case["examples"][0] == {"text": "Anna calls Ben", "changed": "anna calls ben", "missed": missed, "wrong": []}
    assert width["examples"][0]["changed"] == "Ａｎｎａ ｃａｌｌｓ Ｂｅｎ"
    assert emoji["examples"][0]["changed"] == "in New York🙂"  # words keep their tags, so there is no new one
    assert (blanks["changed"], blanks["broken"], blanks["drop"]) == (4, 0, 0)  # words are read, not the text between


def test_typos_depend_on_seed_and_text_only_and_keep_lengths(tiny: Model) -> None:
    records = [{"text": text, "spans": []} for text in ("meeting tomorrow " * 9, "another evening " * 9)]
    first, second = (tiny.robustness(some, ["typos"])[1] for some in (records, records[::-1]))
    assert (first["changed"], second["changed"]) == (2, 2)
    typos = [[perturb_record(record, ("text",), "typos", seed)["text"] for record in records] for seed in (1, 1, 2)]
    assert (typos[0] == typos[1], typos[0] == typos[2]) == (True, False)
    for record, text in zip(records, typos[0], strict=True):
        assert (len(text), sorted(text)) == (len(record["text"]), sorted(record["text"]))
    with pytest.raises(UsageError, match=r"no perturbation 'typo'; did you mean 'typos'\? \(there is: typos, case"):
        tiny.robustness(records, ["typo"])


def test_swapped_words_change_answers_that_depend_on_them(tiny: Model) -> None:
    total, names, verbs, cities = tiny.swap(RECORDS, [("Anna", "Ben"), ("calls", "meets"), ("Bern", "nowhere")])
    assert (names["texts"], names["changed"]) == (2, 0)  # both are persons, and the words of spans may be swapped ones
    assert (verbs["texts"], verbs["changed"]) == (3, 0)
    assert (cities["texts"], cities["changed"], cities["share"]) == (2, 1, 0.5)  # the toy never knew bern
    example = cities["examples"][0]
    assert (example["text"], example["changed"]) == ("Bern calls Zoe", "Nowhere calls Zoe")
    assert [span["word"] for span in example["before"]] == ["Bern", "Zoe"]
    assert (total["pair"], total["texts"], total["changed"]) == ("all", 7, 1)


def test_pairs_are_two_columns_of_words_that_are_swapped_both_ways_with_their_case(tmp_path: Path) -> None:
    text = "He said: HER hero is hers, she said to he-man. herself"
    assert swap_words("he", "she", text) == "She said: HER hero is hers, he said to she-man. herself"
    assert swap_words("her", "his", "HER Her her hers") == "HIS His his hers"
    assert swap_words("New York", "Rome", "to new york, New York") == "to rome, Rome"
    (tmp_path / "pairs.tsv").write_text("he\tshe\n\n Anna \tBen\n")
    assert read_pairs(tmp_path / "pairs.tsv") == [("he", "she"), ("Anna", "Ben")]
    (tmp_path / "pairs.tsv").write_text("he\tshe\nhe she\n")
    with pytest.raises(DataError, match=r"pairs\.tsv:2: 'he she' is not a pair"):
        read_pairs(tmp_path / "pairs.tsv")


def test_a_bundle_and_a_file_give_the_rows_of_the_command(
    tiny: Model, tiny_bundle: Path, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "pairs.tsv").write_text("Anna\tBen\n")
    result = score_perturbed(open_data(tiny_bundle, data), QUIET, ["case"], tmp_path / "pairs.tsv")
    assert result["test.conll"]["perturb"] == tiny.robustness(data, ["case"])
    assert result["test.conll"]["swap"] == tiny.swap(data, [("Anna", "Ben")])


def test_the_command_scores_a_bundle_in_shards(tiny_bundle: Path, data: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        succeed("evaluate", tiny_bundle, "--data", data, "--shard", f"{number}/2", "-o", tmp_path / "answers", "-q")
    merged = succeed("merge", tiny_bundle, tmp_path / "answers", "--json", "-q")
    assert json.loads(merged.out) == score_target(open_data(tiny_bundle, data), QUIET)


@pytest.mark.parametrize("name", ["label", "score"])
def test_perturbed_texts_of_labels_and_numbers_are_compared(name: str) -> None:
    model = open_bundle(gallery(name).bundle, "cpu", threads=1)
    plain, perturbed = model.robustness(numbered(12, 9), ["case"])
    assert (plain["changed"], perturbed["changed"]) == (0, 12)
    assert perturbed["drop"] > 0.5
