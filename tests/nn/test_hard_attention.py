"""Attention to one position against soft attention with the same weights, enumeration, and its graph."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from exported_graphs import export, ragged_mask
from torch import Tensor

from seqpipe.nn.attention import Attention, AttentionScore, GradientEstimator, HardAttention, ProjectedKeys, first

SCORES: tuple[AttentionScore, ...] = get_args(AttentionScore)
ESTIMATORS: tuple[GradientEstimator, ...] = get_args(GradientEstimator)
D = 6


def both(score: AttentionScore, trained: GradientEstimator = "straight-through") -> tuple[HardAttention, Attention]:
    """Hard and soft attention with the same weights, large enough to tell positions apart."""
    torch.manual_seed(0)
    hard, soft = HardAttention(D, D, trained=trained, score=score, units=5), Attention(D, D, score=score, units=5)
    with torch.no_grad():
        for parameter in hard.parameters():
            parameter.mul_(3)
    soft.load_state_dict({name: value for name, value in hard.state_dict().items() if name != "average"})
    return hard.eval(), soft.eval()


def texts(*lengths: int, queries: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    mask = ragged_mask(*lengths)
    keys = torch.randn(*mask.shape, D).masked_fill(~mask[..., None], float("nan"))
    return torch.randn(len(mask), queries, D), keys, mask


def attended(attention: Attention, query: Tensor, keys: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return attention.attend(query, attention.project(keys, mask), mask)


@pytest.mark.parametrize("score", SCORES)
def test_it_looks_where_soft_attention_looks_most_and_nowhere_else(score: AttentionScore) -> None:
    hard, soft = both(score)
    query, keys, mask = texts(4, 7, 1, queries=20)
    with torch.no_grad():
        context, weights = attended(hard, query, keys, mask)
        most = attended(soft, query, keys, mask)[1][:, 0].argmax(2)  # (B, N)
        values = soft.project(keys, mask).values[:, 0]
        expected = torch.stack([soft.output(values[b, most[b]]) for b in range(3)])
    assert torch.equal(weights[:, 0].argmax(2), most)
    assert torch.equal(weights.sum(3), torch.ones(3, 1, 20))
    assert torch.equal(weights.amax(3), torch.ones(3, 1, 20))
    assert torch.allclose(context, expected, atol=1e-6)
    if score != "key-only":  # its weights are the same for all queries
        assert len(most[1].unique()) > 1


def test_of_equal_weights_the_first_counts_and_of_a_row_of_nothing_none() -> None:
    rows = torch.tensor([[0.2, 0.4, 0.4], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0], [0.3, 0.3 + 1e-6, 0.4], [1.0, 0.0, 0.0]])
    assert first(rows).tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]]
    assert first(torch.tensor([[0.2, 0.4, 0.4 + 1e-6]])).tolist() == [[0, 1, 0]]  # a difference that rounding makes


def test_the_graph_looks_at_the_same_position_where_several_are_equal(tmp_path: Path) -> None:
    hard, _ = both("additive")
    axes = {"query": ("b", "n"), "keys": ("b", "t"), "mask": ("b", "t")}

    def call(**given: Tensor) -> dict[str, Tensor]:
        context, weights = attended(hard, **given)
        return {"context": context, "weights": weights}

    def given(lengths: list[int], seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        query, keys, mask = texts(*lengths, queries=5)
        return {"query": query, "keys": keys, "mask": mask}

    graph = export(tmp_path / "hard.onnx", hard, call, axes, **given([7, 3, 5], 0))
    for seed, lengths in enumerate(([40, 23, 1], [1], [17] * 9)):
        one = given(lengths, seed)
        T = max(lengths)
        kinds = torch.randint(3, (len(lengths), T))  # each vector stands at many positions
        one["keys"] = torch.where(one["mask"][..., None], one["keys"][:, :1].nan_to_num() * (1 + kinds)[..., None], 0.0)
        made, expected = graph(**one), call(**one)
        assert np.array_equal(made["weights"], expected["weights"].numpy())
        assert np.abs(made["context"] - expected["context"].numpy()).max() < 1e-5
        chosen = expected["weights"][:, 0].argmax(2)  # (B, N)
        for b in range(len(lengths)):  # the first position with the vector that is looked at
            assert all(kinds[b].tolist().index(kinds[b, t].item()) == t for t in chosen[b].tolist())


@pytest.mark.parametrize("trained", ESTIMATORS)
def test_a_source_without_any_position_has_the_context_zero(trained: GradientEstimator) -> None:
    hard, _ = both("additive", trained)
    query, keys, mask = texts(3, 2)
    mask = mask & torch.tensor([[True], [False]])
    for training in (False, True):
        context, weights = attended(hard.train(training), query, keys, mask)
        assert not context[1].any()
        assert not weights[1].any()


def test_straight_through_it_looks_at_one_and_learns_as_if_it_looked_at_all() -> None:
    hard, soft = both("additive")
    query, keys, mask = texts(5, 3)
    pull = torch.randn(2, 3, D)
    grads = []
    for attention in (hard.train(), soft):
        (attended(attention, query, keys, mask)[0] * pull).sum().backward()
        grads.append({name: p.grad for name, p in attention.named_parameters()})
    assert all(torch.allclose(grads[0][name], grads[1][name], atol=1e-5) for name in grads[1])
    with torch.no_grad():
        trained = attended(hard, query, keys, mask)
        assert all(
            torch.allclose(*pair) for pair in zip(trained, attended(hard.eval(), query, keys, mask), strict=True)
        )


def table() -> tuple[HardAttention, Tensor, ProjectedKeys, Tensor]:
    """An attention whose scores are a query's numbers, which has a parameter for gradients, and many such queries."""
    hard = HardAttention(4, 4, trained="reinforce", score="dot").train()
    scores = torch.tensor([0.3, -0.5, 1.0, 0.1], requires_grad=True)
    eye = torch.eye(4)[None]
    mask = torch.ones(1, 4, dtype=torch.bool)
    return hard, scores, hard.project(eye, mask), mask


