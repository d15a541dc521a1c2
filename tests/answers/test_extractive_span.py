"""Answers within a passage: gold, metrics, and the way from data to a bundle's answers."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gallery import RECIPES, gallery, passages, train_settings
from second_runtime import Bundle as SecondRuntime
from second_runtime import matches_golden
from tiny_checkpoints import checkpoint
from tiny_pipelines import succeed, write_jsonl
from torchmetrics.functional.text import squad

from seqpipe import Model
from seqpipe import load as open_bundle
from seqpipe.answers.extractive_span import ExtractiveSpan
from seqpipe.answers.metrics.squad import gold_answers
from seqpipe.answers.registry import head_answer_from, task_of
from seqpipe.config.loader import load_config
from seqpipe.errors import ConfigError, DataError
from seqpipe.features.document import Doc
from seqpipe.features.sources import TextSource
from seqpipe.training.datasets import collate, examples
from seqpipe.training.fit import fit_artifacts
from seqpipe_plugins.tokenizers.words import WordsTokenizer

ADA = {"question": "who is it", "context": "Ada lives in Rome ."}


@pytest.fixture(scope="module")
def bundle() -> Path:
    return gallery("span").bundle


@pytest.fixture(scope="module")
def model(bundle: Path) -> Model:
    return open_bundle(bundle, "cpu")


def test_answers_are_parts_of_the_passage(model: Model) -> None:
    assert gallery("span").scores["f1"] > 0.8
    for record in passages(30, 5):
        answer = model(record)
        assert list(answer) == ["answer", "score", "start", "end", "log_score"]
        assert answer["answer"] == record["context"][answer["start"] : answer["end"]]
        several = model(record, n_best=3)
        assert several[0]["answer"] == answer["answer"]
        scores = [part["score"] for part in several]
        assert scores == sorted(scores, reverse=True)
        assert len({(part["start"], part["end"]) for part in several}) == len(several) == 3
        assert max(len(part["answer"].split()) for part in model(record, n_best=9, longest=1)) <= 1
    assert model({"question": "who is it", "context": "Ada"}, n_best=9)[1:]
    none = {"answer": "", "score": 1.0, "start": 0, "end": 0, "log_score": 0.0}
    empty = {"question": "", "context": ""}
    assert model({"question": "who is it", "context": " "}) == model(empty) == none
    assert model(empty, n_best=2) == model({"question": "who", "context": ""}, n_best=2) == [none]


def test_the_second_runtime_answers_alike(bundle: Path, model: Model) -> None:
    independent = SecondRuntime(bundle)
    pairs = [("", "Ada"), ("who", ""), ("", ""), ("é😀 who", "\ud800 Bob\n Ray lives")]
    records = [*passages(12, 6), *({"question": question, "context": context} for question, context in pairs)]
    for options in ({}, {"n_best": 4}, {"n_best": 2, "longest": 1}):
        for record in records:
            assert matches_golden(model(record, **options), independent(record, **options))
    assert independent.failed_golden_examples() == []


def test_evaluate_lists_wrong_answers(bundle: Path, tmp_path: Path) -> None:
    rome, ada = {"text": "Rome", "start": 13}, {"text": "Ada", "start": 0}
    data = write_jsonl(tmp_path / "test.jsonl", [{**ADA, "answers": gold} for gold in ([rome], [rome, ada])])
    succeed("evaluate", bundle, "--data", data, "--errors", tmp_path / "wrong.jsonl", "--device", "cpu")
    (wrong,) = map(json.loads, (tmp_path / "wrong.jsonl").read_text().splitlines())
    answer = wrong.pop("answer")
    assert (answer["answer"], wrong.pop("confidence"), wrong.pop("where")) == ("Ada", answer["score"], f"{data}:1")
    assert wrong == {**ADA, "answers": [rome], "expected": ["Rome"], "got": "Ada"}


def test_a_checkpoint_answers_from_passages_longer_than_its_window(tmp_path: Path) -> None:
    texts = [record[key] for record in passages(60, 1) for key in ("question", "context")]
    folder = str(checkpoint(tmp_path / "bert", "bert", texts))
    encoder = {"use": "pretrained", "checkpoint": folder, "window": 24, "first": 10, "overlap": 6}
    tokenizer = {"use": "pretrained", "checkpoint": folder, "field": ["question", "context"]}
    changes = {"encoder": encoder, "embedding": [], "train": train_settings(1), "counts": (40, 6, 6)}
    path = pipeline(tmp_path, tokenizer=tokenizer, **changes)
    assert not load_config(path).inputs[0].embedding
    succeed("run", path, "--device", "cpu", folder=tmp_path)
    bundle = tmp_path / "runs/passages/bundle"
    model, long = open_bundle(bundle, "cpu"), {"question": "who is it", "context": "Nobody but Ada knows Oslo . " * 9}
    assert model.verify() == []
    answers = model(long, n_best=20)
    assert len(answers) == 20
    assert all(answer["answer"] == long["context"][answer["start"] : answer["end"]] for answer in answers)
    assert SecondRuntime(bundle)(long)["start"] == answers[0]["start"]


# Gold


ANSWERED = [record for record in passages(45, 1) if record["answers"]["text"]]


def pipeline(folder: Path, **changes: Any) -> Path:
    return RECIPES["span"].write(folder, **RECIPES["span"].content | changes)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"text": ["a", "b"], "answer_start": [3, 5]}, [("a", 3), ("b", 5)]),
        ([{"text": "a", "start": 3}], [("a", 3)]),
        ([{"text": "a", "answer_start": 3}], [("a", 3)]),
        ([], []),
        ({"text": [], "answer_start": []}, []),
    ],
)
def test_gold_has_the_form_of_squad_or_of_a_list(answers: Any, expected: Any) -> None:
    assert gold_answers({"answers": answers}, "answers") == expected


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ("Ada", r"f:1: field 'answers' is str; write \{\"text\""),
        (["Ada"], r"f:1: field 'answers' is list; write"),
        ({"text": ["a"]}, r"f:1: field 'answers': `answer_start` and `text` must be equally long; write"),
        ([{"text": " ", "start": 0}], r"f:1: answer 1 of 'answers' has no text"),
        ([{"text": "a", "start": "0"}], r"f:1: answer 1 of 'answers', 'a', has no whole number as its start"),
    ],
)
def test_gold_of_another_form_is_refused_with_its_place_and_fix(answers: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        gold_answers({"where": "f:1", "answers": answers}, "answers")


def positions(folder: Path, record: dict[str, Any], *overrides: str, no_answer: bool = False) -> list[tuple[int, int]]:
    """Start and end positions of one record, collated behind another."""
    config = load_config(pipeline(folder, head={"use": "answer-span", "no_answer": no_answer}), overrides)
    artifacts = fit_artifacts(config, ANSWERED)
    batch = collate(artifacts, examples(config, artifacts, [ANSWERED[0], {"where": "f:7", **record}]))
    return list(zip(batch["start"].tolist(), batch["end"].tolist(), strict=True))[1:]


def test_the_first_answer_is_learned_as_positions_of_its_tokens(tmp_path: Path) -> None:
    answers = [{"text": " Dee Dee ", "start": 2}, {"text": "Fox", "start": 11}]
    record = {"question": "who is it", "context": "so Dee Dee Fox  met", "answers": answers}
    assert positions(tmp_path, record) == [(5, 6)]
    assert positions(tmp_path, record | {"answers": []}, no_answer=True) == [(-1, -1)]


def test_an_answer_that_cuts_a_token_is_an_error_or_widened_or_left_out(tmp_path: Path) -> None:
    record = {"question": "who", "context": "Dee Foxes met", "answers": [{"text": "Dee Fox", "start": 0}]}
    with pytest.raises(DataError, match=r"f:7: answer 'Dee Fox' cuts a token of \['Dee', 'Foxes'\]; set data.misal"):
        positions(tmp_path, record)
    assert positions(tmp_path, record, "data.misaligned=widen") == [(2, 3)]
    assert positions(tmp_path, record, "data.misaligned=skip") == []
    record["answers"].append({"text": "met", "start": 10})
    assert positions(tmp_path, record, "data.misaligned=skip") == [(4, 4)]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([{"text": "Ada", "start": 2}], r"f:7: the answer 'Ada' is not at 2, where the passage has 'a m'; it is at 0"),
        ([{"text": "Eve", "start": 2}], r"f:7: .* it is not in the passage: correct it"),
        ([{"text": "Ada", "start": -7}], r"f:7: the answer 'Ada' is not at -7"),
        ([], r"f:7: the question has no answer; set the head's option no_answer: true, or remove the record"),
    ],
)
def test_answers_that_cannot_be_learned_are_errors_with_their_fix(tmp_path: Path, answers: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        positions(tmp_path, {"question": "who", "context": "Ada met", "answers": answers})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": {"use": "words", "field": "context"}}, r"asks for 'segments', which nothing provides; make the"),
        ({"encoder": ["lstm", "words"]}, r"after the encoder 'words' there are no tokens to choose from; delete that"),
    ],
)
def test_a_pipeline_without_a_passage_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fit_artifacts(load_config(pipeline(tmp_path, **changes)), passages(6, 1))


# The answer kind, and its metrics


def test_the_answer_is_cut_from_the_second_text_and_fillers_are_dropped() -> None:
    featurizer = TextSource(WordsTokenizer().train(["a b c"]), {}, ["q", "p"])
    docs = featurizer.docs([{"q": "é b", "p": " a  b c"}, {"q": "", "p": "b"}])
    decision = {
        "starts": np.array([[4, -1], [1, -1]]),
        "ends": np.array([[5, -1], [1, -1]]),
        "scores": np.array([[np.log(0.5), np.log(0.25)], [0.0, -1e9]], np.float32),
    }
    kind = head_answer_from({"kind": "span", "target": None}, None)  # as in bundles before version 5
    first, second = kind.answers(docs, decision)
    none = {"answer": "", "score": 0.25, "start": 0, "end": 0}
    assert first == [{"answer": "b c", "score": 0.5, "start": 4, "end": 7}, none]
    assert second == [{"answer": "b", "score": 1.0, "start": 0, "end": 1}]
    assert task_of(kind).predicted(first) == "b c"
    assert kind.manifest() == {"kind": "span", "target": None}
    assert ExtractiveSpan().manifest() == {**kind.manifest(), "log_score": True}


def test_metrics_are_those_of_squad() -> None:
    dice = random.Random(4)
    words = ("the", "Fox", "fox,", "a", "dog", "an", "1,000", "", "—", "Dog.", "New  York")
    draws = [" ".join(dice.choices(words, k=dice.randint(0, 4))).strip() for _ in range(1500)]
    articles = {"the", "a", "an", "—"}
    golds = [[text for text in draws[i : i + i % 3] if set(text.split()) - articles] for i in range(1400)]
    counter, squads = task_of(ExtractiveSpan()).counter(), []
    for gold, predicted in zip(golds, draws[3:], strict=False):
        counter.add(gold, predicted)
        reference = {"answers": {"text": gold or [""], "answer_start": [0]}, "id": "1"}  # no answer is the answer ""
        scores = squad([{"prediction_text": predicted, "id": "1"}], [reference])
        squads.append((bool(gold), scores["f1"].item() / 100, scores["exact_match"].item() / 100))
    has_answer, f1, exact_match = np.array(squads).T
    answered = has_answer == 1
    expected = {"f1": f1.mean(), "exact_match": exact_match.mean()}
    expected |= {"has_answer_f1": f1[answered].mean(), "no_answer_accuracy": exact_match[~answered].mean()}
    assert list(counter.result()) == list(expected)
    assert counter.result() == pytest.approx(expected)
    assert 0.02 < expected["exact_match"] < expected["f1"] < 0.9


def test_without_unanswerable_questions_there_are_two_figures() -> None:
    counted = task_of(ExtractiveSpan()).counter()
    counted.add(["the Fox", "dog"], "Fox!")
    counted.add(["a big dog"], "dog")
    assert counted.result() == {"f1": pytest.approx((1 + 2 / 3) / 2), "exact_match": 0.5}


def test_an_answer_ends_with_a_letter_where_its_last_piece_is_the_space_before_a_word() -> None:
    offsets = [(0, 3), (3, 4), (4, 9), (10, 10), (10, 12)]
    doc = Doc("who\nAda B 你好", ["who", "\n", "Ada B", "", "你好"], offsets, [4, 3, 5, 6, 7], second=2)
    decision = {"starts": np.array([[2]]), "ends": np.array([[3]]), "scores": np.array([[0.0]])}
    (answer,) = ExtractiveSpan().answers([doc], decision)
    assert answer == {"answer": "Ada B", "score": 1.0, "log_score": 0.0, "start": 0, "end": 5}
