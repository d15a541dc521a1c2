import contextlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_graphs import export, ragged_mask
from gallery import write_pipeline
from tiny_pipelines import QUIET, labelled_texts

from seqpipe import load as load_bundle
from seqpipe.config.loader import load_config
from seqpipe.errors import UsageError
from seqpipe.features.vocabulary import FeatureSize
from seqpipe.runs.full_run import RunOptions, run_all
from seqpipe_plugins.embeddings.ngrams import NgramsEmbedding
from seqpipe_plugins.encoders.bag import Bag

SIZE = FeatureSize(9, (20, 18, 11, 7, 5, 3, 2, 1, 0))  # texts, then those that have each n-gram
# Two words a place; the second text has an n-gram twice and one that is not known, and ends early.
TEXTS = torch.tensor(
    [[[1, 0, 5, 6], [2, 3, 7, 0], [4, 0, 8, 5]], [[1, 0, 5, 0], [1, 2, 5, 7], [0, 0, 0, 0]]]
)  # (B, T, K)
MASK = ragged_mask(3, 2)


def embedding(**options: Any) -> NgramsEmbedding:
    torch.manual_seed(1)
    ngrams = NgramsEmbedding({"ngrams": SIZE}, dim=4, **options)
    with torch.no_grad():
        ngrams.table.weight[1:] = torch.randn(len(SIZE.counts or ()) - 1, 4)
    return ngrams.eval()


def by_hand(ngrams: NgramsEmbedding, text: list[list[int]]) -> np.ndarray:
    """The sum over a text's TF-IDF vectors of words and of characters, each divided by its length.

    `TfidfVectorizer(smooth_idf=True, norm="l2")` of scikit-learn gives it where no n-gram occurs twice.
    """
    table, counts = ngrams.table.weight.detach().numpy(), SIZE.counts
    total = np.zeros(4)
    for places in (range(2), range(2, 4)):
        occurring = [row[k] for row in text for k in places if row[k]]
        idf = {n: math.log((1 + counts[0]) / (1 + counts[n])) + 1 for n in occurring}
        length = math.sqrt(sum(idf[n] ** 2 for n in occurring))
        total += sum(idf[n] / length * table[n] for n in occurring)
    return total


def test_a_bag_of_n_grams_is_the_sum_over_a_vector_of_length_1() -> None:
    ngrams, bag = embedding(), Bag(4, pool="sqrtn")
    states = bag(ngrams(TEXTS, MASK), MASK)["state"].detach().numpy()
    for text, vector in zip(TEXTS.tolist(), states, strict=True):
        assert vector == pytest.approx(by_hand(ngrams, text), abs=1e-5)


def test_naive_bayes_weights_are_the_log_count_ratios_of_wang_and_manning() -> None:
    """r = log((p / ‖p‖₁) / (q / ‖q‖₁)) with p and q the counts of the two labels plus 1."""
    first, second = (12, 10, 1, 5, 4, 1, 2, 0, 0), (8, 8, 10, 2, 1, 2, 0, 1, 0)  # together those of SIZE
    size = FeatureSize(9, first + second)
    weights = NgramsEmbedding({"ngrams": size}, weighting="nb").weights.numpy()
    idf = NgramsEmbedding({"ngrams": SIZE}).weights.numpy()
    p, q = np.array(first[1:]) + 1, np.array(second[1:]) + 1
    ratios = np.log((p / p.sum()) / (q / q.sum()))
    assert weights[0] == 0
    assert weights[1:] == pytest.approx(idf[1:] * (abs(ratios) + 0.25), rel=1e-5)


def test_without_weighting_a_token_is_the_mean_of_its_vectors() -> None:
    ngrams = embedding(weighting="none")
    vectors = ngrams(TEXTS, MASK).flatten(0, 1)
    for token, vector in zip(TEXTS.flatten(0, 1).tolist(), vectors, strict=True):
        numbers = [n for n in token if n]
        expected = ngrams.table.weight[numbers].mean(0) if numbers else torch.zeros(4)
        assert torch.allclose(vector, expected, atol=1e-6)


