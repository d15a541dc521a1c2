"""Retrieval: the nearest candidates in the graph, and from data through training to a bundle with another set."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from exported import export, ragged
from factory import QUIET, seqpipe, write_jsonl
from independent import Bundle, same
from onnx import numpy_helper

from seqpipe import load as open_bundle
from seqpipe.answers.candidates import VECTORS
from seqpipe.answers.registry import task_of
from seqpipe.config.loader import load
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError, DataError, UsageError
from seqpipe.export.candidates import replace_candidates
from seqpipe.pipeline.full_run import run_all
from seqpipe.training.data_forms import with_matches
from seqpipe.training.datasets import Batches, examples
from seqpipe.training.fit import fit_artifacts
from seqpipe_plugins.heads.retrieval import Retrieval

AXES = {"x": ("b", "t"), "mask": ("b", "t"), "k": ("k",)}
X, MASK = torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(1)), ragged(4, 2, 1, 3, 4, 2)
FILLERS = ("the", "a", "of", "today", "please", "hello")
TOPICS = {"hours": ("open", "closed", "when"), "price": ("cost", "much", "pay"), "way": ("where", "bus", "street")}
ANSWERS = [
    {"text": "when open", "label": "hours", "answer": "From ten to seven."},
    {"text": "closed when", "label": "hours", "answer": "Not on Monday."},
    {"text": "how much pay", "label": "price", "answer": "Twelve euros."},
    {"text": "where bus", "label": "way", "answer": "Tram 4."},
]


def nearest(vectors: np.ndarray, candidates: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k candidates of the greatest cosine, of equal ones the first, and these cosines."""
    cosines = vectors @ candidates.T / np.linalg.norm(vectors, axis=1)[:, None] / np.linalg.norm(candidates, axis=1)
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(cosines, order, 1)


@pytest.mark.parametrize("count", [3, 120])
def test_the_graph_ranks_candidates_as_numpy_does_whatever_their_number(tmp_path: Path, count: int) -> None:
    made = Retrieval(5, [str(i) for i in range(count)])
    candidates = torch.nn.functional.normalize(torch.randn(count, 5, generator=torch.Generator().manual_seed(2)))
    candidates[2] = candidates[0]  # two texts alike
    made.set_candidates(candidates)
    pooled = np.array([row[real].mean(0) for row, real in zip(X.double().numpy(), MASK.numpy(), strict=True)])
    graph = export(
        tmp_path / "retrieval.onnx",
        made,
        lambda x, mask, k: made.decide(x, mask, k=k.shape[0]),
        AXES,
        x=X[:3],
        mask=ragged(4, 2, 3),
        k=torch.zeros(7, dtype=torch.long),
    )
    for k in (1, 2, 5, 100):
        order, cosines = nearest(pooled, candidates.double().numpy(), k)
        eager = {name: tensor.numpy() for name, tensor in made.decide(X, MASK, k=k).items()}
        for found in (eager, graph(x=X, mask=MASK, k=torch.zeros(k, dtype=torch.long))):
            there = min(k, count)
            assert found["nearest"].shape == (6, k)
            assert (found["nearest"][:, :there] == order).all()
            assert (found["nearest"][:, there:] == -1).all()
            assert np.abs(found["scores"][:, :there] - cosines).max() < 1e-6
    assert np.allclose(made.score(X, MASK, torch.from_numpy(order)), cosines[:, 0], atol=1e-6)


def questions(count: int, seed: int) -> list[dict[str, Any]]:
    dice, rows = random.Random(seed), []
    for _ in range(count):
        label = dice.choice(sorted(TOPICS))
        words = [*dice.sample(TOPICS[label], 2), *dice.choices(FILLERS, k=dice.randint(1, 3))]
        dice.shuffle(words)
        rows.append({"text": " ".join(words), "label": label, "reply": f"about {label}"})
    return rows


def pipeline(folder: Path, head: Any = "retrieval", **data: str | None) -> Path:
    write_jsonl(folder / "candidates.jsonl", ANSWERS)
    for name, count, seed in (("train", 160, 1), ("dev", 40, 2), ("test", 40, 3)):
        write_jsonl(folder / f"{name}.jsonl", questions(count, seed))
    files = {"train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl", "candidates": "candidates.jsonl"}
    content = {
        "name": "faq",
        "data": {"reader": "jsonl", **files, **data},
        "tokenizer": "words",
        "embedding": {"use": "lookup", "dim": 16},
        "head": head,
        "train": {"epochs": 5, "batch_tokens": 256, "optimizer": {"use": "adamw", "lr": 0.02}, "threads": 1},
    }
    (folder / "faq.yaml").write_text(dump(content))
    return folder / "faq.yaml"


