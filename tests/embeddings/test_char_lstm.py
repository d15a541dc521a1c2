from __future__ import annotations

import numpy as np
import pytest
import torch
from cells import layer, lstm
from exported import Graph, elsewhere, export
from torch import Tensor
from torch.nn import functional as F

from seqpipe.errors import UsageError
from seqpipe_plugins.embeddings.char_cnn import CharCNN
from seqpipe_plugins.embeddings.char_lstm import CharLSTM

WORD = [3, 9, 4, 1, 7]


def by_hand(embedding: CharLSTM, word: list[int]) -> np.ndarray:
    """One word's vector: the last state of each direction, character by character."""
    vectors = embedding.chars.weight.detach().double().numpy()[word]  # (C, char_dim)
    return np.concatenate([last for _, last, _ in layer(lstm, embedding.lstm, vectors, "both")])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[CharLSTM, Graph]:
    torch.manual_seed(1)
    made, path = CharLSTM({"chars": 12}, dim=8, char_dim=4), tmp_path_factory.mktemp("lstm") / "lstm.onnx"
    example = torch.randint(0, 12, (3, 5, 7))
    return made, export(path, made, lambda chars: {"x": made(chars)}, {"chars": ("b", "t", "c")}, chars=example)


def words(*shape: int) -> Tensor:
    """Random words, some empty, each padded to the longest possible."""
    lengths = torch.randint(0, shape[2] + 1, (*shape[:2], 1))
    return torch.where(torch.arange(shape[2]) < lengths, torch.randint(1, 12, shape), 0)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 5), (2, 1, 20)])
def test_a_word_s_vector_is_the_last_state_of_each_direction(shape: tuple[int, int, int]) -> None:
    embedding, chars = CharLSTM({"chars": 12}, dim=6, char_dim=4), words(*shape)
    for word, made in zip(chars.flatten(0, 1).tolist(), embedding(chars).detach().flatten(0, 1).numpy(), strict=True):
        letters = [c for c in word if c]
        assert made == pytest.approx(by_hand(embedding, letters) if letters else np.zeros(6), abs=1e-6)


def test_a_longer_neighbour_never_changes_a_word() -> None:
    embedding, chars = CharLSTM({"chars": 12}, dim=6, char_dim=4), words(2, 5, 6)
    assert torch.allclose(embedding(F.pad(chars, (0, 9))), embedding(chars), atol=1e-6)
    leaking = embedding(torch.where(chars == 0, 5, chars))  # padding that is read as characters
    assert (leaking - embedding(chars)).abs().max() > 1e-3


def test_a_word_without_characters_is_zero() -> None:
    made = CharLSTM({"chars": 12}, dim=6, char_dim=4)(torch.tensor([[WORD, [0] * 5]]))
    assert made[0, 0].all()
    assert not made[0, 1].any()


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 6, 3), (4, 9, 20)])
def test_the_graph_gives_the_same_vectors(pair: tuple[CharLSTM, Graph], shape: tuple[int, int, int]) -> None:
    embedding, graph = pair
    chars = words(*shape)
    assert np.abs(graph(chars=chars)["x"] - embedding(chars).numpy()).max() < 1e-6
    assert graph.operators.count("LSTM") == 1
    assert not {"Scan", "Loop"} & {*graph.operators}


def test_every_weight_learns_and_padding_does_not() -> None:
    embedding = CharLSTM({"chars": 12}, dim=6, char_dim=4)
    embedding(words(4, 9, 7)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in embedding.parameters())
    assert embedding.chars.weight.grad is not None
    assert not embedding.chars.weight.grad[0].any()


def test_a_repeated_word_is_read_once() -> None:
    embedding, read = CharLSTM({"chars": 12}, dim=6, char_dim=4), []
    embedding.chars.register_forward_hook(lambda _, given, __: read.append(len(given[0])))
    made = embedding(torch.tensor([WORD, [2, 2, 0, 0, 0]]).repeat(3, 10, 1))
    assert sum(read) == 2
    assert torch.equal(made[:, 0], made[:, 8])


def test_its_feature_is_char_cnn_s_so_both_may_stand_in_one_pipeline() -> None:
    assert CharLSTM.features == CharCNN.features


def test_a_width_that_the_directions_cannot_share_is_refused() -> None:
    with pytest.raises(UsageError, match=r"char-lstm\.dim: 7 is odd, .* use 8"):
        CharLSTM({"chars": 12}, dim=7)


def test_everything_is_made_where_the_input_is() -> None:
    embedding, chars = CharLSTM({"chars": 12}, dim=6, char_dim=4), words(2, 3, 4)
    with elsewhere():
        assert embedding(chars).device.type == "cpu"
