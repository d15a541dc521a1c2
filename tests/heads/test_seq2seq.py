from __future__ import annotations

import numpy as np
import pytest
import torch
from nn.exported import Graph, elsewhere, export
from torch import Tensor
from torch.nn import functional as F

from seqpipe.nn.search import BOS, EOS, PAD
from seqpipe_plugins.heads.seq2seq import Seq2Seq

WORDS = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", *"abcdefghijklmnop"]
AXES = {"state": ("b",), "beams": ("k",), "n_best": ("n",), "longest": ("t",), "alpha": ()}


def writer(seed: int = 3, ending: float = 1.0) -> Seq2Seq:
    """An untrained head that writes various texts and ends some of them."""
    torch.manual_seed(seed)
    head = Seq2Seq(5, WORDS, hidden=12, embedding_dim=7, layers=2).eval()
    with torch.no_grad():
        head.output.weight.mul_(8)
        head.embedding.weight.mul_(3)
        head.output.bias[EOS] += ending
    return head


def decided(
    head: Seq2Seq, state: Tensor, beams: Tensor, n_best: Tensor, longest: Tensor, alpha: Tensor
) -> dict[str, Tensor]:
    sizes = {"beams": beams.shape[0], "n_best": n_best.shape[0], "longest": longest.shape[0]}
    return head.decide(state, **sizes, length_penalty=alpha)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Seq2Seq, Graph]:
    head, path = writer(), tmp_path_factory.mktemp("seq2seq") / "seq2seq.onnx"
    sizes = {"beams": torch.zeros(4), "n_best": torch.zeros(3), "longest": torch.zeros(7), "alpha": torch.tensor(0.5)}
    return head, export(path, head, lambda **given: decided(head, **given), AXES, state=torch.randn(6, 5), **sizes)


@pytest.mark.parametrize(
    ("rows", "beams", "n_best", "longest", "alpha"),
    [
        (1, 1, 1, 1, 0.0),
        (30, 1, 1, 25, 0.0),
        (20, 5, 5, 25, 0.0),
        (20, 4, 2, 30, 0.8),
        (3, 30, 25, 6, 0.3),
        (2, 2, 6, 9, 0.0),
    ],
)
def test_the_graph_writes_the_same_texts(
    pair: tuple[Seq2Seq, Graph], rows: int, beams: int, n_best: int, longest: int, alpha: float
) -> None:
    head, graph = pair
    given = {
        "state": torch.randn(rows, 5),
        "beams": torch.zeros(beams),
        "n_best": torch.zeros(n_best),
        "longest": torch.zeros(longest),
        "alpha": torch.tensor(alpha),
    }
    made, expected = graph(**given), decided(head, **given)
    assert made["tokens"].shape == (rows, min(n_best, beams), longest)
    assert np.array_equal(made["tokens"], expected["tokens"].numpy())
    assert np.abs(made["scores"] - expected["scores"].numpy()).max() < 1e-4
    if rows == 30:  # the texts vary, or the comparison proves nothing
        assert len({tuple(row) for row in made["tokens"][:, 0].tolist()}) > 20
        assert len(np.unique(made["tokens"])) > 12
        assert made["tokens"][:, 0, 15:].any()


def test_a_graph_that_is_given_another_state_writes_other_texts(pair: tuple[Seq2Seq, Graph]) -> None:
    head, graph = pair
    state, rest = torch.randn(10, 5), dict.fromkeys(("beams", "n_best"), torch.zeros(1))
    rest |= {"longest": torch.zeros(12), "alpha": torch.tensor(0.0)}
    made = graph(state=state.flip(0), **rest)
    assert (made["tokens"] != decided(head, state, **rest)["tokens"].numpy()).any()


def test_the_scores_of_a_decision_are_those_of_teacher_forcing() -> None:
    head, state = writer(), torch.randn(20, 5)
    made = head.decide(state, beams=3, n_best=3, longest=15)
    for k in range(3):
        assert torch.allclose(head.score(state, made["tokens"][:, k : k + 1]), made["scores"][:, k], atol=1e-4)
    ended = (made["tokens"][:, 0] == EOS).any(1)
    assert ended.any()
    assert not ended.all()  # a text that reaches the longest counts without its end


def test_the_loss_is_the_mean_log_probability_of_true_tokens() -> None:
    head, state = writer(), torch.randn(2, 5)
    target = torch.tensor([[5, 9, 4, EOS], [7, EOS, PAD, PAD]])
    loss = head.loss(state, target, target != PAD)
    assert loss.item() == pytest.approx(-head.score(state, target[:, None]).sum().item() / 6, abs=1e-5)
    garbage = torch.where(target == PAD, 11, target)
    assert torch.equal(head.loss(state, garbage, target != PAD), loss)
    assert not torch.equal(head.loss(state, garbage, garbage != PAD), loss)


def test_the_loss_reaches_every_weight() -> None:
    head = Seq2Seq(5, WORDS, hidden=6, embedding_dim=4, layers=2, dropout=0.3)
    target = torch.tensor([[5, 9, 4, EOS], [7, 6, EOS, PAD]])
    head.loss(torch.randn(2, 5), target, target != PAD).backward()
    assert all(p.grad is not None and p.grad.any() for p in head.parameters())


def test_padding_and_beginnings_are_never_written() -> None:
    head, state = writer(ending=-50), torch.randn(30, 5)
    with torch.no_grad():
        head.output.bias[[PAD, BOS]] += 100
        tokens = head.decide(state, beams=3, n_best=3, longest=10)["tokens"]
    assert not torch.isin(tokens, torch.tensor([PAD, BOS])).any()


def test_everything_is_made_where_the_input_is() -> None:
    head, state, target = writer(), torch.randn(2, 5), torch.tensor([[5, EOS], [7, EOS]])
    with elsewhere():
        made = head.decide(state, beams=3, n_best=2, longest=5, length_penalty=0.5)
        head.loss(state, target, target != PAD).backward()
    assert {rows.device.type for rows in made.values()} == {"cpu"}


def test_a_text_can_be_learned() -> None:
    head, states = Seq2Seq(5, WORDS, hidden=24, embedding_dim=8), torch.eye(5)[:2]
    target = torch.tensor([[5, 9, 4, EOS], [7, EOS, PAD, PAD]])
    optimizer = torch.optim.Adam(head.parameters(), 0.02)
    for _ in range(80):
        optimizer.zero_grad()
        head.loss(states, target, target != PAD).backward()
        optimizer.step()
    made = head.decide(states, beams=2, longest=6)
    assert torch.equal(made["tokens"][:, 0], F.pad(target, (0, 2)))
