"""The stages of a training step make no host wait on a GPU, counted by benchmarks/stage_waits.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_benchmarks import ROOT, script
from test_pipelines import small
from torch import Tensor

stage_waits = script("stage_waits")
ONE_WAIT: dict[str, Callable[[Tensor], object]] = {
    "a number": lambda x: float(x.sum()),
    "a condition": lambda x: 1 if (x > 1).any() else 0,
    "a list": lambda x: x.tolist(),
    "a copy": lambda x: x.cpu(),
    "a mask as index": lambda x: x[x > 1],
    "distinct values": torch.unique,
    "numbers of the host": lambda x: torch.zeros(2).to(x.device),
}


@pytest.mark.parametrize("name", ONE_WAIT)
def test_each_kind_of_wait_is_counted(name: str) -> None:
    with stage_waits.HostWaits() as waits:
        ONE_WAIT[name](stage_waits.DeviceTensor(torch.arange(4.0)))
    assert waits.counts.total() == 1


def test_the_gradient_of_a_selection_waits_too() -> None:
    x = stage_waits.DeviceTensor(torch.arange(4.0)).requires_grad_()
    with stage_waits.HostWaits() as waits:
        (x[x > 1] * 2).sum().backward()
    assert waits.counts == {"nonzero": 2}
    assert x.grad.values.tolist() == [0, 0, 2, 2]


@pytest.mark.parametrize("name", ["ner", "dates", "gpt", "intent-bert"])
def test_a_step_makes_no_host_wait_and_has_the_loss_of_the_cpu(name: str, tmp_path: Path) -> None:
    file = ROOT / "pipelines" / f"{name}.yaml"
    counts = stage_waits.count_step(file, small(file, tmp_path))
    assert not counts.waits
    assert counts.losses[1] == pytest.approx(counts.losses[0], rel=1e-5)