def test_positions_are_drawn_as_often_as_their_weights_say_and_half_the_time_the_mean_is_read() -> None:
    hard, scores, projected, mask = table()
    torch.manual_seed(1)
    context, weights = hard.attend(scores.expand(1, 40_000, 4), projected, mask)
    p, drawn = scores.softmax(0), weights[0, 0] < 0
    assert torch.allclose(weights.abs(), p.expand_as(weights))
    rows = drawn.any(1)
    assert rows.float().mean().item() == pytest.approx(0.5, abs=0.01)
    assert torch.equal(drawn.sum(1), rows.long())
    assert torch.allclose(drawn[rows].float().mean(0), p, atol=0.01)
    assert torch.equal(context[0][rows], drawn[rows].float())  # values are the rows of the identity
    assert torch.allclose(context[0][~rows], p.expand(int((~rows).sum()), 4))


@pytest.mark.parametrize("fault", [False, True])
def test_on_average_the_auxiliary_loss_has_the_gradient_of_the_expected_reward_and_the_entropy(fault: bool) -> None:
    hard, scores, projected, mask = table()
    rewards = torch.tensor([-3.0, -1.0, -2.5, -0.2])
    torch.manual_seed(2)
    _, weights = hard.attend(scores.expand(1, 200_000, 4), projected, mask)
    drawn = (weights[0] < 0).float()
    log_p = torch.where(weights[0] < 0, rewards, 0.0).sum(2) + torch.where(drawn.any(2), 0.0, -9.0)
    if fault:  # a mean that was read counts as a position that was drawn
        weights = torch.where(weights.lt(0).any(3, keepdim=True), weights, -weights * torch.eye(4)[0])
    loss = hard.auxiliary_loss(weights[:, 0], log_p, torch.ones_like(log_p, dtype=torch.bool))
    assert loss.item() == 0.0
    (made,) = torch.autograd.grad(loss, scores)
    p = scores.softmax(0)
    (expected,) = torch.autograd.grad(-0.5 * (p @ rewards - 0.01 * (p * p.log()).sum()), scores)
    assert torch.allclose(made, expected, atol=0.01) is not fault


def test_the_baseline_is_the_average_of_rewards_that_decays() -> None:
    hard, scores, projected, mask = table()
    seen = [-4.0, -2.0, -1.0]
    for n, reward in enumerate(seen):
        torch.manual_seed(n)
        _, weights = hard.attend(scores.expand(1, 60, 4), projected, mask)
        real = torch.arange(60)[None] < 40
        loss = hard.auxiliary_loss(weights[:, 0], torch.where(real, reward, 7.0), real)
        shares = np.array([0.9 ** (n - i) for i in range(n + 1)])
        b = float(shares @ np.array(seen[: n + 1]) / shares.sum())
        weights.retain_grad()
        (made,) = torch.autograd.grad(loss, weights)
        drawn = (weights[0, 0] < 0) & real[0, :, None]
        entropy = torch.where(drawn.any(1, keepdim=True), 0.01 * (weights[0, 0].abs().log() + 1), 0.0)
        expected = torch.where(drawn, (b - reward) / weights[0, 0].abs(), 0.0) + entropy
        assert torch.allclose(made[0, 0] * weights[0, 0].sign(), expected / 40, atol=1e-6)


def test_in_evaluation_nothing_is_sampled_and_no_average_changes() -> None:
    hard, _ = both("additive", "reinforce")
    given = texts(5, 3)
    before = {name: tensor.clone() for name, tensor in hard.state_dict().items()}
    first_time, again = attended(hard, *given), attended(hard, *given)
    assert all(torch.equal(*pair) for pair in zip(first_time, again, strict=True))
    assert all(torch.equal(tensor, before[name]) for name, tensor in hard.state_dict().items())
    assert len(torch.stack([attended(hard.train(), *given)[0] for _ in range(8)]).unique(dim=0)) > 1
