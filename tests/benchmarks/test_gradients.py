"""benchmarks/gradients.py: the gradient of a plain recurrent network vanishes, that of gated cells far less."""

import math
from xml.etree import ElementTree

import pytest
from repository_scripts import ROOT, benchmark_script

pytestmark = pytest.mark.nightly("benchmarks/gradients.py", "tests/benchmarks/*")

gradients = benchmark_script("gradients")
chart, gradient_profile = gradients.chart, gradients.gradient_profile


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


def test_a_larger_value_is_drawn_higher() -> None:
    root = ElementTree.fromstring(chart("title", {"small": [1e-6, 0.1], "large": [1e-2, 0.2]}))
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    small, large = (float(line.attrib["points"].split()[0].split(",")[1]) for line in lines)
    assert large < small


def test_the_page_on_encoders_shows_a_curve_of_each_cell() -> None:
    root = ElementTree.parse(ROOT / "docs" / "tasks" / "gradients.svg").getroot()
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 3
