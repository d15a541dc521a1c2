"""Retrieval: the nearest candidates in the graph, and from data through training to a bundle with another set."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from exported_graphs import export, ragged_mask
from gallery import ANSWERS, RECIPES, TOPICS, Example, gallery, questions, write_candidates
from onnx import numpy_helper
from second_runtime import Bundle, matches_golden
from tiny_pipelines import QUIET, seqpipe, write_jsonl

from seqpipe import Model
from seqpipe import load as open_bundle
from seqpipe.answers.candidates import CANDIDATE_VECTORS
from seqpipe.answers.registry import task_of
from seqpipe.config.loader import Config, load_config
from seqpipe.errors import ConfigError, DataError, UsageError
from seqpipe.export.candidates import replace_candidates
from seqpipe.runs.full_run import RunOptions, run_all
from seqpipe.training.data_forms import with_matches
from seqpipe.training.datasets import Batches, examples
from seqpipe.training.fit import fit_artifacts
from seqpipe_plugins.heads.retrieval import Retrieval

AXES = {"x": ("b", "t"), "mask": ("b", "t"), "k": ("k",)}
X, MASK = torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(1)), ragged_mask(4, 2, 1, 3, 4, 2)
CANDIDATES = {"candidates": "candidates.jsonl"}


def nearest(vectors: np.ndarray, candidates: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k candidates of the greatest cosine, of equal ones the first, and these cosines."""
    cosines = vectors @ candidates.T / np.linalg.norm(vectors, axis=1)[:, None] / np.linalg.norm(candidates, axis=1)
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(cosines, order, 1)


@pytest.mark.parametrize("count", [3, 120])
def test_the_graph_ranks_candidates_as_numpy_does_whatever_their_number(tmp_path: Path, count: int) -> None:
    head = Retrieval(5, [str(i) for i in range(count)])
    candidates = torch.nn.functional.normalize(torch.randn(count, 5, generator=torch.Generator().manual_seed(2)))
    candidates[2] = candidates[0]  # two texts alike
    head.set_candidates(candidates)
    pooled = np.array([row[real].mean(0) for row, real in zip(X.double().numpy(), MASK.numpy(), strict=True)])
    graph = export(
        tmp_path / "retrieval.onnx",
        head,
        lambda x, mask, k: head.decide(x, mask, k=k.shape[0]),
        AXES,
        x=X[:3],
        mask=ragged_mask(4, 2, 3),
        k=torch.zeros(7, dtype=torch.long),
    )
    for k in (1, 2, 5, 100):
        order, cosines = nearest(pooled, candidates.double().numpy(), k)
        eager = {name: tensor.numpy() for name, tensor in head.decide(X, MASK, k=k).items()}
        for found in (eager, graph(x=X, mask=MASK, k=torch.zeros(k, dtype=torch.long))):
            there = min(k, count)
            assert found["nearest"].shape == (6, k)
            assert (found["nearest"][:, :there] == order).all()
            assert (found["nearest"][:, there:] == -1).all()
            assert np.abs(found["scores"][:, :there] - cosines).max() < 1e-6
    assert np.allclose(head.score(X, MASK, torch.from_numpy(order)), cosines[:, 0], atol=1e-6)


def pipeline(folder: Path, head: object = "retrieval", data: object = CANDIDATES) -> Config:
    """The gallery's pipeline with another head or other data."""
    return load_config(write_candidates(folder, **(RECIPES["candidate"].content | {"head": head, "data": data})))


@pytest.fixture(scope="module")
def example() -> Example:
    return gallery("candidate")


@pytest.fixture(scope="module")
def model(example: Example) -> Model:
    return open_bundle(example.bundle, "cpu")


def vectors_of(model: Model, texts: list[str]) -> np.ndarray:
    predictor, k = model.predictor, {"k": np.zeros(5, np.int64)}
    docs = predictor.docs([{"text": text} for text in texts])
    return np.array([model.run(predictor.featurizer.collate([doc]) | k)["vector"][0] for doc in docs])


