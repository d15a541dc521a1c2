"""The head of a number: its line, bounds and losses against NumPy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_graphs import AXES, export, ragged_mask
from torch.nn import functional as F

from seqpipe.errors import UsageError
from seqpipe_plugins.heads.score import ScoreHead

X, MASK = torch.randn(5, 4, 6, generator=torch.Generator().manual_seed(1)), ragged_mask(4, 2, 1, 3, 4)
POOLED = np.array([row[real].mean(0) for row, real in zip(X.double().numpy(), MASK.numpy(), strict=True)])
GOLD = torch.tensor([70.0, 55, 81, 64, 90])


def build(**options: Any) -> ScoreHead:
    torch.manual_seed(1)
    return ScoreHead(6, pool="mean", **options)


def line(head: ScoreHead) -> np.ndarray:
    """w · h + b, (B,), in double precision."""
    weight, bias = (p.detach().double().numpy() for p in (head.output.weight, head.output.bias))
    return np.asarray((POOLED @ weight.T + bias)[:, 0])


def test_before_training_it_is_the_linear_layer_and_after_on_the_line_of_the_targets(tmp_path: Path) -> None:
    head = build()
    assert np.abs(head.decide(X, MASK)["score"].detach().numpy() - line(head)).max() < 1e-6
    head.train().loss(X, MASK, GOLD)
    gold = GOLD.double().numpy()
    expected = gold.mean() + gold.std() * line(head)
    graph = export(tmp_path / "score.onnx", head, head.decide, AXES, x=X[:3], mask=ragged_mask(4, 2, 3))
    assert np.abs(head.decide(X, MASK)["score"].numpy() - expected).max() < 1e-4  # of 90
    assert np.abs(graph(x=X.masked_fill(~MASK[..., None], float("nan")), mask=MASK)["score"] - expected).max() < 1e-4


def test_mean_and_deviation_are_those_of_all_targets_seen_whatever_the_batches() -> None:
    head, gold = build().train(), 1e4 + torch.randn(40, generator=torch.Generator().manual_seed(2))
    for rows in gold.split([1, 7, 2, 30]):
        head.loss(X[:1].expand(len(rows), -1, -1), MASK[:1].expand(len(rows), -1), rows)
    exact = gold.double().numpy()
    assert head.line.numpy() == pytest.approx([exact.mean(), exact.std()], rel=1e-6)
    before = head.line.clone()
    head.eval().loss(X, MASK, GOLD)
    assert torch.equal(head.line, before)


@pytest.mark.parametrize("value", [0.1, 0.0])
def test_targets_that_are_all_equal_have_no_deviation_to_divide_by(value: float) -> None:
    head = build().train()
    assert torch.isfinite(head.loss(X, MASK, torch.full((5,), value)))
    assert head.line.tolist() == pytest.approx([value, 1.0])


@pytest.mark.parametrize(
    ("loss", "oracle"),
    [
        ("mse", lambda e: (e**2).mean()),
        ("mae", lambda e: np.abs(e).mean()),
        ("huber", lambda e: np.where(np.abs(e) < 1, e**2 / 2, np.abs(e) - 0.5).mean()),
    ],
)
def test_the_loss_is_of_the_error_in_deviations(loss: Any, oracle: Any) -> None:
    head, gold = build(loss=loss).train(), GOLD.double().numpy()
    expected = oracle(line(head) - (gold - gold.mean()) / gold.std())
    assert head.loss(X, MASK, GOLD).item() == pytest.approx(expected, abs=1e-5)


def test_bounds_are_kept_and_the_error_is_a_share_of_their_distance() -> None:
    head = build(bounds=[50.0, 100.0], loss="mae").train()
    sigmoid = 1 / (1 + np.exp(-line(head)))
    assert head.loss(X, MASK, GOLD).item() == pytest.approx(np.abs(sigmoid - (GOLD.numpy() - 50) / 50).mean(), abs=1e-6)
    assert np.abs(head.decide(X, MASK)["score"].detach().numpy() - (50 + 50 * sigmoid)).max() < 1e-4
    with torch.no_grad():
        head.output.weight.mul_(1e6)
    assert {50.0, 100.0} == set(head.decide(X, MASK)["score"].tolist())
    with pytest.raises(UsageError, match=r"score\.bounds: 9 is not below 1; write the lower one first"):
        build(bounds=[9.0, 1.0])


def test_numbers_far_from_zero_are_learned_at_a_usual_rate() -> None:
    head = build().train()
    optimizer = torch.optim.Adam(head.parameters(), 0.05)
    gold = torch.tensor(70 + 10 * POOLED[:, 0] - 5 * POOLED[:, 3]).float()
    for _ in range(300):
        optimizer.zero_grad()
        head.loss(X, MASK, gold).backward()
        optimizer.step()
    assert F.l1_loss(head.eval().decide(X, MASK)["score"], gold) < 0.5
