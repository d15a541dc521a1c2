from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoder_equations import assert_rows, outputs
from exported_graphs import ragged_mask
from numpy_cells import Array
from torch import nn

from seqpipe_plugins.encoders.conv import Conv

OPTIONS: list[tuple[dict[str, Any], bool]] = [  # and whether the graph is compared too
    ({}, False),
    ({"gated": True}, True),
    ({"dilated": False, "residual": False, "width": 4}, False),
    ({"hidden": 6, "width": 2, "gated": True, "residual": False}, True),
    ({"causal": True, "iterations": 2}, True),
    ({"causal": True, "gated": True, "hidden": 4}, False),
]


def numbers(module: nn.Module) -> list[Array]:
    return [p.detach().double().numpy() for p in module.parameters()]


def expected(encoder: Conv, row: Array, options: dict[str, Any]) -> Array:
    """Token by token, layer by layer: (T, D) -> (T, D')."""
    width, T = options.get("width", 3), len(row)
    if "hidden" in options:
        W, b = numbers(encoder.input)
        row = row @ W.T + b
    first = -(width - 1) if options.get("causal") else -((width - 1) // 2)
    for _ in range(options.get("iterations", 1)):
        for depth, layer in enumerate(encoder.layers):
            W, b = numbers(layer)  # (D' or 2 D', D', width)
            step = 2**depth if options.get("dilated", True) else 1
            maps = np.zeros((T, len(b))) + b
            for t in range(T):
                for k in range(width):
                    place = t + (first + k) * step
                    if 0 <= place < T:
                        maps[t] += W[:, :, k] @ row[place]
            if options.get("gated"):
                a, gate = np.split(maps, 2, 1)
                maps = a / (1 + np.exp(-gate))
            else:
                maps = np.maximum(maps, 0)
            row = row + maps if options.get("residual", True) else maps
    return row


@pytest.mark.parametrize(("options", "in_graph"), OPTIONS)
def test_layers_follow_the_equation_with_zeros_around(options: dict[str, Any], in_graph: bool, tmp_path: Path) -> None:
    encoder = Conv(5, layers=3, **options).eval()
    for x, mask, output in outputs(encoder, tmp_path if in_graph else None):
        assert output["x"].shape[2] == encoder.dim
        assert_rows(output["x"], x, mask, lambda row: expected(encoder, row, options))


@pytest.mark.parametrize(("causal", "reached"), [(False, range(13, 28)), (True, range(20, 35))])
def test_dilated_layers_see_twice_as_far_each(causal: bool, reached: range) -> None:
    encoder, x, mask = Conv(5, layers=3, causal=causal, gated=True).eval(), torch.randn(1, 41, 5), ragged_mask(41)
    changed = (encoder(x, mask) != encoder(x.index_fill(1, torch.tensor(20), 2.0), mask)).any(2)[0]
    assert changed.nonzero()[:, 0].tolist() == [*reached]
