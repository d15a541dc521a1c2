"""The benchmark of training on a GPU runs on the CPU: whole steps make no host wait on a pretended device."""

from __future__ import annotations

import ast

import pytest
from factory import tiers
from test_benchmarks import script


@pytest.mark.parametrize("names", tiers(["ner"], ["ner", "intent-bert", "dates", "gpt"]))
def test_a_step_of_a_dry_run_makes_no_wait_and_a_report_does(
    names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--set", "train.accumulate=2", "--set", "train.average=0.9"]
    script("cuda_training").main([*names, "--device", "cpu", "--dry", *settings])
    rows = dict(line.split(" ", 1) for line in capsys.readouterr().out.splitlines())
    assert [*rows] == names
    for cells in map(ast.literal_eval, rows.values()):
        assert cells["waits a step"] == "0.0"
        assert 2 <= int(cells["waits a report"]) <= 4  # one for all losses, one for the norms of each measured step
        assert int(cells["kernels a step, counted"].replace(",", "")) > 100