def test_a_trained_bundle_answers_with_the_nearest_candidate_and_its_answer(example: Example, model: Model) -> None:
    scores = example.scores
    assert 0.9 < scores["accuracy"] <= scores["mrr"] <= scores["recall_at_k"] == 1.0
    answer = model("where is the bus please", k=2)
    assert {name: answer[name] for name in ("text", "label", "answer")} == ANSWERS[3]
    first, second = answer["nearest"]
    assert first == {name: value for name, value in answer.items() if name != "nearest"}
    assert first["score"] >= second["score"]


def test_a_candidate_itself_is_nearest_to_itself_and_a_text_without_a_token_to_none(model: Model) -> None:
    for row in ANSWERS:
        answer = model(row["text"])
        assert (answer["text"], answer["score"]) == (row["text"], 1.0)
        assert len(answer["nearest"]) == len(ANSWERS)  # fewer than the default k
    assert model("") == {"text": None, "label": None, "answer": None, "score": 0.0, "nearest": []}
    for options, message in (({"k": 101}, "k: 101"), ({"threshold": 1.5}, r"threshold: 1\.5 is not between -1 and 1")):
        with pytest.raises(UsageError, match=message):
            model("when", **options)


def test_candidates_below_the_threshold_do_not_count(model: Model) -> None:
    text = "where is the bus please"
    scores = [near["score"] for near in model(text)["nearest"]]
    between = (scores[0] + scores[1]) / 2
    assert [near["score"] for near in model(text, threshold=between)["nearest"]] == scores[:1]
    assert model(text, threshold=1.0) == model("")
    assert model.predictor.kind.parts[""].part_lines(model("", threshold=1.0)) == ["(nothing) (0.0000)"]


