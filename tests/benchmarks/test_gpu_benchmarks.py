"""Benchmarks for a GPU on the CPU: each goes through all of its steps, and steps of training make no host wait."""

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from repository_scripts import ROOT, benchmark_script
from shipped_pipelines import small
from tiny_pipelines import tiers
from torch import Tensor

pytestmark = pytest.mark.nightly("benchmarks/cuda*.py", "benchmarks/stage_waits.py", "tests/benchmarks/*")
stage_waits = benchmark_script("stage_waits")


def run(folder: Path, *arguments: object) -> tuple[int, dict[str, dict[str, object]]]:
    script = [sys.executable, str(ROOT / "benchmarks" / "cuda.py")]
    options = ["--texts", "9", "--out", str(folder / "cuda.json")]
    done = subprocess.run([*script, *map(str, arguments), *options], cwd=folder, capture_output=True, check=False)
    return done.returncode, json.loads((folder / "cuda.json").read_text(encoding="utf-8"))["bundles"]


def test_a_dry_run_on_the_cpu_goes_on_behind_a_bundle_that_fails(
    tiny_bundle: Path, slow_bundle: Path, tmp_path: Path
) -> None:
    code, results = run(tmp_path, tiny_bundle, slow_bundle, "--device", "cpu")
    assert code == 0
    for result in results.values():
        assert (result["device"], result["golden_wrong"], result["answers"]) == ("cpu", [], 9)
        assert result["answers_differ"] == result["nodes_on_cpu_within_loops"] == 0
    assert list(results[str(tiny_bundle)]["placement"]) == ["CPU"]  # type: ignore[call-overload]
    assert "CPU within loops" in results[str(slow_bundle)]["placement"]  # type: ignore[operator]
    code, results = run(tmp_path, tmp_path, tiny_bundle, "--device", "cpu")
    assert code == 1
    assert str(results[str(tmp_path)]["error"]).startswith("BundleError: ")
    assert results[str(tiny_bundle)]["answers_differ"] == 0


@pytest.mark.parametrize("names", tiers(["ner"], ["ner", "intent-bert", "dates", "gpt"]))
def test_a_step_of_a_dry_run_makes_no_wait_and_a_report_does(
    names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--set", "train.accumulate=2", "--set", "train.average=0.9"]
    benchmark_script("cuda_training").main([*names, "--device", "cpu", "--dry", *settings])
    rows = dict(line.split(" ", 1) for line in capsys.readouterr().out.splitlines())
    assert [*rows] == names
    for cells in map(ast.literal_eval, rows.values()):
        assert cells["waits a step"] == "0.0"
        assert 2 <= int(cells["waits a report"]) <= 4  # one for all losses, one for the norms of each measured step
        assert int(cells["kernels a step, counted"].replace(",", "")) > 100


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
