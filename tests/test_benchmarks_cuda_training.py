"""The benchmark of training on a GPU runs on the CPU, and host_waits.py counts each way to wait for a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from factory import tiers
from test_benchmarks import script
from torch import Tensor

HostWaits = script("host_waits").HostWaits


def fill(x: Tensor, mask: Tensor) -> None:
    x[mask] = 1.0


WAITS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "a number": lambda x, mask: float(x.sum()),
    "a condition": lambda x, mask: 1 if mask.any() else 0,
    "a list": lambda x, mask: x.tolist(),
    "a copy": lambda x, mask: x.cpu(),
    "a copy by name": lambda x, mask: x.to("cpu"),
    "an array": lambda x, mask: x.numpy(),
    "a mask as index": lambda x, mask: x[mask],
    "places": lambda x, mask: torch.where(mask),
    "repeats": lambda x, mask: torch.repeat_interleave(mask.long()),
    "numbers of the host": lambda x, mask: torch.tensor([1, 2], device=x.device),
}
NONE: dict[str, Callable[[Tensor, Tensor], object]] = {
    "arithmetic": lambda x, mask: (x * 2 + 1).masked_fill(mask, 0.0),
    "numbers as index": lambda x, mask: x[torch.arange(2)],
    "a mask that is filled": fill,
    "a shape": lambda x, mask: x.new_zeros(len(x)),
    "the same device": lambda x, mask: x.to(mask.device),
}


@pytest.mark.parametrize("name", [*WAITS, *NONE])
def test_each_way_to_wait_is_counted_with_its_line_and_nothing_else(name: str) -> None:
    x, mask = torch.arange(3.0), torch.tensor([True, False, True])
    with HostWaits() as waits:
        (WAITS | NONE)[name](x, mask)
    assert waits.waits.total() == (name in WAITS)
    assert all("test_benchmarks_cuda_training.py:" in place for _, place in waits.waits)


def test_waits_of_gradients_are_counted_too() -> None:
    x, mask = torch.ones(3, requires_grad=True), torch.tensor([True, False, True])
    with HostWaits() as waits:
        x[mask].sum().backward()
    assert [operator for operator, _ in waits.waits] == ["index", "index_put"]
    assert waits.operators["sum"] == 1


@pytest.mark.parametrize("names", tiers(["ner", "gpt"], ["ner", "intent-bert", "dates", "gpt"]))
def test_a_dry_run_on_the_cpu_counts_no_wait_of_the_training_loop(
    names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    script("cuda_training").main(["--device", "cpu", "--dry", *names])
    printed = capsys.readouterr().out
    rows = re.findall(r"^(\S+) \{'tokens/s': '[\d,]+', 'batches not ahead': '[\d,]+', 'waits a step': ", printed, re.M)
    assert rows == names
    # Of a mask as index in a stage, the gradient waits too.
    assert [*re.findall(r"waits a step: (\S+) at training/", printed)] == ["index_put"] * printed.count(
        " index_put at "
    )