def test_a_candidate_whose_cosine_equals_the_threshold_counts() -> None:
    head = Retrieval(2, ["a", "b", "c"])
    head.set_candidates(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
    x, mask = torch.tensor([[[2.0, 0.0]]]), torch.ones(1, 1, dtype=torch.bool)  # cosines 1, 0 and -1, all exact
    for threshold, counted in ((1.0, [0]), (0.0, [0, 1]), (-1.0, [0, 1, 2])):
        nearest = head.decide(x, mask, k=3, threshold=threshold)["nearest"]
        assert nearest.tolist() == [counted + [-1] * (3 - len(counted))]


def test_candidates_have_the_vectors_of_the_weights_that_are_exported(tmp_path: Path) -> None:
    config = pipeline(tmp_path, data=CANDIDATES | {"dev": None})  # without dev the last epoch's weights are kept
    path = run_all(config, QUIET, RunOptions("cpu", runs=tmp_path / "runs")).bundle_folder
    vectors = vectors_of(open_bundle(path, "cpu"), [row["text"] for row in ANSWERS])
    graph = onnx.load(path / "model.onnx").graph
    (stored,) = (numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name == CANDIDATE_VECTORS)
    assert np.abs(stored - vectors).max() < 1e-5
    assert np.abs(vectors - vectors[0]).max() > 0.1  # they vary


def test_the_independent_reader_gives_the_same_answers(example: Example, model: Model) -> None:
    reader = Bundle(example.bundle)
    for text in ("when open", "the bus where", "unknown words", "", "a a a"):
        for options in ({"k": 3}, {"threshold": 0.5}, {"threshold": 1.0}):
            assert matches_golden(reader(text, **options), model(text, **options))


def test_the_set_is_replaced_without_training(example: Example, model: Model, tmp_path: Path) -> None:
    rows = [{"text": text, "label": "way"} for text in ("bus", "street", "bus", "the street of today", "where")]
    write_jsonl(tmp_path / "other.jsonl", rows)
    done = seqpipe("candidates", example.bundle, tmp_path / "other.jsonl", "-o", tmp_path / "other")
    assert (done.code, done.out) == (0, "")
    assert seqpipe("verify", tmp_path / "other", "--device", "cpu").code == 0
    question, texts = "to which street please", ["bus", "street", "the street of today", "where"]  # each once
    answer = open_bundle(tmp_path / "other", "cpu")(question, k=10)
    vectors = vectors_of(model, [*texts, question])
    order, cosines = nearest(vectors[-1:], vectors[:-1], 4)
    assert [near["text"] for near in answer["nearest"]] == [texts[i] for i in order[0]]
    assert [near["score"] for near in answer["nearest"]] == pytest.approx(cosines[0].tolist(), abs=2e-6)


def test_a_set_that_is_refused_leaves_the_bundle_as_it_was(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = (example.bundle / "bundle.json").read_bytes()
    for rows, message in (
        ([], "no candidate to choose from"),
        ([{"text": "  "}], "a candidate is a non-empty text"),
        ([{"text": "a", "label": "x"}, {"text": "b"}], "no field 'label', which other candidates have"),
        ([{"text": "a", "answer": 3}], "the answer of a candidate is a text"),
    ):
        with pytest.raises(DataError, match=message):
            replace_candidates(example.bundle, rows, example.bundle)
    monkeypatch.setattr("seqpipe.export.candidates.MOST_FILE", 100)
    with pytest.raises(DataError, match=r"the vectors of 9 candidates have \d{3} bytes, over the limit of 100; give"):
        replace_candidates(example.bundle, [{"text": f"street {number}"} for number in range(9)], example.bundle)
    with pytest.raises(UsageError, match=r"vectors of 500,000 candidates have 2,048,000,000 bytes, over the limit of"):
        Retrieval(1_024, range(500_000))  # type: ignore[arg-type]
    assert (example.bundle / "bundle.json").read_bytes() == sealed


def test_each_text_stands_in_its_batch_with_another_text_of_its_label(tmp_path: Path) -> None:
    config, records = pipeline(tmp_path), questions(30, 1) + ANSWERS
    artifacts = fit_artifacts(config, records)
    data = with_matches(artifacts, examples(config, artifacts, records))
    labels = [record["label"] for record in records]
    texts = {row["text"]: row["label"] for row in ANSWERS}
    for example, label in zip(data, labels, strict=True):
        if example.doc.text in ("how much pay", "where bus"):  # the only candidate of its label
            assert example.match is None
        else:
            assert example.match is not None
            assert texts[example.match.doc.text] == label
            assert example.match.doc.text != example.doc.text
    matches = {example.match.doc.text for example in data if example.match}
    assert {text for text in matches if texts[text] == "hours"} == {"when open", "closed when"}
    batches = Batches(artifacts, data, 10_000, None, 1)
    (rows,) = batches.order(0)
    distinct = {(example.doc.text, label) for example, label in zip(data, labels, strict=True)} | {*texts.items()}
    assert len(batches(rows)["ids"]) == len(distinct)


def test_replies_are_chosen_by_their_text_where_candidates_have_no_label(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "replies.jsonl", [{"text": f"about {label}"} for label in TOPICS])
    config = pipeline(tmp_path, {"use": "retrieval", "target": "reply"}, {"candidates": "replies.jsonl"})
    records = questions(20, 1)
    artifacts = fit_artifacts(config, records)
    assert task_of(artifacts.tasks[0].kind).gold(records[0]).startswith("about ")
    matched = with_matches(artifacts, examples(config, artifacts, records))
    assert [e.match and e.match.doc.text for e in matched] == [record["reply"] for record in records]


def test_without_a_file_the_training_texts_are_the_candidates(tmp_path: Path) -> None:
    artifacts = fit_artifacts(pipeline(tmp_path, data={}), questions(20, 1))
    assert artifacts.tasks[0].answer["candidates"]["texts"] == [*dict.fromkeys(q["text"] for q in questions(20, 1))]


def test_parts_and_data_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it must be the only head, on one text"):
        pipeline(tmp_path, [{"use": "retrieval"}, {"use": "score"}])
    with pytest.raises(ConfigError, match=r"data\.candidates.*no head chooses from candidates"):
        pipeline(tmp_path, "label")
    config = pipeline(tmp_path)
    records = [*questions(20, 1), {"text": "a b", "label": "parking", "where": "train.jsonl:21"}]
    artifacts = fit_artifacts(config, records)
    with pytest.raises(DataError, match=r"train\.jsonl:21: no candidate has the label 'parking'"):
        examples(config, artifacts, records)
