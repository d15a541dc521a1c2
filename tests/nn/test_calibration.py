"""Temperatures against a fine search, thresholds against every threshold, the calibration error bin by bin."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from torch import Tensor
from torch.nn import functional as F

from seqpipe.nn import calibration


def drawn(seed: int, sharpness: float) -> tuple[Tensor, Tensor]:
    """Logits (300, 4) that are `sharpness` times too sure, and labels drawn by what would be right."""
    dice = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(300, 4, generator=dice)
    return z * sharpness, torch.multinomial(z.softmax(1), 1, generator=dice)[:, 0]


def searched(loss: Callable[[float], Tensor], count: int) -> float:
    """The temperature of the least loss, with its prior, of a fine search."""
    grid = np.geomspace(0.05, 20, 5_000)
    return float(grid[int(np.argmin([count * loss(t).item() + np.log(t) ** 2 / 2 for t in grid]))])


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
def test_the_softmaxs_temperature_is_the_likeliest_of_a_fine_search(sharpness: float) -> None:
    z, label = drawn(1, sharpness)
    found = calibration.softmax_temperature(z, label)
    assert found == pytest.approx(searched(lambda t: F.cross_entropy(z.double() / t, label), 300), rel=2e-3)
    assert found == pytest.approx(sharpness, rel=0.2)


def test_the_sigmoids_temperature_is_the_likeliest_of_a_fine_search() -> None:
    dice = torch.Generator().manual_seed(2)
    z = 2 * torch.randn(200, 3, generator=dice)
    labels = torch.bernoulli(z.sigmoid(), generator=dice)
    bce = partial(F.binary_cross_entropy_with_logits, target=labels.double())
    expected = searched(lambda t: bce(3 * z.double() / t), 600)
    assert calibration.sigmoid_temperature(3 * z, labels) == pytest.approx(expected, rel=2e-3)


def test_few_texts_that_are_all_right_or_all_wrong_move_the_temperature_little() -> None:
    z = torch.tensor([[2.0, 0.0], [3.0, 0.0]])
    assert 0.7 < calibration.softmax_temperature(z, torch.tensor([0, 0])) < 1
    assert 1 < calibration.softmax_temperature(z, torch.tensor([1, 1])) < 5
    assert calibration.softmax_temperature(z[:0], torch.tensor([], dtype=torch.long)) == pytest.approx(1.0)
    many = z.repeat(20_000, 1)
    assert calibration.softmax_temperature(many, torch.zeros(40_000, dtype=torch.long)) < 0.3
    assert calibration.softmax_temperature(many, torch.ones(40_000, dtype=torch.long)) == pytest.approx(20, rel=1e-3)


@pytest.mark.parametrize("sharpness", [0.1, 0.3, 1.0, 1.7, 10.0])
def test_the_temperature_of_losses_on_a_grid_is_close_to_that_of_a_fine_search(sharpness: float) -> None:
    z, label = drawn(3, sharpness)
    losses = [F.cross_entropy(z / t, label, reduction="none") for t in calibration.GRID]
    found = calibration.grid_temperature(torch.stack(losses, 1))
    expected = calibration.softmax_temperature(z, label)
    assert found == pytest.approx(min(max(expected, calibration.GRID[0]), calibration.GRID[-1]), rel=0.03)


@pytest.mark.parametrize("seed", range(20))
def test_no_threshold_gives_a_greater_f1(seed: int) -> None:
    dice = np.random.default_rng(seed)
    p, right = dice.random(30).round(1 + seed % 2), dice.random(30) < 0.4  # with equal numbers among them
    found = calibration.f1_threshold(torch.from_numpy(p), torch.from_numpy(right))
    assert found is not None
    best = max(f1_score(right, p >= t, zero_division=0) for t in [*p, 1.1])
    assert f1_score(right, p >= found) == pytest.approx(best)


def test_where_nothing_is_right_no_threshold_is_chosen() -> None:
    assert calibration.f1_threshold(torch.tensor([0.2, 0.9]), torch.tensor([False, False])) is None


@pytest.mark.parametrize("seed", range(20))
def test_no_threshold_refuses_better(seed: int) -> None:
    dice = np.random.default_rng(seed)
    p, outside = dice.random(30).round(1 + seed % 2), dice.random(30) < 0.3
    right = ~outside & (dice.random(30) < p)
    found = calibration.refusal_threshold(*map(torch.from_numpy, (p, right, outside)))

    def accuracy(threshold: float) -> float:
        return float(accuracy_score(np.ones(30), np.where(p < threshold, outside, right)))

    assert accuracy(found) == pytest.approx(max(map(accuracy, [*p, 1.1])))


def test_of_equally_good_thresholds_the_one_that_refuses_least_is_chosen() -> None:
    p, right, outside = torch.tensor([0.9, 0.6, 0.2]), torch.tensor([True, False, False]), torch.zeros(3).bool()
    assert calibration.refusal_threshold(p, right, outside) == pytest.approx(0.1)


def test_the_calibration_error_is_summed_over_bins() -> None:
    dice = np.random.default_rng(3)
    p = np.append(dice.random(500), [0.0, 1.0])
    right = dice.random(502) < p**2
    expected = 0.0
    for low in range(15):
        inside = (p > low / 15) & (p <= (low + 1) / 15) | ((p == 0) & (low == 0))
        if inside.any():
            expected += inside.sum() / len(p) * abs(right[inside].mean() - p[inside].mean())
    found = calibration.calibration_error(torch.from_numpy(p), torch.from_numpy(right))
    assert found == pytest.approx(expected, abs=1e-9)
    assert calibration.calibration_error(torch.zeros(0), torch.zeros(0).bool()) == 0.0
