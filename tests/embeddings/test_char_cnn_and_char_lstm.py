"""The embeddings of a word's characters, step by step from their equations."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_graphs import export
from numpy_cells import Array, layer, lstm
from torch import Tensor
from torch.nn import functional as F

from seqpipe.errors import UsageError
from seqpipe_plugins.embeddings import each_word_once
from seqpipe_plugins.embeddings.char_cnn import CharCNN
from seqpipe_plugins.embeddings.char_lstm import CharLSTM

SIZE = {"chars": 12}
WORD = [3, 9, 4, 1, 7]


def largest_outputs(cnn: CharCNN, word: list[int]) -> Array:
    """The largest output of each filter over all places of a word."""
    vectors = cnn.chars.weight.detach().numpy()[word]  # (C, char_dim)
    best = []
    for filters in (f.detach().numpy() for f in cnn.filters):
        for kernel in filters:  # (char_dim, width)
            width = kernel.shape[1]
            places = [[c - (width - 1) // 2 + k for k in range(width)] for c in range(len(word))]
            sums = [sum(vectors[p] @ kernel[:, k] for k, p in enumerate(w) if 0 <= p < len(word)) for w in places]
            best.append(max(sums))
    return np.array(best) + cnn.bias.detach().numpy()


def last_states(embedding: CharLSTM, word: list[int]) -> Array:
    """The last state of each direction."""
    vectors = embedding.chars.weight.detach().double().numpy()[word]  # (C, char_dim)
    return np.concatenate([last for _, last, _ in layer(lstm, embedding.lstm, vectors, "both")])


def words(*shape: int) -> Tensor:
    """Random words, some empty, each padded to the longest possible."""
    lengths = torch.randint(0, shape[2] + 1, (*shape[:2], 1))
    return torch.where(torch.arange(shape[2]) < lengths, torch.randint(1, 12, shape), 0)


CNN, LSTM = partial(CharCNN, SIZE, char_dim=4), partial(CharLSTM, SIZE, dim=6, char_dim=4)
EMBEDDINGS = [
    *((partial(CNN, dim=7, widths=widths), largest_outputs) for widths in ([3], [1], [2, 3, 4], [5, 2])),
    (LSTM, last_states),
]
BOTH = pytest.mark.parametrize("build", [partial(CNN, dim=6, widths=[3, 4]), LSTM])


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 5), (2, 1, 20)])
@pytest.mark.parametrize(("build", "expected"), EMBEDDINGS)
def test_vectors_follow_the_equations(build: Any, expected: Callable[..., Array], shape: tuple[int, int, int]) -> None:
    embedding, chars = build(), words(*shape)
    for word, x in zip(chars.flatten(0, 1).tolist(), embedding(chars).detach().flatten(0, 1).numpy(), strict=True):
        letters = [c for c in word if c]
        assert x == pytest.approx(expected(embedding, letters) if letters else np.zeros(embedding.dim), abs=1e-6)


@BOTH
def test_a_word_is_read_alone_and_an_empty_word_is_zero(build: Any) -> None:
    embedding, chars = build(), words(2, 5, 6)
    assert torch.allclose(embedding(F.pad(chars, (0, 9))), embedding(chars), atol=1e-6)
    leaking = embedding(torch.where(chars == 0, 5, chars))  # padding that is read as characters
    assert (leaking - embedding(chars)).abs().max() > 1e-3
    x = embedding(torch.tensor([[WORD, [0] * 5]]))
    assert x[0, 0].all()
    assert not x[0, 1].any()


@pytest.mark.parametrize("build", [partial(CNN, dim=8, widths=[2, 3, 4]), LSTM])
def test_the_graph_gives_the_same_vectors(build: Any, tmp_path: Path) -> None:
    embedding, example = build(), torch.randint(0, 12, (3, 5, 7))
    axes = {"chars": ("b", "t", "c")}
    graph = export(tmp_path / "chars.onnx", embedding, lambda chars: {"x": embedding(chars)}, axes, chars=example)
    for shape in ((1, 1, 1), (1, 6, 3), (4, 9, 20)):
        chars = words(*shape)
        assert np.abs(graph(chars=chars)["x"] - embedding(chars).numpy()).max() < 1e-6
    if build is LSTM:
        assert graph.operators.count("LSTM") == 1
        assert not {"Scan", "Loop"} & {*graph.operators}


@BOTH
def test_every_weight_learns_and_padding_does_not(build: Any) -> None:
    embedding = build()
    embedding(words(4, 9, 7)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in embedding.parameters())
    assert not embedding.chars.weight.grad[0].any()


def test_the_lstm_reads_a_repeated_word_once() -> None:
    embedding, rows = LSTM(), []
    embedding.chars.register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    x = embedding(torch.tensor([WORD, [2, 2, 0, 0, 0]]).repeat(3, 10, 1))
    assert sum(rows) == 2
    assert torch.equal(x[:, 0], x[:, 8])


def test_the_two_share_their_feature_so_both_may_stand_in_one_pipeline() -> None:
    assert CharLSTM.features == CharCNN.features


def test_a_width_that_the_directions_cannot_share_is_refused() -> None:
    with pytest.raises(UsageError, match=r"char-lstm\.dim: 7 is odd, .* use 8"):
        CharLSTM(SIZE, dim=7)


def test_words_on_a_device_are_computed_at_once() -> None:
    words = torch.ones(3, 2, dtype=torch.int64, device="meta")
    assert each_word_once(words, lambda words: words).shape == words.shape
