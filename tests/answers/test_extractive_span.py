"""Answers within a passage: gold, metrics, and the way from data to a bundle's answers."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factory import seqpipe, write_jsonl
from independent import Bundle as SecondRuntime
from pretrained import checkpoint
from torchmetrics.functional.text import squad

from seqpipe import load as open_bundle
from seqpipe.answers.extractive_span import ExtractiveSpan
from seqpipe.answers.metrics.squad import gold_answers
from seqpipe.answers.registry import head_answer_from, task_of
from seqpipe.config.loader import load
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError, DataError
from seqpipe.features.document import Doc
from seqpipe.features.sources import TextSource
from seqpipe.training.datasets import collate, examples
from seqpipe.training.fit import fit_artifacts
from seqpipe_plugins.tokenizers.words import Words

PEOPLE, PLACES = ("Ada", "Bob Ray", "Cho", "Dee Dee Fox"), ("Oslo", "New York", "Lima", "Rome")


def asked(count: int, seed: int, silent: bool = True) -> list[dict[str, Any]]:
    """Who met whom where; a question may be about what is not said."""
    dice, made = random.Random(seed), []
    for i in range(count):
        who, place = dice.choice(PEOPLE), dice.choice(PLACES)
        context = dice.choice(("😀 {} lives in {} .", "Nobody but {} knows {} .")).format(who, place)
        question, text = (("who is it", who), ("which place is it", place), ("how much is it", ""))[i % (2 + silent)]
        gold = {"text": [text], "answer_start": [context.index(text)]} if text else {"text": [], "answer_start": []}
        made.append({"question": question, "context": context, "answers": gold})
    return made


def asking(folder: Path, changes: dict[str, Any] | None = None, **options: Any) -> Path:
    """Data and the YAML of a tiny reader of passages."""
    for name, count, seed in (("train", 180, 1), ("dev", 24, 2), ("test", 30, 3)):
        write_jsonl(folder / f"{name}.jsonl", asked(count, seed))
    content: dict[str, Any] = {
        "name": "asked",
        "data": {"reader": {"use": "jsonl", "text": None}}
        | {part: f"{part}.jsonl" for part in ("train", "dev", "test")},
        "tokenizer": {"use": "words", "field": ["question", "context"]},
        "embedding": {"use": "lookup", "dim": 16},
        "encoder": {"use": "lstm", "hidden": 24},
        "head": {"use": "answer-span", "no_answer": True} | options,
        "train": {"epochs": 12, "batch_tokens": 256, "optimizer": {"use": "adamw", "lr": 0.01}, "threads": 1},
    }
    path = folder / "asked.yaml"
    path.write_text(dump(content | (changes or {})))
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("asked")
    done = seqpipe("run", asking(folder), "--device", "cpu", "--json", folder=folder)
    assert done.code == 0, done.err
    result = json.loads(done.out)
    return folder / result["bundle"], result


def test_it_learns_and_the_bundle_scores_and_verifies_as_pytorch_did(bundle: tuple[Path, dict[str, Any]]) -> None:
    path, result = bundle
    (scores,) = result["scores"].values()
    assert list(scores) == ["f1", "exact_match", "has_answer_f1", "no_answer_accuracy"]
    assert scores["f1"] > 0.8
    assert seqpipe("verify", path, "--device", "cpu").code == 0
    assert json.loads(seqpipe("evaluate", path, "--device", "cpu", "--json").out) == result["scores"]


def test_answers_are_stretches_of_the_passage_as_given(bundle: tuple[Path, dict[str, Any]]) -> None:
    model = open_bundle(bundle[0], "cpu")
    for record in asked(30, 5):
        found = model(record)
        assert list(found) == ["answer", "score", "start", "end"]
        assert found["answer"] == record["context"][found["start"] : found["end"]]
        several = model(record, n_best=3)
        assert several[0]["answer"] == found["answer"]
        assert [one["score"] for one in several] == sorted((one["score"] for one in several), reverse=True)
        assert len({(one["start"], one["end"]) for one in several}) == len(several) == 3
        assert max(len(one["answer"].split()) for one in model(record, n_best=9, longest=1)) <= 1
    assert model({"question": "who is it", "context": "Ada"}, n_best=9)[1:]
    none = {"answer": "", "score": 1.0, "start": 0, "end": 0}
    assert model({"question": "who is it", "context": " "}) == model({"question": "", "context": ""}) == none
    assert (
        model({"question": "", "context": ""}, n_best=2)
        == model({"question": "who", "context": ""}, n_best=2)
        == [none]
    )


def test_the_second_runtime_answers_alike(bundle: tuple[Path, dict[str, Any]]) -> None:
    model, other = open_bundle(bundle[0], "cpu"), SecondRuntime(bundle[0])
    some = [*asked(12, 6), {"question": "", "context": "Ada"}, {"question": "who", "context": ""}]
    some += [{"question": "", "context": ""}, {"question": "é😀 who", "context": "\ud800 Bob\n Ray lives"}]
    for options in ({}, {"n_best": 4}, {"n_best": 2, "longest": 1}):
        for record in some:
            mine, theirs = model(record, **options), other(record, **options)
            for one, two in zip(*(x if isinstance(x, list) else [x] for x in (mine, theirs)), strict=True):
                assert {**one, "score": 0} == {**two, "score": 0}
                assert one["score"] == pytest.approx(two["score"], abs=1e-4)
    assert other.wrong() == []


def test_predict_reads_json_lines_and_lines_with_a_tab(bundle: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    lines = write_jsonl(tmp_path / "in.jsonl", [{"question": "who is it", "context": "Ada lives in Rome ."}])
    first = json.loads(seqpipe("predict", bundle[0], "-i", lines, "--device", "cpu").out)
    second = seqpipe("predict", bundle[0], "--device", "cpu", stdin=b"who is it\tAda lives in Rome .\n")
    assert json.loads(second.out) == first["answer"]
    assert first["answer"]["answer"] == "Ada"


def test_evaluate_lists_what_was_answered_wrongly(bundle: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    record = {"question": "who is it", "context": "Ada lives in Rome ."}
    golds: list[list[dict[str, Any]]] = [
        [{"text": "Rome", "start": 13}],
        [{"text": "Rome", "start": 13}, {"text": "Ada", "start": 0}],
    ]
    data = write_jsonl(tmp_path / "test.jsonl", [{**record, "answers": gold} for gold in golds])
    done = seqpipe("evaluate", bundle[0], "--data", data, "--errors", tmp_path / "wrong.jsonl", "--device", "cpu")
    assert done.code == 0, done.err
    (wrong,) = map(json.loads, (tmp_path / "wrong.jsonl").read_text().splitlines())
    assert wrong["answer"]["answer"] == "Ada"
    assert wrong["confidence"] == wrong["answer"]["score"]
    kept = {key: wrong[key] for key in wrong if key not in ("answer", "confidence", "where")}
    assert kept == {**record, "answers": golds[0], "expected": ["Rome"], "got": "Ada"}


def test_a_checkpoint_answers_from_passages_longer_than_its_window(tmp_path: Path) -> None:
    texts = [one[key] for one in asked(60, 1) for key in ("question", "context")]
    made = str(checkpoint(tmp_path / "made", "bert", texts))
    encoder = {"use": "pretrained", "checkpoint": made, "window": 24, "first": 10, "overlap": 6}
    changes = {"tokenizer": {"use": "pretrained", "checkpoint": made, "field": ["question", "context"]}}
    path = asking(tmp_path, changes | {"encoder": encoder})
    content = path.read_text().replace("embedding:\n  use: lookup\n  dim: 16\n", "")
    path.write_text(content.replace("epochs: 12", "epochs: 1"))
    config = load(path)
    assert not config.inputs[0].embedding
    done = seqpipe("run", path, "--device", "cpu", "--json", folder=tmp_path)
    assert done.code == 0, done.err
    found = tmp_path / json.loads(done.out)["bundle"]
    assert seqpipe("verify", found, "--device", "cpu").code == 0
    model, long = open_bundle(found, "cpu"), {"question": "who is it", "context": "Nobody but Ada knows Oslo . " * 9}
    several = model(long, n_best=20)
    assert len(several) == 20
    assert all(one["answer"] == long["context"][one["start"] : one["end"]] for one in several)
    assert SecondRuntime(found)(long)["start"] == several[0]["start"]


# Gold


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"text": ["a", "b"], "answer_start": [3, 5]}, [("a", 3), ("b", 5)]),
        ([{"text": "a", "start": 3}], [("a", 3)]),
        ([{"text": "a", "answer_start": 3}], [("a", 3)]),
        ([], []),
        ({"text": [], "answer_start": []}, []),
    ],
)
def test_gold_is_told_as_squad_does_or_as_a_list(given: Any, expected: Any) -> None:
    assert gold_answers({"answers": given}, "answers") == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, r"f:1: no field 'answers' with the answers; the record has: where, answers"),
        ("Ada", r"f:1: field 'answers' is str; write \{\"text\""),
        (["Ada"], r"f:1: field 'answers' is list; write"),
        ({"text": ["a"]}, r"f:1: field 'answers': `answer_start` and `text` must be equally long; write"),
        ([{"text": " ", "start": 0}], r"f:1: answer 1 of 'answers' has no text"),
        ([{"text": "a", "start": "0"}], r"f:1: answer 1 of 'answers', 'a', has no whole number as its start"),
    ],
)
def test_gold_of_another_form_is_refused_with_its_place_and_cure(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        gold_answers({"where": "f:1", "answers": given}, "answers")


def learning(folder: Path, record: dict[str, Any], *overrides: str, no_answer: bool = False) -> list[tuple[int, int]]:
    """Start and end that are learned of one record among others."""
    path = asking(folder, no_answer=no_answer)
    write_jsonl(folder / "train.jsonl", asked(6, 1, silent=False))
    config = load(path, overrides)
    artifacts = fit_artifacts(config, asked(30, 1, silent=False))
    batch = collate(artifacts, examples(config, artifacts, [asked(1, 1)[0], {"where": "f:7", **record}]))
    return list(zip(batch["start"].tolist(), batch["end"].tolist(), strict=True))[1:]


def test_the_first_answer_is_learned_as_positions_of_its_tokens(tmp_path: Path) -> None:
    record = {"question": "who is it", "context": "so Dee Dee Fox  met", "answers": [{"text": " Dee Dee ", "start": 2}]}
    record["answers"].append({"text": "Fox", "start": 11})
    assert learning(tmp_path, record) == [(5, 6)]
    assert learning(tmp_path, record | {"answers": []}, no_answer=True) == [(-1, -1)]


def test_an_answer_that_cuts_a_token_is_an_error_or_widened_or_left_out(tmp_path: Path) -> None:
    record = {"question": "who", "context": "Dee Foxes met", "answers": [{"text": "Dee Fox", "start": 0}]}
    with pytest.raises(
        DataError, match=r"f:7: answer 'Dee Fox' cuts a token of \['Dee', 'Foxes'\]; set data.misaligned"
    ):
        learning(tmp_path, record)
    assert learning(tmp_path, record, "data.misaligned=widen") == [(2, 3)]
    assert learning(tmp_path, record, "data.misaligned=skip") == []
    record["answers"].append({"text": "met", "start": 10})
    assert learning(tmp_path, record, "data.misaligned=skip") == [(4, 4)]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([{"text": "Ada", "start": 2}], r"f:7: the answer 'Ada' is not at 2, where the passage has 'a m'; it is at 0"),
        ([{"text": "Eve", "start": 2}], r"f:7: .* it is not in the passage: correct it"),
        ([{"text": "Ada", "start": -7}], r"f:7: the answer 'Ada' is not at -7"),
        ([], r"f:7: the question has no answer; set the head's option no_answer: true, or remove the record"),
    ],
)
def test_what_cannot_be_learned_is_told_with_place_and_cure(tmp_path: Path, answers: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        learning(tmp_path, {"question": "who", "context": "Ada met", "answers": answers})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": {"use": "words", "field": "context"}}, r"asks for 'segments', which nothing provides; make the"),
        (
            {"encoder": [{"use": "lstm", "hidden": 6}, {"use": "words"}]},
            r"after the encoder 'words' there are no tokens to choose from; delete that encoder",
        ),
    ],
)
def test_a_pipeline_without_a_passage_to_choose_from_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        fit_artifacts(load(asking(tmp_path, changes)), asked(6, 1))


# The answer kind, and its metrics


def test_the_answer_is_cut_from_the_second_text_and_fillers_are_dropped() -> None:
    featurizer = TextSource(Words().train(["a b c"]), {}, ["q", "p"])
    docs = featurizer.docs([{"q": "é b", "p": " a  b c"}, {"q": "", "p": "b"}])
    decision = {
        "starts": np.array([[4, -1], [1, -1]]),
        "ends": np.array([[5, -1], [1, -1]]),
        "scores": np.array([[np.log(0.5), np.log(0.25)], [0.0, -1e9]], np.float32),
    }
    kind = head_answer_from({"kind": "span", "target": None}, None)
    first, second = kind.answers(docs, decision)
    assert first == [
        {"answer": "b c", "score": 0.5, "start": 4, "end": 7},
        {"answer": "", "score": 0.25, "start": 0, "end": 0},
    ]
    assert second == [{"answer": "b", "score": 1.0, "start": 0, "end": 1}]
    assert task_of(kind).predicted(first) == "b c"
    assert kind.manifest() == ExtractiveSpan().manifest() == {"kind": "span", "target": None}


def test_metrics_are_those_of_squad() -> None:
    dice = random.Random(4)
    words = ("the", "Fox", "fox,", "a", "dog", "an", "1,000", "", "—", "Dog.", "New  York")
    draws = [" ".join(dice.choices(words, k=dice.randint(0, 4))).strip() for _ in range(1500)]
    golds = [
        [text for text in draws[i : i + i % 3] if set(text.split()) - {"the", "a", "an", "—"}] for i in range(1400)
    ]
    rows = list(zip(golds, draws[3:], strict=False))
    counted = task_of(ExtractiveSpan()).counter()
    for gold, predicted in rows:
        counted.add(gold, predicted)
    ours = counted.result()

    def theirs(some: list[tuple[list[str], str]]) -> dict[str, float]:  # SQuAD 2.0: no answer is the answer ""
        golds = [{"answers": {"text": gold or [""], "answer_start": [0]}, "id": "1"} for gold, _ in some]
        total = {"f1": 0.0, "exact_match": 0.0}
        for gold, (_, text) in zip(golds, some, strict=True):
            for name, value in squad([{"prediction_text": text, "id": "1"}], [gold]).items():
                total[name] += value.item() / 100 / len(some)
        return total

    every, with_answer = theirs(rows), theirs([row for row in rows if row[0]])
    assert list(ours) == ["f1", "exact_match", "has_answer_f1", "no_answer_accuracy"]
    assert ours["f1"] == pytest.approx(every["f1"])
    assert ours["exact_match"] == pytest.approx(every["exact_match"])
    assert ours["has_answer_f1"] == pytest.approx(with_answer["f1"])
    assert ours["no_answer_accuracy"] == pytest.approx(theirs([row for row in rows if not row[0]])["exact_match"])
    assert 0.02 < ours["exact_match"] < ours["f1"] < 0.9


def test_without_unanswerable_questions_there_are_two_figures() -> None:
    counted = task_of(ExtractiveSpan()).counter()
    counted.add(["the Fox", "dog"], "Fox!")
    counted.add(["a big dog"], "dog")
    assert counted.result() == {"f1": pytest.approx((1 + 2 / 3) / 2), "exact_match": 0.5}


def test_an_answer_ends_with_a_letter_where_its_last_piece_is_the_space_before_a_word() -> None:
    offsets = [(0, 3), (3, 4), (4, 9), (10, 10), (10, 12)]
    doc = Doc("who\nAda B 你好", ["who", "\n", "Ada B", "", "你好"], offsets, [4, 3, 5, 6, 7], second=2)
    decision = {"starts": np.array([[2]]), "ends": np.array([[3]]), "scores": np.array([[0.0]])}
    assert ExtractiveSpan().answers([doc], decision) == [{"answer": "Ada B", "score": 1.0, "start": 0, "end": 5}]