@pytest.fixture(scope="module")
def faq(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The bundle of a trained pipeline, and the scores on its test set."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("faq")
    result = run_all(load(pipeline(folder)), QUIET, "cpu", runs=folder / "runs")
    return result.bundle.path, (result.scores or {})["test"]


def test_a_trained_bundle_answers_with_the_nearest_candidate_and_its_answer(faq: tuple[Path, dict[str, Any]]) -> None:
    path, scores = faq
    assert scores["accuracy"] > 0.9
    assert scores["accuracy"] <= scores["mrr"] <= scores["recall_at_k"] == 1.0
    answer = open_bundle(path, "cpu")("where is the bus please", k=2)
    assert {name: answer[name] for name in ("text", "label", "answer")} == ANSWERS[3]
    assert [near["score"] for near in answer["nearest"]] == sorted(
        (n["score"] for n in answer["nearest"]), reverse=True
    )
    assert answer["nearest"][0] == {name: value for name, value in answer.items() if name != "nearest"}


def test_a_candidate_itself_is_nearest_to_itself_and_a_text_without_a_token_to_none(
    faq: tuple[Path, dict[str, Any]],
) -> None:
    model = open_bundle(faq[0], "cpu")
    for row in ANSWERS:
        answer = model(row["text"])
        assert (answer["text"], answer["score"]) == (row["text"], 1.0)
        assert len(answer["nearest"]) == len(ANSWERS)  # fewer than the default k
    assert model("") == {"text": None, "label": None, "answer": None, "score": 0.0, "nearest": []}
    with pytest.raises(UsageError, match="k: 101"):
        model("when", k=101)


def test_candidates_below_the_threshold_do_not_count(faq: tuple[Path, dict[str, Any]]) -> None:
    model = open_bundle(faq[0], "cpu")
    scores = [near["score"] for near in model("where is the bus please")["nearest"]]
    between = (scores[0] + scores[1]) / 2
    assert [near["score"] for near in model("where is the bus please", threshold=between)["nearest"]] == scores[:1]
    assert model("where is the bus please", threshold=1.0) == model("")
    assert model.predictor.kind.parts[""].part_lines(model("", threshold=1.0)) == ["(nothing) (0.0000)"]
    with pytest.raises(UsageError, match=r"threshold: 1\.5 is not between -1 and 1"):
        model("where", threshold=1.5)


def test_a_candidate_whose_cosine_equals_the_threshold_counts() -> None:
    head = Retrieval(2, ["a", "b", "c"])
    head.set_candidates(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
    x, mask = torch.tensor([[[2.0, 0.0]]]), torch.ones(1, 1, dtype=torch.bool)  # cosines 1, 0 and -1, all exact
    for threshold, counted in ((1.0, [0]), (0.0, [0, 1]), (-1.0, [0, 1, 2])):
        nearest = head.decide(x, mask, k=3, threshold=threshold)["nearest"]
        assert nearest.tolist() == [counted + [-1] * (3 - len(counted))]


def test_candidates_have_the_vectors_of_the_weights_that_are_exported(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    config = load(pipeline(tmp_path, dev=None), ["train.epochs=2"])  # without dev the last epoch's weights are kept
    path = run_all(config, QUIET, "cpu", runs=tmp_path / "runs").bundle.path
    model = open_bundle(path, "cpu")
    docs = model.predictor.docs([{"text": row["text"]} for row in ANSWERS])
    k = {"k": np.zeros(5, np.int64)}
    vectors = [model.run(model.predictor.featurizer.collate([doc]) | k)["vector"][0] for doc in docs]
    graph = onnx.load(path / "model.onnx").graph
    (stored,) = (numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name == VECTORS)
    assert np.abs(stored - vectors).max() < 1e-5
    assert np.abs(np.array(vectors) - vectors[0]).max() > 0.1  # they vary


def test_the_independent_reader_gives_the_same_answers(faq: tuple[Path, dict[str, Any]]) -> None:
    ours, theirs = open_bundle(faq[0], "cpu"), Bundle(faq[0])
    for text in ("when open", "the bus where", "unknown words", "", "a a a"):
        for options in ({"k": 3}, {"threshold": 0.5}, {"threshold": 1.0}):
            assert same(theirs(text, **options), ours(text, **options))


def test_the_set_is_replaced_without_training(faq: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    rows = [{"text": text, "label": "way"} for text in ("bus", "street", "bus", "the street of today", "where")]
    write_jsonl(tmp_path / "other.jsonl", rows)
    done = seqpipe("candidates", faq[0], tmp_path / "other.jsonl", "-o", tmp_path / "other")
    assert (done.code, done.out) == (0, "")
    assert seqpipe("verify", tmp_path / "other", "--device", "cpu").code == 0
    before, model = open_bundle(faq[0], "cpu"), open_bundle(tmp_path / "other", "cpu")
    answer = model("to which street please", k=10)
    texts = ["bus", "street", "the street of today", "where"]  # each once
    assert sorted(near["text"] for near in answer["nearest"]) == texts
    docs = before.predictor.docs([{"text": text} for text in [*texts, "to which street please"]])
    options = {"k": np.zeros(5, np.int64)}
    vectors = [before.run(before.predictor.featurizer.collate([doc]) | options)["vector"][0] for doc in docs]
    order, cosines = nearest(np.array(vectors[-1:]), np.array(vectors[:-1]), 4)
    assert [near["text"] for near in answer["nearest"]] == [texts[i] for i in order[0]]
    assert [near["score"] for near in answer["nearest"]] == pytest.approx(cosines[0].tolist(), abs=2e-6)


def test_a_set_that_is_refused_leaves_the_bundle_as_it_was(faq: tuple[Path, dict[str, Any]]) -> None:
    sealed = (faq[0] / "bundle.json").read_bytes()
    for rows, message in (
        ([], "no candidate to choose from"),
        ([{"text": "  "}], "a candidate is a non-empty text"),
        ([{"text": "a", "label": "x"}, {"text": "b"}], "no field 'label', which other candidates have"),
        ([{"text": "a", "answer": 3}], "the answer of a candidate is a text"),
    ):
        with pytest.raises(DataError, match=message):
            replace_candidates(faq[0], rows, faq[0])
    assert (faq[0] / "bundle.json").read_bytes() == sealed


def test_each_text_stands_in_its_batch_with_another_text_of_its_label(tmp_path: Path) -> None:
    config = load(pipeline(tmp_path))
    artifacts = fit_artifacts(config, questions(30, 1) + ANSWERS)
    data = with_matches(artifacts, examples(config, artifacts, questions(30, 1) + ANSWERS))
    labels = [row["label"] for row in [*questions(30, 1), *ANSWERS]]
    texts = {row["text"]: row["label"] for row in ANSWERS}
    for example, label in zip(data, labels, strict=True):
        if example.doc.text in ("how much pay", "where bus"):  # the only candidate of its label
            assert example.match is None
        else:
            assert example.match is not None
            assert texts[example.match.doc.text] == label
            assert example.match.doc.text != example.doc.text
    assert {e.match.doc.text for e in data if e.match and texts[e.match.doc.text] == "hours"} == {
        "when open",
        "closed when",
    }
    batches = Batches(artifacts, data, 10_000, None, 1)
    (rows,) = batches.order(0)
    distinct = {(example.doc.text, label) for example, label in zip(data, labels, strict=True)} | {*texts.items()}
    assert len(batches(rows)["ids"]) == len(distinct)


def test_replies_are_chosen_by_their_text_where_candidates_have_no_label(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "replies.jsonl", [{"text": f"about {label}"} for label in TOPICS])
    config = load(pipeline(tmp_path, {"use": "retrieval", "target": "reply"}, candidates="replies.jsonl"))
    artifacts = fit_artifacts(config, questions(20, 1))
    assert task_of(artifacts.tasks[0].kind).gold(questions(1, 1)[0]).startswith("about ")
    matched = with_matches(artifacts, examples(config, artifacts, questions(20, 1)))
    assert [e.match and e.match.doc.text for e in matched] == [row["reply"] for row in questions(20, 1)]


def test_without_a_file_the_training_texts_are_the_candidates(tmp_path: Path) -> None:
    config = load(pipeline(tmp_path, candidates=None))
    artifacts = fit_artifacts(config, questions(20, 1))
    assert artifacts.tasks[0].answer["candidates"]["texts"] == [*dict.fromkeys(q["text"] for q in questions(20, 1))]


def test_what_cannot_be_retrieved_is_refused_with_its_place(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    path = pipeline(tmp_path, [{"use": "retrieval"}, {"use": "score"}])
    with pytest.raises(ConfigError, match="it must be the only head, on one text"):
        load(path)
    with pytest.raises(ConfigError, match=r"data\.candidates.*no head chooses from candidates"):
        load(pipeline(tmp_path, "label"))
    config = load(pipeline(tmp_path))
    records = [*questions(20, 1), {"text": "a b", "label": "parking", "where": "train.jsonl:21"}]
    artifacts = fit_artifacts(config, records)
    with pytest.raises(DataError, match=r"train\.jsonl:21: no candidate has the label 'parking'"):
        examples(config, artifacts, records)
