"""Skip-gram against one update of word2vec, and the files of its vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_graphs import ragged_mask
from gallery import train_settings, write_pipeline
from tiny_pipelines import seqpipe, succeed

from seqpipe import load as open_bundle
from seqpipe.features.vocabulary import SPECIALS, Vocabulary
from seqpipe.nn.corruption import BatchRandom
from seqpipe_plugins.embeddings.vectors import Vectors, entries
from seqpipe_plugins.heads.skip_gram import SkipGram

WORDS = Vocabulary([*SPECIALS, *"abcdef"], [0, 2, 0, 0, 400, 200, 100, 50, 25, 0])
YOUNG = ("cat", "kitten", "dog", "puppy")


def updated(v: np.ndarray, u: np.ndarray, pairs: list[tuple[int, int, list[int]]], lr: float) -> tuple[Any, Any]:
    """One step by all pairs at once, as word2vec's own code has it: g = (label - σ(v · u)) lr, v += g u, u += g v."""
    new_v, new_u = v.copy(), u.copy()
    for word, right, wrong in pairs:
        for other, label in [(right, 1.0), *((n, 0.0) for n in wrong if n != right)]:
            g = (label - 1 / (1 + np.exp(-v[word] @ u[other]))) * lr / len(pairs)
            new_v[word] += g * u[other]
            new_u[other] += g * v[word]
    return new_v, new_u


def test_one_update_is_that_of_word2vec() -> None:
    torch.manual_seed(1)
    head = SkipGram(4, WORDS, window=2, negatives=3).eval()
    table = torch.nn.Parameter(torch.randn(len(WORDS), 4))
    with torch.no_grad():
        head.contexts.normal_()
    ids, mask = torch.tensor([[4, 5, 4, 6, 1], [7, 4, 0, 0, 0]]), ragged_mask(5, 2)
    drawn = BatchRandom(False, ids.device)
    rows, at, other = head.pairs(mask & (ids >= 4), drawn)
    wrong = head.sample_words(drawn.uniform(len(rows), 3))
    words, right = ids[rows, at], ids[rows, other]
    pairs = list(zip(words.tolist(), right.tolist(), wrong.tolist(), strict=True))
    v, u = table.detach().double().numpy(), head.contexts.detach().double().numpy()
    head.loss(ids, mask, table).backward()
    assert table.grad is not None
    assert head.contexts.grad is not None
    new_v, new_u = updated(v, u, pairs, 0.5)
    assert np.abs(v - 0.5 * table.grad.double().numpy() - new_v).max() < 1e-6
    assert np.abs(u - 0.5 * head.contexts.grad.double().numpy() - new_u).max() < 1e-6
    assert np.abs(new_u - u).max() > 0.01


def test_pairs_are_words_within_a_window_that_is_drawn() -> None:
    head, words = SkipGram(4, WORDS, window=3), ragged_mask(12, 5)
    words[0, 4] = False
    counts = np.zeros(4)
    for seed in range(200):
        torch.manual_seed(seed)
        rows, at, other = head.pairs(words, BatchRandom(True, words.device))
        apart = (at - other).abs()
        assert words[rows, at].all()
        assert words[rows, other].all()
        assert apart.min() >= 1
        assert apart.max() <= 3
        middle = (rows == 0) & (at == 8)
        for distance in (1, 2, 3):
            counts[distance] += int((apart[middle] == distance).sum())
    assert counts[1:] / 400 == pytest.approx([1, 2 / 3, 1 / 3], abs=0.1)


def test_words_are_drawn_by_the_power_of_their_counts_and_no_other() -> None:
    head = SkipGram(4, WORDS, power=0.75)
    numbers = torch.rand(200, 200, generator=torch.Generator().manual_seed(1))
    found = np.bincount(head.sample_words(numbers).flatten().numpy(), minlength=len(WORDS)) / 40_000
    counts = np.array([0, 0, 0, 0, 400, 200, 100, 50, 25, 0]) ** 0.75
    assert found == pytest.approx(counts / counts.sum(), abs=0.01)
    assert head.sample_words(torch.tensor([[0.0, 0.99999994]])).tolist() == [[4, 8]]