@pytest.mark.parametrize("weighting", ["tfidf", "none"])
def test_padding_changes_nothing(weighting: Any) -> None:
    ngrams = embedding(weighting=weighting)
    made = ngrams(TEXTS, MASK)
    longer = torch.nn.functional.pad(TEXTS, (0, 3, 0, 2))
    assert torch.allclose(ngrams(longer, ragged_mask(3, 2, 5)[:2])[:, :3], made, atol=1e-6)
    alone = ngrams(TEXTS[1:, :2], MASK[1:, :2])
    assert torch.allclose(alone, made[1:, :2], atol=1e-6)
    noise = torch.where(MASK[..., None], TEXTS, 7)  # numbers where no token is
    assert torch.allclose(ngrams(noise, MASK)[MASK], made[MASK], atol=1e-6)


def test_a_text_of_unknown_n_grams_is_zero() -> None:
    assert not embedding()(torch.zeros_like(TEXTS), MASK).any()


def test_n_grams_are_dropped_in_training_alone() -> None:
    ngrams = embedding(dropout=0.5)
    kept = ngrams(TEXTS, MASK)
    assert torch.equal(ngrams(TEXTS, MASK), kept)
    ngrams.train()
    mean = torch.stack([ngrams(TEXTS, MASK) for _ in range(3000)]).mean(0)
    assert not torch.equal(ngrams(TEXTS, MASK), kept)
    assert (mean - kept).abs().max() < 0.2


def test_random_vectors_tell_from_the_first_how_much_two_tokens_share() -> None:
    torch.manual_seed(0)
    ngrams = NgramsEmbedding({"ngrams": SIZE}, dim=10_000, words=0, weighting="none", initial="normal")
    x = ngrams(torch.tensor([[[1, 2], [1, 3], [4, 5], [0, 0]]]), torch.ones(1, 4, dtype=torch.bool))[0]
    cosines = torch.nn.functional.cosine_similarity(x[:1], x[1:])
    assert cosines.tolist() == pytest.approx([0.5, 0.0, 0.0], abs=0.05)  # the last is of unknown n-grams
    assert not x[3].any()


def test_every_n_gram_learns_and_the_padding_does_not() -> None:
    ngrams = NgramsEmbedding({"ngrams": SIZE}, dim=4)
    assert not ngrams.table.weight.any()
    ngrams(TEXTS, MASK).sum().backward()
    assert ngrams.table.weight.grad.any(1).tolist() == [False, *[True] * 8]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"words": 0, "chars": None}, "ngrams: no n-grams at all; give words 1 or more"),
        ({"chars": [4, 3]}, "the shortest, 4, is longer than the longest, 3"),
    ],
)
def test_lengths_without_an_n_gram_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        NgramsEmbedding.features(options)
    with pytest.raises(UsageError, match=message):
        NgramsEmbedding({"ngrams": SIZE}, **options)


@pytest.mark.parametrize("weighting", ["tfidf", "none"])
def test_the_graph_gives_the_same_vectors(weighting: str, tmp_path: Path) -> None:
    ngrams, axes = embedding(weighting=weighting), {"ngrams": ("b", "t", "k"), "mask": ("b", "t")}
    path = tmp_path / "ngrams.onnx"
    graph = export(path, ngrams, lambda **inputs: {"x": ngrams(**inputs)}, axes, ngrams=TEXTS, mask=MASK)
    for shape in ((1, 1, 2), (1, 6, 3), (4, 9, 20)):
        mask = ragged_mask(*range(shape[1], shape[1] - shape[0], -1))
        numbers = torch.where(mask[..., None], torch.randint(0, 9, shape), 0)
        assert np.abs(graph(ngrams=numbers, mask=mask)["x"] - ngrams(numbers, mask).numpy()).max() < 1e-5


def test_n_grams_stand_beside_other_embeddings_under_an_lstm(tmp_path: Path) -> None:
    ngrams = {"use": "ngrams", "dim": 4, "chars": [2, 3], "max_size": 50, "lr": 2.0}
    stages = {"tokenizer": "words", "embedding": [{"use": "lookup", "dim": 4}, ngrams], "encoder": "lstm"}
    yaml = write_pipeline(tmp_path, labelled_texts, "beside", **stages, head="label")
    with contextlib.chdir(tmp_path):
        run_all(load_config(yaml, ["train.epochs=1"]), QUIET, RunOptions("cpu"))
    model = load_bundle(tmp_path / "runs/beside/bundle", "cpu", threads=1)
    (entry,) = [entry for entry in model.manifest.inputs.values() if entry.get("kind") == "ngrams"]
    assert len(entry["hashes"]) == 4 * math.ceil(50 * 4 / 3)
    assert model("lovely")["label"] in {"bad", "fine", "good"}
