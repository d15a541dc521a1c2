"""`seqpipe gradients`: the gradient of a plain recurrent network vanishes, that of gated cells far less."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from seqpipe.commands.gradient_chart import chart
from seqpipe.training.optim import gradient_profile


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_far_less_gradient_reaches_the_first_step_of_an_rnn_than_of_gated_cells(seed: int) -> None:
    first = {
        cell: gradient_profile(cell, length=40, hidden=32, steps=0, seed=seed).shares[0]
        for cell in ("rnn", "lstm", "gru")
    }
    assert first["rnn"] < 0.01 * min(first["lstm"], first["gru"])


def test_the_gradient_of_an_untrained_rnn_falls_with_the_distance_from_the_loss() -> None:
    shares = gradient_profile("rnn", length=40, hidden=32, steps=0, seed=1).shares
    assert math.isclose(sum(shares), 1)
    assert shares[0] < shares[20] < shares[39]


def test_the_command_draws_one_curve_a_cell_and_prints_the_same_numbers(tmp_path: Path) -> None:
    output = tmp_path / "gradients.svg"
    command = [
        sys.executable,
        "-m",
        "seqpipe",
        "gradients",
        "--length",
        "12",
        "--steps",
        "2",
        "-o",
        str(output),
        "--json",
    ]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert list(result) == ["rnn", "lstm", "gru"]
    assert all(len(profile["norms"]) == 12 for profile in result.values())
    assert len(ElementTree.parse(output).getroot().findall("{http://www.w3.org/2000/svg}polyline")) == 3


def test_a_larger_value_is_drawn_higher() -> None:
    root = ElementTree.fromstring(chart("title", {"small": [1e-6, 0.1], "large": [1e-2, 0.2]}))
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    small, large = (float(line.attrib["points"].split()[0].split(",")[1]) for line in lines)
    assert large < small


def test_another_extension_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "seqpipe", "gradients", "-o", str(tmp_path / "gradients.png")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert ".svg" in run.stderr


def test_without_pytorch_the_command_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "seqpipe", "gradients"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 7
    assert "seqpipe-nlp[train]" in run.stderr
    assert "Traceback" not in run.stderr