def test_frequent_words_are_left_out_and_unknown_ones_always() -> None:
    head = SkipGram(4, WORDS, subsample=0.05)
    ids = torch.tensor([[4, 8, 1, 5] * 300])
    torch.manual_seed(1)
    found = head.corrupt_batch(ids, torch.ones_like(ids, dtype=torch.bool))
    counts = np.bincount(found["ids"][found["mask"]].numpy(), minlength=len(WORDS)) / 300
    share = np.array([400, 200, 25]) / 775
    assert counts[[4, 5, 8]] == pytest.approx(np.minimum(1, np.sqrt(0.05 / share)), abs=0.08)
    assert counts[1] == 0


def test_a_text_of_unknown_words_keeps_one_and_has_no_pair() -> None:
    head = SkipGram(4, WORDS)
    ids, mask = torch.tensor([[1, 1, 1], [1, 0, 0]]), ragged_mask(3, 1)
    found = head.corrupt_batch(ids, mask)
    assert found["mask"].sum(1).tolist() == [1, 1]
    loss = head.loss(found["ids"], found["mask"], torch.randn(len(WORDS), 4, requires_grad=True))
    loss.backward()
    assert loss.item() == 0


def sentences(count: int, seed: int) -> list[dict[str, Any]]:
    """Two kinds of sentences, in which two kinds of words stand."""
    dice = np.random.default_rng(seed)
    kinds = ("the {} sleeps and purrs", YOUNG), ("a {} stands of stone", ("ship", "house", "tower", "bridge"))
    return [{"text": kinds[i % 2][0].format(dice.choice(kinds[i % 2][1]))} for i in range(count)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    path = write_pipeline(
        folder,
        sentences,
        "words",
        (400, 10, 10),
        tokenizer="words",
        embedding={"use": "lookup", "dim": 12},
        head={"use": "skip-gram", "window": 3, "subsample": 0.05},
        train=train_settings(15, tokens=128),
    )
    done = succeed("run", path, "--device", "cpu", folder=folder)
    assert "dev pair_loss" in done.err
    return folder / "runs" / "words"


@pytest.mark.parametrize("binary", [False, True])
def test_the_file_holds_the_vectors_of_all_words_and_the_embedding_reads_them(run: Path, binary: bool) -> None:
    succeed("vectors", run, *(["--binary"] if binary else []))
    path = run / ("vectors.bin" if binary else "vectors.vec")
    found = {one.word: one.numbers for one in entries(path, lambda word: True, "auto", None)}
    assert {*YOUNG, "the", "stone"} <= {*found}
    assert not {*found} & {*SPECIALS}
    unit = {word: row / np.linalg.norm(row) for word, row in found.items()}
    near = unit["cat"] @ unit["puppy"], unit["cat"] @ unit["tower"]
    assert near[0] > near[1] + 0.3
    model = open_bundle(run / "bundle", "cpu")
    assert model("the cat")["vector"] == pytest.approx((found["the"] + found["cat"]) / 2, abs=1e-5)
    vocabulary = Vocabulary([*SPECIALS, *found])
    head = Vectors(vocabulary, path=path)
    x = head(torch.arange(len(SPECIALS), len(vocabulary))[None])["x"][0]
    assert np.array_equal(x.detach().numpy(), np.stack([*found.values()]))


def test_a_run_without_a_table_is_told(run: Path, tmp_path: Path) -> None:
    done = seqpipe("vectors", run, "--stage", "embedding.1", "-o", tmp_path / "a.vec")
    assert done.code == 2
    assert "has no embedding.1 with a table (there is: embedding)" in done.err
