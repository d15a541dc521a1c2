from __future__ import annotations

import numpy as np
import pytest
import torch
from exported import Graph, elsewhere, export
from torch import Tensor
from torch.nn import functional as F

from seqpipe_plugins.embeddings.char_cnn import CharCNN

WORD = [3, 9, 4, 1, 7]


def by_hand(cnn: CharCNN, word: list[int]) -> np.ndarray:
    """One word's vector: every filter at every character, the largest answer of each."""
    vectors = cnn.chars.weight.detach().numpy()[word]  # (C, char_dim)
    best = []
    for filters in (f.detach().numpy() for f in cnn.filters):
        for one in filters:  # (char_dim, width)
            width = one.shape[1]
            places = [[c - (width - 1) // 2 + k for k in range(width)] for c in range(len(word))]
            answers = [sum(vectors[p] @ one[:, k] for k, p in enumerate(w) if 0 <= p < len(word)) for w in places]
            best.append(max(answers))
    return np.array(best) + cnn.bias.detach().numpy()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[CharCNN, Graph]:
    torch.manual_seed(1)
    cnn, path = CharCNN({"chars": 12}, dim=8, char_dim=4, widths=[2, 3, 4]), tmp_path_factory.mktemp("cnn") / "cnn.onnx"
    example = torch.randint(0, 12, (3, 5, 7))
    return cnn, export(path, cnn, lambda chars: {"x": cnn(chars)}, {"chars": ("b", "t", "c")}, chars=example)


def words(*shape: int) -> Tensor:
    """Random words, some empty, each padded to the longest possible."""
    lengths = torch.randint(0, shape[2] + 1, (*shape[:2], 1))
    return torch.where(torch.arange(shape[2]) < lengths, torch.randint(1, 12, shape), 0)


@pytest.mark.parametrize("widths", [[3], [1], [2, 3, 4], [5, 2]])
def test_a_word_s_vector_is_every_filter_s_largest_answer(widths: list[int]) -> None:
    cnn = CharCNN({"chars": 12}, dim=7, char_dim=4, widths=widths)
    chars = words(3, 7, 5)
    for word, made in zip(chars.flatten(0, 1).tolist(), cnn(chars).detach().flatten(0, 1).numpy(), strict=True):
        letters = [c for c in word if c]
        assert made == pytest.approx(by_hand(cnn, letters) if letters else np.zeros(7), abs=1e-6)


def test_one_width_is_the_library_s_convolution() -> None:
    cnn, chars = CharCNN({"chars": 12}, dim=6, char_dim=4), torch.randint(1, 12, (2, 3, 9))
    x = F.conv1d(cnn.chars(chars.flatten(0, 1)).transpose(1, 2), cnn.filters[0], cnn.bias, padding=1).amax(2)
    assert torch.allclose(cnn(chars), x.view(2, 3, 6), atol=1e-6)


def test_a_longer_neighbour_never_changes_a_word() -> None:
    cnn = CharCNN({"chars": 12}, dim=6, char_dim=4, widths=[3, 4])
    chars = words(2, 5, 6)
    assert torch.equal(cnn(F.pad(chars, (0, 9))), cnn(chars))
    leaking = cnn(torch.where(chars == 0, 5, chars))  # padding that is read as characters
    assert (leaking - cnn(chars)).abs().max() > 1e-3


def test_a_word_without_characters_is_zero() -> None:
    cnn = CharCNN({"chars": 12}, dim=6, char_dim=4)
    made = cnn(torch.tensor([[WORD, [0] * 5]]))
    assert made[0, 0].all()
    assert not made[0, 1].any()


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 6, 3), (4, 9, 20)])
def test_the_graph_gives_the_same_vectors(pair: tuple[CharCNN, Graph], shape: tuple[int, int, int]) -> None:
    cnn, graph = pair
    chars = words(*shape)
    assert np.abs(graph(chars=chars)["x"] - cnn(chars).numpy()).max() < 1e-6


def test_every_weight_learns_and_padding_does_not() -> None:
    cnn = CharCNN({"chars": 12}, dim=6, char_dim=4, widths=[1, 2])
    cnn(words(4, 9, 7)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in cnn.parameters())
    assert cnn.chars.weight.grad is not None
    assert not cnn.chars.weight.grad[0].any()


def test_everything_is_made_where_the_input_is() -> None:
    cnn, chars = CharCNN({"chars": 12}, dim=6, char_dim=4), words(2, 3, 4)
    with elsewhere():
        assert cnn(chars).device.type == "cpu"
